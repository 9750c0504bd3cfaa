"""Places in a topic: the start, an offset, or a time, which is looked up by the append times of the records."""

from __future__ import annotations

import re
from contextlib import aclosing
from datetime import datetime
from typing import NamedTuple

from streams.client.reading import scan
from streams.errors import UsageError
from streams.log.port import Log, Record, Span

__all__ = ["Goal", "offset_at", "read_goal", "read_time"]

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_NEAR = 2_000
"""Offsets within which a search reads on instead of halving."""


class Goal(NamedTuple):
    """Where to go: one of the two is set, or none for the start."""

    offset: int | None = None
    at_us: int | None = None


def read_goal(text: str, now_us: int) -> Goal:
    """`start`, an offset, or a time as `read_time` takes it. Raises UsageError."""
    if text == "start":
        return Goal()
    if re.fullmatch("[0-9]{1,18}", text):
        return Goal(offset=int(text))
    return Goal(at_us=read_time(text, now_us))


def read_time(text: str, now_us: int) -> int:
    """A time in ISO 8601 with its zone, or how long ago, such as 90s, 30m, 2h, 7d. Raises UsageError."""
    found = re.fullmatch("([0-9]{1,9})([smhdw])", text)
    if found is not None:
        return now_us - int(found[1]) * _UNITS[found[2]] * 1_000_000
    hint = "write it like 2026-05-01T12:00:00Z, or how long ago: 90s, 30m, 2h, 7d"
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no time; {hint}") from error
    if at.tzinfo is None:
        raise UsageError(f"{text!r} names no zone, so nobody knows which moment is meant; {hint}")
    at_us = round(at.timestamp() * 1_000_000)
    if at_us > now_us:
        raise UsageError(f"{text!r} is in the future")
    return at_us


async def offset_at(log: Log, topic: str, partition: int, span: Span, at_us: int) -> int:
    """The offset of the first record that the log took at or after a time; the end where there is none."""
    low, high = span.start, span.end
    while high - low > _NEAR:
        middle = (low + high) // 2
        record = await _first(log, topic, partition, middle, high)
        if record is not None and record.timestamp * 1_000 < at_us:
            low = record.offset + 1
        else:
            high = middle
    async with aclosing(scan(log, topic, partition, low, span.end)) as records:
        async for record in records:
            if record.timestamp * 1_000 >= at_us:
                return record.offset
    return span.end


async def _first(log: Log, topic: str, partition: int, start: int, end: int) -> Record | None:
    async with aclosing(scan(log, topic, partition, start, end)) as records:
        async for record in records:
            return record
    return None
