"""Values just below and just above the limits: a named end for the run that has them, and no harm to its neighbours."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from streams import App, Context, Fail, TaskContext, extend
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.codec import VALUE_BYTES_MAX
from streams.kernel.commands import Request
from streams.kernel.run import RUN_BYTES_MAX
from streams.log.port import RECORD_BYTES_MAX, NewRecord
from tests.runtime.history import resume, signal, start, until
from tests.runtime.lab import Lab, case

app = App("sizes")
parcels = app.effect("parcels", str)
news = app.signal("news", str)

FITS = VALUE_BYTES_MAX - 2  # the quotes of the JSON text


def text(size: int) -> str:
    """Text of so many bytes that no compression would help with."""
    unit = "".join(chr(33 + (n * 7919) % 58) for n in range(997)).replace("\\", "/").replace('"', "'")
    return (unit * (size // 997 + 1))[:size]


@app.task
async def make(ctx: TaskContext, size: int) -> str:
    return text(size)


@app.task
async def take(ctx: TaskContext, value: str) -> int:
    return len(value)


@app.task
async def fail_large(ctx: TaskContext, size: int) -> None:
    raise Fail("LARGE", text(size), text(size))


@app.task
async def note(ctx: TaskContext, size: int) -> str:
    ctx.heartbeat(text(size))
    return "noted"


@app.workflow(version=1)
async def healthy(ctx: Context, number: int) -> int:
    return await ctx.run(take, "x" * number)


@app.workflow(version=1)
async def result_of_a_task(ctx: Context, size: int) -> int:
    return len(await ctx.run(make, size))


@app.workflow(version=1)
async def result_of_a_run(ctx: Context, size: int) -> str:
    return text(size)


@app.workflow(version=1)
async def argument(ctx: Context, size: int) -> int:
    return await ctx.run(take, text(size - 4))  # [[ and ]]


@app.workflow(version=1)
async def effect(ctx: Context, size: int) -> int:
    await ctx.run(take, "")
    ctx.emit(parcels, text(size))
    return size


@app.workflow(version=1)
async def question(ctx: Context, size: int) -> int:
    await ctx.interrupt(text(size))
    return size


@app.workflow(version=1)
async def failure(ctx: Context, size: int) -> int:
    raise Fail("LARGE", "too large?", text(size))


@app.workflow(version=1)
async def failing_task(ctx: Context, size: int) -> int:
    await ctx.run(fail_large, size)
    return size


@app.workflow(version=1)
async def note_of_a_task(ctx: Context, size: int) -> str:
    return await ctx.run(note, size)


async def among_neighbours(lab: Lab, *requests: tuple[str, Request]) -> None:
    """The requests in one batch with healthy runs before and after."""
    await lab.history.send_all(
        [(f"before{n}", start("healthy", n)) for n in range(8)]
        + list(requests)
        + [(f"after{n}", start("healthy", n)) for n in range(8)]
    )
    for n in range(8):
        assert await lab.history.result(f"before{n}") == n
        assert await lab.history.result(f"after{n}") == n


WORKFLOWS = [
    "result_of_a_task",
    "result_of_a_run",
    "argument",
    "effect",
    "question",
    "failure",
]


@case(app)
@pytest.mark.parametrize("workflow", WORKFLOWS)
async def test_f13_a_value_just_below_the_limit_passes(lab: Lab, workflow: str):
    await lab.worker()
    await among_neighbours(lab, ("r", start(workflow, FITS)))
    if workflow == "question":
        await lab.history.seen("r", ev.OpScheduled)
        await lab.history.send("r", resume("fine"))
    await lab.history.ended("r")
    end = lab.history.end("r")
    assert isinstance(end, ev.RunFailed if workflow == "failure" else ev.RunCompleted)


@case(app)
@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("size", [FITS + 1, 2_000_000])
async def test_f13_a_value_above_the_limit_has_a_named_end_and_can_be_cancelled(lab: Lab, workflow: str, size: int):
    running = await lab.worker()
    await among_neighbours(lab, ("r", start(workflow, size)))
    if workflow == "result_of_a_task":
        (parked,) = await lab.history.seen("r", ev.OpParked)
        assert parked.reason.code == "VALUE_TOO_LARGE"
        assert "256,000" in parked.reason.message
    else:
        (blocked,) = await lab.history.seen("r", ev.RunBlocked)
        assert blocked.error.code == "VALUE_TOO_LARGE"
    await running.kill()
    await lab.worker()
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")


@case(app)
@pytest.mark.parametrize("size", [FITS, FITS + 1, 5_000_000])
async def test_f13_a_failure_of_any_size_is_a_failure(lab: Lab, size: int):
    await lab.worker()
    await among_neighbours(lab, ("r", start("failing_task", size)))
    await lab.history.ended("r")
    assert lab.history.error("r").code == "LARGE"


@case(app)
async def test_f13_a_note_that_is_too_large_fails_its_task(lab: Lab):
    await lab.worker()
    await among_neighbours(lab, ("fits", start("note_of_a_task", FITS)), ("not", start("note_of_a_task", FITS + 1)))
    assert await lab.history.result("fits") == "noted"
    await lab.history.until(lambda h: h.end("not") or h.bodies("not", ev.OpParked))


def json_of(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@case(app)
@pytest.mark.parametrize(
    "make_json",
    [
        lambda value: json_of(type="start", workflow="healthy", input=value),
        lambda value: json_of(type="resume", value=value),
        lambda value: json_of(type="signal", name="news", value=value),
        lambda value: json_of(type="complete", op="1", value=value),
        lambda value: json_of(type="start", workflow="healthy", input=1, attributes={"a": value}),
    ],
    ids=["start", "resume", "signal", "complete", "attributes"],
)
async def test_f13_a_command_above_the_limit_is_a_dead_letter(lab: Lab, make_json: Any):
    running = await lab.worker()
    await lab.history.start("question", "r", 10)
    await lab.history.seen("r", ev.OpScheduled)
    place = lab.history.partition("r")
    sizes = (FITS + 1, RECORD_BYTES_MAX - 400)
    offsets = await lab.log.append(
        [NewRecord(lab.topics.commands, place, b"r", make_json(text(size))) for size in sizes]
    )
    for offset in offsets:
        await until(lambda offset=offset: running.told.heard("dead_letter", lab.topics.commands, place, offset))
    await among_neighbours(lab)
    assert {letter.code for letter in (await lab.check()).letters} == {"VALUE_TOO_LARGE"}
    await lab.history.send("r", resume("fine"))
    assert await lab.history.result("r") == 10


@case(app)
async def test_f13_input_for_a_blocked_run_adds_up_to_no_more_than_the_run_may_hold(lab: Lab):
    await lab.worker()
    await lab.history.start("question", "r", FITS + 1)
    await lab.history.seen("r", ev.RunBlocked)
    await among_neighbours(lab, *[("r", signal("news", text(FITS))) for _ in range(10)])
    rejected = await lab.history.seen("r", ev.CommandRejected, 1)
    assert {body.code for body in rejected} <= {"INBOX_FULL"}
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")


@case(app)
async def test_f13_early_input_adds_up_to_no_more_than_a_run_may_hold(lab: Lab):
    await lab.worker()
    await among_neighbours(lab, *[("r", signal("news", text(FITS))) for _ in range(10)])
    rejected = await lab.history.seen("r", ev.CommandRejected, 1)
    assert {body.code for body in rejected} == {"INBOX_FULL"}


# -- state that grows ------------------------------------------------------------------------------------------------

STEP = 10_000


@app.workflow(version=1)
async def growing(ctx: Context, steps: int) -> int:
    kept = [await ctx.run(make, STEP) for _ in range(steps)]
    return len(kept)


@dataclass
class Pile:
    texts: Annotated[list[str], extend] = field(default_factory=list)
    steps: int = 0


pile = app.graph("pile", state=Pile, version=1)


@pile.node
async def grow(ctx: TaskContext, state: Pile) -> dict[str, Any]:
    return {"texts": [text(STEP)], "steps": state.steps + 1}


pile.route(grow, lambda state: grow if state.steps < 100 else None)


@dataclass
class Wide:
    a: str = ""
    b: str = ""
    c: str = ""
    d: str = ""


wide = app.graph("wide", state=Wide, version=1)


@wide.node
async def widen(ctx: TaskContext, state: Wide) -> dict[str, Any]:
    return {"a": text(60_000), "b": text(60_000), "c": text(60_000), "d": text(60_000)}


@wide.node
async def widen_more(ctx: TaskContext, state: Wide) -> dict[str, Any]:
    return {"a": text(250_000)}


@wide.node
async def widen_b(ctx: TaskContext, state: Wide) -> dict[str, Any]:
    return {"b": text(250_000)}


@wide.node
async def widen_c(ctx: TaskContext, state: Wide) -> dict[str, Any]:
    return {"c": text(250_000)}


@wide.node
async def widen_d(ctx: TaskContext, state: Wide) -> dict[str, Any]:
    return {"d": text(250_000)}


wide.edge(widen, widen_more)
wide.edge(widen, widen_b)
wide.edge(widen, widen_c)
wide.edge(widen, widen_d)


@case(app)
@pytest.mark.parametrize(("workflow", "value"), [("growing", 100), ("pile", {}), ("wide", {})])
async def test_f13_state_that_grows_beyond_the_limit_blocks_its_run(lab: Lab, workflow: str, value: Any):
    running = await lab.worker()
    await among_neighbours(lab, ("r", start(workflow, value)))
    (blocked,) = await lab.history.seen("r", ev.RunBlocked)
    assert blocked.error.code == "VALUE_TOO_LARGE"
    await running.kill()
    running = await lab.worker(checkpoint_bytes_min=1)
    hot = running.worker.owner.partitions[lab.history.partition("r")].runs["r"]
    assert hot.run.blocked is not None  # readable
    await lab.history.send("r", cmd.Retry())
    await lab.history.seen("r", ev.RunBlocked, 2)
    await lab.history.send("r", cmd.Cancel())
    await lab.history.seen("r", ev.InputHeld, 2)
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")


@case(app)
async def test_f13_state_just_below_the_limit_is_kept_in_checkpoints(lab: Lab):
    steps = RUN_BYTES_MAX // (STEP + 400) - 1
    running = await lab.worker(checkpoint_bytes_min=1)
    await among_neighbours(lab, ("r", start("growing", steps)))
    assert await lab.history.result("r") == steps
    assert running.told.heard("message") == []


@app.task(name="t" * 100)
async def long_name(ctx: TaskContext) -> int:
    return 1


@app.workflow(version=1)
async def many(ctx: Context, count: int) -> int:
    for _ in range(count):
        await ctx.all([ctx.run(long_name) for _ in range(100)])
    await ctx.interrupt("?")
    return count


@case(app, "memory")
async def test_f13_the_checkpoint_of_a_run_within_its_limit_can_be_written(lab: Lab):
    running = await lab.worker(checkpoint_bytes_min=1)
    await lab.history.start("many", "r", 100)
    await lab.history.until(
        lambda h: h.blocked("r") or [b for b in h.bodies("r", ev.OpScheduled)[-1:] if b.kind == "interrupt"]
    )
    assert running.told.heard("message") == []
