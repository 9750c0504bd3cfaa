"""A log with every kind of run in it, written by workers that took over from one another; and copies to spoil."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

from streams import App, Context, Fail, Retry, TaskContext, extend
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.log.memory import open_memory
from streams.log.memory.log import MemoryLog
from streams.log.memory.partition import Entry
from streams.log.port import Record, TopicPartition
from streams.runtime.topics import ensure_topics
from streams.wire.records import decode_effect
from streams.wire.topics import topics_of
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal
from tests.runtime.lab import PARTITIONS, Lab

__all__ = ["EFFECTS", "Copy", "app", "fill", "make"]

app = App("good")
parcels = app.effect("parcels", dict)
mails = app.effect("mails", str)
charges = app.effect("charges", int, reply=str, retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01))
EFFECTS = ("charges", "mails", "parcels")
news = app.signal("news", int)


@app.task
async def work(ctx: TaskContext, what: str) -> str:
    return what.upper()


@app.task(retry=Retry(max_attempts=2, initial=0.01, max_delay=0.01))
async def broken(ctx: TaskContext) -> int:
    raise RuntimeError("it never works")


@app.task(retry=Retry(max_attempts=1, on_exhausted="park"))
async def parking(ctx: TaskContext) -> int:
    raise RuntimeError("somebody has to look")


@app.workflow(version=1)
async def order(ctx: Context, what: str) -> str:
    found = await ctx.run(work, what)
    ctx.emit(parcels, {"what": found}, idempotency_key=f"ship/{ctx.run_id}")
    first, second = await ctx.all(ctx.run(work, "x"), ctx.run(work, "y"))
    ctx.emit(mails, first + second)
    return found


@app.workflow(version=1)
async def asking(ctx: Context, what: str) -> str:
    await ctx.sleep(0.01)
    answer = await ctx.interrupt({"question": what}, answer=str)
    ctx.emit(mails, answer)
    return answer


@app.workflow(version=1)
async def both(ctx: Context, _: None) -> list[str]:
    return list(await ctx.all(ctx.interrupt("left", answer=str), ctx.interrupt("right", answer=str)))


@app.workflow(version=1)
async def paying(ctx: Context, cents: int) -> str:
    return await ctx.request(charges, cents, idempotency_key=f"pay/{ctx.run_id}")


@app.workflow(version=1)
async def hearing(ctx: Context, count: int) -> list[int]:
    found = [await ctx.receive(news) for _ in range(count)]
    won = await ctx.first(ctx.receive(news), ctx.sleep(0.01))
    return [*found, won.index]


@app.workflow(version=1)
async def doomed(ctx: Context, what: str) -> int:
    if what == "task":
        return await ctx.run(broken)
    if what == "park":
        return await ctx.run(parking)
    if what == "bug":
        raise TypeError("a bug")
    raise Fail("DOOMED", what)


@app.workflow(version=1)
async def cleaning(ctx: Context, what: str) -> str:
    try:
        await ctx.interrupt("?")
    finally:
        ctx.emit(parcels, {"cleaned": await ctx.run(work, what)})
    return what


class Story(TypedDict, total=False):
    rounds: int
    lines: Annotated[list[str], extend]


story = app.graph("story", state=Story, version=1)


@story.node
async def write(ctx: TaskContext, state: Story) -> Any:
    return {"lines": ["a line"], "rounds": state["rounds"] - 1}


@story.flow
async def publish(ctx: Context, state: Story) -> Any:
    ctx.emit(mails, str(len(state["lines"])))
    return {}


story.edge(write, publish)
story.route(publish, lambda state: write if state["rounds"] else None)


async def fill(lab: Lab, rounds: int = 6) -> None:
    """Runs of every kind, under three owners; the last of them stops gracefully."""
    h = lab.history
    settings = {"checkpoint_bytes_min": 600, "sweep_seconds": 0.05, "checkpoint_age_seconds": 0.1}
    first = await lab.worker(**settings)
    for n in range(rounds):
        await h.start("order", f"order{n}", "a" * (n + 1))
        await h.start("asking", f"ask{n}", "?")
        await h.start("story", f"story{n}", {"rounds": 3})
        await h.start("cleaning", f"clean{n}", "c")
    for n, what in enumerate(("task", "park", "bug", "itself")):
        await h.start("doomed", f"doomed{n}", what)
    await h.start("hearing", "hears", 2)
    await h.send("early", signal("news", 1))
    await h.send("hears", signal("news", 2), "n-1")
    await h.ended(*(f"order{n}" for n in range(rounds)))
    for n in range(rounds):
        await h.seen(f"ask{n}", ev.OpScheduled, 2)
    await h.start("paying", "pays", 5)
    await h.seen("pays", ev.OpScheduled)
    await reply(lab, 1, error=("retryable", "BUSY", "later"))
    await h.seen("pays", ev.AttemptStarted)
    await first.kill()
    second = await lab.worker(**settings)
    await h.send("hears", signal("news", 2), "n-1")  # known already
    await h.send("hears", signal("news", 3), "n-2")
    await h.send("nobody", resume("x"))
    await send_raw(lab.log, lab.topics.commands, 1, b"junk", b"\xffno command")
    await send_raw(lab.log, lab.topics.commands, 1, b"\xfe", None)
    await reply(lab, 2, b'"p-1"')
    await h.ended("pays")
    await reply(lab, 2, b'"p-2"')  # and once more
    for n in range(rounds):
        await h.send(f"ask{n}", resume("yes"))
        await h.send(f"clean{n}", cmd.Cancel(force=n == 0))
    await h.start("order", "order0", "another input")
    await h.start("order", "order1", "aa")
    await h.send("doomed1", cmd.Complete("1", b"7"))
    await h.ended("hears", "doomed1", *(f"ask{n}" for n in range(1, rounds)), *(f"story{n}" for n in range(rounds)))
    await h.ended(*(f"clean{n}" for n in range(rounds)))
    await second.stop()
    third = await lab.worker(**settings)
    await h.start("asking", "waits", "for long")
    await h.start("both", "both")
    await h.seen("waits", ev.OpScheduled, 2)
    await h.seen("both", ev.OpScheduled, 2)
    await h.seen("doomed2", ev.RunBlocked)
    await asyncio.sleep(0.3)  # a sweep writes what has waited for its age
    await third.stop()


async def reply(lab: Lab, attempt: int, value: bytes | None = None, *, error: Any = None) -> None:
    """Answer the request of `pays`."""
    place = TopicPartition(lab.topics.effect("charges"), lab.history.partition("pays"))
    messages = [decode_effect(record.value or b"") for record in await records_of(lab.log, place)]
    (m,) = [message for message in messages if message.attempt == attempt]
    await lab.history.send("pays", cmd.Reply(m.op, m.effect_id, m.attempt, m.epoch, value, error))


class Copy:
    """A memory log with the same records at the same places; what is done to it spoils no other."""

    def __init__(self, source: MemoryLog) -> None:
        self.log = MemoryLog()
        store, self.topics = source._store, topics_of("good", EFFECTS)
        for name, info in store.topics.items():
            self.log._store.topics[name] = info
            self.log._store._logs[name] = []
            for old in store.logs(name):
                new = type(old)(name, old.partition)
                new._entries, new._end = [e for e in old._entries if self._visible(old, e)], old._end
                new._entries = [e._replace(transaction=0) for e in new._entries]
                self.log._store._logs[name].append(new)

    @staticmethod
    def _visible(old: Any, entry: Entry) -> bool:
        return entry.record is not None and entry.transaction not in old._aborted

    def records(self, topic: str) -> Iterator[Record]:
        for log in self.log._store.logs(topic):
            for entry in log._entries:
                if entry.record is not None:
                    yield entry.record

    def find(self, topic: str, fits: Callable[[Record], bool], number: int = 0) -> Record:
        return [record for record in self.records(topic) if fits(record)][number]

    def put(self, record: Record, **changes: Any) -> None:
        """Replace a record."""
        log = self.log._store.partition(record.topic, record.partition)
        place = log._index(record.offset)
        log._entries[place] = log._entries[place]._replace(record=record._replace(**changes))

    def drop(self, record: Record) -> None:
        log = self.log._store.partition(record.topic, record.partition)
        del log._entries[log._index(record.offset)]

    def add(self, record: Record, **changes: Any) -> int:
        """Append a record like this one."""
        log = self.log._store.partition(record.topic, record.partition)
        new = record._replace(offset=log._end, **changes)
        log._entries.append(Entry(log._end, new, 0))
        log._end += 1
        return new.offset

    def cut(self, topic: str, partition: int, end: int) -> None:
        """Lose everything from an offset on."""
        log = self.log._store.partition(topic, partition)
        log._entries = [entry for entry in log._entries if entry.offset < end]
        log._end = end


def make() -> MemoryLog:
    """Write the good log once."""

    async def work() -> MemoryLog:
        first = await open_memory()

        async def share() -> Any:
            return first.share()

        lab = Lab(app, share, first)
        await ensure_topics(lab.log, lab.topics, PARTITIONS)
        try:
            await fill(lab)
        finally:
            await lab.end()
        return first

    return asyncio.run(work())
