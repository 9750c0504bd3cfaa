"""Wall clocks in virtual time: each worker has its own, and it may jump."""

from __future__ import annotations

import asyncio

__all__ = ["EPOCH_US", "VirtualClock"]

EPOCH_US = 1_767_225_600_000_000
"""2026-01-01 in UTC: when every simulation begins."""


class VirtualClock:
    """See `streams.clock.Clock`. `offset_us` is how far it is wrong."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset_us: int = 0) -> None:
        self._loop = loop
        self.offset_us = offset_us

    def now_us(self) -> int:
        """Virtual wall time."""
        return EPOCH_US + round(self._loop.time() * 1e6) + self.offset_us

    def now_ms(self) -> int:
        """The same in milliseconds, as a log gives it to records."""
        return self.now_us() // 1000

    def monotonic(self) -> float:
        """Virtual seconds, which never jump."""
        return self._loop.time()

    def jump(self, seconds: float) -> None:
        """Move the wall clock forward, or back."""
        self.offset_us += round(seconds * 1e6)
