"""Wakes coroutines that wait for news of a log, without losing a ring between the look and the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Bell"]

SECONDS_MAX = 3600.0
"""One wait; callers look again in a loop, and an infinite time-out must not reach the event loop."""


class Bell:
    """Read `rings`, look for news, then `wait` with what was read: a ring in between returns at once."""

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self.rings = 0
        # A dict keeps the order of arrival: a set would wake in an order that differs between two runs of a simulation.
        self._sleepers: dict[asyncio.Future[None], None] = {}
        self._on_wait = on_wait

    @property
    def waiting(self) -> bool:
        """Whether anybody waits now."""
        return bool(self._sleepers)

    def ring(self) -> None:
        """Wake everybody who waits. Call it on the event loop."""
        self.rings += 1
        sleepers, self._sleepers = self._sleepers, {}
        for sleeper in sleepers:
            _wake(sleeper)

    async def wait(self, seen: int, seconds: float) -> None:
        """Return at the first ring after `seen`, or after `seconds`."""
        if self.rings != seen or seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        self._sleepers[sleeper] = None
        timer = loop.call_later(min(seconds, SECONDS_MAX), _wake, sleeper)
        self._on_wait()
        try:
            await sleeper
        finally:
            timer.cancel()
            self._sleepers.pop(sleeper, None)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
