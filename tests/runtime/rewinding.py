"""A log with runs in every state and commands of every kind, whose group is then moved; on any log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streams import App, Context, Fail, TaskContext
from streams.errors import LogUnavailable
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import Run, Status, status_of
from streams.log.port import Log, Record, TopicPartition
from streams.wire.messages import EffectMessage
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, Running

__all__ = ["HOW", "Known", "app", "fresh", "known_log", "move", "nothing_has_changed", "rewind"]

app = App("rewinds")
parcels = app.effect("parcels", str)
news = app.signal("news", int)
calls: list[str] = []
gate: list[asyncio.Event] = []


def fresh() -> None:
    calls.clear()
    gate[:] = [asyncio.Event()]


@app.task
async def work(ctx: TaskContext, what: str) -> str:
    calls.append(ctx.idempotency_key)
    return what.upper()


@app.task
async def slow(ctx: TaskContext) -> str:
    await gate[0].wait()
    return "slow"


@app.task(idempotent=False)
async def breaks(ctx: TaskContext) -> str:
    raise OSError("it may have happened")


@app.workflow(version=1)
async def ships(ctx: Context, what: str) -> str:
    found = await ctx.run(work, what)
    ctx.emit(parcels, found)
    if what == "fail":
        raise Fail("ASKED_TO", "fail")
    if what == "ask":
        return str(await ctx.interrupt("?"))
    if what == "sleep":
        await ctx.first(ctx.sleep(3600), ctx.receive(news))
    if what == "hear":
        return str(await ctx.receive(news))
    if what == "slow":
        return await ctx.run(slow)
    if what == "park":
        return await ctx.run(breaks)
    return found


STATES = {
    "done": Status.COMPLETED,
    "fail": Status.FAILED,
    "ask": Status.WAITING,
    "sleep": Status.WAITING,
    "hear": Status.WAITING,
    "slow": Status.RUNNING,
    "park": Status.WAITING,
}
ENDS_AS = {"ask": "yes", "sleep": "SLEEP", "hear": "7", "slow": "slow", "park": "vouched"}


class Known(NamedTuple):
    """What a log held before its group was moved."""

    runs: Mapping[str, Run]
    effects: list[EffectMessage]
    calls: list[str]
    commands: list[Record]
    applied: Mapping[int, int]


async def known_log(lab: Lab) -> Known:
    """Runs in every state, from commands as Avro and as JSON, among which are some that were refused or set aside."""
    running = await lab.worker(stop_seconds=0.2)
    for what in STATES:
        await lab.history.start("ships", f"avro-{what}", what, command_id=f"start {what}")
        await send_json(lab, f"json-{what}", {"type": "start", "workflow": "ships", "input": what})
    await lab.history.until(lambda h: all(stands(h.events.get(run_id, []), what) for run_id, what in everyone()))
    await lab.history.send_all([("avro-done", start("ships", "other")), ("avro-ask", resume("x", "nothing"))])
    await lab.history.start("ships", "avro-done", "done", command_id="start done")
    await send_raw(lab.log, lab.topics.commands, 1, b"garbage", b"\xff")
    await send_raw(lab.log, lab.topics.commands, 2, None, None)
    await lab.history.send("early", signal("news", 1))
    await lab.history.start("ships", "gone", "ask")
    last = await lab.history.send("gone", cmd.Cancel(force=True))
    await lab.history.answered(last, "gone")
    commands = await all_of(lab, lab.topics.commands)
    partitions = running.worker.owner.partitions
    ends = {n: (await lab.log.span(lab.topics.commands, n)).end for n in range(PARTITIONS)}
    await until(lambda: all(partitions[n].applied == end for n, end in ends.items()), "all commands to be applied")
    await running.stop()
    checked = await lab.check()
    return Known(checked.runs, checked.effects, list(calls), commands, ends)


def everyone() -> list[tuple[str, str]]:
    return [(f"{form}-{what}", what) for what in STATES for form in ("avro", "json")]


def stands(events: list[Any], what: str) -> bool:
    """Whether a run has come to where it stays."""
    bodies = [event.body for event in events]
    if what in ("done", "fail"):
        return any(isinstance(body, (ev.RunCompleted, ev.RunFailed)) for body in bodies)
    if what == "park":
        return any(isinstance(body, ev.OpParked) for body in bodies)
    return sum(isinstance(body, ev.OpScheduled) for body in bodies) >= 2


async def send_json(lab: Lab, run_id: str, command: dict[str, Any]) -> None:
    partition = lab.history.partition(run_id)
    await send_raw(lab.log, lab.topics.commands, partition, run_id.encode(), json.dumps(command).encode())


async def all_of(lab: Lab, topic: str) -> list[Record]:
    return [record for n in range(PARTITIONS) for record in await records_of(lab.log, TopicPartition(topic, n))]


# -- moving ----------------------------------------------------------------------------------------------------------


async def rewind(log: Log, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
    """A broker may need a moment to see that the last member has left."""
    for _ in range(300):
        try:
            return await log.rewind_group(group, topic, offsets)
        except LogUnavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the group never became empty")


def to_a_time(known: Known) -> dict[int, int]:
    """The first command of each partition that the log took at or after the middle of the story."""
    middle = sorted(record.timestamp for record in known.commands)[len(known.commands) // 2]
    return {
        n: min((r.offset for r in known.commands if r.partition == n and r.timestamp >= middle), default=end)
        for n, end in known.applied.items()
    }


HOW: dict[str, Callable[[Known], dict[int, int | None]]] = {
    "to the beginning": lambda _: dict.fromkeys(range(PARTITIONS), 0),
    "to a time": lambda known: {**to_a_time(known)},
    "offsets deleted": lambda _: dict.fromkeys(range(PARTITIONS), None),
    "one partition alone": lambda _: {1: 0},
}


async def move(lab: Lab, known: Known, how: str) -> int:
    """Move the group; return how many known commands are read again."""
    offsets = HOW[how](known)
    await rewind(lab.log, lab.topics.group, lab.topics.commands, offsets)
    starts = {n: offsets.get(n, known.applied[n]) or 0 for n in range(PARTITIONS)}
    return sum(record.offset >= starts[record.partition] for record in known.commands)


async def nothing_has_changed(lab: Lab, known: Known, again: int) -> None:
    """A worker skips what is known, counts it, and every run goes on from where it was."""
    running = await lab.worker()
    await until(lambda: skipped(running) >= again, f"{again} skipped commands")
    # A command behind them has its turn.
    await lab.history.start("ships", "later", "done")
    assert await lab.history.result("later") == "DONE"
    assert skipped(running) == again
    checked = await lab.check()
    for run_id, before in known.runs.items():
        after = checked.runs[run_id]
        if run_id.endswith("-slow"):  # its task was given back, and is tried again
            assert (status_of(after), after.ops.keys()) == (Status.RUNNING, before.ops.keys())
        else:
            assert after._replace(epoch=0) == before._replace(epoch=0)
    assert [effect for effect in checked.effects if effect.run_id != "later"] == known.effects
    assert sorted(calls) == sorted([*known.calls, calls[-1]])
    assert len(set(calls)) == len(calls)
    await go_on(lab)


def skipped(running: Running) -> int:
    return sum(told[2] for told in running.told.heard("skipped"))


async def go_on(lab: Lab) -> None:
    """Everything that waits still takes what it waits for."""
    gate[0].set()
    for form in ("avro", "json"):
        requests: list[tuple[str, Any]] = [(f"{form}-ask", resume("yes"))]
        requests += [(f"{form}-{what}", signal("news", 7)) for what in ("sleep", "hear")]
        parked = next(e.body.op for e in lab.history.events[f"{form}-park"] if isinstance(e.body, ev.OpParked))
        requests.append((f"{form}-park", cmd.Complete(parked, b'"vouched"')))
        await lab.history.send_all(requests)
    for run_id, what in everyone():
        if what in ENDS_AS:
            assert await lab.history.result(run_id) == ENDS_AS[what]
