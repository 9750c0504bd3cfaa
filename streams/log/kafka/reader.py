"""A reader of chosen partitions. Its position passes markers and holes: the client says where a partition ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from streams.errors import LogDamaged, StreamsError, UsageError
from streams.log.kafka.failures import MISSING, sort, words
from streams.log.kafka.lane import Lane
from streams.log.kafka.messages import record_of
from streams.log.port import Record
from streams.log.port import TopicPartition as Place

__all__ = ["KafkaReader"]

SLICE_SECONDS = 0.05
CLOSE_SECONDS = 10.0
_OUTSIDE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class KafkaReader:
    """See `streams.log.port.Reader`. A read also returns early, empty, where only the position moved."""

    def __init__(self, make: Callable[[], Consumer], start: Mapping[Place, int]) -> None:
        self._positions = dict(start)
        self._fetcher = Fetcher(make, start)
        self._lane = Lane("reader")
        self.closed = False

    def add(self, partition: Place, offset: int) -> None:
        """Read this partition too."""
        self._positions[partition] = offset
        self._fetcher.changes.append((partition, offset))

    def remove(self, partition: Place) -> None:
        """Read this partition no more."""
        del self._positions[partition]
        self._fetcher.changes.append((partition, None))

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        """The next records."""
        if not self._fetcher.ready:
            self._fetcher.interrupted = False
            try:
                await self._lane.run(lambda: self._fetcher.fetch(records_max, timeout))
            except BaseException:
                # What a read that was cut off has fetched stays in `ready` for the next one.
                self._fetcher.interrupted = True
                raise
        return self._take(records_max)

    def position(self, partition: Place) -> int:
        """One past everything passed so far."""
        return self._positions[partition]

    async def close(self) -> None:
        """Free the client."""
        self.closed = self._fetcher.interrupted = True
        await self._lane.close(self._fetcher.close, CLOSE_SECONDS)

    def _take(self, records_max: int) -> list[Record]:
        ready = self._fetcher.ready
        records: list[Record] = []
        while ready and (len(records) < records_max or isinstance(ready[0], End)):
            item = ready.popleft()
            place = item.place if isinstance(item, End) else Place(item.topic, item.partition)
            if place not in self._positions or item.offset < self._positions[place]:
                continue  # fetched before the partition was removed, or added again further on
            if isinstance(item, End):
                self._positions[place] = item.offset
            else:
                self._positions[place] = item.offset + 1
                records.append(item)
        return records


class End(NamedTuple):
    """The end that a partition had at some moment: everything before it was passed."""

    place: Place
    offset: int


class Fetcher:
    """The client of a reader, on the reader's thread. `ready` holds records and ends in the order they came."""

    def __init__(self, make: Callable[[], Consumer], start: Mapping[Place, int]) -> None:
        self.ready: deque[Record | End] = deque()
        self.interrupted = False
        self.changes: deque[tuple[Place, int | None]] = deque(start.items())
        """Partitions to read from an offset on, or (None) no more; applied on the reader's thread."""
        self._make = make
        self._passed: dict[Place, int] = {}
        self._client: Any = None
        self._failure: StreamsError | None = None

    def fetch(self, records_max: int, timeout: float) -> None:
        """Wait for news, at most `timeout` seconds, and put what has arrived into `ready`."""
        deadline = time.monotonic() + timeout
        client = self._open()
        while True:
            self._apply_changes(client)
            left = deadline - time.monotonic()
            message = client.poll(min(max(left, 0.0), SLICE_SECONDS))
            while message is not None:
                self._put(message)
                for more in client.consume(max(records_max - len(self.ready), 1), 0):
                    self._put(more)
                message = client.poll(0) if len(self.ready) < records_max else None
            if self._failure is not None and not self.ready:
                raise self._failure
            if self.ready or left <= 0 or self.interrupted:
                return

    def close(self) -> None:
        """Free the client."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> Any:
        if self._client is None:
            self._client = self._make()
        return self._client

    def _apply_changes(self, client: Any) -> None:
        while self.changes:
            place, offset = self.changes.popleft()
            if place in self._passed:
                client.incremental_unassign([TopicPartition(*place)])
                del self._passed[place]
            if offset is not None:
                client.incremental_assign([TopicPartition(*place, offset)])
                self._passed[place] = offset

    def _put(self, message: Message) -> None:
        error = message.error()
        place = Place(message.topic() or "", message.partition() or 0)
        if error is None:
            record = record_of(message)
            if place in self._passed:
                self._passed[place] = record.offset + 1
                self.ready.append(record)
        elif error.code() == KafkaError._PARTITION_EOF:
            end = message.offset() or 0
            if place in self._passed and end > self._passed[place]:
                self._passed[place] = end
                self.ready.append(End(place, end))
        elif not error.retriable():
            self._failure = self._failure or self._sorted(error, place)

    def _sorted(self, error: KafkaError, place: Place) -> StreamsError | None:
        where = f"{place.topic}[{place.partition}]"
        if error.code() in _OUTSIDE:
            return LogDamaged(f"{where} has no offset {self._passed.get(place)} (any more): {words(error)}")
        if error.code() in MISSING:
            return UsageError(f"there is no {where}: {words(error)}")
        found = sort(error, f"reading {where}")
        return found if isinstance(found, UsageError | LogDamaged) else None
