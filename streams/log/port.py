"""The port every log implements: partitioned topics, transactions, group ownership, and plain reads.

The engine is written against this module alone and never learns which transport is underneath. The shape is
Kafka's, because Kafka is the transport that the guarantees are about: offsets are not dense, a transaction covers
records of several topics and the group's offsets, and authority is membership in the group plus a fence in every
commit (KIP-98, KIP-447).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

__all__ = [
    "RECORD_BYTES_MAX",
    "Batch",
    "GroupSnapshot",
    "Isolation",
    "Log",
    "Member",
    "NewRecord",
    "Ownership",
    "Producer",
    "Reader",
    "Record",
    "Span",
    "TopicInfo",
    "TopicPartition",
    "TopicSpec",
]

RECORD_BYTES_MAX = 900_000
"""Key + value + headers of one record, in bytes. The same on every log, so that a move to another loses nothing."""

Isolation = Literal["read_committed", "read_uncommitted"]
Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class NewRecord(NamedTuple):
    """A record to write. A value of None is a tombstone: in a compacted topic it deletes the key; b"" does not."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Record(NamedTuple):
    """A record as read. `timestamp` is the log's append time in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Span(NamedTuple):
    """The readable part of a partition: the first offset that may exist, and one past the last one assigned."""

    start: int
    end: int


class TopicSpec(NamedTuple):
    """A topic to create. `config` holds settings by their Kafka name, such as `cleanup.policy`."""

    name: str
    partitions: int
    config: Mapping[str, str]


class TopicInfo(NamedTuple):
    """A topic that exists. `id` changes when a topic is deleted and created again under the same name."""

    name: str
    id: str
    partitions: int
    config: Mapping[str, str]


class GroupSnapshot(NamedTuple):
    """What a member owned at one poll. `owned` maps partition to incarnation, which grows at each assignment.

    `token` belongs to the transport (on Kafka: the group metadata taken on the consumer's own thread). A commit
    made with a snapshot is refused when the group has moved on since.
    """

    group: str
    topic: str
    token: Any
    owned: Mapping[int, int]


class Batch(NamedTuple):
    """What one poll brought, and the snapshot that goes with it."""

    snapshot: GroupSnapshot
    records: Sequence[Record]


class Ownership(Protocol):
    """What a member calls when its partitions change. All three run to their end before the group moves on."""

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """New partitions with their incarnations; they are paused until `Member.resume`."""

    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """Partitions about to be given up; commits made with this fresh `snapshot` inside the call still hold."""

    async def lost(self, partitions: Mapping[int, int]) -> None:
        """Partitions already owned by somebody else: publish nothing."""


class Member(Protocol):
    """One consumer of a group on one topic: membership, ownership, and the records of owned partitions.

    Records are read_committed. Newly assigned partitions deliver nothing until `resume`.
    """

    async def join(self, ownership: Ownership) -> None:
        """Enter the group. `ownership` is called from within `poll` and `close` only."""

    async def poll(self, records_max: int, timeout: float) -> Batch:
        """Take what has arrived, waiting at most `timeout` seconds for the first record; handles rebalances.

        With `records_max` 0 it takes nothing and loses nothing: a member that is busy still answers its group.
        """

    def snapshot(self) -> GroupSnapshot:
        """The snapshot of the last poll."""

    async def resume(self, partition: int, offset: int) -> None:
        """Deliver from `offset` on. An offset outside the log raises `LogDamaged`; it never resets by itself."""

    async def pause(self, partition: int) -> None:
        """Deliver nothing of this partition until `resume`."""

    async def committed(self, partition: int) -> int | None:
        """The group's stable offset: waits for a pending transaction's (KIP-447); None where none was committed."""

    async def close(self) -> None:
        """Give everything up (`revoked` is called) and leave the group."""


class Producer(Protocol):
    """A transactional producer. One `commit` is one transaction: begin, records, offsets, commit."""

    id: str

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        """Write all `records` and the group's next `offsets` atomically; return each record's offset in order.

        `offsets` must name every partition that the records belong to, all owned in `snapshot`, never empty:
        it is the fence. A plain programming error in it raises ValueError.

        Raises:
            CommitAborted: nothing was written; redo with a later snapshot.
            SendRefused: one record can never be written; nothing was written.
            Fenced: a newer owner of one of the partitions exists; nothing was written.
            InDoubt: the outcome is unknown; this producer must not be used again.
        """

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        """End what a dead owner left open under these ids. Fences a live one, so only for one that is gone."""

    async def close(self) -> None:
        """Free its resources; an unfinished transaction is aborted."""


class Reader(Protocol):
    """A reader of chosen partitions, outside any group."""

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Read this partition too; a read under way takes notice."""

    def remove(self, partition: TopicPartition) -> None:
        """Read this partition no more. Not while a read is under way."""

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        """The next records in offset order per partition; an empty list after `timeout` seconds without any.

        It may come back empty earlier, where only the position has moved: over markers, or what was aborted.
        """

    def position(self, partition: TopicPartition) -> int:
        """One past everything passed so far, markers and holes included: at the end it equals the end offset."""

    async def close(self) -> None:
        """Free its resources."""


class Log(Protocol):
    """A log. `url` names it without secrets."""

    url: str

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing; topics that exist are left as they are."""

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that exist."""

    async def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""

    async def span(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> Span:
        """The ends of a partition now. The read_uncommitted end counts pending records too."""

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records outside any transaction and wait until they are durable; return their offsets."""

    def reader(self, start: Mapping[TopicPartition, int], isolation: Isolation = "read_committed") -> Reader:
        """A reader that begins at the given offsets."""

    def member(self, group: str, topic: str, *, client_id: str) -> Member:
        """A consumer that takes part in a group."""

    async def producer(self, transactional_id: str) -> Producer:
        """A transactional producer; initialising under a used id ends that id's open transaction."""

    async def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group, for those partitions that have one."""

    async def rewind_group(self, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
        """Set the group's offsets (None deletes one). Refused with `LogUnavailable` while the group has members."""

    async def compact(self, topic: str) -> None:
        """Drop superseded records and, with their keys, tombstones of a compacted topic, where the log lets us ask."""

    async def close(self) -> None:
        """Free its resources."""
