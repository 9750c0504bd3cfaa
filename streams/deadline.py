"""A budget of time that several steps share, so that their sum is bounded and not each of them."""

from __future__ import annotations

from streams.clock import Clock

__all__ = ["Deadline"]


class Deadline:
    """`seconds` from now on."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, never less than 0."""
        return max(0.0, self._end - self._clock.monotonic())

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.left() <= 0
