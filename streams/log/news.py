"""How far things have come, as far as this process knows, and waiting until one of them comes further."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

__all__ = ["News"]

K = TypeVar("K", bound=Hashable)

SECONDS_MAX = 3600.0
"""One wait; callers look again in a loop, and an infinite time-out must not reach the event loop."""


class News:
    """Numbers that only grow: the end of a partition, the changes of a group. Everything on one event loop.

    Who waits says how far he has seen each thing, so what moves between his look and his wait ends the wait at once.
    """

    def __init__(self, on_wait: Callable[[], None] = lambda: None) -> None:
        self._numbers: dict[Hashable, int] = {}
        # Dicts keep the order of arrival: sets would wake in an order that differs between two runs of a simulation.
        self._sleepers: dict[Hashable, dict[asyncio.Future[None], None]] = {}
        self._on_wait = on_wait

    @property
    def awaited(self) -> list[Hashable]:
        """What somebody waits for now. Any thread may ask."""
        return list(self._sleepers)

    def number(self, key: Hashable) -> int:
        """How far it has come; 0 where nothing was told yet. Any thread may ask."""
        return self._numbers.get(key, 0)

    def tell(self, numbers: Mapping[K, int]) -> None:
        """Wake those who wait for what has come further."""
        for key, number in numbers.items():
            if number > self._numbers.get(key, 0):
                self._numbers[key] = number
                self.wake(key)

    def add(self, *keys: Hashable) -> None:
        """Count one more change of each."""
        for key in keys:
            self._numbers[key] = self.number(key) + 1
            self.wake(key)

    def wake(self, key: Hashable) -> None:
        """Let those who wait for this look again, whether it has moved or not."""
        for sleeper in self._sleepers.pop(key, ()):
            _wake(sleeper)

    def wake_all(self) -> None:
        """Let everybody look again."""
        for key in self.awaited:
            self.wake(key)

    async def wait(self, seen: Mapping[Hashable, int], seconds: float) -> None:
        """Return when one of these has come further than was seen, or after `seconds`."""
        if seconds <= 0 or any(self._numbers.get(key, 0) > number for key, number in seen.items()):
            return
        loop = asyncio.get_running_loop()
        sleeper: asyncio.Future[None] = loop.create_future()
        for key in seen:
            self._sleepers.setdefault(key, {})[sleeper] = None
        timer = loop.call_later(min(seconds, SECONDS_MAX), _wake, sleeper)
        self._on_wait()
        try:
            await sleeper
        finally:
            timer.cancel()
            for key in seen:
                self._forget(key, sleeper)

    def _forget(self, key: Hashable, sleeper: asyncio.Future[None]) -> None:
        same = self._sleepers.get(key)
        if same is not None:
            same.pop(sleeper, None)
            if not same:
                del self._sleepers[key]


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
