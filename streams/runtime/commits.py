"""Commits that are not broken off: what is cut off in the middle leaves the producer in doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["to_its_end"]

CUT_OFF_SECONDS = 5.0


async def to_its_end(commit: Coroutine[Any, Any, list[int]], distrust: Callable[[], None]) -> list[int]:
    """Wait for a commit, and when the caller is cancelled still for a while: `distrust` is told of one that is cut off.

    So it is of one that failed meanwhile, for nobody else hears of that. Errors of the commit itself are raised.
    """
    task = asyncio.ensure_future(commit)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task], timeout=CUT_OFF_SECONDS)
        finally:  # a second cancellation may end the wait
            if not task.done() or task.cancelled() or task.exception() is not None:
                task.cancel()
                distrust()
        raise
