"""The start of a worker: a log that is just being restarted must not end every worker that starts meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streams.deadline import Deadline
from streams.errors import LogUnavailable
from streams.runtime.engine import Engine

__all__ = ["at_start"]

START_SECONDS = 60.0
_PAUSE_SECONDS = 0.5

T = TypeVar("T")


async def at_start(engine: Engine, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until the log is there, for a minute. Raises `LogUnavailable` after it."""
    deadline = Deadline(engine.clock, START_SECONDS)
    while True:
        try:
            return await attempt()
        except LogUnavailable as error:
            if deadline.over:
                raise
            engine.observer.message(f"the log cannot be reached, trying again: {error}")
            await asyncio.sleep(_PAUSE_SECONDS)
