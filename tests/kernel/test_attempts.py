"""Attempts of tasks (F12): budgets, back-off, what may have happened, and what an operator can do."""

from __future__ import annotations

from typing import Any

import pytest

from streams import App, Context, Found, NotFound, Retry, TaskContext, TaskFailed
from streams.authoring.app import AppDefinitions
from streams.kernel import bodies as ev
from streams.kernel.inputs import Due, Outcome, Recover
from streams.kernel.retry import Again, Park, Settle, backoff_us, judge
from streams.kernel.run import OpPhase, OpState, Status
from tests.kernel.harness import SECOND, Harness, failure

app = App("attempts")


async def look(ctx: TaskContext, n: int) -> Found[int] | NotFound:
    return NotFound()


@app.task(retry=Retry(max_attempts=3, initial=1, factor=2, max_delay=10))
async def plain(ctx: TaskContext, n: int) -> int:
    return n


@app.task(retry=Retry(max_attempts=3, on_exhausted="park"))
async def parking(ctx: TaskContext, n: int) -> int:
    return n


@app.task(retry=Retry(max_attempts=3), idempotent=False)
async def once(ctx: TaskContext, n: int) -> int:
    return n


@app.task(retry=Retry(max_attempts=2), reconcile=look, key=lambda n: f"pay/{n}")
async def payment(ctx: TaskContext, n: int) -> int:
    return n


@app.workflow(version=1)
async def calls(ctx: Context, name: str) -> Any:
    task = {"plain": plain, "parking": parking, "once": once, "payment": payment}[name]
    try:
        return await ctx.run(task, 7)
    except TaskFailed as error:
        return [error.code, error.message]


@app.workflow(version=1)
async def overridden(ctx: Context, n: int) -> int:
    return await ctx.run(plain.with_options(retry=Retry(max_attempts=1), timeout=5), n)


@app.workflow(version=1)
async def many(ctx: Context, n: int) -> list[int]:
    return await ctx.all([ctx.run(plain, i) for i in range(n)])


def begin(name: str) -> Harness:
    run = Harness(app)
    run.start("calls", name)
    return run


def wait_and_start(run: Harness, op: str = "1") -> None:
    state = run.run.ops[op]
    assert state.phase is OpPhase.BACKOFF
    assert state.due is not None
    run.now = max(run.now, state.due)
    run.due(op)
    assert run.run.ops[op].phase is OpPhase.RUNNING


def codes(run: Harness) -> list[str]:
    return [event.body.code for event in run.records if isinstance(event.body, ev.CommandRejected)]


def test_the_budget_and_the_recorded_back_off() -> None:
    run = begin("plain")
    for n, (low, high) in enumerate([(0.5, 1), (1, 2)], 1):
        run.fail("1")
        (failed,) = run.of(ev.AttemptFailed)[n - 1 :]
        assert failed.attempt == n
        assert low * SECOND <= failed.due - run.now <= high * SECOND
        assert run.status is Status.WAITING
        run.now = failed.due - 1
        assert run.due("1") == []
        run.take_over()
        assert run.run.ops["1"].due == failed.due
        wait_and_start(run)
    assert run.run.ops["1"].attempt == 3
    run.fail("1", failure(message="last words"))
    code, message = run.result
    assert code == "RETRIES_EXHAUSTED"
    assert "3 attempts" in message
    assert "last words" in message


def test_a_late_success_of_an_older_attempt_does_not_count() -> None:
    run = begin("plain")
    run.fail("1")
    wait_and_start(run)
    run.feed(Outcome("1", 1, b"5"))
    assert isinstance(run.records[-1].body, ev.OutcomeLate)
    run.feed(Outcome("9", 1, b"5"))
    assert isinstance(run.records[-1].body, ev.OutcomeLate)
    run.done("1", 7)
    run.feed(Outcome("1", 2, b"8"))
    assert run.result == 7
    assert len(run.records) == 3


def test_terminal_failures_are_not_retried() -> None:
    run = begin("plain")
    run.fail("1", failure("NO_STOCK", "terminal", "none left"))
    assert run.result == ["NO_STOCK", "none left"]


def test_f12_a_crash_uses_the_budget_and_the_first_one_is_retried_at_once() -> None:
    run = begin("plain")
    run.take_over()
    assert run.run.ops["1"].due == run.now
    for _ in range(2):
        wait_and_start(run)
        run.take_over()
    assert run.result[0] == "RETRIES_EXHAUSTED"
    assert "stopped during attempt 3" in run.result[1]


