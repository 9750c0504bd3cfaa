"""A log that is just being restarted: it is waited for, and must not end every worker that starts meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streams.deadline import Deadline
from streams.errors import LogUnavailable
from streams.runtime.engine import Engine

__all__ = ["at_start", "patiently"]

START_SECONDS = 60.0
_PAUSE_SECONDS = 0.5

T = TypeVar("T")


async def at_start(engine: Engine, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until the log is there, for a minute. Raises `LogUnavailable` after it."""
    text = "the log cannot be reached, trying again"
    return await patiently(engine, attempt, text, pause=_PAUSE_SECONDS, seconds=START_SECONDS)


async def patiently(
    engine: Engine, attempt: Callable[[], Awaitable[T]], text: str, *, pause: float, seconds: float = math.inf
) -> T:
    """Try until the log is there, and say once that it is not. Raises `LogUnavailable` after `seconds`."""
    deadline = Deadline(engine.clock, seconds)
    said = False
    while True:
        try:
            return await attempt()
        except LogUnavailable as error:
            if deadline.over:
                raise
            if not said:
                engine.observer.message(f"{text}: {error}")
                said = True
            await asyncio.sleep(pause)
