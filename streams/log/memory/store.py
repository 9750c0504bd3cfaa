"""What all handles of one memory log share: topics, groups, and transactions with their coordinator."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import NAMESPACE_OID, uuid5

from streams.errors import Fenced, UsageError
from streams.log.memory.group import Group
from streams.log.memory.hooks import Hooks
from streams.log.memory.partition import PartitionLog
from streams.log.news import News
from streams.log.port import NewRecord, TopicInfo, TopicSpec

__all__ = ["Store", "Transaction"]


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction as its coordinator sees it. `markers` counts what is not yet visible of its end."""

    id: int
    state: str = "open"
    partitions: dict[PartitionLog, None] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict)
    group: Group | None = None
    markers: int = 0
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Coordinated:
    """One transactional id: its epoch, and its last transaction."""

    epoch: int = 0
    last: Transaction | None = None


class Store:
    """The broker side of a memory log; it has no clock and no chance of its own.

    News are of partitions, of groups, and of transactions whose end becomes visible.
    """

    def __init__(self, clock: Callable[[], int], hooks: Hooks, transaction_timeout: float) -> None:
        self.clock = clock
        self.hooks = hooks
        self.transaction_timeout = transaction_timeout
        self.news = News()
        # What the broker does later, it does whatever becomes of the client that it was done for.
        self._context = contextvars.copy_context()
        self.topics: dict[str, TopicInfo] = {}
        self._logs: dict[str, list[PartitionLog]] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        self._ids: dict[str, Coordinated] = {}
        self._transactions = 0

    def create(self, spec: TopicSpec) -> None:
        """Create a topic unless it exists."""
        if spec.partitions < 1:
            raise ValueError(f"topic {spec.name} needs at least one partition, not {spec.partitions}")
        if spec.name not in self.topics:
            topic_id = str(uuid5(NAMESPACE_OID, f"{len(self.topics)}/{spec.name}"))
            self.topics[spec.name] = TopicInfo(spec.name, topic_id, spec.partitions, dict(spec.config))
            self._logs[spec.name] = [PartitionLog(spec.name, p) for p in range(spec.partitions)]

    def logs(self, topic: str) -> list[PartitionLog]:
        """The partitions of a topic."""
        if topic not in self._logs:
            raise UsageError(f"there is no topic {topic!r} in this log: create the app's topics first")
        return self._logs[topic]

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """One partition of a topic."""
        logs = self.logs(topic)
        if not 0 <= partition < len(logs):
            raise UsageError(f"there is no partition {partition} in {topic}: it has {len(logs)}")
        return logs[partition]

    def group(self, group: str, topic: str) -> Group:
        """A group, which exists from the first mention on."""
        place = (group, topic)
        if place not in self._groups:
            self._groups[place] = Group(group, topic, len(self.logs(topic)))
        return self._groups[place]

    def groups(self) -> Sequence[Group]:
        """All groups."""
        return list(self._groups.values())

    def initialise(self, transactional_id: str) -> int:
        """Fence whoever used this id before, end its open transaction, and return the new epoch."""
        coordinated = self._ids.setdefault(transactional_id, Coordinated())
        coordinated.epoch += 1
        if coordinated.last is not None and coordinated.last.state == "open":
            self.end(coordinated.last, committed=False)
        return coordinated.epoch

    async def completed(self, transactional_id: str) -> None:
        """Wait until the end of this id's last transaction is visible everywhere."""
        coordinated = self._ids[transactional_id]
        while coordinated.last is not None and (coordinated.last.state == "open" or coordinated.last.markers):
            await self.news.wait({coordinated.last: 0}, 1.0)

    def begin(self, transactional_id: str, epoch: int) -> Transaction:
        """Begin a transaction, which ends by itself after its time-out."""
        self.check_epoch(transactional_id, epoch)
        self._transactions += 1
        transaction = Transaction(self._transactions)
        self._ids[transactional_id].last = transaction
        loop = asyncio.get_running_loop()
        transaction.timer = loop.call_later(
            self.transaction_timeout, self._expire, transactional_id, transaction, context=self._context
        )
        return transaction

    def check_epoch(self, transactional_id: str, epoch: int) -> None:
        """Raise Fenced when the id was initialised again."""
        if self._ids[transactional_id].epoch != epoch:
            raise Fenced(f"the transactional id {transactional_id} was initialised by somebody else since")

    def write(self, records: Sequence[NewRecord], transaction: Transaction | None) -> list[int]:
        """Append records, pending if they belong to a transaction."""
        now = self.clock()
        offsets = []
        for record in records:
            log = self._logs[record.topic][record.partition]
            if transaction is not None:
                transaction.partitions[log] = None
            offsets.append(log.append(record, now, transaction.id if transaction else 0))
            self.news.add(log)
        return offsets

    def send_offsets(self, group: Group, offsets: Mapping[int, int], transaction: Transaction) -> None:
        """Hold the group's next offsets pending until the transaction ends."""
        transaction.group = group
        transaction.offsets = dict(offsets)
        for partition in offsets:
            group.pending.setdefault(partition, []).append(transaction.id)

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """Decide a transaction. Its markers follow, each partition in its own time."""
        transaction.state = "committed" if committed else "aborted"
        if transaction.timer is not None:
            transaction.timer.cancel()
        for log in transaction.partitions:
            delay = self.hooks.marker_delay(log.topic, log.partition)
            self._later(delay, transaction, log, partial(log.mark, transaction.id, committed=committed))
        if transaction.group is not None:
            delay = self.hooks.offsets_delay(transaction.group.name)
            settle = partial(_settle_offsets, transaction, committed=committed)
            self._later(delay, transaction, transaction.group.settling, settle)
        self.news.wake(transaction)

    def _later(self, delay: float, transaction: Transaction, where: Hashable, act: Callable[[], None]) -> None:
        transaction.markers += 1
        if delay <= 0:
            self._act(transaction, where, act)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(delay, self._act, transaction, where, act, context=self._context)

    def _act(self, transaction: Transaction, where: Hashable, act: Callable[[], None]) -> None:
        transaction.markers -= 1
        act()
        self.news.add(where)
        self.news.wake(transaction)

    def _expire(self, transactional_id: str, transaction: Transaction) -> None:
        if transaction.state == "open":
            self._ids[transactional_id].epoch += 1
            self.end(transaction, committed=False)


def _settle_offsets(transaction: Transaction, *, committed: bool) -> None:
    group = transaction.group
    assert group is not None, "only a transaction that sent offsets has some to settle"
    for partition, offset in transaction.offsets.items():
        group.pending[partition].remove(transaction.id)
        if committed:
            group.offsets[partition] = offset
