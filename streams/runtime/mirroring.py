"""Restoring with a local mirror: what is new of the checkpoints goes into it as it is, undecoded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streams.errors import LogDamaged
from streams.log.port import Log, Record, Span, TopicPartition
from streams.runtime.mirror import Mirror, Noted
from streams.runtime.partition import Partition
from streams.wire.records import Lease
from streams.wire.schemas import SchemaUnknown
from streams.wire.topics import Topics

if TYPE_CHECKING:
    from streams.runtime.engine import Engine

__all__ = ["begin_mirror", "follow_checkpoints", "newer_release"]

_CHUNK = 5_000
_READ_SECONDS = 0.02
"""Short, because what is left before the end may be a hole, for which no record will ever come."""


async def begin_mirror(
    log: Log, topics: Topics, partition: Partition, ends: Mapping[str, Span], lease: Lease | None, engine: Engine
) -> Noted:
    """Before the claim: take up the local mirror; what it tells of how far its owner had come."""
    mirror = partition.mirror
    if mirror is None:
        return Noted(0, 0)
    found = await log.describe_topics([topics.checkpoints, topics.events, topics.commands])
    mirror.begin(topics, found, ends[topics.checkpoints], engine.clock.now_us())
    if mirror.thrown_away:
        text = f"its local mirror is thrown away: {mirror.thrown_away}"
        engine.observer.message(f"partition {partition.number}: {text}")
    return mirror.noted(lease.epoch if lease is not None else 0)


async def follow_checkpoints(log: Log, topics: Topics, partition: Partition, mirror: Mirror, span: Span) -> int:
    """What is new goes into the mirror as it is; into memory come the runs that need their owner at once."""
    place = TopicPartition(topics.checkpoints, partition.number)
    offset = mirror.offset
    if offset < span.end:
        reader = log.reader({place: offset})
        try:
            while offset < span.end:
                found = await reader.read(_CHUNK, _READ_SECONDS)
                offset = min(reader.position(place), span.end)
                records = [record for record in found if record.offset < span.end]
                _mirror_chunk(partition.number, mirror, records, offset)
                await asyncio.sleep(0)
        finally:
            await reader.close()
    for count, run_id in enumerate(mirror.at_once()):
        partition.runs.get(run_id)
        if count % _CHUNK == _CHUNK - 1:
            await asyncio.sleep(0)
    return mirror.epoch


def _mirror_chunk(number: int, mirror: Mirror, records: Sequence[Record], offset: int) -> None:
    try:
        mirror.read(records, offset)
    except SchemaUnknown:
        for record in records:
            try:
                mirror.read([record], mirror.offset)
            except SchemaUnknown as error:
                raise newer_release(number, record, error) from error
        raise


def newer_release(partition: int, record: Record, error: Exception) -> LogDamaged:
    """Why the partition is refused. A record of a newer release is no damage, and nothing may be guessed of it."""
    return LogDamaged(
        f"partition {partition}: the record at offset {record.offset} of {record.topic} was written by a newer "
        f"version of streams ({error}); run workers of that version"
    )