def test_f12_twenty_graceful_deploys_use_nothing() -> None:
    run = begin("plain")
    for n in range(1, 21):
        assert run.run.ops["1"].attempt == n
        run.returned("1")
        assert run.run.ops["1"].spent == 0
        assert run.run.ops["1"].maybe
        run.take_over()
        wait_and_start(run)
    assert run.run.ops["1"].spent == 1
    run.done("1", 7)
    assert run.result == 7


def test_a_return_that_is_stale_changes_nothing() -> None:
    run = begin("plain")
    run.fail("1")
    assert run.returned("1") == []


@pytest.mark.parametrize("how", ["crash", "returned", "timed out", "raised"])
def test_what_is_not_idempotent_parks_when_it_may_have_happened(how: str) -> None:
    run = begin("once")
    if how == "crash":
        run.take_over()
    elif how == "returned":
        run.returned("1")
    else:
        run.fail("1", failure("X", "unknown" if how == "timed out" else "retryable"))
    op = run.run.ops["1"]
    assert op.phase is OpPhase.PARKED
    assert op.error is not None
    assert op.error.code == "OUTCOME_UNKNOWN"
    assert "complete, skip or retry op 1" in op.error.message
    assert run.status is Status.WAITING


@pytest.mark.parametrize("name", ["plain", "once"])
def test_a_result_that_cannot_be_stored_parks(name: str) -> None:
    run = begin(name)
    run.fail("1", failure("VALUE_NOT_STORABLE", "terminal"))
    assert run.run.ops["1"].phase is OpPhase.PARKED


def test_exhausted_parks_where_it_is_asked_for_and_a_retry_has_a_fresh_budget() -> None:
    run = begin("parking")
    for _ in range(2):
        run.fail("1")
        wait_and_start(run)
    run.fail("1")
    op = run.run.ops["1"]
    assert op.phase is OpPhase.PARKED
    assert op.error is not None
    assert op.error.code == "RETRIES_EXHAUSTED"
    run.take_over()
    run.retry()
    assert (run.run.ops["1"].attempt, run.run.ops["1"].spent) == (4, 1)
    run.fail("1")
    assert run.run.ops["1"].phase is OpPhase.BACKOFF
    run.retry("1")
    run.done("1", 8)
    assert run.result == 8


def test_reconcile_looks_up_beyond_the_budget_then_parks() -> None:
    run = begin("payment")
    assert run.run.ops["1"].key == "pay/7"
    spent = []
    while run.run.ops["1"].phase is not OpPhase.PARKED:
        spent.append(run.run.ops["1"].spent)
        run.take_over()
        if run.run.ops["1"].phase is OpPhase.BACKOFF:
            assert run.run.ops["1"].maybe
            wait_and_start(run)
    assert spent == [1, 2, 3, 4]
    assert run.run.ops["1"].error is not None
    assert run.run.ops["1"].error.code == "OUTCOME_UNKNOWN"
    run.complete("1", 9)
    assert run.result == 9
    assert run.of(ev.OpCompleted)[-1].operator == "ann"


def test_a_look_up_that_says_not_done_ends_as_exhausted() -> None:
    run = begin("payment")
    for _ in range(2):
        run.take_over()
        wait_and_start(run)
    run.fail("1", failure("NOT_DONE", "exhausted", "the look-up says that it was not done"))
    assert run.result[0] == "RETRIES_EXHAUSTED"


def test_an_unknown_task_parks_and_goes_on_when_it_is_deployed() -> None:
    run = begin("plain")
    other = App("attempts")
    run.deploy(other)
    run.fail("1", failure("TASK_UNKNOWN", "code"))
    assert run.run.ops["1"].phase is OpPhase.PARKED
    run.deploy(app)
    run.retry("1")
    run.settle()
    assert run.result == 7


def test_skip_and_complete() -> None:
    run = begin("parking")
    run.skip("1")
    assert codes(run) == ["OP_BUSY"]
    run.complete("1", 5)
    assert codes(run) == ["OP_BUSY"] * 2
    run.fail("1")
    run.complete("1", "seven")
    assert codes(run)[-1] == "INPUT_INVALID"
    run.skip("7")
    assert codes(run)[-1] == "NO_SUCH_OP"
    run.skip("1")
    assert run.result[0] == "SKIPPED"
    assert "ann" in run.result[1]
    run.skip("1")
    assert codes(run)[-1] == "RUN_TERMINAL"


