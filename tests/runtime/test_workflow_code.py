"""Workflow code that hangs, raises or awaits what it must not: its run is blocked, and no other is delayed."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from streams import App, Context, Fail, TaskContext
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from tests.runtime.history import resume, signal, start
from tests.runtime.lab import Lab, case

pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'nested' was never awaited")

app = App("code")
state: dict[str, Any] = {}


@app.task
async def add(ctx: TaskContext, number: int) -> int:
    return number + 1


@app.workflow(version=1)
async def healthy(ctx: Context, number: int) -> int:
    return await ctx.run(add, await ctx.run(add, number))


async def neighbours(lab: Lab, *others: tuple[str, Any]) -> None:
    """Healthy runs before and after in the same batch, and one later."""
    runs = [(f"before/{n}", start("healthy", n)) for n in range(5)]
    after = [(f"after/{n}", start("healthy", n)) for n in range(5)]
    await lab.history.send_all([*runs, *others, *after])
    for n in range(5):
        assert await lab.history.result(f"before/{n}") == n + 2
        assert await lab.history.result(f"after/{n}") == n + 2
    await lab.history.start("healthy", "later", 7)
    assert await lab.history.result("later") == 9


class Nasty(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Surrogate(Exception):
    pass


class Restless:
    def __await__(self) -> Any:
        yield "something foreign"


async def nested() -> None:
    await asyncio.sleep(1)


def busy() -> None:
    while state["busy"]:
        pass


def swallow() -> None:
    tries = 0
    while state["busy"] and tries < 3:
        try:
            while state["busy"]:
                pass
        except BaseException:  # noqa: BLE001 - what must not be done
            tries += 1


CODE: dict[str, Any] = {
    "sleep": lambda ctx: asyncio.sleep(0.1),
    "sleep 0": lambda ctx: asyncio.sleep(0),
    "gather": lambda ctx: asyncio.gather(asyncio.sleep(0), asyncio.sleep(0)),
    "create_task": lambda ctx: asyncio.create_task(nested()),
    "wait_for": lambda ctx: asyncio.wait_for(ctx.sleep(10), 1),
    "timeout": lambda ctx: asyncio.timeout(1).__aenter__(),
    "get_running_loop": lambda ctx: asyncio.get_running_loop().create_future(),
    "foreign": lambda ctx: Restless(),
}


@app.workflow(version=1)
async def awaiting(ctx: Context, name: str) -> None:
    await ctx.run(add, 1)
    await CODE[name](ctx)


@case(app)
@pytest.mark.parametrize("name", list(CODE))
async def test_workflow_code_that_awaits_something_foreign_is_told_what_to_write(lab: Lab, name: str):
    await lab.worker()
    await neighbours(lab, ("r", start("awaiting", name)))
    (blocked,) = await lab.history.seen("r", ev.RunBlocked)
    assert blocked.error.code == "WORKFLOW_BUG"
    assert "ctx.sleep" in blocked.error.message or "app.task" in blocked.error.message
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")


RAISES: dict[str, Any] = {
    "exit": lambda: sys.exit("bye"),
    "bug": lambda: 1 / 0,
    "nasty": lambda: throw(Nasty()),
    "surrogate": lambda: throw(Surrogate("half \ud800 of a pair")),
    "generator exit": lambda: throw(GeneratorExit()),
    "cancelled": lambda: throw(asyncio.CancelledError()),
    "recursion": lambda: recurse(0),
    "stop": lambda: throw(StopIteration()),
    "huge": lambda: throw(ValueError("x" * 2_000_000)),
}


def throw(error: BaseException) -> None:
    raise error


def recurse(depth: int) -> None:
    recurse(depth + 1)


@app.workflow(version=1)
async def raising(ctx: Context, name: str) -> None:
    if name != "at once":
        await ctx.run(add, 1)
    RAISES[name]()


@case(app)
@pytest.mark.parametrize("name", list(RAISES))
async def test_whatever_workflow_code_raises_blocks_its_run_alone(lab: Lab, name: str):
    running = await lab.worker()
    await neighbours(lab, ("r", start("raising", name)))
    (blocked,) = await lab.history.seen("r", ev.RunBlocked)
    assert blocked.error.code == "WORKFLOW_BUG"
    blocked.error.message.encode()
    assert running.told.heard("run_blocked", "r", "WORKFLOW_BUG")
    await running.kill()
    await lab.worker()
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")


FAILS: dict[str, Any] = {
    "plain": lambda: Fail("NO_MONEY", "the card was refused"),
    "surrogate": lambda: Fail("A\ud800", "b\udfff"),
    "details": lambda: Fail("BAD", "x", object()),
    "number": lambda: Fail(404, {"not": "text"}),  # type: ignore[arg-type]
    "huge": lambda: Fail("HUGE", "y" * 5_000_000),
}


@app.workflow(version=1)
async def failing(ctx: Context, name: str) -> None:
    await ctx.run(add, 1)
    raise FAILS[name]()  # noqa: RSE102


@case(app)
@pytest.mark.parametrize("name", list(FAILS))
async def test_f23_a_failure_of_a_run_is_stored_or_blocks_it(lab: Lab, name: str):
    await lab.worker()
    await neighbours(lab, ("r", start("failing", name)))
    await lab.history.until(lambda h: h.end("r") or h.blocked("r"))
    if name == "plain":
        assert lab.history.error("r").code == "NO_MONEY"


@app.workflow(version=1)
async def hanging(ctx: Context, how: str) -> str:
    await ctx.run(add, 1)
    if state["busy"]:
        {"busy": busy, "swallow": swallow}[how]()
    return "went on"


@case(app)
@pytest.mark.parametrize("how", ["busy", "swallow"])
async def test_f24_workflow_code_that_never_waits_is_stopped_and_others_go_on(lab: Lab, how: str):
    state["busy"] = True
    await lab.worker(drive_seconds=0.2)
    await neighbours(lab, ("r", start("hanging", how)))
    if how == "busy":
        (blocked,) = await lab.history.seen("r", ev.RunBlocked)
        assert blocked.error.code == "WORKFLOW_BUG"
        assert "app.task" in blocked.error.message
        state["busy"] = False
        await lab.history.send("r", cmd.Retry())
    assert await lab.history.result("r") == "went on"


@app.workflow(version=1)
async def hangs_in_clean_up(ctx: Context, _: None) -> None:
    try:
        await ctx.interrupt("?")
    finally:
        busy()


@case(app, "memory")
async def test_clean_up_that_hangs_at_eviction_does_not_stop_the_worker(lab: Lab):
    state["busy"] = True
    await lab.worker(drive_seconds=0.1, live_runs_max=2)
    await lab.history.start("hangs_in_clean_up", "r", None)
    await neighbours(lab)
    await lab.history.until(lambda h: h.end("after/4"))
    state["busy"] = False
    assert lab.history.blocked("r") is None
    await lab.history.send("r", resume("x"))
    await lab.history.ended("r")


@app.workflow(version=1)
async def slow_drive(ctx: Context, seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - it blocks, but ends before anybody looks
    return await ctx.interrupt("?", answer=str)


@case(app, "memory")
async def test_a_blocking_call_in_workflow_code_blocks_its_run_when_it_ends(lab: Lab):
    await lab.worker(drive_seconds=0.1)
    await neighbours(lab, ("r", start("slow_drive", 0.3)))
    (blocked,) = await lab.history.seen("r", ev.RunBlocked)
    assert blocked.error.code == "WORKFLOW_BUG"


# -- code of users' types, keys and reducers -------------------------------------------------------------------------


@dataclass
class Evil:
    what: str

    def __post_init__(self) -> None:
        if self.what in RAISES:
            RAISES[self.what]()


evil = app.signal("evil", Evil)


def bad_key(name: str) -> str:
    RAISES[name]()
    return "key"


@app.task(key=bad_key)
async def keyed(ctx: TaskContext, name: str) -> str:
    return name


@app.workflow(version=1)
async def taking_evil(ctx: Context, input: Evil) -> str:
    return "got it"


@app.workflow(version=1)
async def asking_evil(ctx: Context, _: None) -> str:
    await ctx.interrupt("evil?", answer=Evil)
    return "got it"


@app.workflow(version=1)
async def evil_key(ctx: Context, name: str) -> str:
    return await ctx.run(keyed, name)


@app.workflow(version=1)
async def surrogate_key(ctx: Context, _: None) -> None:
    ctx.emit(parcels, {}, idempotency_key="half \ud800")


@app.workflow(version=1)
async def surrogate_name(ctx: Context, _: None) -> None:
    await ctx.interrupt("?", key="half \ud800")


parcels = app.effect("parcels", dict)
EVIL = ["bug", "exit", "nasty", "surrogate", "recursion"]


@case(app)
@pytest.mark.parametrize("name", EVIL)
async def test_user_types_that_raise_end_nothing_but_their_own_command(lab: Lab, name: str):
    await lab.worker()
    await lab.history.start("asking_evil", "asks", None)
    await lab.history.seen("asks", ev.OpScheduled)
    await neighbours(
        lab,
        ("takes", start("taking_evil", {"what": name})),
        ("asks", resume({"what": name})),
        ("asks", signal("evil", {"what": name})),
        ("key", start("evil_key", name)),
    )
    rejected = await lab.history.seen("takes", ev.CommandRejected)
    assert rejected
    await lab.history.until(lambda h: h.blocked("key"))
    await lab.history.read()
    if lab.history.blocked("asks") is None:
        await lab.history.send("asks", resume({"what": "good"}))
        assert await lab.history.result("asks") == "got it"


@case(app)
@pytest.mark.parametrize("workflow", ["surrogate_key", "surrogate_name"])
async def test_f23_names_that_no_log_can_hold_block_their_run(lab: Lab, workflow: str):
    await lab.worker()
    await neighbours(lab, ("r", start(workflow, None)))
    (blocked,) = await lab.history.seen("r", ev.RunBlocked)
    assert blocked.error.code in ("VALUE_NOT_STORABLE", "WORKFLOW_BUG")
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")


@case(app, "memory")
async def test_unknown_workflows_and_signals_are_answered(lab: Lab):
    await lab.worker()
    offset = await lab.history.start("no such workflow", "r", None)
    answer = await lab.history.answered(offset, "r")
    assert isinstance(answer, (ev.CommandRejected, ev.RunStarted))
    if isinstance(answer, ev.RunStarted):
        assert (await lab.history.seen("r", ev.RunBlocked))[0].error.code == "WORKFLOW_UNKNOWN"
    offset = await lab.history.send("r2", signal("no such signal", 1))
    assert (await lab.history.answered(offset, "r2")).code == "UNKNOWN_SIGNAL"
