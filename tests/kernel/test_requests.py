"""Requests: which replies count, time-outs and tries again under one key, and what comes late (F09, F26)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from streams import App, Cancelled, Context, Fail, RequestFailed, Retry, TaskContext
from streams.authoring.declared import Effect
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import Command
from streams.kernel.decide import stop_run
from streams.kernel.inputs import Due, Outcome, Returned
from streams.kernel.run import OpPhase, Status, is_terminal
from tests.kernel.harness import SECOND, Harness


@dataclass(frozen=True)
class Payment:
    id: str
    cents: int = 0


def build(*, cents: int = 500, declared: bool = True) -> App:
    """The app; `cents` and `declared` make of it one whose code was changed."""
    app = App("requests")
    retry = Retry(max_attempts=3, initial=1, factor=2, max_delay=10)
    payments: Effect[Any, Payment] = Effect("payments", int)
    if declared:
        payments = app.effect("payments", int, reply=Payment, retry=retry)
    parking = app.effect("parking", int, reply=int, retry=Retry(max_attempts=1, on_exhausted="park"))
    mails = app.effect("mails", str)

    @app.workflow(version=1)
    async def pay(ctx: Context, timeout: float | None) -> Any:
        try:
            payment = await ctx.request(payments, cents, timeout=timeout)
        except RequestFailed as failed:
            return [failed.code, failed.kind, failed.message]
        return payment

    @app.workflow(version=1)
    async def park(ctx: Context, timeout: float | None) -> Any:
        try:
            return await ctx.request(parking, 1, idempotency_key="one", timeout=timeout)
        except RequestFailed as failed:
            return [failed.code, failed.kind]

    @app.workflow(version=1)
    async def mail(ctx: Context, n: int) -> Any:
        return [await ctx.request(mails, "hello")]

    @app.workflow(version=1)
    async def late(ctx: Context, n: int) -> Any:
        await ctx.sleep(10)
        return await ctx.request(payments, cents)

    @app.workflow(version=1)
    async def cleaning(ctx: Context, timeout: float | None) -> Any:
        op = ctx.request(payments, cents, timeout=timeout)
        try:
            return await op
        except Cancelled:
            ctx.emit(mails, (await op).id)
            raise

    @app.workflow(version=1)
    async def race(ctx: Context, how: str) -> Any:
        if how == "branch":
            branch = ctx.spawn(asks(ctx))
            await ctx.sleep(5)
            branch.cancel()
            return "taken back"
        op = ctx.request(payments, cents, timeout=100)
        if how == "first":
            won = await ctx.first(op, ctx.sleep(5))
            return won.index
        if how == "timeout":
            return await ctx.timeout(op, 5, default="late")
        await ctx.sleep(5)
        op.cancel()
        return "taken back"

    async def asks(ctx: Context) -> Any:
        return await ctx.request(payments, cents, timeout=100)

    @app.workflow(version=1)
    async def left(ctx: Context, n: int) -> str:
        ctx.request(payments, cents)
        return "ends"

    @app.workflow(version=1)
    async def two(ctx: Context, n: int) -> Any:
        a, b = ctx.request(payments, 1), ctx.request(payments, 2)
        found = []
        for _ in range(2):
            won, _pending = await ctx.wait([op for op in (a, b) if not op.done])
            found += [(await op).id for op in won]
        return found

    return app


app = build()
ERROR = ("retryable", "BUSY", "come back later")


def begin(workflow: str = "pay", value: Any = None, **more: Any) -> Harness:
    run = Harness(app, **more)
    run.start(workflow, value)
    return run


def refusal(run: Harness) -> tuple[str, str]:
    """The code and message of the last refusal."""
    body = [event.body for event in run.records if isinstance(event.body, ev.CommandRejected)][-1]
    assert isinstance(body, ev.CommandRejected)
    return body.code, body.message


def late(run: Harness) -> list[ev.OutcomeLate]:
    return [event.body for event in run.records if isinstance(event.body, ev.OutcomeLate)]


def next_try(run: Harness, op: str = "1") -> None:
    state = run.run.ops[op]
    assert state.phase is OpPhase.BACKOFF
    assert state.due is not None
    run.now = max(run.now, state.due)
    run.due(op)
    assert run.run.ops[op].phase is OpPhase.WAITING


def time_out(run: Harness, op: str = "1") -> None:
    state = run.run.ops[op]
    assert state.phase is OpPhase.WAITING
    assert state.due is not None
    run.now = max(run.now, state.due)
    run.due(op)


# -- the message and the reply ---------------------------------------------------------------------------------------


def test_a_request_is_a_message_and_waits_for_its_reply() -> None:
    run = begin()
    assert run.status is Status.WAITING
    (body,) = run.of(ev.OpScheduled)
    assert (body.kind, body.name, body.attempt, body.due, body.key) == ("request", "payments", 1, None, "r@0/1")
    assert body.policy == ev.Policy(3, 1, 2, 10, "raise", (), None)
    message = run.messages["1", 1]
    assert (message.effect_id, message.op, message.effect, message.payload) == ("r@0/1", "1", "payments", b"500")
    assert (message.workflow, message.version, message.epoch) == ("pay", 1, 1)
    run.reply("1", {"id": "p1", "cents": 500})
    assert run.result == Payment("p1", 500)
    assert list(run.messages) == [("1", 1)]


def test_a_reply_of_another_form_is_stored_as_the_declared_type() -> None:
    for value in (Payment("p1"), {"id": "p1"}):
        run = begin()
        run.reply("1", value)
        assert run.result == Payment("p1", 0)


@pytest.mark.parametrize("value", ["p1", {"id": 5}, {"id": "p1", "dollars": 5}, None])
def test_a_reply_that_does_not_fit_is_refused_and_the_request_stays_open(value: Any) -> None:
    run = begin()
    before = run.run
    run.reply("1", value)
    code, message = refusal(run)
    assert code == "REPLY_INVALID"
    assert "'payments'" in message
    assert "stays open" in message
    assert run.run == before
    assert late(run) == []
    run.reply("1", {"id": "p1"})
    assert run.result == Payment("p1")


@pytest.mark.parametrize("kind", ["fatal", "Terminal", ""])
def test_an_error_of_another_class_is_refused_by_name(kind: str) -> None:
    run = begin()
    before = run.run
    run.reply("1", error=(kind, "X", "x"))
    assert refusal(run)[0] == "REPLY_INVALID"
    assert f"retryable, terminal, unknown, not {kind!r}" in refusal(run)[1]
    assert run.run == before


def test_an_effect_without_a_declared_reply_is_completed_by_nothing() -> None:
    run = begin("mail", 1)
    run.reply("1", "something")
    assert refusal(run)[0] == "REPLY_INVALID"
    run.reply("1", None)
    assert run.result == [None]


# -- errors and time-outs --------------------------------------------------------------------------------------------


def test_a_terminal_error_fails_the_request() -> None:
    run = begin()
    run.reply("1", error=("terminal", "DECLINED", "no money"))
    assert run.result == ["DECLINED", "terminal", "no money"]


def test_a_retryable_error_asks_again_under_the_same_key_until_the_tries_are_used_up() -> None:
    run = begin()
    for attempt in (1, 2):
        run.reply("1", error=ERROR)
        op = run.run.ops["1"]
        assert (op.phase, op.attempt, op.maybe) == (OpPhase.BACKOFF, attempt, False)
        assert op.due is not None
        assert 0 < op.due - run.now <= 10 * SECOND
        assert run.status is Status.WAITING
        next_try(run)
    run.reply("1", error=ERROR)
    code, kind, text = run.result
    assert (code, kind) == ("RETRIES_EXHAUSTED", "retryable")
    assert text == "3 attempts of request 'payments' failed; the last: BUSY: come back later"
    assert [number for _, number in run.messages] == [1, 2, 3]


def test_f26_the_idempotency_key_and_the_effect_id_are_the_same_for_each_attempt() -> None:
    run = begin("pay", 5.0)
    time_out(run)
    run.take_over()
    next_try(run)
    run.reply("1", error=ERROR)
    next_try(run)
    said = [(m.attempt, m.epoch, m.effect_id, m.idempotency_key) for m in run.messages.values()]
    assert said == [(1, 1, "r@0/1", "r@0/1"), (2, 2, "r@0/1", "r@0/1"), (3, 2, "r@0/1", "r@0/1")]


def test_without_a_time_out_nothing_is_ever_due() -> None:
    run = begin()
    assert run.run.ops["1"].due is None
    run.now += 10_000_000 * SECOND
    assert run.due("1") == []


def test_a_request_without_a_reply_in_time_is_asked_again_and_may_have_happened() -> None:
    run = begin("pay", 5.0)
    started = run.now
    assert run.run.ops["1"].due == started + 5 * SECOND
    run.now += 4 * SECOND
    assert run.due("1") == []
    time_out(run)
    op = run.run.ops["1"]
    assert (op.phase, op.maybe) == (OpPhase.BACKOFF, True)
    assert (op.error.kind, op.error.code) == ("unknown", "TIMED_OUT")  # type: ignore[union-attr]
    next_try(run)
    assert run.run.ops["1"].due == run.now + 5 * SECOND
    time_out(run)
    next_try(run)
    time_out(run)
    code, kind, text = run.result
    assert (code, kind) == ("RETRIES_EXHAUSTED", "unknown")
    assert "the last: TIMED_OUT: no reply to attempt 3" in text


def test_one_attempt_without_a_reply_makes_the_end_unknown() -> None:
    run = begin("pay", 5.0)
    time_out(run)
    for _ in range(2):
        next_try(run)
        run.reply("1", error=ERROR)
    assert run.result[:2] == ["RETRIES_EXHAUSTED", "unknown"]


def test_retries_that_are_used_up_can_ask_a_person() -> None:
    run = begin("park", 5.0)
    time_out(run)
    op = run.run.ops["1"]
    assert (op.phase, op.error.code, op.error.kind) == (OpPhase.PARKED, "RETRIES_EXHAUSTED", "unknown")  # type: ignore[union-attr]
    assert run.status is Status.WAITING
    run.complete("1", 7)
    assert run.result == 7


def test_a_reply_that_says_unknown_asks_a_person() -> None:
    run = begin()
    run.reply("1", error=("unknown", "LOST", "the line broke"))
    op = run.run.ops["1"]
    assert (op.phase, op.error.code, op.maybe) == (OpPhase.PARKED, "OUTCOME_UNKNOWN", True)  # type: ignore[union-attr]
    assert "request 'payments' may or may not have done its work (LOST: the line broke)" in op.error.message  # type: ignore[union-attr]
    run.reply("1", {"id": "found"})  # somebody has looked since
    assert run.result == Payment("found")


@pytest.mark.parametrize("word", ["retry", "skip", "complete", "bad complete"])
@pytest.mark.parametrize("phase", ["parked", "backoff", "waiting"])
def test_what_an_operator_can_do(phase: str, word: str) -> None:
    run = begin()
    if phase != "waiting":
        run.reply("1", error=("unknown" if phase == "parked" else "retryable", "X", "x"))
    if word == "retry":
        run.retry("1")
        op = run.run.ops["1"]
        assert (op.phase, op.attempt, op.spent) == (OpPhase.WAITING, 2, 1 if phase == "parked" else 2)
        assert ("1", 2) in run.messages
        run.reply("1", {"id": "p2"})
        assert run.result == Payment("p2")
    elif word == "skip":
        run.skip("1")
        assert run.result == ["SKIPPED", "terminal", "op 1 (payments) was skipped by ann"]
    elif word == "complete":
        run.complete("1", {"id": "by hand"})
        assert run.result == Payment("by hand")
        assert run.of(ev.OpCompleted)[0].operator == "ann"
    else:
        before = run.run
        run.complete("1", "no payment")
        assert refusal(run)[0] == "INPUT_INVALID"
        assert run.run == before


# -- replies that do not count ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other", [{"attempt": 2}, {"attempt": 0}, {"epoch": 2}, {"effect_id": "r@7/1"}, {"effect_id": "e"}]
)
def test_a_reply_for_another_attempt_epoch_or_effect_says_what_is_expected(other: Any) -> None:
    run = begin()
    before = run.run
    run.reply("1", {"id": "p1"}, **other)
    code, message = refusal(run)
    assert code == "STALE_REPLY"
    assert "waits for effect 'r@0/1', attempt 1 of epoch 1" in message
    assert run.run == before
    assert bool(late(run)) == ("effect_id" not in other)


@pytest.mark.parametrize("op", ["2", "1/1", "x"])
def test_a_reply_for_an_op_that_is_not_there(op: str) -> None:
    run = begin()
    run.reply(op, {"id": "p1"}, effect_id="e")
    assert refusal(run) == (
        "NO_SUCH_OP",
        f"op {op!r} is not open; requests that wait for a reply: 1 (payments)",
    )
    assert late(run) == []


def test_a_reply_to_what_is_no_request() -> None:
    run = begin("late", 1)
    run.reply("1", {"id": "p1"})
    assert refusal(run) == (
        "NO_SUCH_OP",
        "op '1' is a timer, which takes no reply; requests that wait for a reply: none",
    )
    assert late(run) == []


def test_f26_two_results_of_different_content_the_first_wins_and_the_other_is_kept() -> None:
    run = begin("two", 1)
    run.reply("1", {"id": "first"})
    before = run.run
    run.reply("1", {"id": "other"}, attempt=1, epoch=1)
    assert refusal(run)[0] == "DUPLICATE"
    run.reply("1", {"id": "first"}, attempt=1, epoch=1)
    run.reply("1", error=("terminal", "NO", "no"), attempt=1, epoch=1)
    assert run.run == before
    assert [(body.op, body.attempt, body.value) for body in late(run)[:2]] == [
        ("1", 1, b'{"id":"other"}'),
        ("1", 1, b'{"id":"first"}'),
    ]
    assert late(run)[2].error == ev.Failure("terminal", "NO", "no")
    run.reply("2", {"id": "second"})
    assert run.result == ["first", "second"]


def test_f26_the_reply_of_an_older_epoch_and_attempt_arrives_last() -> None:
    run = begin("two", 1)
    run.reply("1", error=ERROR)
    run.take_over()
    next_try(run)
    run.reply("1", {"id": "old"}, attempt=1, epoch=1)
    assert refusal(run)[0] == "STALE_REPLY"
    assert "attempt 2 of epoch 2" in refusal(run)[1]
    run.reply("1", {"id": "new"}, attempt=2, epoch=2)
    before = run.run
    run.reply("1", {"id": "old"}, attempt=1, epoch=1)
    assert refusal(run)[0] == "DUPLICATE"
    assert run.run == before
    run.reply("2", {"id": "second"})
    assert run.result == ["new", "second"]


def test_f26_a_reply_before_its_request_changes_nothing() -> None:
    run = begin("late", 1)
    before = run.run
    run.reply("2", {"id": "early"}, attempt=1, epoch=1)
    assert refusal(run)[0] == "NO_SUCH_OP"
    assert run.run == before
    run.now += 10 * SECOND
    run.due("1")
    run.reply("2", {"id": "early"}, attempt=2)  # of an attempt that is still to come
    assert refusal(run)[0] == "STALE_REPLY"
    run.reply("2", {"id": "right"})
    assert run.result == Payment("right")


def test_a_repeated_error_does_not_use_up_two_attempts() -> None:
    run = begin()
    run.reply("1", error=ERROR)
    before = run.run
    run.reply("1", error=ERROR)
    assert refusal(run)[0] == "DUPLICATE"
    assert "attempt 1 of op 1 has failed already (BUSY)" in refusal(run)[1]
    assert run.run == before
    run.reply("1", error=("unknown", "LOST", "lost"))
    assert run.run.ops["1"].phase is OpPhase.PARKED
    before = run.run
    run.reply("1", error=("unknown", "LOST", "lost"))
    run.reply("1", error=ERROR)
    assert run.run == before


@pytest.mark.parametrize("error", [None, ("terminal", "NO", "no")])
def test_a_reply_to_the_current_attempt_counts_in_back_off(error: Any) -> None:
    run = begin("pay", 5.0)
    time_out(run)
    run.reply("1", None if error else {"id": "slow"}, error=error)
    assert run.result == (["NO", "terminal", "no"] if error else Payment("slow"))
    assert list(run.messages) == [("1", 1)], "nothing is published for a request after its end"
    assert run.due("1") == []


def ended(how: str) -> Harness:
    run = begin("pay", 5.0)
    if how == "completed":
        run.reply("1", {"id": "p1"})
    elif how == "failed":
        run.deploy(build(cents=500))
        run = begin("left", 1)
        run.reply("1", error=("terminal", "NO", "no"))
    elif how == "cancelled":
        run.cancel()
        run.reply("1", {"id": "p1"})
    else:
        run.cancel(force=True)
    assert is_terminal(run.run)
    return run


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "forced"])
@pytest.mark.parametrize("error", [None, *[(kind, "X", "x") for kind in ("retryable", "terminal", "unknown")]])
def test_f09_a_reply_after_the_end_of_its_run_changes_nothing_however_often(how: str, error: Any) -> None:
    run = ended(how)
    before = run.run
    for _ in range(2):
        run.reply("1", None if error else {"id": "late"}, error=error)
        assert refusal(run)[0] == "RUN_TERMINAL"
        assert run.run == before
    kept = late(run)
    assert len(kept) == 2, "what came late is kept for audit"
    assert all((body.error is not None) == (error is not None) for body in kept)
    assert run.due("1") == []
    run.reply("1", {"id": "late"}, effect_id="e")
    assert len(late(run)) == 2


# -- workers, cancel, withdrawal -------------------------------------------------------------------------------------


def test_a_take_over_does_not_touch_an_open_request() -> None:
    run = begin("pay", 50.0)
    before = run.run
    assert run.take_over() == []
    assert run.run == before
    run.feed(Outcome("1", 1, b'{"id":"forged"}'))  # no worker runs it
    run.feed(Returned("1", 1, "the worker stops"))
    assert run.run == before
    run.reply("1", {"id": "p1"})  # of the epoch that has sent the message
    assert run.result == Payment("p1")


def test_a_time_out_and_a_back_off_go_on_under_the_next_worker() -> None:
    run = begin("pay", 50.0)
    run.take_over()
    time_out(run)
    run.take_over()
    next_try(run)
    assert run.run.ops["1"].epoch == 3
    assert run.messages["1", 2].epoch == 3


def test_cancel_waits_for_the_reply_which_clean_up_can_await() -> None:
    run = begin("cleaning")
    run.cancel()
    assert run.status is Status.CANCELLING
    assert run.run.ops["1"].asked
    run.reply("1", {"id": "p1"})
    assert run.status is Status.CANCELLED
    assert [body.payload for body in run.of(ev.EffectEmitted)] == [b'"p1"']


def test_cancel_in_vain_while_nobody_replies_ends_with_the_time_out() -> None:
    run = begin("pay", 50.0)
    run.cancel()
    time_out(run)
    assert run.status is Status.CANCELLED
    assert [body.error.code for body in run.of(ev.OpFailed)] == ["TIMED_OUT"]
    assert list(run.messages) == [("1", 1)]


def test_a_retryable_reply_to_a_cancelled_request_is_its_end() -> None:
    run = begin()
    run.cancel()
    run.reply("1", error=ERROR)
    assert run.status is Status.CANCELLED


@pytest.mark.parametrize("kind", ["retryable", "unknown"])
def test_cancel_ends_a_request_at_once_while_no_attempt_is_out(kind: str) -> None:
    run = begin()
    run.reply("1", error=(kind, "X", "x"))
    run.cancel()
    assert run.status is Status.CANCELLED
    assert list(run.messages) == [("1", 1)]


def race(how: str) -> tuple[Harness, str]:
    run = begin("race", how)
    return run, next(op.id for op in run.run.ops.values() if op.kind == "request")


def take_back(run: Harness) -> None:
    run.now += 5 * SECOND
    timer = next(op for op in run.run.ops.values() if op.kind == "timer")
    run.due(timer.id)


@pytest.mark.parametrize("how", ["first", "timeout", "cancel", "branch"])
@pytest.mark.parametrize("end", ["reply", "time-out", "error"])
def test_a_request_that_is_withdrawn_is_open_until_its_reply_or_time_out(how: str, end: str) -> None:
    run, op = race(how)
    take_back(run)
    assert run.open() == {op: "request"}
    assert run.run.ops[op].asked
    assert run.status is Status.WAITING
    if end == "reply":
        run.reply(op, {"id": "too late"})
    elif end == "error":
        run.reply(op, error=ERROR)
    else:
        time_out(run, op)
    assert run.result == {"first": 1, "timeout": "late"}.get(how, "taken back")
    assert list(run.messages) == [(op, 1)], "nothing is asked for again"


@pytest.mark.parametrize("how", ["first", "timeout", "cancel", "branch"])
@pytest.mark.parametrize("kind", ["retryable", "unknown"])
def test_a_request_that_is_withdrawn_while_no_attempt_is_out_ends_at_once(how: str, kind: str) -> None:
    run, op = race(how)
    run.reply(op, error=(kind, "BUSY", "x"))
    take_back(run)
    assert run.result == {"first": 1, "timeout": "late"}.get(how, "taken back")
    run.reply(op, {"id": "too late"}, attempt=1, epoch=1)
    assert refusal(run)[0] == "RUN_TERMINAL"
    assert list(run.messages) == [(op, 1)]


def test_a_run_ends_only_when_its_requests_have() -> None:
    run = begin("left", 1)
    assert run.status is Status.WAITING
    run.reply("1", {"id": "p1"})
    assert run.result == "ends"
    run = begin("left", 1)
    run.reply("1", error=("terminal", "NO", "no"))
    assert run.run.error is not None
    assert run.run.error.code == "NO", "a failure that nobody awaited fails the run"


# -- blocked runs and changed code -----------------------------------------------------------------------------------


def test_a_blocked_run_holds_replies_in_order() -> None:
    run = begin("two", 1)
    run.deploy(build(declared=False))
    run.reply("2", {"id": "b"})
    assert run.blocked == "WORKFLOW_BUG"
    run.reply("1", {"id": "a"})
    assert [held.op for held in run.run.held] == ["2", "1"]
    before = run.run
    run.reply("2", {"id": "another"})
    assert refusal(run)[0] == "DUPLICATE"
    assert run.run == before
    run.deploy(app)
    run.retry()
    assert run.result == ["b", "a"]


def test_a_held_reply_that_does_not_fit_is_dropped_and_the_request_waits_on() -> None:
    run = begin("pay", 50.0)
    run.deploy(build(declared=False))
    run.reply("1", "what is no payment")  # nobody knows what one is
    assert [held.op for held in run.run.held] == ["1"]
    run.deploy(app)
    run.retry()
    assert [body.reason for body in run.of(ev.HeldDropped)]
    assert run.run.ops["1"].phase is OpPhase.WAITING
    run.reply("1", {"id": "p1"})
    assert run.result == Payment("p1")


def test_a_blocked_run_goes_on_asking() -> None:
    run = begin("pay", 50.0)
    run.stop(Due("9"), "WORKFLOW_BUG")
    assert run.blocked == "WORKFLOW_BUG"
    time_out(run)
    next_try(run)
    run.reply("1", {"id": "p1"})
    assert run.status is Status.BLOCKED
    run.retry()
    assert run.result == Payment("p1")


def test_a_message_that_cannot_be_written_again_parks_the_request() -> None:
    run = begin("pay", 50.0)
    time_out(run)
    run.now += 60 * SECOND
    decision = stop_run(run.definitions, run.run, Due("1"), run.env(), "VALUE_TOO_LARGE", "over a new limit")
    assert decision.run.blocked is not None
    op = decision.run.ops["1"]
    assert (op.phase, op.error.code) == (OpPhase.PARKED, "VALUE_TOO_LARGE")  # type: ignore[union-attr]
    reply = cmd.Reply("1", "r@0/1", 1, 1, b'{"id":"p1"}')
    stopped = stop_run(run.definitions, run.run, Command("r", reply, "c", 9), run.env(), "VALUE_TOO_LARGE", "x")
    assert [held.op for held in stopped.run.held] == ["1"]


def test_code_that_asks_for_something_else_is_found_out() -> None:
    run = begin()
    run.deploy(build(cents=600))
    run.reply("1", {"id": "p1"})
    assert run.blocked == "NON_DETERMINISM"
    assert "request 'payments' as op 1" in (run.run.blocked.message if run.run.blocked else "")
    run.deploy(app)
    run.retry()
    assert run.result == Payment("p1")


def test_another_policy_is_for_later_requests_only() -> None:
    run = begin()
    other = build()
    other._effects.pop("payments")
    other.effect("payments", int, reply=Payment, retry=Retry(max_attempts=1))
    run.deploy(other)
    run.reply("1", error=ERROR)
    assert run.run.ops["1"].phase is OpPhase.BACKOFF


# -- bad code --------------------------------------------------------------------------------------------------------


def blocked_by(body: Any, *, declared: bool = True) -> tuple[str, str]:
    bad = App("bad")
    if declared:
        bad.effect("payments", str, reply=str)
    bad.workflow(version=1, name="w")(body)
    run = Harness(bad)
    run.start("w", 1)
    assert run.run.blocked is not None
    assert run.messages == {}
    return run.run.blocked.code, run.run.blocked.message


def test_requests_that_cannot_be_made_block_the_run() -> None:
    effect = Effect("payments", str, str)

    async def asks(ctx: Context, n: int) -> Any:
        return await ctx.request(effect, "x")

    assert blocked_by(asks, declared=False) == (
        "WORKFLOW_BUG",
        "effect 'payments' is not declared; write payments = app.effect('payments', SomeType)",
    )

    async def much(ctx: Context, n: int) -> Any:
        return await ctx.request(effect, "x" * 300_000)

    assert blocked_by(much)[0] == "VALUE_TOO_LARGE"

    async def odd(ctx: Context, n: int) -> Any:
        return await ctx.request(effect, object())  # type: ignore[arg-type]

    assert blocked_by(odd)[0] == "VALUE_NOT_STORABLE"

    async def by_name(ctx: Context, n: int) -> Any:
        return await ctx.request("payments", "x")  # type: ignore[arg-type]

    code, message = blocked_by(by_name)
    assert code == "WORKFLOW_BUG"
    assert "ctx.request takes an effect made by app.effect, not 'payments'" in message

    async def emits_by_name(ctx: Context, n: int) -> Any:
        ctx.emit("payments", "x")  # type: ignore[arg-type]

    assert "ctx.emit takes an effect made by app.effect, not 'payments'" in blocked_by(emits_by_name)[1]

    async def never(ctx: Context, n: int) -> Any:
        return await ctx.request(effect, "x", timeout=0)

    assert "a time-out is a positive number of seconds" in blocked_by(never)[1]


@pytest.mark.parametrize("how", ["emit", "request"])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "must not be empty"),
        ("pay\no-1", "must not hold control characters"),
        ("pay\0", "must not hold control characters"),
        ("pay\ud800", "lone surrogates"),
        ("k" * 1_001, "takes 1,001 bytes, at most 1000 are allowed"),
        (17, "a key is a str"),
    ],
)
def test_a_key_that_no_subscriber_could_take_blocks_the_run(how: str, key: Any, words: str) -> None:
    effect = Effect("payments", str, str)

    async def asks(ctx: Context, n: int) -> Any:
        if how == "emit":
            return ctx.emit(effect, "x", idempotency_key=key)
        return await ctx.request(effect, "x", idempotency_key=key)

    code, message = blocked_by(asks)
    assert code == "WORKFLOW_BUG"
    assert words in message
    assert "'payments'" in message


def test_a_key_that_has_left_already_blocks_no_replay() -> None:
    run = begin("park", checked=False)
    bad = run.run.ops["1"]._replace(key="")
    run.run = run.run._replace(ops={**run.run.ops, "1": bad})
    run.evict()
    run.reply("1", 7)
    assert run.result == 7


def test_an_effect_whose_retry_names_exceptions_is_refused() -> None:
    with pytest.raises(ValueError, match="a reply brings no exception"):
        App("bad").effect("payments", str, retry=Retry(terminal=(ValueError,)))


def test_an_effect_has_one_declaration() -> None:
    """A second one would change what the replies to the first must be."""
    app = App("one")
    first = app.effect("payments", str, reply=int)
    assert app.effect("payments", str, reply=int) == first
    for more in ({}, {"reply": str}):
        with pytest.raises(ValueError, match="effect 'payments' is declared already, with another type or reply"):
            app.effect("payments", str, **more)


# -- graphs ----------------------------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    paid: str
    tries: int


def test_the_flow_of_a_graph_may_ask() -> None:
    flows = App("flows")
    payments = flows.effect("payments", int, reply=Payment, retry=Retry(max_attempts=2))
    graph = flows.graph("graph", state=State, version=1)

    @graph.flow
    async def pay(ctx: Context, state: State) -> Any:
        payment = await ctx.request(payments, 5, timeout=50)
        if payment.id == "broken":
            raise Fail("BROKEN")
        return {"paid": payment.id}

    @graph.node
    async def check(ctx: TaskContext, state: State) -> Any:
        return {"tries": state.get("tries", 0) + 1}

    graph.route(check, lambda state: pay if state["tries"] < 3 else None)
    graph.edge(pay, check)
    run = Harness(flows)
    run.start("graph", {})
    asked = []
    for n in range(3):
        (op,) = run.ops(OpPhase.WAITING)
        asked.append(op.id)
        time_out(run, op.id)
        run.take_over()
        next_try(run, op.id)
        run.reply(op.id, {"id": f"p{n}"})
        run.reply(op.id, {"id": "again"}, attempt=2, epoch=run.epoch)
        assert refusal(run)[0] in ("DUPLICATE", "NO_SUCH_OP")
        (node,) = run.ops(OpPhase.RUNNING)
        run.feed(run.execute(node))
        run.reply(op.id, {"id": "later"}, attempt=2, epoch=run.epoch)
    assert len(set(asked)) == 3
    assert run.result == {"paid": "p2", "tries": 3}
