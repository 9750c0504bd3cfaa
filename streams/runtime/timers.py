"""Timers: one heap of absolute times, and one sleeping call of the event loop."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from streams.clock import Clock
from streams.runtime.partition import Partition, PartitionState

__all__ = ["Timers"]

_NAP_SECONDS_MAX = 1.0
"""Wall time may jump while we sleep: look again at least this often."""

_CROWDED_SECONDS = 0.005
"""When to look again while there is no room for what is due."""

Entry = tuple[int, int, Partition, str, str]


class Timers:
    """Calls `fire(partition, run_id, op)` when the wall clock has reached a time; earlier times first."""

    def __init__(
        self, clock: Clock, fire: Callable[[Partition, str, str], None], room: Callable[[], bool] = lambda: True
    ) -> None:
        """`room` tells whether more may fire now: a million that are due at once wait here, as times, and not twice."""
        self._clock = clock
        self._fire = fire
        self._room = room
        self._heap: list[Entry] = []
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._planned = 0

    def add(self, due_us: int, partition: Partition, run_id: str, op: str) -> None:
        """Wait for a time; one that has passed fires in the next round of the loop."""
        heapq.heappush(self._heap, (due_us, next(self._order), partition, run_id, op))
        if self._handle is None or due_us < self._planned:
            self._plan()

    def __len__(self) -> int:
        return len(self._heap)

    def prune(self) -> None:
        """Forget times of runs that are not in memory, and all but one that say the same: loading adds them again."""
        kept: dict[tuple[int, int, str, str], Entry] = {}
        for entry in self._heap:
            due, _, partition, run_id, op = entry
            if run_id in partition.runs:
                kept[due, id(partition), run_id, op] = entry
        self._heap = list(kept.values())
        heapq.heapify(self._heap)
        self._plan()

    def close(self) -> None:
        """Fire nothing more."""
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _plan(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            self._planned = self._heap[0][0]
            soonest = 0.0 if self._room() else _CROWDED_SECONDS
            wait = max(soonest, (self._planned - self._clock.now_us()) / 1_000_000)
            self._handle = asyncio.get_running_loop().call_later(min(wait, _NAP_SECONDS_MAX), self._ring)

    def _ring(self) -> None:
        self._handle = None
        now = self._clock.now_us()
        while self._heap and self._heap[0][0] <= now and self._room():
            _, _, partition, run_id, op = heapq.heappop(self._heap)
            if partition.state is not PartitionState.CLOSED:
                self._fire(partition, run_id, op)
        self._plan()
