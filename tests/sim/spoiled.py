"""A true history as lists of records, so that a test can spoil it in one way."""

from __future__ import annotations

import asyncio
from typing import Any

from streams.kernel.events import Event
from streams.log.port import Record, Span, TopicPartition
from streams.testing.sim.history import Judged
from streams.testing.sim.invariants import check
from streams.testing.sim.outside import Outside
from streams.wire.partitioner import partition_of
from streams.wire.records import (
    decode_checkpoint,
    decode_effect,
    decode_event,
    decode_lease,
    encode_checkpoint,
    encode_effect,
    encode_event,
    encode_lease,
)
from tests.sim.good import PARTITIONS, GoodWorld

Place = tuple[str, int]


class Lists:
    """As much of a log as the invariants read."""

    def __init__(self, records: dict[Place, list[Record]]) -> None:
        self.records = records

    async def span(self, topic: str, partition: int, isolation: str = "read_committed") -> Span:
        records = self.records[topic, partition]
        return Span(0, records[-1].offset + 1 if records else 0)

    def reader(self, start: dict[TopicPartition, int], isolation: str = "read_committed") -> Any:
        return ListReader(self, start)


class ListReader:
    def __init__(self, lists: Lists, start: dict[TopicPartition, int]) -> None:
        self._lists, self._places, self._read = lists, list(start), False

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        self._read = True
        return [record for place in self._places for record in self._lists.records[tuple(place)]]

    def position(self, place: TopicPartition) -> int:
        records = self._lists.records[tuple(place)]
        return records[-1].offset + 1 if self._read and records else 0

    async def close(self) -> None:
        pass


async def take(world: GoodWorld) -> dict[Place, list[Record]]:
    """All records of a world, for `Spoiled`."""
    found: dict[Place, list[Record]] = {}
    for topic in await world.log.list_topics():
        for number in range(PARTITIONS):
            place = TopicPartition(topic, number)
            _, end = await world.log.span(*place)
            reader = world.log.reader({place: 0})
            found[topic, number] = []
            while reader.position(place) < end:
                found[topic, number] += await reader.read(10_000, 0.0)
    return found


class Spoiled:
    """A copy of a world, for one test."""

    def __init__(self, world: GoodWorld, records: dict[Place, list[Record]]) -> None:
        self.records = {place: list(of_place) for place, of_place in records.items()}
        self.log: Any = Lists(self.records)
        self.topics, self.partitions, self.app = world.topics, world.partitions, world.app
        self.outside = Outside(lambda: 0, str)
        self.outside.calls = list(world.outside.calls)
        self.outside.payments = dict(world.outside.payments)
        self.outside.charges.update(world.outside.charges)
        self.plans, self.sent = dict(world.plans), list(world.sent)
        self.kept: Any = {}
        self.calm_us, self.settings, self.served = world.calm_us, world.settings, world.served
        self.workers: list[Any] = []

    def wrong(self) -> list[str]:
        judged: Judged = self
        return asyncio.run(check(judged))

    def of(self, topic: str, run_id: str) -> list[Record]:
        return self.records[topic, partition_of(run_id.encode(), PARTITIONS)]

    # -- events --------------------------------------------------------------------------------------------------

    def find(self, kind: str, body: type, nth: int = 0) -> tuple[list[Record], int, Event]:
        """The nth event with such a body, of runs of this kind (or any): its list, its place there, and itself."""
        places = []
        for (topic, _), records in self.records.items():
            if topic == self.topics.events:
                for at, record in enumerate(records):
                    event = decode_event(record.value or b"")
                    if event.run_id.startswith(f"{kind}-" if kind else "") and isinstance(event.body, body):
                        places.append((records, at, event))
        return places[nth]

    def change(self, found: tuple[list[Record], int, Event], **fields: Any) -> Event:
        """Change fields of an event, or of its body where they are the body's."""
        records, at, event = found
        own = {name: value for name, value in fields.items() if name in Event._fields}
        inner = {name: value for name, value in fields.items() if name not in own}
        event = event._replace(**own)
        event = event._replace(body=event.body._replace(**inner))
        records[at] = records[at]._replace(value=encode_event(event))
        return event

    def put(self, records: list[Record], at: int, event: Event) -> None:
        """Insert an event behind the one at this place."""
        before = records[at]
        self.shift(records, at + 1)
        key = event.run_id.encode()
        records.insert(at + 1, before._replace(offset=before.offset + 1, key=key, value=encode_event(event)))

    def shift(self, records: list[Record], since: int) -> None:
        for at in range(since, len(records)):
            records[at] = records[at]._replace(offset=records[at].offset + 1)

    # -- others --------------------------------------------------------------------------------------------------

    def lease(self, at: int = -1, number: int = 0, **fields: Any) -> None:
        """Change a lease."""
        records = self.records[self.topics.leases, number]
        lease = decode_lease(records[at].value or b"")._replace(**fields)
        records[at] = records[at]._replace(value=encode_lease(lease))

    def effect(self, kind: str) -> tuple[list[Record], int, Any]:
        """The first message of a run of this kind."""
        for (topic, _), records in self.records.items():
            if topic in map(self.topics.effect, self.topics.effect_names):
                for at, record in enumerate(records):
                    if (record.key or b"").startswith(f"{kind}-".encode()):
                        return records, at, decode_effect(record.value or b"")
        raise AssertionError(kind)

    def change_effect(self, kind: str, **fields: Any) -> None:
        records, at, message = self.effect(kind)
        records[at] = records[at]._replace(value=encode_effect(message._replace(**fields)))

    def checkpoint(self, kind: str, **fields: Any) -> tuple[list[Record], int]:
        """Change the last checkpoint of the first run of this kind."""
        found = [
            (records, at)
            for (topic, _), records in self.records.items()
            if topic == self.topics.checkpoints
            for at, record in enumerate(records)
            if (record.key or b"").startswith(f"{kind}-".encode())
        ]
        records, at = found[-1]
        state: Any = decode_checkpoint(records[at].value or b"")
        records[at] = records[at]._replace(value=encode_checkpoint(state._replace(**fields)))
        return records, at
