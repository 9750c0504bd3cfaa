"""Faults of code: each blocks the run, names its cause, keeps what arrives, and can be mended (F14 among them)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from typing import Any

import pytest

from streams import App, Context, Fail, TaskContext, TaskFailed
from streams.authoring.app import AppDefinitions
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import Command
from streams.kernel.decide import stop_run
from streams.kernel.evolve import evolve
from streams.kernel.inputs import Outcome
from streams.kernel.run import OpPhase, Status
from tests.kernel.harness import SECOND, Harness
from tests.kernel.test_ops import Decision, double, mail, rejection, words


def app_with(function: Any, version: int = 1, name: str = "w") -> App:
    """An app that defines `function` as its workflow, and a task, a signal and an effect."""
    app = App("blocked")

    @app.task(name="double")
    async def doubled(ctx: TaskContext, n: int) -> int:
        return 2 * n

    app.signal("words", str)
    app.effect("mail", dict)
    if function is not None:
        app.workflow(version=version, name=name)(function)
    return app


def start(function: Any, value: Any = 1) -> Harness:
    run = Harness(app_with(function))
    run.start("w", value)
    return run


def message(run: Harness) -> str:
    assert run.run.blocked is not None
    return run.run.blocked.message


# -- what blocks -------------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def raises(ctx: Context, n: int) -> None:
    raise ValueError("wrong")


async def unprintable(ctx: Context, n: int) -> None:
    raise Unprintable


async def exits(ctx: Context, n: int) -> None:
    sys.exit(3)


async def bare_yield(ctx: Context, n: int) -> None:
    await asyncio.sleep(0)


async def sleeps(ctx: Context, n: int) -> None:
    await asyncio.sleep(5)


async def awaits_itself(ctx: Context, n: int) -> None:
    class Odd:
        def __await__(self) -> Any:
            yield 5

    await Odd()


async def deadlock(ctx: Context, n: int) -> None:
    async def body() -> None:
        await waits[0]

    waits: list[Any] = []
    waits.append(ctx.spawn(body()))
    await waits[0]


async def recursion(ctx: Context, n: int) -> None:
    await recursion(ctx, n)


async def stops(ctx: Context, n: int) -> None:
    raise StopIteration


async def leaves(ctx: Context, n: int) -> None:
    raise GeneratorExit


async def too_many(ctx: Context, n: int) -> None:
    while True:
        ctx.emit(mail, {})


async def too_many_swallowed(ctx: Context, n: int) -> None:
    while True:
        with contextlib.suppress(Exception):
            ctx.sleep(1)


async def unstorable_argument(ctx: Context, n: int) -> None:
    await ctx.run(double, object())  # type: ignore[arg-type]


async def large_argument(ctx: Context, n: int) -> None:
    await ctx.interrupt("x" * 300_000)


async def unstorable_result(ctx: Context, n: int) -> Any:
    return object()


async def large_result(ctx: Context, n: int) -> Any:
    return "x" * 300_000


async def unstorable_details(ctx: Context, n: int) -> Any:
    raise Fail("X", "y", object())


async def same_coroutine_twice(ctx: Context, n: int) -> Any:
    async def body() -> None:
        await ctx.sleep(1)

    once = body()
    await ctx.all(ctx.spawn(once), ctx.spawn(once))


FAULTS = [
    (raises, "WORKFLOW_BUG", "ValueError: wrong (line"),
    (unprintable, "WORKFLOW_BUG", "Unprintable: (its message cannot be shown)"),
    (exits, "WORKFLOW_BUG", "SystemExit: 3"),
    (bare_yield, "WORKFLOW_BUG", "ctx.sleep, ctx.all, ctx.timeout"),
    (sleeps, "WORKFLOW_BUG", "put other async work into an app.task"),
    (awaits_itself, "WORKFLOW_BUG", "'int', which is none of its ops"),
    (deadlock, "WORKFLOW_BUG", "no op is open"),
    (recursion, "WORKFLOW_BUG", "RecursionError"),
    (stops, "WORKFLOW_BUG", "StopIteration"),
    (leaves, "WORKFLOW_BUG", "GeneratorExit"),
    (too_many, "WORKFLOW_BUG", "more than 10000 commands"),
    (too_many_swallowed, "WORKFLOW_BUG", "more than 10000 commands"),
    (unstorable_argument, "VALUE_NOT_STORABLE", "object"),
    (large_argument, "VALUE_TOO_LARGE", "limit"),
    (unstorable_result, "VALUE_NOT_STORABLE", "the result of the run"),
    (large_result, "VALUE_TOO_LARGE", "the result of the run"),
    (unstorable_details, "VALUE_NOT_STORABLE", "object"),
]


@pytest.mark.parametrize(("function", "code", "text"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_a_fault_at_entry_blocks_and_leaves_the_journal_empty(function: Any, code: str, text: str) -> None:
    run = start(function)
    assert run.blocked == code
    assert text in message(run)
    assert len(run.run.journal) == 0
    assert run.types() == ["run.started", "input.held", "run.blocked"]
    assert run.status is Status.BLOCKED

    async def mended(ctx: Context, n: int) -> int:
        return await ctx.run(double, n) + n

    run.deploy(app_with(mended))
    run.take_over()
    run.retry()
    assert run.settle().result == 3


@pytest.mark.parametrize(("function", "code", "text"), FAULTS, ids=lambda x: getattr(x, "__name__", None))
def test_a_fault_later_takes_back_the_delivery_that_led_to_it(function: Any, code: str, text: str) -> None:
    async def late(ctx: Context, n: int) -> Any:
        await ctx.run(double, 1)
        return await function(ctx, n)

    run = start(late)
    journal = list(run.run.journal)
    run.done("1", 2)
    assert run.blocked == code
    assert text in message(run)
    assert list(run.run.journal) == journal
    assert run.types()[-2:] == ["input.held", "run.blocked"]
    assert run.run.ops["1"].phase is OpPhase.HELD


def test_a_shared_coroutine_blocks_when_it_is_driven_twice() -> None:
    run = start(same_coroutine_twice)
    assert run.open() == {"1/1": "timer"}
    run.settle()
    assert run.blocked == "WORKFLOW_BUG"
    assert "cannot reuse already awaited coroutine" in message(run)


def test_a_run_that_grows_too_large_is_blocked_and_stays_readable_and_cancellable() -> None:
    async def w(ctx: Context, n: int) -> int:
        for i in range(10):
            await ctx.interrupt(i)
        return 1

    run = start(w)
    for _ in range(2):
        run.resume("x" * 250_000)
    assert run.blocked is None
    run.resume("x" * 250_000)
    assert run.blocked == "VALUE_TOO_LARGE"
    assert "keep references" in message(run)
    run.retry()
    assert run.blocked == "VALUE_TOO_LARGE"
    run.cancel(force=True)
    assert run.status is Status.CANCELLED


def test_a_signal_that_does_not_fit_is_refused() -> None:
    async def w(ctx: Context, n: int) -> int:
        await ctx.interrupt("?")
        return 1

    run = start(w)
    for _ in range(3):
        run.signal("words", "x" * 250_000)
    assert rejection(run) == "INBOX_FULL"
    assert run.blocked is None


# -- what is held ------------------------------------------------------------------------------------------------


async def collects(ctx: Context, n: int) -> list[Any]:
    order: list[Any] = []

    async def note(op: Any, name: str) -> None:
        try:
            order.append([name, await op])
        except TaskFailed as error:
            order.append([name, error.code])

    ops = {
        "task": ctx.run(double, 1),
        "fails": ctx.run(double, 2),
        "timer": ctx.sleep(60),
        "question": ctx.interrupt("?", answer=int),
        "word": ctx.receive(words),
    }
    branches = [ctx.spawn(note(op, name)) for name, op in ops.items()]
    trigger = ctx.interrupt("break", key="break")
    await trigger
    if n < 0:
        raise ValueError("broken")
    await ctx.all(branches)
    return order


def broken_collects() -> Harness:
    async def broken(ctx: Context, n: int) -> list[Any]:
        return await collects(ctx, -1)

    run = start(broken)
    run.resume("now", "break")
    assert run.blocked == "WORKFLOW_BUG"
    return run


def fill(run: Harness) -> None:
    run.resume(5, "4")
    run.resume(6, "4")
    assert rejection(run) == "NO_SUCH_INTERRUPT"
    run.done("1", 2)
    run.signal("words", "w")
    run.now += 60 * SECOND
    run.due("3")
    assert run.due("3") == []
    run.feed(Outcome("2", 1, None, ev.Failure("terminal", "NO", "no")))


def test_held_inputs_are_kept_in_order_and_delivered_first_in_first_out() -> None:
    run = broken_collects()
    fill(run)
    assert run.blocked == "WORKFLOW_BUG"
    assert [held.op for held in run.run.held] == ["11", "4", "1", "3", "2"]
    run.deploy(app_with(collects))
    run.take_over()
    run.retry()
    assert run.blocked is None
    assert run.result == [
        ["question", 5],
        ["task", 2],
        ["timer", None],
        ["fails", "NO"],
        ["word", "w"],
    ]


def test_a_retry_that_is_still_broken_keeps_everything() -> None:
    run = broken_collects()
    fill(run)
    held, size = run.run.held, run.run.size
    for _ in range(3):
        run.retry()
        assert run.blocked == "WORKFLOW_BUG"
        assert run.run.held == held
        assert run.run.size == size
    run.deploy(app_with(collects))
    run.retry()
    assert len(run.result) == 5


def test_a_second_fault_in_the_middle_of_what_was_held_keeps_the_rest() -> None:
    def version(good: int) -> Any:
        async def w(ctx: Context, n: int) -> list[int]:
            got: list[int] = []
            for i in range(4):
                got.append(await ctx.run(double, i))
                if len(got) > good:
                    raise ValueError("broken")
            return got

        return w

    run = start(version(1))
    run.done("1", 0)
    run.done("2", 2)
    assert run.blocked == "WORKFLOW_BUG"
    run.deploy(app_with(version(2)))
    run.retry()
    assert run.blocked is None
    run.done("3", 4)
    assert run.blocked == "WORKFLOW_BUG"
    run.deploy(app_with(version(9)))
    run.retry()
    assert run.settle().result == [0, 2, 4, 6]


def test_an_answer_that_no_longer_fits_is_dropped_on_record_and_the_question_stays_open() -> None:
    def asks(type_: Any, broken: bool) -> Any:
        async def w(ctx: Context, n: int) -> list[Any]:
            op = ctx.interrupt("?", answer=Any if broken else type_)
            await ctx.run(double, 1)
            if broken:
                raise ValueError("broken")
            return [await op]

        return w

    run = start(asks(int, broken=True))
    run.done("2", 2)
    run.resume("seven")
    assert run.run.ops["1"].phase is OpPhase.HELD
    run.deploy(app_with(asks(int, broken=False)))
    run.retry()
    assert run.blocked == "NON_DETERMINISM"  # the type of the answer is a part of the question

    def still(broken: bool) -> Any:
        async def w(ctx: Context, n: int) -> list[Any]:
            op = ctx.interrupt("?", answer=int)
            await ctx.run(double, 1)
            if broken:
                raise ValueError("broken")
            return [await op]

        return w

    run = start(still(broken=True))
    run.done("2", 2)
    run.resume("seven")
    run.deploy(app_with(still(broken=False)))
    run.retry()
    assert run.of(ev.HeldDropped)
    assert run.run.ops["1"].phase is OpPhase.WAITING
    run.resume(7)
    assert run.result == [7]


def test_a_repeated_answer_is_known_while_the_first_is_held() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        a, b = ctx.interrupt("a"), ctx.interrupt("b")
        await ctx.run(double, 1)
        raise ValueError("broken")
        return [a, b]

    run = start(w)
    run.done("3", 2)
    run.resume(1, "1", command_id="x")
    run.resume(1, command_id="x")
    assert rejection(run) == "DUPLICATE"


def test_a_cancel_waits_while_blocked_and_force_does_not() -> None:
    run = broken_collects()
    run.cancel()
    assert run.blocked == "WORKFLOW_BUG"
    assert not run.run.cancel_requested
    run.cancel()
    assert rejection(run) == "DUPLICATE"
    run.deploy(app_with(collects))
    run.retry()
    assert run.status is Status.CANCELLING
    for op in list(run.run.ops):
        run.done(op, 1)
    assert run.status is Status.CANCELLED

    run = broken_collects()
    run.cancel()
    run.cancel(force=True)
    assert run.status is Status.CANCELLED


def test_a_cancel_held_at_entry_comes_after_the_start() -> None:
    run = start(raises)
    run.cancel()

    async def w(ctx: Context, n: int) -> None:
        try:
            await ctx.sleep(9)
        finally:
            ctx.emit(mail, {"clean": True})

    run.deploy(app_with(w))
    run.retry()
    assert run.status is Status.CANCELLED
    assert len(run.of(ev.EffectEmitted)) == 1


def test_attempts_go_on_while_blocked_and_their_outcome_is_held() -> None:
    run = broken_collects()
    run.fail("1")
    assert run.run.ops["1"].phase is OpPhase.BACKOFF
    run.now = run.run.ops["1"].due  # type: ignore[assignment]
    run.due("1")
    run.done("1", 2)
    assert run.run.ops["1"].phase is OpPhase.HELD
    run.skip("1")
    assert rejection(run) == "OP_BUSY"


def test_a_signal_that_breaks_the_code_is_not_lost() -> None:
    def version(good: bool) -> Any:
        async def w(ctx: Context, n: int) -> list[str]:
            got = [await ctx.receive(words)]
            if not good:
                raise ValueError("broken")
            return [*got, await ctx.receive(words)]

        return w

    run = start(version(good=False))
    run.signal("words", "a")
    assert run.blocked == "WORKFLOW_BUG"
    run.signal("words", "b")
    for _ in range(3):
        run.retry()
    assert [item.name for item in run.run.inbox] == ["words", "words"]
    run.deploy(app_with(version(good=True)))
    run.take_over()
    run.retry()
    assert run.result == ["a", "b"]


def test_a_held_receive_does_not_starve_or_crash_when_another_took_its_signal() -> None:
    def version(broken: bool) -> Any:
        async def w(ctx: Context, n: int) -> list[Any]:
            async def reader() -> str:
                return await ctx.receive(words)

            asked = await ctx.interrupt("?")
            first = ctx.spawn(reader())
            await ctx.all(first, ctx.run(double, 1)) if asked else None
            if broken:
                raise ValueError("broken")
            return [await first]

        return w

    run = start(version(broken=True))
    run.resume(1)
    run.done("3", 2)
    run.signal("words", "a")
    assert run.blocked == "WORKFLOW_BUG"
    run.retry()
    run.deploy(app_with(version(broken=False)))
    run.retry()
    assert run.result == ["a"]


# -- other code (F14) --------------------------------------------------------------------------------------------


async def approve(ctx: Context, n: int) -> list[Any]:
    a = await ctx.run(double, n)
    b = await ctx.interrupt("ok?")
    return [a, b]


approved = approve


def test_f14_a_change_of_comments_only_continues() -> None:
    async def approve(ctx: Context, n: int) -> list[Any]:
        """It says more now."""
        # and here
        a = await ctx.run(double, n)
        b = await ctx.interrupt("ok?")
        return [a, b]

    run = start(approved)
    run.done("1", 2)
    code = run.run.code
    run.deploy(app_with(approve))
    assert AppDefinitions(run.app).workflow("w", 1).code == code  # type: ignore[union-attr]
    run.resume("yes")
    assert run.result == [2, "yes"]


def test_f14_a_step_added_after_the_current_position_continues() -> None:
    async def longer(ctx: Context, n: int) -> list[Any]:
        a = await ctx.run(double, n)
        b = await ctx.interrupt("ok?")
        c = await ctx.run(double, 5)
        return [a, b, c]

    run = start(approve)
    run.done("1", 2)
    run.deploy(app_with(longer))
    run.resume("yes")
    assert run.settle().result == [2, "yes", 10]


CHANGES = {
    "step removed": ("task 'double' as op 1", "interrupt 'interrupt' as op 1"),
    "step added": ("interrupt 'interrupt' as op 2", "task 'double' as op 2"),
    "other arguments": ("task 'double' as op 1 (arguments", "task 'double' as op 1 (arguments"),
    "returns early": ("interrupt 'interrupt' as op 2", "nothing more"),
    "does more": ("nothing more", "timer 'timer' as op 3"),
}


def changed(kind: str) -> Any:
    async def w(ctx: Context, n: int) -> Any:
        if kind != "step removed":
            await ctx.run(double, n + (kind == "other arguments"))
        if kind == "step added":
            await ctx.run(double, 1)
        if kind == "returns early":
            return 0
        op = ctx.interrupt("ok?")
        if kind == "does more":
            ctx.sleep(1)
        return await op

    return w


@pytest.mark.parametrize("kind", CHANGES)
def test_f14_other_code_is_non_determinism_that_names_both_sides(kind: str) -> None:
    run = start(approve)
    run.done("1", 2)
    run.deploy(app_with(changed(kind)))
    run.resume("yes")
    assert run.blocked == "NON_DETERMINISM"
    was, now = CHANGES[kind]
    assert f"the recorded run did {was}" in message(run)
    assert f"the code now does {now}" in message(run)
    run.retry()
    assert run.blocked == "NON_DETERMINISM"
    run.deploy(app_with(approve))
    run.retry()
    assert run.result == [2, "yes"]


def test_a_loop_over_a_set_is_caught_by_the_hash_of_the_arguments() -> None:
    def loops(order: list[int]) -> Any:
        async def w(ctx: Context, n: int) -> list[int]:
            return await ctx.all([ctx.run(double, i) for i in order])

        return w

    run = start(loops([1, 2, 3]))
    run.deploy(app_with(loops([1, 3, 2])))
    run.done("1", 2)
    assert run.blocked == "NON_DETERMINISM"


def test_unstable_code_is_caught_at_the_replay() -> None:
    rng = random.Random(5)

    async def w(ctx: Context, n: int) -> int:
        await ctx.run(double, rng.randrange(10**9))
        await ctx.sleep(1)
        return 0

    run = Harness(app_with(w), checked=False)
    run.start("w", 1)
    run.evict()
    run.done("1", 0)
    assert run.blocked == "NON_DETERMINISM"


def test_f14_version_and_name_gone() -> None:
    run = start(approve)
    run.done("1", 2)
    run.deploy(app_with(approve, version=2))
    run.resume("yes")
    assert run.blocked == "VERSION_UNSUPPORTED"
    assert "version 1 of workflow 'w' is not loaded here, only [2]" in message(run)
    run.deploy(app_with(approve, name="v"))
    run.retry()
    assert run.blocked == "WORKFLOW_UNKNOWN"
    assert len(run.run.held) == 1
    run.deploy(app_with(approve))
    run.take_over()
    run.retry()
    assert run.result == [2, "yes"]


def test_f14_timers_outcomes_and_cancel_wait_for_the_version() -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        return await ctx.all([ctx.run(double, 1), ctx.sleep(1)])

    run = start(w)
    run.deploy(app_with(None))
    run.now += SECOND
    run.due("2")
    run.done("1", 2)
    run.cancel()
    assert run.blocked == "WORKFLOW_UNKNOWN"
    assert [held.delivery for held in run.run.held] == ["timer.fired", "op.completed", "cancel.requested"]
    run.deploy(app_with(w))
    run.retry()
    assert run.result == [2, None]


def test_a_start_before_the_workflow_is_loaded() -> None:
    run = Harness(app_with(None))
    run.start("w", {"name": "x"})
    assert run.blocked == "WORKFLOW_UNKNOWN"
    run.start("w", {"name": "x"})
    assert rejection(run) == "DUPLICATE"
    run.signal("words", "early")
    run.retry()
    assert run.blocked == "WORKFLOW_UNKNOWN"

    async def w(ctx: Context, order: dict[str, str]) -> list[Any]:
        return [order["name"], ctx.version, await ctx.receive(words), await ctx.run(double, 1)]

    run.deploy(app_with(w, version=3))
    run.retry()
    assert run.run.version == 3
    run.take_over()
    assert run.settle().result == ["x", 3, "early", 2]


def test_a_start_in_a_version_that_is_not_loaded() -> None:
    run = Harness(app_with(approve))
    run.start("w", 1, version=2)
    assert run.blocked == "VERSION_UNSUPPORTED"
    run.deploy(app_with(approve, version=2))
    run.retry()
    run.done("1", 2)
    run.resume("y")
    assert run.result == [2, "y"]


def test_an_unchecked_start_is_checked_and_typed_when_the_workflow_comes() -> None:
    async def w(ctx: Context, decision: Decision) -> list[Any]:
        await ctx.run(double, 1)
        return [type(decision).__name__, decision.by]

    run = Harness(app_with(None))
    run.start("w", {"approved": True, "by": "ann"})
    run.deploy(app_with(w))
    run.retry()
    run.evict()
    assert run.settle().result == ["Decision", "ann"]

    run = Harness(app_with(None))
    run.start("w", {"approved": "?"})
    run.deploy(app_with(w))
    run.retry()
    assert run.blocked == "WORKFLOW_BUG"
    assert "approved" in message(run)
    run.cancel(force=True)
    assert run.status is Status.CANCELLED


# -- stored bytes that nobody can read ---------------------------------------------------------------------------


def test_f11_a_value_that_cannot_be_read_blocks() -> None:
    async def w(ctx: Context, n: int) -> int:
        return await ctx.run(double, n)

    run = start(w)
    run.feed(Outcome("1", 1, b'{"$": "Gone", "v": 1}'))
    assert run.blocked == "VALUE_UNREADABLE"
    assert run.run.ops["1"].phase is OpPhase.HELD


def test_f11_unreadable_input_and_details_block_too() -> None:
    async def w(ctx: Context, decision: Decision) -> int:
        ctx.run(double, 1)
        await ctx.sleep(1)
        return 1

    async def other(ctx: Context, decision: Any) -> int:
        return 1

    run = Harness(app_with(w))
    run.start("w", {"approved": True})
    run.deploy(app_with(other))
    run.now += SECOND
    run.due("2")
    assert run.blocked == "VALUE_UNREADABLE"
    run.deploy(app_with(w))
    run.retry()
    run.feed(Outcome("1", 1, None, ev.Failure("terminal", "X", "x", b'{"$": "Gone"}')))
    assert run.blocked == "VALUE_UNREADABLE"


def test_garbage_in_commands_is_refused() -> None:
    run = start(approve)
    run.done("1", 2)
    for request in (
        cmd.Resume(b"\xff\xfe"),
        cmd.Resume(b'{"$": "Nobody"}'),
        cmd.Signal("words", b"{"),
        cmd.Start("w", b"\x00"),
        cmd.Start("v", b"\x00"),
        cmd.Complete("2", b"{"),
        cmd.Reply("2", "e", 1, 1, b"1"),
        cmd.Unsupported("rewind"),
    ):
        run.command(request)
        assert run.status is Status.WAITING
        assert isinstance(run.records[-1].body, ev.CommandRejected), request
    fresh = Harness(app_with(approve))
    for raw in (b"\x00", b'{"$": "Nobody"}', b'"seven"'):
        fresh.start("w", raw=raw)
        assert rejection(fresh) in ("INPUT_INVALID", "VALUE_UNREADABLE")
    assert fresh.run.seq == 0


# -- stop_run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["outcome", "answer", "cancel", "retry", "failure"])
def test_stop_run_holds_the_input(what: str) -> None:
    async def w(ctx: Context, n: int) -> list[Any]:
        return await ctx.all([ctx.run(double, 1), ctx.interrupt("?")])

    run = start(w)
    request: Any = {"answer": cmd.Resume(b"5", "2"), "cancel": cmd.Cancel(), "retry": cmd.Retry()}.get(what)
    outcome = Outcome("1", 1, b"2") if what == "outcome" else Outcome("1", 1, None, ev.Failure("terminal", "X", "x"))
    input_: Any = outcome if request is None else Command("r", request, "c9", 9)
    decision = stop_run(run.definitions, run.run, input_, run.env(), "VALUE_TOO_LARGE", "too large")
    assert decision.run.blocked is not None
    assert decision.events[0].offset == (9 if request is not None else None)
    held = [event.body.delivery for event in decision.events if isinstance(event.body, ev.InputHeld)]
    expected = {
        "outcome": ["op.completed"],
        "failure": ["op.failed"],
        "answer": ["interrupt.answered"],
        "cancel": ["cancel.requested"],
        "retry": [],
    }
    assert held == expected[what]
    folded = run.run
    for event in decision.events:
        folded = evolve(folded, event)
    assert folded == decision.run


def test_stop_run_refuses_a_start() -> None:
    run = Harness(app_with(approve))
    command = Command("r", cmd.Start("w", b"1"), "c0", 0)
    decision = stop_run(run.definitions, run.run, command, run.env(), "VALUE_TOO_LARGE", "too large")
    (event,) = decision.events
    assert isinstance(event.body, ev.CommandRejected)
    assert event.offset == 0
