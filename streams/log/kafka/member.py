"""A group member behind the async port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from confluent_kafka import Consumer

from streams.errors import Fenced, LogDamaged, LogError
from streams.log.kafka.admin import STABLE_SECONDS, Admin
from streams.log.kafka.asker import Asker
from streams.log.kafka.clients import OnError
from streams.log.kafka.consumer import Cursor, GroupConsumer
from streams.log.kafka.lane import Lane
from streams.log.port import Batch, GroupSnapshot, Ownership, Record

__all__ = ["KafkaMember"]

CLOSE_SECONDS = 30.0
VANISH_SECONDS = 5.0
_BROKEN = "Kafka's client of the group member does not return from a call: start the worker again"


class State(Enum):
    """NEW ─▶ JOINED ─▶ CLOSED, or NEW ─▶ CLOSED."""

    NEW = "new"
    JOINED = "joined"
    CLOSED = "closed"


class KafkaMember:
    """See `streams.log.port.Member`."""

    def __init__(
        self,
        admin: Admin,
        group: str,
        topic: str,
        make: Callable[[OnError], Consumer],
        on_return: Callable[[], None],
    ) -> None:
        self._admin = admin
        self._on_return = on_return
        self._state = State.NEW
        self._ownership: Ownership | None = None
        self._snapshot = GroupSnapshot(group, topic, None, {})
        self._cursors: dict[int, Cursor] = {}
        self._consumer = GroupConsumer(topic, make, self)
        self._asker = Asker(group, topic, make)
        self._lane = Lane(f"member {group}")

    async def join(self, ownership: Ownership) -> None:
        """Enter the group; partitions come with later polls."""
        if self._state is not State.NEW:
            raise ValueError("this member has joined already: make another one with `Log.member`")
        await self._admin.require(self._snapshot.topic, 0)
        self._ownership, self._state = ownership, State.JOINED
        loop = asyncio.get_running_loop()
        await self._lane.run(lambda: self._consumer.open(loop))

    async def poll(self, records_max: int, timeout: float) -> Batch:
        """Serve the group, then take what has arrived."""
        self._require_joined()
        if not records_max or not self._consumer.ready:
            self._consumer.interrupted = False
            try:
                poll, broken = partial(self._consumer.poll, records_max, timeout), LogError(_BROKEN)
                token = await self._lane.watched(poll, self._consumer.patience, broken)
            except BaseException:
                # What a poll that was cut off has fetched stays in `ready` for the next one.
                self._consumer.interrupted = True
                raise
            self._snapshot = self._snapshot._replace(token=token)
            if self._consumer.returned:
                self._consumer.returned = False
                self._on_return()
        return Batch(self._snapshot, self._take(records_max))

    def snapshot(self) -> GroupSnapshot:
        """The snapshot of the last poll."""
        return self._snapshot

    async def resume(self, partition: int, offset: int) -> None:
        """Deliver from `offset` on; takes effect in the poll that is under way."""
        incarnation = self._require_owned(partition)
        topic = self._snapshot.topic
        span = await self._admin.span(topic, partition, "read_uncommitted")
        if not span.start <= offset <= span.end:
            raise LogDamaged(f"offset {offset} is outside {topic}[{partition}], which holds {span.start} to {span.end}")
        if self._require_owned(partition) != incarnation:
            raise Fenced(f"partition {partition} of {topic} was given up and came back: it begins anew")
        cursor = self._cursors[partition] = Cursor(incarnation, offset)
        self._consumer.orders.append((partition, cursor))

    async def pause(self, partition: int) -> None:
        """Deliver nothing of this partition: what is fetched already is dropped by its cursor."""
        if self._cursors.pop(partition, None) is not None:
            self._consumer.orders.append((partition, None))

    async def committed(self, partition: int) -> int | None:
        """The group's stable offset, asked for beside the member: its polls go on meanwhile."""
        return await self._asker.stable_offset(partition, STABLE_SECONDS)

    async def close(self) -> None:
        """Give everything up and leave. An `Ownership` that fails on the way raises here, after leaving."""
        if self._state is State.JOINED:
            self._consumer.interrupted = True
            try:
                await self._lane.run(self._consumer.close)
            finally:
                self._state = State.CLOSED
                await self._lane.close(self._consumer.close, CLOSE_SECONDS)
        self._state = State.CLOSED
        await self._asker.close()

    async def vanish(self) -> None:
        """Leave as a crash does: nobody is called."""
        if self._state is State.JOINED:
            self._state = State.CLOSED
            self._consumer.silent = self._consumer.interrupted = True
            await self._lane.close(self._consumer.close, VANISH_SECONDS)
        await self._asker.close()

    # -- told by the consumer's thread, run on the event loop -----------------------------------------------------

    async def on_assigned(self, token: bytes | None, partitions: Mapping[int, int]) -> None:
        """New partitions are held."""
        self._hold(token, {**self._snapshot.owned, **partitions})
        await self._owner().assigned(self._snapshot, partitions)

    async def on_revoked(self, token: bytes | None, partitions: Mapping[int, int]) -> None:
        """Partitions go; commits with the fresh snapshot still hold until this returns."""
        self._forget(partitions)
        self._hold(token, self._snapshot.owned)
        try:
            await self._owner().revoked(self._snapshot, partitions)
        finally:
            self._release(partitions)

    async def on_lost(self, token: bytes | None, partitions: Mapping[int, int]) -> None:
        """Partitions are gone."""
        self._forget(partitions)
        self._hold(token, self._snapshot.owned)
        self._release(partitions)
        await self._owner().lost(partitions)

    def _hold(self, token: bytes | None, owned: Mapping[int, int]) -> None:
        self._snapshot = self._snapshot._replace(token=token, owned=dict(owned))

    def _release(self, partitions: Mapping[int, int]) -> None:
        owned = {p: incarnation for p, incarnation in self._snapshot.owned.items() if p not in partitions}
        self._snapshot = self._snapshot._replace(owned=owned)

    def _forget(self, partitions: Mapping[int, int]) -> None:
        for partition in partitions:
            self._cursors.pop(partition, None)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _take(self, records_max: int) -> list[Record]:
        ready = self._consumer.ready
        records: list[Record] = []
        while ready and len(records) < records_max:
            cursor, record = ready.popleft()
            if self._cursors.get(record.partition) is cursor:
                records.append(record)
        return records

    def _owner(self) -> Ownership:
        assert self._ownership is not None
        return self._ownership

    def _require_joined(self) -> None:
        if self._state is not State.JOINED:
            raise ValueError("this member is not in its group: call `join` before, and nothing after `close`")

    def _require_owned(self, partition: int) -> int:
        if partition not in self._snapshot.owned:
            raise Fenced(f"partition {partition} of {self._snapshot.topic} is not owned by this member (any more)")
        return self._snapshot.owned[partition]
