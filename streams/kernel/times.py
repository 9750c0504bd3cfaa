"""Times inside the kernel are microseconds since the epoch; these are the ways in and out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["as_datetime", "span_us"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_datetime(at_us: int) -> datetime:
    """An aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=at_us)


def span_us(delay: float | timedelta) -> int:
    """A delay of seconds, or a timedelta, in microseconds; less than nothing counts as nothing.

    Raises ValueError for what is no finite span.
    """
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not -1e12 < seconds < 1e12:
        message = f"a delay of {delay!r} seconds is no time span; give a finite number or a timedelta"
        raise ValueError(message)
    return max(0, round(seconds * 1_000_000))
