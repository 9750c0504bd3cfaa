"""Plain reads of a partition: everything between two offsets, and events with their place in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from streams.errors import LogUnavailable
from streams.kernel.events import Event
from streams.log.port import Log, Reader, Record, TopicPartition
from streams.wire.records import decode_event

__all__ = ["Progress", "StoredEvent", "batches", "scan", "stored_event"]

Progress = Callable[[int, int], None]
"""Called with how many offsets have been read, and how many there are to read."""

_RECORDS_MAX = 2_000
_POLL_SECONDS = 1.0
_STALL_SECONDS = 30.0


class StoredEvent(NamedTuple):
    """An event with its offset and the log's append time in milliseconds since the epoch."""

    event: Event
    offset: int
    timestamp: int


def stored_event(record: Record) -> StoredEvent:
    """The event in a record of the events topic. Raises `WireError`."""
    return StoredEvent(decode_event(record.value or b""), record.offset, record.timestamp)


async def scan(
    log: Log, topic: str, partition: int, start: int, end: int, *, progress: Progress | None = None
) -> AsyncGenerator[Record, None]:
    """The committed records from offset `start` up to `end`, which was captured before.

    An empty read does not mean that the end is reached. Raises `LogUnavailable` when nothing comes for long.
    """
    async for records in batches(log, topic, partition, start, end, progress=progress):
        for record in records:
            yield record


async def batches(
    log: Log, topic: str, partition: int, start: int, end: int, *, progress: Progress | None = None
) -> AsyncGenerator[list[Record], None]:
    """The same by the batch, for who reads much; a batch may be empty."""
    if start >= end:
        return
    place = TopicPartition(topic, partition)
    reader = log.reader({place: start})
    try:
        while reader.position(place) < end:
            records = await _read_on(reader, place)
            if records and records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            yield records
            if progress is not None:
                progress(min(reader.position(place), end) - start, end - start)
    finally:
        await reader.close()


async def _read_on(reader: Reader, place: TopicPartition) -> list[Record]:
    """The next records, or none where only markers were passed."""
    loop = asyncio.get_running_loop()
    position = reader.position(place)
    deadline = loop.time() + _STALL_SECONDS
    while True:
        records = await reader.read(_RECORDS_MAX, _POLL_SECONDS)
        if records or reader.position(place) > position:
            return records
        if loop.time() > deadline:
            message = (
                f"nothing more came from {place.topic}[{place.partition}] at offset {position} for "
                f"{_STALL_SECONDS:.0f} s, though the log has more; try again"
            )
            raise LogUnavailable(message)
