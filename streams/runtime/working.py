"""A run inside a turn, and what a turn sets going once it is committed."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.driver import Driver
from streams.kernel.run import Run
from streams.runtime.partition import Hot, Partition

__all__ = ["Start", "Timer", "Working"]


class Start(NamedTuple):
    """An attempt to begin once the turn is committed."""

    partition: Partition
    run_id: str
    op: str
    attempt: int


class Timer(NamedTuple):
    """A time to wait for once the turn is committed."""

    due: int
    partition: Partition
    run_id: str
    op: str


class Working:
    """A run inside a turn: what it will be if the turn is committed."""

    __slots__ = ("checkpoint", "event_bytes", "first", "gone", "hot", "key", "live", "partition", "run", "touched")

    def __init__(self, partition: Partition, hot: Hot) -> None:
        self.partition = partition
        self.hot = hot
        self.run: Run = hot.run
        self.key = hot.run.run_id.encode()
        self.live: Driver | None = hot.live
        self.first: int | None = None
        """The place of its first event among the turn's records."""
        self.event_bytes = 0
        self.checkpoint: bytes | None = None
        self.touched = False
        self.gone = False
