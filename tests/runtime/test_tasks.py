"""Attempts: time-outs, slots, threads, stop requests, notes, and the odd things that user code raises."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from streams import App, Context, Fail, Found, NotFound, Retry, TaskContext, TaskFailed, Unknown
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import OpPhase
from streams.wire.app_codec import make_codec
from tests.runtime.history import resume, start, until
from tests.runtime.lab import Lab, case

app = App("tasks")
fast = Retry(max_attempts=3, initial=0.01, max_delay=0.01)
release = threading.Event()
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    seen.clear()
    release.clear()
    yield
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("task "):
            thread.join(30)


# -- time-outs and slots ---------------------------------------------------------------------------------------------


@app.task(timeout=0.05, retry=fast)
async def endless(ctx: TaskContext) -> str:
    seen.append(("began", ctx.attempt))
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        seen.append(("stopped", ctx.attempt, ctx.cancelled))
        raise
    return "never"


@app.task(timeout=0.05, retry=Retry(max_attempts=1))
def hanging(ctx: TaskContext) -> str:
    seen.append(("hangs", ctx.attempt))
    release.wait(60)
    seen.append(("let go", ctx.cancelled))
    return "too late"


@app.task
def quick(ctx: TaskContext, number: int) -> int:
    return number + 1


@app.workflow(version=1)
async def one(ctx: Context, name: str) -> Any:
    return await ctx.run(app.task_named(name))  # type: ignore[arg-type]


@app.workflow(version=1)
async def quickly(ctx: Context, number: int) -> int:
    return await ctx.run(quick, number)


@case(app)
async def test_f12_an_attempt_that_takes_too_long_is_stopped_and_counts(lab: Lab):
    await lab.worker()
    await lab.history.start("one", "r", "endless")
    await lab.history.ended("r")
    error = lab.history.error("r")
    assert error.code == "RETRIES_EXHAUSTED"
    assert "longer than 0.05 s" in error.message
    assert [what for what in seen if what[0] == "began"] == [("began", 1), ("began", 2), ("began", 3)]
    assert [what[2] for what in seen if what[0] == "stopped"] == [True, True, True]


@case(app)
async def test_f24_a_thread_that_hangs_keeps_its_slot_and_nothing_else(lab: Lab):
    running = await lab.worker(thread_slots=2)
    await lab.history.start("one", "hangs", "hanging")
    await lab.history.ended("hangs")  # its outcome does not wait for the thread
    assert running.worker.dispatcher.slots()["thread"] == 1
    for number in range(5):
        await lab.history.start("quickly", f"r{number}", number)
    await lab.history.ended(*(f"r{number}" for number in range(5)))
    release.set()
    await until(lambda: running.worker.dispatcher.slots()["thread"] == 2, "the slot of the thread that let go")
    assert ("let go", True) in seen


@case(app)
async def test_a_thread_that_hangs_does_not_keep_a_worker_from_stopping(lab: Lab):
    running = await lab.worker(stop_seconds=0.1)
    await lab.history.start("one", "hangs", "hanging")
    await until(lambda: ("hangs", 1) in seen)
    await running.stop()


gate: list[asyncio.Event] = []


@app.task(timeout=600)
async def gated(ctx: TaskContext, number: int) -> int:
    seen.append(number)
    await gate[0].wait()
    return number


@app.workflow(version=1)
async def wide(ctx: Context, count: int) -> int:
    return sum(await ctx.all([ctx.run(gated, number) for number in range(count)]))


@case(app)
async def test_tasks_beyond_the_slots_are_queued_and_start_when_one_is_free(lab: Lab):
    gate[:] = [asyncio.Event()]
    running = await lab.worker(loop_slots=3)
    await lab.history.start("wide", "a", 10)
    await lab.history.start("wide", "b", 10)
    scheduled = await lab.history.seen("a", ev.OpScheduled, 10)
    scheduled += await lab.history.seen("b", ev.OpScheduled, 10)
    assert sorted(body.attempt for body in scheduled) == [0] * 17 + [1] * 3
    await asyncio.sleep(0.05)
    await lab.history.read()
    assert len(seen) == 3
    assert lab.history.bodies("a", ev.AttemptStarted) == []
    assert running.worker.dispatcher.slots()["loop"] == 0
    gate[0].set()
    assert await lab.history.result("a") == 45
    assert await lab.history.result("b") == 45
    assert sorted(seen) == sorted([*range(10), *range(10)])
    assert running.worker.dispatcher.slots()["loop"] == 3


@case(app)
async def test_f12_queued_tasks_are_not_unknown_after_a_crash(lab: Lab):
    gate[:] = [asyncio.Event()]
    running = await lab.worker(loop_slots=4)
    await lab.history.start("wide", "a", 200)
    await until(lambda: len(seen) == 4)
    await running.kill()
    await lab.worker(loop_slots=4)
    failed = await lab.history.seen("a", ev.AttemptFailed, 4)
    assert {body.error.code for body in failed} == {"WORKER_LOST"}
    await until(lambda: len(seen) == 8)
    await asyncio.sleep(0.05)
    assert len(seen) == 8  # never more at once than there are slots
    gate[0].set()
    assert await lab.history.result("a") == sum(range(200))
    assert len(lab.history.bodies("a", ev.AttemptFailed)) == 4
    assert len(seen) == 204


@case(app)
async def test_a_graceful_stop_hands_back_what_runs_and_starts_nothing_that_is_queued(lab: Lab):
    gate[:] = [asyncio.Event()]
    running = await lab.worker(loop_slots=2, stop_seconds=0.0)
    await lab.history.start("wide", "a", 6)
    await until(lambda: len(seen) == 2)
    await running.stop()
    checked = await lab.check()
    ops = checked.runs["a"].ops.values()
    assert sorted(op.phase for op in ops) == [OpPhase.BACKOFF] * 2 + [OpPhase.QUEUED] * 4
    assert {op.spent for op in ops} == {0}
    gate[0].set()
    await lab.worker()
    assert await lab.history.result("a") == 15
    assert lab.history.bodies("a", ev.AttemptFailed) == []


# -- notes and stop requests -----------------------------------------------------------------------------------------


@app.task(retry=fast)
async def noting(ctx: TaskContext) -> list[Any]:
    seen.append(ctx.noted)
    ctx.heartbeat({"done": ctx.attempt})
    if ctx.attempt < 3:
        raise RuntimeError("not yet")
    return seen


@app.task(retry=fast)
def noting_thread(ctx: TaskContext) -> list[Any]:
    seen.append(ctx.noted)
    ctx.heartbeat({"done": ctx.attempt})
    if ctx.attempt < 3:
        raise RuntimeError("not yet")
    return seen


@case(app)
@pytest.mark.parametrize("name", ["noting", "noting_thread"])
async def test_what_a_heartbeat_leaves_reaches_the_next_attempt(lab: Lab, name: str):
    await lab.worker()
    await lab.history.start("one", "r", name)
    assert await lab.history.result("r") == [None, {"done": 1}, {"done": 2}]


@app.task
async def watchful(ctx: TaskContext) -> str:
    seen.append("began")
    while not ctx.cancelled:  # noqa: ASYNC110 - what a task is given to look at
        await asyncio.sleep(0.005)
    return "stopped because it was asked"


@app.task
def watchful_thread(ctx: TaskContext) -> str:
    seen.append("began")
    while not ctx.cancelled:
        time.sleep(0.005)
    return "stopped because it was asked"


@case(app)
@pytest.mark.parametrize("name", ["watchful", "watchful_thread"])
async def test_a_cancelled_run_asks_its_task_to_stop(lab: Lab, name: str):
    await lab.worker()
    await lab.history.start("one", "r", name)
    await until(lambda: seen == ["began"])
    await lab.history.send("r", cmd.Cancel())
    await lab.history.ended("r")
    assert isinstance(lab.history.end("r"), ev.RunCancelled)
    assert len(lab.history.bodies("r", ev.OpCompleted)) == 1


@case(app)
async def test_a_run_ended_by_force_asks_its_task_too_and_keeps_its_outcome_for_audit(lab: Lab):
    await lab.worker()
    await lab.history.start("one", "r", "watchful")
    await until(lambda: seen == ["began"])
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")
    (late,) = await lab.history.seen("r", ev.OutcomeLate)
    assert late.value == b'"stopped because it was asked"'


# -- look-ups --------------------------------------------------------------------------------------------------------

answers: list[Any] = []


async def look_up(ctx: TaskContext) -> Found[str] | NotFound | Unknown:
    seen.append(("looks", ctx.attempt))
    answer = answers.pop(0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


@app.task(reconcile=look_up, retry=Retry(max_attempts=2, initial=0.01, max_delay=0.01), timeout=0.1)
async def uncertain(ctx: TaskContext) -> str:
    seen.append(("does", ctx.attempt))
    if ctx.attempt == 1:
        await asyncio.sleep(600)
    return f"done by {ctx.attempt}"


@case(app)
@pytest.mark.parametrize(
    ("found", "course", "result"),
    [
        ([Found("it was there")], [("does", 1), ("looks", 2)], "it was there"),
        ([NotFound()], [("does", 1), ("looks", 2), ("does", 2)], "done by 2"),
        ([Unknown("busy"), Found("now")], [("does", 1), ("looks", 2), ("looks", 3)], "now"),
        ([RuntimeError("down"), Found("now")], [("does", 1), ("looks", 2), ("looks", 3)], "now"),
        ([object(), Found("now")], [("does", 1), ("looks", 2), ("looks", 3)], "now"),
    ],
)
async def test_f12_an_attempt_that_timed_out_is_looked_up_before_it_is_repeated(
    lab: Lab, found: list[Any], course: list[Any], result: str
):
    answers[:] = list(found)
    await lab.worker()
    await lab.history.start("one", "r", "uncertain")
    assert await lab.history.result("r") == result
    assert seen == course


@case(app, "memory")
async def test_a_look_up_that_never_knows_parks_at_last(lab: Lab):
    answers[:] = [Unknown("no idea")] * 10
    await lab.worker()
    await lab.history.start("one", "r", "uncertain")
    (parked,) = await lab.history.seen("r", ev.OpParked)
    assert parked.reason.code == "OUTCOME_UNKNOWN"


# -- what user code raises -------------------------------------------------------------------------------------------


class Nasty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Nastier(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class TwoArguments(Exception):
    def __init__(self, a: int, b: object) -> None:
        super().__init__(f"{a} and {b}")
        self.lock = threading.Lock()


def two_arguments() -> Exception:
    error = TwoArguments(1, object)
    error.__cause__ = ValueError("the cause")
    error.add_note("a note")
    return error


ODD: dict[str, Any] = {
    "nasty": Nasty,
    "nastier": Nastier,
    "exit": lambda: SystemExit(2),
    "interrupt": KeyboardInterrupt,
    "surrogate": lambda: ValueError("lone \ud800 surrogate"),
    "two": two_arguments,
    "stop": lambda: StopIteration(1),
    "group": lambda: ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    "zero": lambda: ValueError("\x00 zero"),
    "long": lambda: ValueError("x" * 1_000_000),
    "cancelled": asyncio.CancelledError,
}


@app.task(retry=Retry(max_attempts=1))
async def odd(ctx: TaskContext, name: str) -> None:
    raise ODD[name]()  # noqa: RSE102


@app.task(retry=Retry(max_attempts=1))
def odd_thread(ctx: TaskContext, name: str) -> None:
    raise ODD[name]()  # noqa: RSE102


@app.workflow(version=1)
async def oddly(ctx: Context, arguments: list[str]) -> None:
    task, name = arguments
    await ctx.run(app.task_named(task), name)  # type: ignore[arg-type]


@case(app)
async def test_f11_whatever_a_task_raises_becomes_a_stored_failure(lab: Lab):
    running = await lab.worker()
    runs = {f"{task}/{name}": [task, name] for task in ("odd", "odd_thread") for name in ODD}
    await lab.history.send_all([(run_id, start("oddly", value)) for run_id, value in runs.items()])
    await lab.history.ended(*runs)
    for run_id in runs:
        error = lab.history.error(run_id)
        assert error.code == "RETRIES_EXHAUSTED", run_id
        error.message.encode()
        assert len(error.message) < 10_000
    assert not running.task.done()
    assert "\\ud800" in lab.history.error("odd/surrogate").message
    assert b"the cause" in (lab.history.error("odd/two").details or b"")
    assert b"a note" in (lab.history.error("odd/two").details or b"")


FAILS: dict[str, Any] = {
    "plain": lambda: Fail("NO_MONEY", "the card was refused", {"left": 3}),
    "number": lambda: Fail(404, {"not": "text"}),  # type: ignore[arg-type]
    "surrogate": lambda: Fail("A\ud800", "b\udfff", {"c": "d"}),
    "details": lambda: Fail("BAD", "x", object()),
    "huge": lambda: Fail("HUGE", "y" * 5_000_000, "z" * 5_000_000),
    "nasty": lambda: Fail("NASTY", Nasty()),  # type: ignore[arg-type]
}


@app.task(retry=fast)
async def failing(ctx: TaskContext, name: str) -> None:
    raise FAILS[name]()  # noqa: RSE102


@app.workflow(version=1)
async def catching(ctx: Context, name: str) -> list[Any]:
    try:
        await ctx.run(failing, name)
    except TaskFailed as error:
        return [error.code, error.message[:100], error.details if name == "plain" else None]
    return []


@case(app)
async def test_f23_fail_is_a_failure_whatever_it_was_made_of(lab: Lab):
    await lab.worker()
    await lab.history.send_all([(name, start("catching", name)) for name in FAILS])
    assert await lab.history.result("plain") == ["NO_MONEY", "the card was refused", {"left": 3}]
    assert (await lab.history.result("number"))[0] == "404"
    assert (await lab.history.result("surrogate"))[0] == "A\\ud800"
    for name in FAILS:
        assert await lab.history.result(name)


TEXTS = ["\x00", "\ufeffbom", "line\u2028separator", "汉" * 60_000, "\U0001f600", "e\u0301"]


@app.task
async def echo(ctx: TaskContext, text: str) -> str:
    return text


@app.task
async def surrogate(ctx: TaskContext) -> str:
    return "half \ud800 of a pair"


@app.task
async def raw(ctx: TaskContext) -> bytes:
    return b"\xff\xfe\x00 no utf-8"


@app.workflow(version=1)
async def echoing(ctx: Context, text: str) -> list[Any]:
    heard = await ctx.run(echo, text)
    answer = await ctx.interrupt(heard, answer=str)
    return [heard == text, answer == text, (await ctx.run(raw)) == b"\xff\xfe\x00 no utf-8"]


@case(app)
async def test_f23_text_comes_back_unchanged(lab: Lab):
    await lab.worker()
    runs = {f"r{number} 汉字 é": text for number, text in enumerate(TEXTS)}
    await lab.history.send_all([(run_id, start("echoing", text)) for run_id, text in runs.items()])
    for run_id, text in runs.items():
        await lab.history.until(lambda h, r=run_id: any(b.kind == "interrupt" for b in h.bodies(r, ev.OpScheduled)))
        await lab.history.send(run_id, resume(text))
        assert await lab.history.result(run_id) == [True, True, True]


@app.task
async def lock(ctx: TaskContext) -> Any:
    return {"a": [1, threading.Lock()]}


@case(app)
async def test_f23_half_of_a_surrogate_pair_comes_back_unchanged(lab: Lab):
    await lab.worker()
    await lab.history.start("one", "r", "surrogate")
    await lab.history.ended("r")
    end = lab.history.end("r")
    assert isinstance(end, ev.RunCompleted)
    assert make_codec((), {}).decode(end.result) == "half \ud800 of a pair"


@case(app)
async def test_f23_a_result_that_cannot_be_stored_parks_and_says_where(lab: Lab):
    await lab.worker()
    await lab.history.start("one", "r", "lock")
    (parked,) = await lab.history.seen("r", ev.OpParked)
    assert parked.reason.code == "VALUE_NOT_STORABLE"
    assert "$.a[1]" in parked.reason.message
    await lab.history.send("r", cmd.Complete(parked.op, b'"mended"'))
    assert await lab.history.result("r") == "mended"


# -- deployments -----------------------------------------------------------------------------------------------------

other = App("tasks")


@other.workflow(version=1, name="one")
async def without_the_task(ctx: Context, name: str) -> Any:
    return None


@case(app, "memory")
async def test_a_task_that_is_not_loaded_parks_its_op(lab: Lab):
    gate[:] = [asyncio.Event()]
    running = await lab.worker(stop_seconds=0.0)
    await lab.history.start("one", "r", "watchful")
    await until(lambda: seen == ["began"])
    await running.stop()
    await lab.worker(other)
    (parked,) = await lab.history.seen("r", ev.OpParked)
    assert "watchful" in parked.reason.message
