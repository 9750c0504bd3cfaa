"""The memory log itself, and the registry that lets several handles of one process share it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from streams.errors import LogUnavailable, UsageError
from streams.log.memory.hooks import Hooks
from streams.log.memory.member import MemoryMember, MemoryReader
from streams.log.memory.producer import MemoryProducer
from streams.log.memory.store import Store
from streams.log.port import Isolation, NewRecord, Record, Span, TopicInfo, TopicPartition, TopicSpec
from streams.log.rules import is_compacted, refuse_unwritable

__all__ = ["MemoryLog", "open_memory"]

TOMBSTONE_MS_DEFAULT = "86400000"
_stores: dict[str, Store] = {}


def _now() -> int:
    return time.time_ns() // 1_000_000


class MemoryLog:
    """See `streams.log.port.Log`. Handles of the same named URL share everything; `memory:` is a new log each time."""

    def __init__(
        self,
        url: str = "memory:",
        *,
        clock: Callable[[], int] = _now,
        hooks: Hooks | None = None,
        transaction_timeout: float = 10.0,
    ) -> None:
        """Open the log. Clock (ms), hooks and time-out (s) count for whoever opens it first."""
        scheme, _, name = url.partition(":")
        if scheme != "memory":
            raise UsageError(f"{url!r} is no address of a memory log: write memory: or memory:NAME")
        self.url = url
        store = Store(clock, hooks or Hooks(), transaction_timeout)
        self._store = _stores.setdefault(name, store) if name else store
        self._members: list[MemoryMember] = []

    def share(self) -> MemoryLog:
        """Another handle of the same log, as another worker of the simulation has it."""
        other = MemoryLog()
        other.url, other._store = self.url, self._store
        return other

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing."""
        for spec in specs:
            self._store.create(spec)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that exist."""
        return {name: self._store.topics[name] for name in names if name in self._store.topics}

    async def list_topics(self) -> list[str]:
        """The names of all topics."""
        return sorted(self._store.topics)

    async def span(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> Span:
        """The ends of a partition now."""
        return self._store.partition(topic, partition).span(isolation)

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records outside any transaction."""
        refuse_unwritable(records, self._store.topics)
        return self._store.write(records, None)

    def reader(self, start: Mapping[TopicPartition, int], isolation: Isolation = "read_committed") -> MemoryReader:
        """A reader that begins at the given offsets."""
        return MemoryReader(self._store, start, isolation)

    def member(self, group: str, topic: str, *, client_id: str) -> MemoryMember:
        """A consumer that takes part in a group."""
        member = MemoryMember(self._store, self._store.group(group, topic), client_id)
        self._members.append(member)
        return member

    async def producer(self, transactional_id: str) -> MemoryProducer:
        """A transactional producer; whoever used the id before is fenced."""
        producer = MemoryProducer(self._store, transactional_id)
        await self._store.completed(transactional_id)
        return producer

    async def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group."""
        return dict(self._store.group(group, topic).offsets)

    async def rewind_group(self, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
        """Set the group's offsets while nobody is in it."""
        found = self._store.group(group, topic)
        if found.members:
            raise LogUnavailable(f"the group {group} has members ({', '.join(found.members)}): stop them first")
        for partition, offset in offsets.items():
            self._store.partition(topic, partition)
            if offset is None:
                found.offsets.pop(partition, None)
            else:
                found.offsets[partition] = offset

    async def compact(self, topic: str) -> None:
        """Compact now."""
        self.compact_now(topic)

    def compact_now(self, topic: str) -> None:
        """Compact; a tombstone is kept for `delete.retention.ms`, so that a reader under way still meets it."""
        logs = self._store.logs(topic)
        info = self._store.topics[topic]
        if not is_compacted(info):
            raise ValueError(f"topic {topic} is not compacted: its cleanup.policy does not contain compact")
        kept_ms = int(info.config.get("delete.retention.ms", TOMBSTONE_MS_DEFAULT))
        for log in logs:
            log.compact(self._store.clock() - kept_ms + 1)

    async def close(self) -> None:
        """Drop the handle. Its members are gone as after a crash; whoever wants to be told closes them first."""
        for member in self._members:
            member.vanish()
        self._members.clear()

    def expire(self, group: str, topic: str, client_id: str) -> None:
        """Declare a client's members dead, as a broker does that hears nothing: their next poll calls `lost`."""
        found = self._store.group(group, topic)
        for member in found.of_client(client_id):
            found.remove(member)
        self._store.news.add(found)

    def move_offset(self, group: str, topic: str, partition: int, offset: int | None) -> int | None:
        """Set a group's offset whoever is in it, as after a loss on the broker; return the one that it had."""
        found = self._store.group(group, topic)
        before = found.offsets.pop(partition, None)
        if offset is not None:
            found.offsets[partition] = offset
        return before

    def everything(self, isolation: Isolation = "read_uncommitted") -> Iterator[Record]:
        """All records as they lie there, pending and aborted ones among them unless `isolation` leaves them out."""
        for topic in sorted(self._store.topics):
            for log in self._store.logs(topic):
                yield from log.read(0, log.span("read_uncommitted").end, isolation)[0]

    def rebalance(self, group: str, topic: str) -> None:
        """Begin a new generation without any change: snapshots taken before the next poll become stale by it."""
        found = self._store.group(group, topic)
        found.generation += 1
        self._store.news.add(found)


async def open_memory(
    url: str = "memory:", *, clock: Callable[[], int] = _now, hooks: Hooks | None = None
) -> MemoryLog:
    """Open a memory log; `memory:NAME` is shared within the process."""
    return MemoryLog(url, clock=clock, hooks=hooks)
