"""A group member and a plain reader of a memory log."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Hashable, Mapping

from streams.errors import LogDamaged
from streams.log.holding import Holding, rotated
from streams.log.memory.group import Group, Token
from streams.log.memory.store import Store
from streams.log.port import Batch, GroupSnapshot, Isolation, Ownership, Record, TopicPartition

__all__ = ["MemoryMember", "MemoryReader"]


class MemorySeat:
    """A member's place in a group of this process."""

    def __init__(self, store: Store, group: Group, client_id: str) -> None:
        self.id = ""
        self.group = group
        self._store = store
        self._client_id = client_id

    def token(self) -> Token:
        """This member, in the generation that it follows."""
        return self.group.token(self.id)

    async def enter(self) -> None:
        """Join under a new id."""
        self.id = self.group.enter(self._client_id)
        self._store.news.add(self.group)

    async def take(self) -> Mapping[int, int]:
        """Claim free partitions."""
        before = self.group.view().owners
        taken = {p: i for p, i in self.group.take(self.id).items() if before[p].member != self.id}
        self._store.news.add(self.group)
        return taken

    async def release(self, partitions: Collection[int]) -> None:
        """Give partitions back."""
        self.group.release(self.id, partitions)
        self._store.news.add(self.group)

    def leave(self) -> None:
        """Leave the group, with or without having given up everything."""
        self.group.remove(self.id)
        self._store.news.add(self.group)


class MemoryMember:
    """See `streams.log.port.Member`."""

    def __init__(self, store: Store, group: Group, client_id: str) -> None:
        self._store = store
        self._group = group
        self._seat = MemorySeat(store, group, client_id)
        self._holding = Holding(group.name, group.topic, self._seat)
        self._followed = -1
        """How many changes of the group it has followed."""

    async def join(self, ownership: Ownership) -> None:
        """Enter the group."""
        await self._holding.join(ownership)

    async def poll(self, records_max: int, timeout: float) -> Batch:
        """Follow the group, then take what has arrived."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            seen: dict[Hashable, int] = {self._group: self._store.news.number(self._group)}
            changed = await self._follow()
            seen |= self._seen()
            records = self._deliver(records_max)
            left = deadline - loop.time()
            if records or changed or left <= 0:
                return Batch(self._holding.snapshot, records)
            await self._store.news.wait(seen, left)

    def snapshot(self) -> GroupSnapshot:
        """The snapshot of the last poll."""
        return self._holding.snapshot

    async def resume(self, partition: int, offset: int) -> None:
        """Deliver from `offset` on."""
        self._holding.require(partition)
        _check_position(self._store, TopicPartition(self._group.topic, partition), offset)
        self._holding.resume(partition, offset)
        self._store.news.add(self._group)

    async def pause(self, partition: int) -> None:
        """Deliver nothing of this partition."""
        self._holding.pause(partition)

    async def committed(self, partition: int) -> int | None:
        """The group's offset, once no transaction holds it pending."""
        while self._group.pending.get(partition):
            settling = self._group.settling
            await self._store.news.wait({settling: self._store.news.number(settling)}, 1.0)
        return self._group.offsets.get(partition)

    async def close(self) -> None:
        """Give everything up and leave."""
        if self._holding.joined:
            self._renew()
            await self._holding.leave(self._group.view())
            self._seat.leave()

    def vanish(self) -> None:
        """Leave as a crash does: nobody is called."""
        self._seat.leave()

    async def _follow(self) -> bool:
        self._holding.owner()
        changes = self._store.news.number(self._group)
        if changes == self._followed:
            self._holding.refresh()  # each poll has a snapshot of its own
            return False
        moved_on = self._renew()
        changed = await self._holding.follow(self._group.view())
        self._followed = changes
        return changed or moved_on

    def _renew(self) -> bool:
        self._group.follow(self._seat.id)
        before = self._holding.snapshot.token
        self._holding.refresh()
        return bool(self._holding.snapshot.token != before)

    def _seen(self) -> dict[Hashable, int]:
        logs = (self._store.partition(self._group.topic, partition) for partition in self._holding.cursors)
        return {log: self._store.news.number(log) for log in logs}

    def _deliver(self, records_max: int) -> list[Record]:
        records: list[Record] = []
        for partition, cursor in self._holding.turn():
            log = self._store.partition(self._group.topic, partition)
            found, cursor.position = log.read(cursor.position, records_max - len(records), "read_committed")
            records += found
        return records


class MemoryReader:
    """See `streams.log.port.Reader`."""

    def __init__(self, store: Store, start: Mapping[TopicPartition, int], isolation: Isolation) -> None:
        self._store = store
        self._positions = dict(start)
        self._isolation = isolation
        self._unchecked = set(start)
        self._turns = 0

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Read this partition too."""
        self._positions[partition] = offset
        self._unchecked.add(partition)
        self._store.news.wake(self)

    def remove(self, partition: TopicPartition) -> None:
        """Read this partition no more."""
        del self._positions[partition]

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        """The next records of all partitions."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            self._check()
            records = self._take(records_max)
            left = deadline - loop.time()
            if records or left <= 0:
                return records
            await self._store.news.wait(self._seen(), left)

    def position(self, partition: TopicPartition) -> int:
        """One past everything passed so far."""
        return self._positions[partition]

    async def close(self) -> None:
        """Nothing is held."""

    def _seen(self) -> dict[Hashable, int]:
        """Every partition as it is, and this reader itself, for `add` to wake it."""
        logs = (self._store.partition(*place) for place in self._positions)
        return {self: 0, **{log: self._store.news.number(log) for log in logs}}

    def _check(self) -> None:
        for place, position in self._positions.items():
            if place in self._unchecked:
                _check_position(self._store, place, position)
        self._unchecked.clear()

    def _take(self, records_max: int) -> list[Record]:
        records: list[Record] = []
        self._turns += 1
        for place, position in rotated(list(self._positions.items()), self._turns):
            log = self._store.partition(*place)
            found, self._positions[place] = log.read(position, records_max - len(records), self._isolation)
            records += found
        return records


def _check_position(store: Store, place: TopicPartition, position: int) -> None:
    # A position between the committed and the other end is inside the log: the owner before may have been there.
    start, end = store.partition(*place).span("read_uncommitted")
    if not start <= position <= end:
        raise LogDamaged(
            f"offset {position} is outside {place.topic}[{place.partition}], which reaches from {start} to {end}: "
            "records were lost or the topic was created again"
        )