def test_retry_of_nothing() -> None:
    run = begin("plain")
    run.retry()
    assert codes(run) == ["NOTHING_TO_RETRY"]
    run.retry("1")
    assert codes(run)[-1] == "OP_BUSY"


def test_options_of_a_call_beat_those_of_the_task() -> None:
    run = Harness(app)
    run.start("overridden", 5)
    op = run.run.ops["1"]
    assert op.policy is not None
    assert (op.policy.max_attempts, op.policy.timeout) == (1, 5)
    run.fail("1")
    assert run.status is Status.FAILED


def test_tasks_queue_for_slots_and_a_queued_one_is_no_unknown_one_after_a_crash() -> None:
    run = Harness(app, slots=2)
    run.start("many", 5)
    assert [op.phase for op in run.run.ops.values()] == [OpPhase.RUNNING] * 2 + [OpPhase.QUEUED] * 3
    run.take_over()
    assert [op.phase for op in run.run.ops.values()] == [OpPhase.BACKOFF] * 2 + [OpPhase.QUEUED] * 3
    assert [op.attempt for op in run.run.ops.values()] == [1, 1, 0, 0, 0]
    assert run.settle().result == list(range(5))


def test_recover_sees_what_an_earlier_recovery_led_to() -> None:
    own = App("own")
    own._tasks = app._tasks

    @own.workflow(version=1)
    async def w(ctx: Context, n: int) -> str:
        single = plain.with_options(retry=Retry(max_attempts=1))
        try:
            await ctx.first(ctx.run(single, 1), ctx.run(plain, 2))
        except TaskFailed as error:
            return error.code
        return "?"

    run = Harness(own)
    run.start("w", 1)
    run.take_over()
    assert run.result == "RETRIES_EXHAUSTED"
    assert not run.of(ev.AttemptFailed)


def test_recover_on_a_run_without_attempts_leaves_nothing() -> None:
    run = Harness(app)
    assert run.feed(Recover()) == []
    assert run.feed(Due("1")) == []


# -- judge and backoff -------------------------------------------------------------------------------------------


def op_state(name: str, **fields: Any) -> OpState:
    return OpState("1", "task", name, b"", b"", OpPhase.RUNNING, 0, **{"attempt": 1, "spent": 1, **fields})


@pytest.mark.parametrize(
    ("name", "kind", "code", "fields", "expected"),
    [
        ("plain", "retryable", "X", {}, Again),
        ("plain", "unknown", "X", {}, Again),
        ("plain", "terminal", "X", {}, Settle),
        ("plain", "retryable", "X", {"spent": 3}, Settle),
        ("plain", "retryable", "X", {"spent": 3, "attempt": 20}, Settle),
        ("plain", "retryable", "X", {"spent": 2, "attempt": 20}, Again),
        ("plain", "cancelled", "STOPPED", {"asked": True}, Settle),
        ("plain", "unknown", "X", {"asked": True}, Settle),
        ("plain", "terminal", "VALUE_TOO_LARGE", {}, Park),
        ("parking", "retryable", "X", {"spent": 3}, Park),
        ("once", "terminal", "X", {}, Settle),
        ("once", "unknown", "X", {}, Park),
        ("once", "unknown", "X", {"asked": True}, Park),
        ("payment", "unknown", "X", {"spent": 2}, Again),
        ("payment", "unknown", "X", {"spent": 4}, Park),
        ("payment", "unknown", "X", {"asked": True}, Again),
        ("payment", "exhausted", "X", {"spent": 3}, Settle),
        ("gone", "retryable", "X", {}, Park),
    ],
)
def test_judge(name: str, kind: str, code: str, fields: dict[str, Any], expected: type) -> None:
    spec = AppDefinitions(app).task(name)
    verdict = judge(op_state(name, **fields), spec, failure(code, kind), 0, b"seed")
    assert isinstance(verdict, expected)


def test_back_off_is_bounded_spread_and_the_same_again() -> None:
    policy = plain.policy._replace(initial=1, factor=2, max_delay=30)
    delays = [backoff_us(policy, n, b"seed", "1") for n in range(1, 200)]
    assert delays == [backoff_us(policy, n, b"seed", "1") for n in range(1, 200)]
    for n, delay in enumerate(delays):
        full = min(30, 2**n) * SECOND
        assert full / 2 <= delay <= full
    assert len({backoff_us(policy, 9, b"seed", str(op)) for op in range(100)}) > 90
