"""A group member on a sqlite log."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from uuid import uuid4

from streams.log.holding import Cursor, GroupView, Holding
from streams.log.port import Batch, GroupSnapshot, Ownership, Record, TopicPartition
from streams.log.sqlite import groups
from streams.log.sqlite.core import Core
from streams.log.sqlite.rows import Fetched, Wanted, fetch, in_snapshot, outside, spans

__all__ = ["SqliteMember"]

GROUP_SECONDS = 0.1
"""How long a member that is always busy goes without a look at its group; one that waits is told of changes."""


class SqliteSeat:
    """A member's rows, and its heartbeat."""

    def __init__(self, core: Core, group: str, topic: str, client_id: str) -> None:
        self.id = ""
        self._core = core
        self._group = group
        self._topic = topic
        self._client_id = client_id
        self._polls = 0
        self._polled_at = time.monotonic()

    def token(self) -> str:
        """The member's id: incarnations say the rest."""
        return self.id

    async def enter(self) -> None:
        """Join under a new id."""
        await self._core.topic(self._topic)
        self._core.pulse.remove(self.id)
        self.id = f"{self._client_id}-{uuid4().hex[:12]}"
        row = (self._group, self._topic, self.id, self._client_id, os.getpid())
        await self._core.writer.write(lambda connection: groups.enter(connection, row))
        self._core.pulse.add(self.id, self._alive)
        self._core.group_changed(self._group, self._topic)

    async def look(self) -> GroupView:
        """The group as it is now."""
        partitions = len((await self._core.topic(self._topic)).pids)
        job = partial(groups.look, group=self._group, topic=self._topic, partitions=partitions)
        return await self._core.looker.run(partial(in_snapshot, look=job))

    async def take(self) -> Mapping[int, int]:
        """Claim free partitions."""
        partitions = len((await self._core.topic(self._topic)).pids)
        job = partial(groups.take, group=self._group, topic=self._topic, partitions=partitions, member=self.id)
        taken = await self._core.writer.write(job)
        self._core.group_changed(self._group, self._topic)
        return taken

    async def release(self, partitions: Collection[int]) -> None:
        """Give partitions back."""
        job = partial(groups.release, group=self._group, topic=self._topic, member=self.id, partitions=partitions)
        await self._core.writer.write(job)
        self._core.group_changed(self._group, self._topic)

    async def leave(self) -> None:
        """Leave the group, with or without having given up everything."""
        self._core.pulse.remove(self.id)
        await self._core.writer.write(partial(groups.leave, member=self.id))
        self._core.group_changed(self._group, self._topic)

    def polling(self, change: int) -> None:
        """Count (+1, -1) the polls under way."""
        self._polls += change
        self._polled_at = time.monotonic()

    def _alive(self) -> bool:
        # A heart that beats for an event loop that hangs for ever would keep the partitions from everybody.
        return self._polls > 0 or time.monotonic() - self._polled_at < self._core.place.max_poll_interval


class SqliteMember:
    """See `streams.log.port.Member`."""

    def __init__(self, core: Core, group: str, topic: str, client_id: str) -> None:
        self._core = core
        self._group = group
        self._topic = topic
        self._seat = SqliteSeat(core, group, topic, client_id)
        self._holding = Holding(group, topic, self._seat)
        self._pids: Sequence[int] = ()
        self._followed = -1
        self._group_due = 0.0

    async def join(self, ownership: Ownership) -> None:
        """Enter the group."""
        self._pids = (await self._core.topic(self._topic)).pids
        await self._holding.join(ownership)

    async def poll(self, records_max: int, timeout: float) -> Batch:
        """Follow the group, then take what has arrived."""
        self._holding.owner()
        deadline = self._core.loop.time() + timeout
        self._seat.polling(+1)
        try:
            while True:
                # What is known to have nothing new is not looked at, except once at the end of the time.
                await self._core.news.wait(self._seen(), deadline - self._core.loop.time())
                over = self._core.loop.time() >= deadline
                records, changed = await self._look(records_max, whole=over)
                if records or changed or over:
                    return Batch(self._holding.snapshot, records)
        finally:
            self._seat.polling(-1)

    def snapshot(self) -> GroupSnapshot:
        """The snapshot of the last poll."""
        return self._holding.snapshot

    async def resume(self, partition: int, offset: int) -> None:
        """Deliver from `offset` on."""
        self._holding.require(partition)
        pid = self._pids[partition]
        span = (await self._core.looker.run(lambda connection: spans(connection, [pid])))[pid]
        if not span.start <= offset <= span.end:
            raise outside(TopicPartition(self._topic, partition), offset, span)
        self._holding.resume(partition, offset)
        self._core.news.tell({pid: span.end})
        self._core.news.wake((self._group, self._topic))

    async def pause(self, partition: int) -> None:
        """Deliver nothing of this partition."""
        self._holding.pause(partition)

    async def committed(self, partition: int) -> int | None:
        """The group's offset; none is ever pending here."""
        job = partial(groups.offsets, group=self._group, topic=self._topic)
        return (await self._core.looker.run(job)).get(partition)

    async def close(self) -> None:
        """Give everything up and leave."""
        if self._holding.joined:
            await self._holding.leave(await self._seat.look())
            await self._seat.leave()

    async def vanish(self) -> None:
        """Leave as a crash does: nobody is called."""
        if self._holding.joined:
            await self._seat.leave()

    def _seen(self) -> dict[Hashable, int]:
        """The group and the partitions that may deliver, as far as they were looked at."""
        cursors = self._holding.cursors.items()
        return {(self._group, self._topic): self._followed, **{self._pids[p]: c.position for p, c in cursors}}

    async def _look(self, records_max: int, *, whole: bool) -> tuple[Sequence[Record], bool]:
        """Take records, and follow the group where there may be news of it."""
        news = self._core.news
        cursors = self._holding.turn()
        number = news.number((self._group, self._topic))
        whole |= number > self._followed or self._core.loop.time() > self._group_due
        wanted = [
            Wanted(TopicPartition(self._topic, p), self._pids[p], c.position)
            for p, c in cursors
            if whole or news.number(self._pids[p]) > c.position
        ]
        at_hand = None if whole else self._core.at_hand(wanted, records_max)
        if at_hand is not None:
            return self._advance(cursors, at_hand), False
        job = partial(in_snapshot, look=partial(self._read, wanted, records_max))
        view, fetched = await self._core.looker.run(job)
        news.tell(fetched.ends)
        changed = await self._holding.follow(view)
        self._followed = number
        self._group_due = self._core.loop.time() + GROUP_SECONDS
        return self._advance(cursors, fetched), changed

    def _read(
        self, wanted: Sequence[Wanted], records_max: int, connection: sqlite3.Connection
    ) -> tuple[GroupView, Fetched]:
        view = groups.look(connection, self._group, self._topic, len(self._pids))
        return view, fetch(connection, wanted, records_max)

    def _advance(self, cursors: Sequence[tuple[int, Cursor]], fetched: Fetched) -> list[Record]:
        # While this looked, a partition may have been paused, given up, or resumed elsewhere: its records are not due.
        due = {p: cursor for p, cursor in cursors if self._holding.cursors.get(p) is cursor}
        for place, position in fetched.positions.items():
            if place.partition in due:
                due[place.partition].position = position
        return fetched.records if len(due) == len(cursors) else [r for r in fetched.records if r.partition in due]
