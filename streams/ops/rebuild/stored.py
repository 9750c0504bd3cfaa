"""What stands among the checkpoints of a partition, in few bytes a run: a digest tells whether a new one differs."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from streams.client.fold import opened_at
from streams.errors import WireError
from streams.kernel.run import Run
from streams.log.port import Log, Record, Span, TopicPartition
from streams.runtime.restore import newer_release, read_range
from streams.wire.records import Damaged, decode_checkpoint
from streams.wire.schemas import SchemaUnknown

__all__ = ["Kind", "Stored", "digest_of", "read_bases", "read_stored"]


class Kind(IntEnum):
    """What a record among the checkpoints is."""

    RUN = 0
    DAMAGED = 1
    UNREADABLE = 2


class Stored(NamedTuple):
    """The last checkpoint of a run. `opened` tells its lives apart."""

    digest: int
    kind: Kind
    opened: int = -1
    seq: int = 0


digest_of = hash
"""Of bytes; it holds within this process, which is all that is needed."""


async def read_stored(log: Log, topic: str, partition: int, span: Span) -> dict[bytes, Stored]:
    """All checkpoints by key. Raises `LogDamaged` for one of a newer release."""
    found: dict[bytes, Stored] = {}
    async for record in read_range(log, TopicPartition(topic, partition), span.start, span.end):
        if record.key is None:
            continue
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = _stored(record, record.value)
    return found


def _stored(record: Record, value: bytes) -> Stored:
    state = _state(record, value)
    if state is None:
        return Stored(digest_of(value), Kind.UNREADABLE)
    if isinstance(state, Damaged):
        return Stored(digest_of(value), Kind.DAMAGED, opened_at(state.identity), state.seq)
    return Stored(digest_of(value), Kind.RUN, opened_at(state.identity), state.seq)


def _state(record: Record, value: bytes) -> Run | Damaged | None:
    try:
        return decode_checkpoint(value)
    except SchemaUnknown as error:
        raise newer_release(record.partition, record, error) from error
    except WireError:
        return None


async def read_bases(
    log: Log, topic: str, partition: int, span: Span, keys: Collection[bytes]
) -> dict[bytes, tuple[Run, int]]:
    """The last checkpoints of some runs whole, with their sizes: what their events are folded on."""
    found: dict[bytes, tuple[Run, int]] = {}
    async for record in read_range(log, TopicPartition(topic, partition), span.start, span.end):
        if record.key not in keys or record.key is None:
            continue
        found.pop(record.key, None)
        state = None if record.value is None else _state(record, record.value)
        if isinstance(state, Run):
            found[record.key] = (state, len(record.value or b""))
    return found
