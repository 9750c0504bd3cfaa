"""The clock port: wall time for facts and deadlines of runs, monotonic time for waiting."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """What the runtime asks of time."""

    def now_us(self) -> int:
        """Wall time in microseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that only go forward."""


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()
