"""What the contract's cases are written with: unique names, recorded workers, and waiting without fixed times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol
from uuid import uuid4

from streams.errors import CommitAborted, Fenced
from streams.log.port import (
    GroupSnapshot,
    Isolation,
    Log,
    NewRecord,
    Producer,
    Record,
    TopicPartition,
    TopicSpec,
)

REFUSED = (Fenced, CommitAborted)
"""A rebalance overtook the commit. Kafka often cannot tell which of the two it was, so the contract does not ask."""

HANG_SECONDS = 90.0
"""A guard against hangs: no case measures time with it, so a slow machine fails nothing."""


class Config(Protocol):
    """What a transport gives to the contract."""

    async def open(self) -> Log: ...

    async def freeze(self, log: Log, worker: Worker) -> None: ...


class Worker:
    """A member that records what it is told. `resume_from` resumes new partitions at once."""

    def __init__(self, log: Log, group: str, topic: str, client_id: str) -> None:
        self.log = log
        self.group = group
        self.topic = topic
        self.client_id = client_id
        self.member = log.member(group, topic, client_id=client_id)
        self.calls: list[tuple[str, dict[int, int]]] = []
        self.records: list[Record] = []
        self.resume_from: int | None = None
        self.on_revoked: Callable[[GroupSnapshot, Mapping[int, int]], Awaitable[Any]] | None = None
        self.snapshot = self.member.snapshot()

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        assert partitions.items() <= snapshot.owned.items()
        self.calls.append(("assigned", dict(partitions)))
        if self.resume_from is not None:
            for partition in partitions:
                await self.member.resume(partition, self.resume_from)

    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        assert partitions.items() <= snapshot.owned.items()
        if self.on_revoked is not None:
            await self.on_revoked(snapshot, partitions)
        self.calls.append(("revoked", dict(partitions)))

    async def lost(self, partitions: Mapping[int, int]) -> None:
        self.calls.append(("lost", dict(partitions)))

    async def poll(self, seconds: float = 0.1) -> None:
        batch = await self.member.poll(500, seconds)
        self.snapshot = batch.snapshot
        self.records += batch.records

    def told(self, what: str) -> dict[int, int]:
        """All partitions of the calls of one kind, with their last incarnation."""
        return {p: i for kind, partitions in self.calls if kind == what for p, i in partitions.items()}

    @property
    def owned(self) -> set[int]:
        return set(self.snapshot.owned)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class World:
    """One case's names and handles. Names are unique, because a real broker is shared by all cases."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tag = uuid4().hex[:10]
        self._logs: list[Log] = []

    async def log(self) -> Log:
        """Another handle of the same log, as another process has it."""
        log = await self.config.open()
        self._logs.append(log)
        return log

    async def close(self) -> None:
        for log in self._logs:
            await log.close()

    def name(self, name: str) -> str:
        return f"{name}-{self.tag}"

    async def topic(self, log: Log, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic; `cleanup_policy="compact"` stands for `cleanup.policy`."""
        full = self.name(name)
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await log.create_topics([TopicSpec(full, partitions, settings)])
        return full

    async def worker(self, log: Log, topic: str, client_id: str = "a", group: str = "group") -> Worker:
        worker = Worker(log, self.name(group), topic, client_id)
        await worker.member.join(worker)
        return worker

    async def producer(self, log: Log, name: str = "producer") -> Producer:
        return await log.producer(self.name(name))

    async def owner(self, log: Log, topic: str, partitions: int = 1) -> tuple[Worker, Producer]:
        """A worker that owns everything, with a producer."""
        worker = await self.worker(log, topic)
        await until(lambda: len(worker.owned) == partitions, worker)
        return worker, await self.producer(log)


async def until(condition: Callable[[], bool], *workers: Worker) -> None:
    """Poll these workers side by side until the condition holds."""
    deadline = time.monotonic() + HANG_SECONDS / 2
    while not condition():
        assert time.monotonic() < deadline, [(worker.client_id, worker.calls) for worker in workers]
        await asyncio.gather(*(worker.poll() for worker in workers))


async def read_all(
    log: Log, topic: str, partitions: Iterable[int] = (0,), isolation: Isolation = "read_committed"
) -> list[Record]:
    """Everything up to the ends as they are now: by position, since the last offset may be no record."""
    places = [TopicPartition(topic, partition) for partition in partitions]
    spans = {place: await log.span(*place, isolation) for place in places}
    reader = log.reader({place: spans[place].start for place in places}, isolation)
    records: list[Record] = []
    deadline = time.monotonic() + HANG_SECONDS / 2
    while any(reader.position(place) < spans[place].end for place in places):
        assert time.monotonic() < deadline, {place: (reader.position(place), spans[place]) for place in places}
        records += await reader.read(1000, 0.1)
    await reader.close()
    return records


async def settled(log: Log, topic: str, partition: int = 0) -> None:
    """Wait until nothing is pending: on Kafka the markers follow an acknowledged commit."""
    deadline = time.monotonic() + HANG_SECONDS / 2
    while await log.span(topic, partition) != await log.span(topic, partition, "read_uncommitted"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def values(log: Log, topic: str, partitions: Iterable[int] = (0,)) -> list[bytes | None]:
    """The visible values, once nothing is pending."""
    partitions = list(partitions)
    for partition in partitions:
        await settled(log, topic, partition)
    return [record.value for record in await read_all(log, topic, partitions)]


def new(topic: str, value: bytes | None, partition: int = 0, key: bytes | None = b"run") -> NewRecord:
    return NewRecord(topic, partition, key, value)


def run(world: World, body: Coroutine[Any, Any, None]) -> None:
    """Run one case to its end and close what it opened, whatever happens."""

    async def within() -> None:
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await body
        finally:
            await world.close()

    asyncio.run(within())


def case(body: Callable[[Any, World], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """Let plain pytest run an async case."""

    def test(self: Any) -> None:
        world = World(self)
        run(world, body(self, world))

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


__all__ = [
    "HANG_SECONDS",
    "REFUSED",
    "Config",
    "Worker",
    "World",
    "case",
    "new",
    "read_all",
    "settled",
    "until",
    "values",
]
