"""The real worker takes the steps of the model, in its order: seen in its calls on a memory log."""

from __future__ import annotations

import asyncio
import itertools

from streams import App, Context
from streams.log.memory import open_memory
from streams.log.memory.log import MemoryLog
from streams.log.memory.member import MemoryMember
from streams.log.memory.producer import MemoryProducer
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.wire.topics import topics_of
from tests.model.catalogue import SCENARIOS
from tests.runtime.history import History, until

app = App("steps")


@app.workflow(version=1)
async def short(ctx: Context, number: int) -> int:
    return number


def _watched(monkeypatch, calls: list[tuple[str, str]]) -> None:
    """Note each call that is a step of the model, under the step's name there."""
    topics = topics_of("steps", ())

    def watch(cls, name, step):
        real = getattr(cls, name)

        def call(self, *args, **kwargs):
            found = step(*args, **kwargs)
            is_open = ("8", "open") in calls  # what reads the log from here on is the test itself
            if found is not None and (not is_open or found[0] == "turn"):
                calls.append(found)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(cls, name, call)

    def span(topic, partition, isolation="read_committed"):
        kind = {topics.events: "events", topics.checkpoints: "checkpoints", topics.leases: "leases"}.get(topic)
        if kind is None:
            return None
        return ("2", kind) if isolation == "read_uncommitted" else ("3", kind)

    def read(start, isolation="read_committed"):
        (place,) = start
        if place.topic == topics.leases and ("5", "claim") in calls:
            return None  # the clock is compared with the append time of our own claim
        kinds = {
            topics.leases: ("4", "lease"),
            topics.events: ("6", "events"),
            topics.checkpoints: ("6", "checkpoints"),
        }
        return kinds.get(place.topic)

    def commit(snapshot, records, offsets):
        assert offsets, "every transaction carries the fence"
        kinds = {record.topic for record in records}
        return ("5", "claim") if kinds == {topics.leases} else ("turn", "commit")

    watch(MemoryMember, "committed", lambda partition: ("1", "stable offset"))
    watch(MemoryLog, "span", span)
    watch(MemoryLog, "reader", read)
    watch(MemoryProducer, "commit", commit)
    watch(MemoryMember, "resume", lambda partition, offset: ("8", "open"))


async def _run_one(calls: list[tuple[str, str]]) -> None:
    log = await open_memory()
    await ensure_topics(log, topics_of(app.name, app.effects), 1)
    history = History(log, app.name, (), 1)
    for run_id in ("r1", "r2"):  # the second worker finds a lease, events and a checkpoint
        calls.clear()
        worker = Worker(app, log.share())
        task = asyncio.create_task(worker.run())
        await until(lambda: any(step == "8" for step, _ in calls), "the partition")
        await history.start("short", run_id, 1)
        assert await history.result(run_id) == 1
        worker.stop()
        await task


def test_a_real_worker_takes_the_steps_of_the_model_in_its_order(monkeypatch):
    calls: list[tuple[str, str]] = []
    _watched(monkeypatch, calls)
    asyncio.run(_run_one(calls))
    first = next(at for at, (step, _) in enumerate(calls) if step == "1")
    seen = [step for step, _ in itertools.groupby(step for step, _ in calls[first:])]
    assert {kind for step, kind in calls[first:] if step == "2"} == {"events", "checkpoints", "leases"}
    assert {kind for step, kind in calls[first:] if step == "3"} == {"events", "checkpoints", "leases"}
    assert seen[: len(_path())] == _path()


def _path() -> list[str]:
    """The one path of a model without faults, up to the first commit of a turn; 3 and 4 are one step there."""
    system = SCENARIOS["first"]._replace(faults={}, workers=1, runs=(0,), records_first=True).system()
    state, names, sending = system.initial, [], ""
    while sending != "turn, sent":
        edges = list(system.steps(state))
        # A marker comes when it likes; here when the worker can do nothing without it.
        edge = next((edge for edge in edges if edge.label[0][0].isdigit()), edges[0])
        state, what = edge.state, edge.label[0]
        sending = {"5: claims": "claim", "1, 2: takes": "turn"}.get(what, sending)
        if what == "3: ends" and sending == "turn":
            sending = "turn, sent"
        names += _CALLS.get(what, [])
    return [*names, "turn"]


_CALLS = {
    "1: stable offset": ["1"],
    "2: ends": ["2"],
    "3, 4: lease": ["3", "4"],
    "5: claims": ["5"],
    "6-8: restored": ["6", "8"],
}
