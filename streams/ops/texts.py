"""Times and values in words."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["iso", "iso_ms", "line", "span"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000))
_SECOND_US = 1_000_000
_VALUE_CHARS_MAX = 200


def iso(us: int) -> str:
    """Microseconds since the epoch as ISO 8601 in UTC. A time beyond the calendar is shown as its number."""
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{us} µs"


def iso_ms(ms: int) -> str:
    """The same for milliseconds, in which logs stamp records."""
    return iso(ms * 1_000)


def span(us: int) -> str:
    """How long something took, in two units at most: 3 h 12 min, 4.2 s, 7 ms."""
    us = max(us, 0)
    for index, (unit, size) in enumerate(_UNITS):
        if us >= size:
            smaller, rest = _UNITS[index + 1 : index + 2] or (("s", _SECOND_US),), us % size
            name, part = smaller[0]
            return f"{us // size} {unit}" + (f" {rest // part} {name}" if rest >= part else "")
    if us >= 10 * _SECOND_US:
        return f"{us / _SECOND_US:.0f} s"
    return f"{us / _SECOND_US:.1f} s" if us >= _SECOND_US else f"{us // 1_000} ms"


def line(value: Any, limit: int = _VALUE_CHARS_MAX) -> str:
    """A plain value as one line of JSON, cut where it gets long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
