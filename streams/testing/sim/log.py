"""The memory log as one process of the simulation sees it: every operation passes a gate where faults strike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from streams.log.memory.hooks import End, Hooks
from streams.log.memory.log import MemoryLog
from streams.log.port import (
    Batch,
    GroupSnapshot,
    Isolation,
    Log,
    Member,
    NewRecord,
    Ownership,
    Producer,
    Reader,
    Record,
    Span,
    TopicInfo,
    TopicPartition,
    TopicSpec,
)

__all__ = ["Gate", "SimHooks", "SimLog"]


class Gate(Protocol):
    """What stands between a process and the log. All of it may delay, raise, freeze the process, or never return."""

    async def operation(self, name: str) -> None:
        """Any operation begins."""

    async def append(self, log: Log, records: Sequence[NewRecord]) -> list[int]:
        """A client appends commands."""

    async def poll(self, member: Member, records_max: int, timeout: float) -> Batch:
        """A member polls."""

    async def commit(self, producer: Producer, records: Sequence[NewRecord]) -> None:
        """A producer begins a commit."""

    async def stage(self, name: str) -> None:
        """A commit has come so far."""

    async def committed(self, topic: str, partition: int, offset: int | None) -> None:
        """A member has read the group's offset."""


class SimLog:
    """See `streams.log.port.Log`."""

    def __init__(self, inner: MemoryLog, gate: Gate) -> None:
        self.url = inner.url
        self._inner = inner
        self._gate = gate

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        await self._gate.operation("create topics")
        await self._inner.create_topics(specs)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        await self._gate.operation("describe topics")
        return await self._inner.describe_topics(names)

    async def list_topics(self) -> list[str]:
        await self._gate.operation("list topics")
        return await self._inner.list_topics()

    async def span(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> Span:
        await self._gate.operation("span")
        return await self._inner.span(topic, partition, isolation)

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        return await self._gate.append(self._inner, records)

    def reader(self, start: Mapping[TopicPartition, int], isolation: Isolation = "read_committed") -> Reader:
        return _Reader(self._inner.reader(start, isolation), self._gate)

    def member(self, group: str, topic: str, *, client_id: str) -> Member:
        return _Member(self._inner.member(group, topic, client_id=client_id), self._gate, topic)

    async def producer(self, transactional_id: str) -> Producer:
        await self._gate.operation("new producer")
        return _Producer(await self._inner.producer(transactional_id), self._gate)

    async def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        await self._gate.operation("group offsets")
        return await self._inner.group_offsets(group, topic)

    async def rewind_group(self, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
        await self._gate.operation("rewind group")
        await self._inner.rewind_group(group, topic, offsets)

    async def compact(self, topic: str) -> None:
        await self._gate.operation("compact")
        await self._inner.compact(topic)

    async def close(self) -> None:
        await self._inner.close()


class _Reader:
    def __init__(self, inner: Reader, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate
        self.add = inner.add
        self.remove = inner.remove
        self.position = inner.position
        self.close = inner.close

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        await self._gate.operation("read")
        return await self._inner.read(records_max, timeout)


class _Member:
    def __init__(self, inner: Member, gate: Gate, topic: str) -> None:
        self._inner = inner
        self._gate = gate
        self._topic = topic
        self.snapshot = inner.snapshot
        self.pause = inner.pause
        self.close = inner.close

    async def join(self, ownership: Ownership) -> None:
        await self._gate.operation("join")
        await self._inner.join(ownership)

    async def poll(self, records_max: int, timeout: float) -> Batch:
        return await self._gate.poll(self._inner, records_max, timeout)

    async def resume(self, partition: int, offset: int) -> None:
        await self._gate.operation("resume")
        await self._inner.resume(partition, offset)

    async def committed(self, partition: int) -> int | None:
        await self._gate.operation("committed offset")
        offset = await self._inner.committed(partition)
        await self._gate.committed(self._topic, partition, offset)
        return offset


class _Producer:
    def __init__(self, inner: Producer, gate: Gate) -> None:
        self.id = inner.id
        self._inner = inner
        self._gate = gate
        self.close = inner.close

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        await self._gate.commit(self._inner, records)
        written = await self._inner.commit(snapshot, records, offsets)
        await self._gate.stage("ended")
        return written

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        await self._gate.operation("settle")
        await self._inner.settle(transactional_ids)


class Broker(Protocol):
    """What decides on the broker's side. The first four are asked in the context of the process that commits."""

    def gate(self) -> Gate | None:
        """The gate of the process that commits, if it is one of the simulation."""

    def offsets_first(self) -> bool:
        """Whether the offsets of a commit arrive before its records."""

    def end(self) -> End:
        """How a commit ends."""

    def marker_delay(self) -> float:
        """Seconds until an end is visible."""


class SimHooks(Hooks):
    """The simulation's hand inside the memory log."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def before_commit(self, producer: str, snapshot: GroupSnapshot) -> None:
        """Nothing is written."""
        del producer, snapshot
        await self._stage("begun")

    def offsets_first(self, producer: str) -> bool:
        """In either order, as real clients do."""
        del producer
        return self._broker.offsets_first()

    async def between(self, producer: str) -> None:
        """One half is written."""
        del producer
        await self._stage("written")

    async def before_end(self, producer: str) -> None:
        """Both halves are written."""
        del producer
        await self._stage("fenced")

    def end(self, producer: str) -> End:
        """As the faults have it."""
        del producer
        return self._broker.end()

    def marker_delay(self, topic: str, partition: int) -> float:
        """Each partition its own."""
        del topic, partition
        return self._broker.marker_delay()

    def offsets_delay(self, group: str) -> float:
        """The same for the group's offsets."""
        del group
        return self._broker.marker_delay()

    async def _stage(self, name: str) -> None:
        gate = self._broker.gate()
        if gate is not None:
            await gate.stage(name)
