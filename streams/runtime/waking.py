"""Runs that are not in memory and go on by themselves: found in the index of the mirror, and loaded when it is time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streams.runtime.paging import HORIZON_US, Pager
from streams.runtime.polling import is_crowded

if TYPE_CHECKING:
    from streams.runtime.partition import Partition
    from streams.runtime.worker import Worker

__all__ = ["Waker"]

_PAUSE_SECONDS = 1.0
"""Well within the time for which runs are loaded ahead."""
_CHUNK, _CHUNK_CROWDED = 500, 20
_NOTE_SECONDS = 10.0


class Waker:
    """Loads what is due soon; its timers fire as those of any run in memory. Now and then it marks the mirrors."""

    def __init__(self, worker: Worker, pager: Pager) -> None:
        self._worker = worker
        self._pager = pager
        self._noted = worker.engine.clock.monotonic()

    async def run(self) -> None:
        """Look for what is due, for ever."""
        while True:
            more = self._look()
            await asyncio.sleep(0 if more else _PAUSE_SECONDS)

    def _look(self) -> bool:
        """Whether there is more to load at once."""
        worker, now = self._worker, self._worker.engine.clock.now_us()
        served = [partition for partition in worker.owner.partitions.values() if partition.running]
        monotonic = worker.engine.clock.monotonic()
        if monotonic - self._noted >= _NOTE_SECONDS:
            self._noted = monotonic
            for partition in served:
                if partition.mirror is not None:
                    partition.mirror.note(partition, now)
        # What cannot be worked off now would fill the memory. Some go on all the same: only turns let others leave.
        crowded = is_crowded(worker) or self._pager.crowded
        limit = _CHUNK_CROWDED if crowded else _CHUNK
        more = [self._wake(partition, now + HORIZON_US, limit) for partition in served]  # all of them, each has its go
        return any(more) and not crowded

    @staticmethod
    def _wake(partition: Partition, until: int, limit: int) -> bool:
        if partition.mirror is None:
            return False
        found = partition.mirror.waking(until, limit)
        for run_id in found:
            partition.runs.get(run_id)
        return len(found) == limit
