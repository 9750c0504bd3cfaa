"""A run inside a turn, and what a turn sets going once it is committed."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.driver import Driver
from streams.kernel.run import Run
from streams.runtime.partition import Hot, Partition

__all__ = ["Start", "Timer", "Working"]


class Start(NamedTuple):
    """An attempt to begin once the turn is committed, or, where it may begin early, as soon as it is decided."""

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

    __slots__ = (
        "checkpoint",
        "checkpoint_bytes",
        "event_bytes",
        "first",
        "gone",
        "hot",
        "live",
        "partition",
        "run",
        "since_bytes",
        "touched",
    )

    def __init__(self, partition: Partition, hot: Hot) -> None:
        self.partition = partition
        self.hot = hot
        self.run: Run = hot.run
        self.live: Driver | None = hot.live
        self.since_bytes = hot.since_bytes
        self.checkpoint_bytes = hot.checkpoint_bytes
        self.first: int | None = None
        """The place of its first event among the turn's records."""
        self.event_bytes = 0
        self.checkpoint: bytes | None = None
        self.touched = False
        self.gone = False

    @classmethod
    def following(cls, before: Working) -> Working:
        """The run on top of what a turn in flight makes of it, which the coroutine leaves for this one."""
        working = cls(before.partition, before.hot)
        working.run, working.live, before.live = before.run, before.live, None
        if before.checkpoint is not None:
            working.since_bytes, working.checkpoint_bytes = 0, len(before.checkpoint)
        else:
            working.since_bytes = before.since_bytes + before.event_bytes
            working.checkpoint_bytes = before.checkpoint_bytes
        return working
