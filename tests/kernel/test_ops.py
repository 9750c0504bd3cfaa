"""Ops, one table a kind: what workflow code may wait for, and how groups of them end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streams import App, Cancelled, Context, Fail, Op, OpError, TaskContext, TaskFailed, TimedOut, Withdrawn
from streams.kernel import bodies as ev
from streams.kernel.run import Status
from tests.kernel.harness import SECOND, Harness, failure

app = App("ops")
words = app.signal("words", str)
numbers = app.signal("numbers", int)
mail = app.effect("mail", dict)


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str = "?"


@app.task
async def double(ctx: TaskContext, n: int) -> int:
    return 2 * n


@app.task
async def greet(ctx: TaskContext, name: str, *, polite: bool = False) -> str:
    return f"{'dear ' if polite else ''}{name}"


@app.task
async def explode(ctx: TaskContext, code: str) -> int:
    raise Fail(code, f"{code} happened", {"code": code})


def begin(function: Any, value: Any = None, **options: Any) -> Harness:
    """Start a run of `function`, declared in an app of its own that shares the names above."""
    own = App("ops")
    own.annotations = list(app.annotations)
    own._tasks = app._tasks
    own._signals = app._signals
    own._effects = app._effects
    own.workflow(version=1, name="w")(function)
    harness = Harness(own, **options)
    harness.start("w", value)
    return harness


# -- single ops --------------------------------------------------------------------------------------------------


def test_task() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        return [await ctx.run(double, n), await ctx.run(greet, "ann", polite=True)]

    run = begin(w, 4)
    assert run.status is Status.RUNNING
    assert run.settle().result == [8, "dear ann"]
    (first, second) = run.of(ev.OpScheduled)
    assert (first.op, first.kind, first.name, first.attempt, first.key) == ("1", "task", "double", 1, "r@0/1")
    assert second.op == "2"


def test_task_failure_reaches_the_code_as_data() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        try:
            await ctx.run(explode, "NO_STOCK")
        except TaskFailed as error:
            return [error.code, error.message, error.details]
        return []

    assert begin(w, 1).settle().result == ["NO_STOCK", "NO_STOCK happened", {"code": "NO_STOCK"}]


def test_a_user_s_timed_out_is_a_failed_task_all_the_same() -> None:
    async def w(ctx: Context, n: int) -> str:
        try:
            await ctx.run(explode, "TIMED_OUT")
        except TaskFailed as error:
            return f"task {error.code}"
        return "?"

    assert begin(w, 1).settle().result == "task TIMED_OUT"


def test_an_uncaught_failure_fails_the_run() -> None:
    async def w(ctx: Context, n: int) -> None:
        await ctx.run(explode, "NO_STOCK")

    run = begin(w, 1).settle()
    assert run.status is Status.FAILED
    assert run.run.error is not None
    assert (run.run.error.code, run.run.error.kind) == ("NO_STOCK", "terminal")
    assert run.codec.decode(run.run.error.details) == {"code": "NO_STOCK"}


@pytest.mark.parametrize("message", ["plain", ValueError("an exception as message"), 5])
def test_fail_in_a_workflow(message: Any) -> None:
    async def w(ctx: Context, n: int) -> None:
        raise Fail("NOPE", message, [n])

    run = begin(w, 1)
    assert run.status is Status.FAILED
    assert run.run.error == ev.Failure("terminal", "NOPE", str(message), b"[1]")


def test_results_are_decoded_afresh() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        op = ctx.run(greet, "x")
        question = ctx.interrupt({"n": 1})
        answer = await question
        answer["changed"] = True
        await op
        return [await question, answer]

    run = begin(w, 1)
    run.resume({"a": 1})
    run.evict()
    assert run.settle().result == [{"a": 1}, {"a": 1, "changed": True}]


def test_arguments_are_encoded_at_the_call() -> None:
    async def w(ctx: Context, n: int) -> str:
        name = ["before"]
        op = ctx.run(greet, name[0])
        name[0] = "after"
        return await op

    assert begin(w, 1).settle().result == "before"


def test_an_op_starts_without_await_and_the_run_joins_it() -> None:
    async def w(ctx: Context, n: int) -> str:
        ctx.run(double, n)
        ctx.sleep(100)
        ctx.interrupt("?")
        return "early"

    run = begin(w, 1)
    assert run.status is Status.RUNNING
    run.settle()
    assert run.result == "early"
    assert [body.op for body in run.of(ev.OpWithdrawn)] == ["2", "3"]


def test_a_failure_that_nobody_awaited_fails_the_run() -> None:
    async def w(ctx: Context, n: int) -> str:
        ctx.run(explode, "LATER")
        return "fine"

    run = begin(w, 1).settle()
    assert run.status is Status.FAILED
    assert run.run.error is not None
    assert run.run.error.code == "LATER"


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(5, 5), (0, 0), (-3, 0), (0.25, 0.25), (timedelta(minutes=1), 60), (timedelta(days=3650), 315_360_000)],
)
def test_f20_sleep(delay: Any, seconds: float) -> None:
    async def w(ctx: Context, n: int) -> float:
        before = ctx.now()
        await ctx.sleep(delay)
        return (ctx.now() - before).total_seconds()

    run = begin(w, 1)
    began = run.now
    (timer,) = run.of(ev.OpScheduled)
    assert timer.due == began + seconds * SECOND
    if seconds:
        run.now = timer.due - 1
        assert run.due("1") == []
        run.now = timer.due
    run.evict()
    run.due("1")
    assert run.due("1") == []
    assert run.result == seconds


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_f20_a_sleep_that_is_no_time_blocks(delay: float) -> None:
    async def w(ctx: Context, n: int) -> None:
        await ctx.sleep(delay)

    run = begin(w, 1)
    assert run.blocked == "WORKFLOW_BUG"
    assert "no time span" in run.run.blocked.message  # type: ignore[union-attr]


def test_f20_a_deadline_is_fixed_once_and_overdue_timers_fire_once_in_the_order_given() -> None:
    async def w(ctx: Context, n: int) -> list[int]:
        order: list[int] = []

        async def wait(place: int, seconds: float) -> None:
            await ctx.sleep(seconds)
            order.append(place)

        await ctx.all([ctx.spawn(wait(place, 10 - place)) for place in range(5)])
        return order

    run = begin(w, 1)
    dues = {op.id: op.due for op in run.run.ops.values()}
    for minute in range(9):
        run.now += 60 * SECOND
        run.take_over()
        assert {op.id: op.due for op in run.run.ops.values()} == dues, minute
    for op in sorted(run.run.ops.values(), key=lambda op: op.due or 0):
        run.due(op.id)
    assert run.result == [4, 3, 2, 1, 0]


def test_f20_the_clock_of_a_new_owner_goes_backwards() -> None:
    async def w(ctx: Context, n: int) -> list[str]:
        seen = [ctx.now().isoformat()]
        for _ in range(3):
            await ctx.run(double, 1)
            seen.append(ctx.now().isoformat())
        return seen

    run = begin(w, 1)
    run.done("1", 2)
    run.now -= 3_600 * SECOND
    run.take_over()
    run.due("2")
    run.settle()
    assert run.result == sorted(run.result)


def test_sleep_until() -> None:
    async def w(ctx: Context, n: int) -> None:
        await ctx.sleep_until(datetime(2033, 1, 1, tzinfo=UTC))
        await ctx.sleep_until(datetime(2001, 1, 1, tzinfo=UTC))

    run = begin(w, 1)
    assert run.run.ops["1"].due == int(datetime(2033, 1, 1, tzinfo=UTC).timestamp()) * SECOND
    assert run.settle().status is Status.COMPLETED

    async def naive(ctx: Context, n: int) -> None:
        await ctx.sleep_until(datetime(2033, 1, 1))  # noqa: DTZ001

    assert begin(naive, 1).blocked == "WORKFLOW_BUG"


def test_emit() -> None:
    async def w(ctx: Context, n: int) -> None:
        ctx.emit(mail, {"n": 1})
        ctx.emit(mail, {"n": 2}, idempotency_key="order/7")
        await ctx.sleep(1)
        ctx.emit(mail, {"n": 3})

    run = begin(w, 1).settle()
    effects = run.of(ev.EffectEmitted)
    assert [(e.op, e.key) for e in effects] == [("1", "r@0/1"), ("2", "order/7"), ("4", "r@0/4")]
    assert [run.codec.decode(e.payload) for e in effects] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_undeclared_names_block_and_say_how_to_declare() -> None:
    other = App("other")
    stray = other.signal("stray", int)
    effect = other.effect("stray", int)

    @other.task
    async def strange(ctx: TaskContext) -> int: ...

    async def receives(ctx: Context, n: int) -> None:
        await ctx.receive(stray)

    async def emits(ctx: Context, n: int) -> None:
        with contextlib.suppress(Exception):
            ctx.emit(effect, 1)

    async def runs(ctx: Context, n: int) -> None:
        await ctx.run(strange)

    for function, cure in ((receives, "app.signal"), (emits, "app.effect"), (runs, "another app")):
        run = begin(function, 1)
        assert run.blocked == "WORKFLOW_BUG"
        assert cure in run.run.blocked.message  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "bad", [lambda ctx: ctx.run(double), lambda ctx: ctx.run(double, 1, 2), lambda ctx: ctx.run(5)]
)
def test_a_task_called_wrongly_blocks(bad: Any) -> None:
    async def w(ctx: Context, n: int) -> None:
        await bad(ctx)

    assert begin(w, 1).blocked == "WORKFLOW_BUG"


# -- now, random, uuid -------------------------------------------------------------------------------------------


def test_now_random_and_uuid_are_the_same_at_every_replay_and_differ_across_branches() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        async def draw() -> list[Any]:
            return [ctx.random(), ctx.random(), ctx.uuid()]

        a = await ctx.all(ctx.spawn(draw()), ctx.spawn(draw()))
        await ctx.sleep(1)
        return [*a[0], *a[1], ctx.random(), ctx.uuid()]

    values = []
    for run_id in ("r", "s"):
        run = begin(w, 1, run_id=run_id)
        run.evict()
        run.settle()
        values += run.result
    assert len(set(values)) == len(values) == 16
    assert all(0 <= v < 1 for v in values if isinstance(v, float))
    assert {v.version for v in values if not isinstance(v, float)} == {4}


def test_time_stands_still_between_awaits() -> None:
    async def w(ctx: Context, n: int) -> list[float]:
        a = ctx.now()
        await ctx.run(double, 1)
        b = ctx.now()
        return [(b - a).total_seconds(), (ctx.now() - b).total_seconds()]

    run = begin(w, 1)
    run.now += 7 * SECOND
    run.done("1", 2)
    assert run.result == [7, 0]


# -- interrupts --------------------------------------------------------------------------------------------------


async def three_questions(ctx: Context, n: int) -> list[Any]:
    return await ctx.all([ctx.interrupt({"q": i}) for i in range(3)])


def rejection(run: Harness) -> str:
    body = run.records[-1].body
    assert isinstance(body, ev.CommandRejected)
    return body.code


def test_f08_several_interrupts_are_answered_by_id_in_any_order() -> None:
    run = begin(three_questions, 1)
    assert run.status is Status.WAITING
    run.resume("bare")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    assert "1 (interrupt), 2 (interrupt), 3 (interrupt)" in run.records[-1].body.message  # type: ignore[union-attr]
    run.resume("c", "3")
    run.resume("again", "3")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    run.resume("x", "9")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    run.resume("a", "1")
    run.evict()
    run.resume("b")
    assert run.result == ["a", "b", "c"]


def test_f08_the_payload_is_never_inspected_for_an_address() -> None:
    run = begin(three_questions, 1)
    run.resume({"3": True}, "1")
    run.resume({"f" * 32: True}, "2")
    run.resume("3")
    assert run.result == [{"3": True}, {"f" * 32: True}, "3"]


def test_f08_interrupts_in_a_loop_have_ids_of_their_own() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        return [await ctx.interrupt(f"round {i}") for i in range(3)]

    run = begin(w, 1)
    run.resume("a", command_id="x")
    run.resume("a", command_id="x")  # the client asks again: its first answer must not answer the next question
    assert rejection(run) == "DUPLICATE"
    run.resume("old", "1")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    run.resume("b")
    run.resume("c", "3")
    assert run.result == ["a", "b", "c"]


def test_interrupts_in_branches_and_by_key() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        async def ask(who: str) -> Any:
            return await ctx.interrupt("?", key=who)

        return await ctx.all([ctx.spawn(ask(who)) for who in ("ann", "bob", "bob")])

    run = begin(w, 1)
    assert list(run.run.ops) == ["1/1", "2/1", "3/1"]
    run.resume(1, "ann")
    run.resume(2, "bob")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    assert "by its id" in run.records[-1].body.message  # type: ignore[union-attr]
    run.resume(3, "3/1")
    run.resume(2, "bob")
    assert run.result == [1, 2, 3]


def test_a_typed_answer_is_checked_and_a_bad_one_leaves_the_interrupt_open() -> None:
    async def w(ctx: Context, n: int) -> str:
        decision = await ctx.interrupt("ok?", answer=Decision)
        assert isinstance(decision, Decision)
        return decision.by

    run = begin(w, 1)
    for bad in ("yes", {"approved": "maybe"}, {"approved": True, "extra": 1}, None):
        run.resume(bad)
        assert rejection(run) == "INPUT_INVALID", bad
        assert run.status is Status.WAITING
    run.evict()
    run.resume({"approved": True, "by": "ann"})
    assert run.result == "ann"


def test_an_interrupt_times_out() -> None:
    async def w(ctx: Context, n: int) -> str:
        try:
            await ctx.interrupt("?", timeout=60)
        except TimedOut as error:
            return error.code
        return "answered"

    run = begin(w, 1)
    assert run.due("1") == []
    run.now += 60 * SECOND
    run.due("1")
    assert run.result == "TIMED_OUT"
    run.resume("late")
    assert rejection(run) == "RUN_TERMINAL"


# -- signals -----------------------------------------------------------------------------------------------------


def test_f10_signals_are_kept_in_order_from_before_the_start() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        a = await ctx.receive(words)
        await ctx.sleep(1)
        return [a, await ctx.receive(words), await ctx.receive(numbers), await ctx.receive(words)]

    run = Harness(App("x"))
    own = App("ops")
    own._signals = app._signals
    own.workflow(version=1, name="w")(w)
    run.deploy(own)
    run.signal("words", "one")
    assert run.status is Status.PENDING
    run.signal("numbers", 7)
    run.signal("words", "two")
    run.take_over()
    run.start("w", 1)
    run.signal("words", "three")
    assert run.settle().result == ["one", "two", 7, "three"]
    assert run.types()[0] == "signal.received"


def test_f10_early_input_is_bounded() -> None:
    run = Harness(app)
    for i in range(100):
        run.signal("numbers", i)
    run.signal("numbers", 100)
    assert rejection(run) == "INBOX_FULL"
    assert len(run.run.inbox) == 100


def test_a_signal_is_checked_and_a_repeated_one_known() -> None:
    async def w(ctx: Context, n: int) -> list[int]:
        return [await ctx.receive(numbers), await ctx.receive(numbers)]

    run = begin(w, 1)
    run.signal("numbers", "seven")
    assert rejection(run) == "INPUT_INVALID"
    run.signal("nobody", 1)
    assert rejection(run) == "UNKNOWN_SIGNAL"
    run.signal("numbers", 7, "s1")
    run.signal("numbers", 7, "s1")
    assert rejection(run) == "DUPLICATE"
    run.evict()
    run.signal("numbers", 8, "s2")
    assert run.result == [7, 8]


def test_two_receives_are_served_in_the_order_of_their_creation() -> None:
    async def w(ctx: Context, n: int) -> list[str]:
        return await ctx.all([ctx.receive(words) for _ in range(3)])

    run = begin(w, 1)
    for word in "abc":
        run.signal("words", word)
    assert run.result == ["a", "b", "c"]


def test_unread_signals_do_not_keep_a_run() -> None:
    async def w(ctx: Context, n: int) -> str:
        return await ctx.receive(words)

    run = begin(w, 1)
    run.signal("numbers", 1)
    run.signal("words", "x")
    assert run.result == "x"
    assert run.run.inbox == ()


# -- groups ------------------------------------------------------------------------------------------------------


def test_all_waits_for_all_then_raises_the_first_failure_in_argument_order() -> None:
    async def w(ctx: Context, n: int) -> str:
        try:
            await ctx.all(ctx.run(double, 1), ctx.run(explode, "B"), ctx.run(explode, "C"))
        except TaskFailed as error:
            return error.code
        return "?"

    run = begin(w, 1)
    run.fail("3", failure("C", "terminal"))
    run.fail("2", failure("B", "terminal"))
    assert run.status is Status.RUNNING
    run.evict()
    run.done("1", 2)
    assert run.result == "B"


def test_all_of_nothing_and_of_the_same_op_twice() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        nothing: list[Op[int]] = []
        op = ctx.run(double, n)
        return [await ctx.all(nothing), await ctx.all(op, op), await op, await op]

    assert begin(w, 2).settle().result == [[], (4, 4), 4, 4]


def test_first_withdraws_its_losers() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        ops: list[Op[Any]] = [ctx.sleep(60), ctx.receive(words), ctx.interrupt("?")]
        ops += [ctx.run(double, 1), ctx.run(greet, "x")]
        won = await ctx.first(ops)
        word = await ctx.receive(words)
        return [won.index, won.value, won.op is ops[4], word]

    run = begin(w, 1)
    run.done("5", "dear")
    assert run.open() == {"4": "task", "6": "receive"}
    assert run.run.ops["4"].asked
    run.resume("late", "3")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    run.signal("words", "for the second receive")
    assert run.status is Status.RUNNING
    run.evict()
    run.fail("4", failure("STOPPED", "cancelled"))
    assert run.result == [4, "dear", True, "for the second receive"]


def test_first_gives_the_earliest_in_journal_order_also_among_settled_ops() -> None:
    async def w(ctx: Context, n: int) -> list[int]:
        a, b, c = ctx.run(double, 1), ctx.run(double, 2), ctx.run(double, 3)
        await ctx.receive(words)
        won = await ctx.first([a, b, c])
        nested = await ctx.first(a, ctx.all(b, c))
        return [won.index, nested.index]

    run = begin(w, 1)
    for op in ("3", "2", "1"):
        run.done(op, 0)
    run.signal("words", "go")
    assert run.result == [2, 1]


def test_a_loser_that_has_failed_does_not_fail_the_run() -> None:
    async def w(ctx: Context, n: int) -> int:
        a, b = ctx.run(double, 1), ctx.run(double, 2)
        await ctx.receive(words)
        return (await ctx.first(a, b)).index

    run = begin(w, 1)
    run.done("1", 2)
    run.fail("2", failure("X", "terminal"))
    run.signal("words", "go")
    assert run.result == 0


def test_first_raises_the_winner_s_failure() -> None:
    async def w(ctx: Context, n: int) -> str:
        try:
            await ctx.first(ctx.run(explode, "FAST"), ctx.sleep(10))
        except TaskFailed as error:
            return error.code
        return "?"

    assert begin(w, 1).settle().result == "FAST"


def test_a_losing_branch_cleans_up_and_what_it_waits_for_ends() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        order: list[str] = []

        async def inner() -> None:
            try:
                await ctx.interrupt("inner")
            finally:
                order.append("inner")

        async def outer() -> None:
            child = ctx.spawn(inner())
            try:
                await ctx.all(child, ctx.receive(words))
            finally:
                order.append("outer")
                await ctx.run(greet, "clean-up")

        branch = ctx.spawn(outer())
        await ctx.first(branch, ctx.sleep(5))
        word = await ctx.receive(words)
        return [*order, word]

    run = begin(w, 1)
    assert run.open() == {"2": "timer", "1/1/1": "interrupt", "1/2": "receive"}
    run.now += 5 * SECOND
    run.due("2")
    assert run.open() == {"1/3": "task", "3": "receive"}
    run.evict()
    run.signal("words", "not lost")
    run.done("1/3", "clean")
    assert run.result == ["inner", "outer", "not lost"]


def test_a_task_of_a_losing_branch_is_asked_and_its_outcome_can_be_awaited() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        got: list[Any] = []

        async def pay() -> None:
            op = ctx.run(double, 5)
            try:
                await op
            finally:
                got.append(await op)

        branch = ctx.spawn(pay())
        await ctx.first(branch, ctx.sleep(5))
        await ctx.wait([branch])
        return got

    run = begin(w, 1)
    run.now += 5 * SECOND
    run.due("2")
    assert run.run.ops["1/1"].asked
    run.evict()
    run.done("1/1", 10)
    assert run.result == [10]


@pytest.mark.parametrize("how", ["queued", "backoff", "parked"])
@pytest.mark.parametrize("in_branch", [True, False])
def test_a_loser_that_is_not_running_ends_at_once(how: str, in_branch: bool) -> None:
    async def w(ctx: Context, n: int) -> str:
        async def body() -> int:
            return await ctx.run(double, 5)

        op: Op[Any] = ctx.spawn(body()) if in_branch else ctx.run(double, 5)
        await ctx.first(op, ctx.interrupt("?"))
        try:
            await op
        except Withdrawn as error:
            return error.code
        return "?"

    run = begin(w, 1, slots=0 if how == "queued" else 1)
    op = "1/1" if in_branch else "1"
    if how == "backoff":
        run.fail(op)
    elif how == "parked":
        run.fail(op, failure("VALUE_TOO_LARGE", "terminal"))
    assert run.run.ops[op].phase == how
    run.evict()
    run.resume("stop")
    assert run.result == "WITHDRAWN"


@pytest.mark.parametrize("how", ["queued", "backoff", "parked"])
def test_clean_up_can_await_a_task_of_its_branch_that_was_not_running(how: str) -> None:
    async def w(ctx: Context, n: int) -> list[str]:
        seen: list[str] = []

        async def body() -> None:
            op = ctx.run(double, 5)
            try:
                await op
            except Cancelled:
                try:
                    await op
                except Withdrawn as error:
                    seen.append(error.message)

        branch = ctx.spawn(body())
        await ctx.first(branch, ctx.interrupt("?"))
        await ctx.wait([branch])
        return seen

    run = begin(w, 1, slots=0 if how == "queued" else 1)
    if how != "queued":
        run.fail("1/1", failure("VALUE_TOO_LARGE", "terminal") if how == "parked" else None)
    run.evict()
    run.resume("stop")
    assert run.result == ["it was withdrawn while no attempt was running"]


def test_a_task_that_stops_because_its_branch_lost_does_not_fail_the_run() -> None:
    async def w(ctx: Context, n: int) -> str:
        async def body() -> None:
            await ctx.run(double, 5)

        await ctx.first(ctx.spawn(body()), ctx.interrupt("?"))
        return "fine"

    run = begin(w, 1)
    run.resume("stop")
    run.fail("1/1", failure("STOPPED", "cancelled"))
    assert run.result == "fine"


def test_a_failing_clean_up_of_a_loser_does_not_vanish() -> None:
    async def w(ctx: Context, n: int) -> str:
        async def body() -> None:
            try:
                await ctx.sleep(100)
            finally:
                raise Fail("CLEAN_UP", "cannot release")

        await ctx.first(ctx.spawn(body()), ctx.interrupt("?"))
        return "fine"

    run = begin(w, 1)
    run.resume(1)
    assert run.status is Status.FAILED
    assert run.run.error is not None
    assert run.run.error.code == "CLEAN_UP"


def test_nested_groups_are_withdrawn_with_all_that_hangs_on_them() -> None:
    async def w(ctx: Context, n: int) -> int:
        deep = ctx.first(ctx.all(ctx.sleep(50), ctx.interrupt("?")), ctx.timeout(ctx.receive(words), 70))
        won = await ctx.first(deep, ctx.run(double, n))
        return won.index

    run = begin(w, 1)
    assert len(run.run.ops) == 5
    run.done("5", 2)
    assert run.result == 1


def test_cancelling_an_op_twice_throws_once() -> None:
    async def w(ctx: Context, n: int) -> list[str]:
        seen: list[str] = []

        async def body() -> None:
            try:
                await ctx.sleep(100)
            finally:
                seen.append("clean-up")
                await ctx.sleep(1)
                seen.append("done")

        branch = ctx.spawn(body())
        await ctx.sleep(0)
        branch.cancel()
        branch.cancel()
        await ctx.wait([branch])
        branch.cancel()
        return seen

    assert begin(w, 1).settle().result == ["clean-up", "done"]


def test_wait_keeps_the_others() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        ops = [ctx.run(double, i) for i in range(4)]
        done, pending = await ctx.wait(ops, count=2)
        first = [ops.index(op) for op in done], [ops.index(op) for op in pending]
        rest = await ctx.all(pending)
        return [*first, rest]

    run = begin(w, 1)
    run.done("4", 6)
    run.evict()
    run.done("2", 2)
    run.settle()
    assert run.result == [[1, 3], [0, 2], [0, 4]]


@pytest.mark.parametrize("count", [-1, 2])
def test_wait_for_too_many_is_a_bug(count: int) -> None:
    async def w(ctx: Context, n: int) -> None:
        await ctx.wait([ctx.sleep(1)], count=count)

    assert begin(w, 1).blocked == "WORKFLOW_BUG"


@pytest.mark.parametrize(
    ("first", "default", "expected"),
    [("op", ..., 2), ("timer", ..., "TimedOut"), ("timer", None, None), ("timer", "d", "d")],
)
def test_timeout(first: str, default: Any, expected: Any) -> None:
    async def w(ctx: Context, n: int) -> Any:
        op = ctx.run(double, 1)
        try:
            return await (ctx.timeout(op, 5) if default is ... else ctx.timeout(op, 5, default=default))
        except TimedOut:
            return "TimedOut"

    run = begin(w, 1)
    if first == "op":
        run.done("1", 2)
    else:
        run.now += 5 * SECOND
        run.due("2")
        assert run.run.ops["1"].asked
        run.evict()
        run.done("1", 2)
    assert run.result == expected
    assert run.open() == {}


def test_a_withdrawn_op_raises_withdrawn_where_it_is_awaited() -> None:
    async def w(ctx: Context, n: int) -> list[str]:
        seen: list[str] = []
        for op in (ctx.sleep(9), ctx.interrupt("?"), ctx.receive(words), ctx.all(ctx.sleep(1), ctx.sleep(2))):
            op.cancel()
            try:
                await op
            except Withdrawn as error:
                seen.append(error.code)
        return seen

    assert begin(w, 1).result == ["WITHDRAWN"] * 4


def test_branches_share_closures_and_see_each_other_s_results() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        log: list[str] = []

        async def a() -> str:
            log.append("a1")
            await ctx.sleep(2)
            log.append("a2")
            return "A"

        async def b(other: Op[str]) -> str:
            log.append("b1")
            got = await other
            log.append("b2")
            return f"{got}B"

        first = ctx.spawn(a())
        second = ctx.spawn(b(first))
        log.append("main")
        return [await second, await first, *log]

    assert begin(w, 1).settle().result == ["AB", "A", "main", "a1", "b1", "a2", "b2"]


def test_a_branch_failure_is_raised_where_it_is_awaited_else_it_fails_the_run() -> None:
    async def w(ctx: Context, caught: bool) -> str:
        async def body() -> None:
            await ctx.sleep(1)
            raise Fail("BRANCH", "x")

        branch = ctx.spawn(body())
        if caught:
            try:
                await branch
            except Fail as error:
                return error.code
        return "not awaited"

    assert begin(w, True).settle().result == "BRANCH"
    run = begin(w, False).settle()
    assert run.status is Status.FAILED
    assert run.run.error is not None
    assert run.run.error.code == "BRANCH"


def test_ids_come_from_the_branch_that_is_driven() -> None:
    async def w(ctx: Context, n: int) -> None:
        async def body() -> None:
            await ctx.sleep(1)
            ctx.emit(mail, {})

            async def deeper() -> None:
                await ctx.sleep(1)

            await ctx.spawn(deeper())

        await ctx.run(double, 1)
        await ctx.all([ctx.spawn(body()), ctx.spawn(body())])
        await ctx.sleep(1)

    run = begin(w, 1).settle()
    ids = [body.op for body in run.of(ev.OpScheduled, ev.EffectEmitted)]
    assert sorted(ids) == sorted(["1", "2/1", "2/2", "2/3/1", "3/1", "3/2", "3/3/1", "4"])


def test_a_spawned_coroutine_is_closed_also_when_it_never_ran() -> None:
    async def w(ctx: Context, n: int) -> str:
        async def body() -> None:
            await ctx.sleep(1)

        ctx.spawn(body()).cancel()
        return "done"

    assert begin(w, 1).settle().result == "done"


@pytest.mark.parametrize(
    "body",
    [
        lambda ctx: ctx.spawn(5),
        lambda ctx: ctx.all(ctx.sleep(1), 5),
        lambda ctx: ctx.first([]),
        lambda ctx: ctx.wait([5]),
        lambda ctx: ctx.timeout(5, 1),
    ],
)
def test_what_is_no_op_is_refused(body: Any) -> None:
    async def w(ctx: Context, n: int) -> None:
        await body(ctx)

    assert begin(w, 1).blocked == "WORKFLOW_BUG"


def test_op_errors_are_one_family() -> None:
    async def w(ctx: Context, n: int) -> str:
        try:
            await ctx.receive(words)
        except OpError as error:
            return f"{type(error).__name__} {error.code}"
        return "?"

    run = begin(w, 1)
    run.skip("1")
    assert run.result == "OpError SKIPPED"
