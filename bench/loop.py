"""The event loop: uvloop where it is installed, as a worker's command line would choose."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable

__all__ = ["loop_name", "new_loop"]


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        found: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return found


def new_loop() -> asyncio.AbstractEventLoop:
    """A new loop."""
    return (_factory() or asyncio.new_event_loop)()


def loop_name() -> str:
    """Which one it is, for the report."""
    return "uvloop" if _factory() is not None else "asyncio"
