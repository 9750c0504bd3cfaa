"""Notices that a call of the C client never returns: seen under restarts of a broker, whatever the time-out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["Patience"]

HANG_SECONDS = 5.0
"""How much longer than its time-out a call may take, before it counts as one that never returns: sending offsets does
not keep it when the coordinator is gone from the metadata (librdkafka issue 5456)."""

P = ParamSpec("P")
T = TypeVar("T")


class Patience:
    """The calls of one client, on its own thread; whoever waits for them looks at `over`."""

    def __init__(self) -> None:
        self._due: float | None = None

    @property
    def over(self) -> bool:
        """Whether the call that is under way should have returned long ago. From any thread."""
        due = self._due
        return due is not None and time.monotonic() > due + HANG_SECONDS

    def within(self, seconds: float, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the client; `seconds` is the time-out that it was given."""
        self._due = time.monotonic() + seconds
        try:
            return call(*args, **kwargs)
        finally:
            self._due = None
            # A traceback keeps this frame: with it the client would live on, and repeat by itself what was given up.
            del call, args, kwargs
