"""A queue that takes from each run in turn: ten thousand queued ops of one hold up another's only one by one place."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container
from typing import NamedTuple

from streams.runtime.partition import Partition

__all__ = ["FairQueue", "Queued"]

RunKey = tuple[int, str]


class Queued(NamedTuple):
    """An op that waits."""

    partition: Partition
    run_id: str
    op: str


class FairQueue:
    """Ops in the order in which they came within each run, and the runs in turn."""

    def __init__(self) -> None:
        self._runs: OrderedDict[RunKey, tuple[Partition, deque[str]]] = OrderedDict()
        """Those that have ops; the next one to be served stands first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, partition: Partition, run_id: str, op: str) -> None:
        """Add at the end of its run; a run that had none stands behind all others."""
        key = (partition.number, run_id)
        held = self._runs.get(key)
        if held is None or held[0] is not partition:
            # Of an earlier assignment of the partition: its ops were given to somebody else, and restored since.
            self._count -= len(self._runs.pop(key)[1]) if held is not None else 0
            held = self._runs[key] = (partition, deque())
        held[1].append(op)
        self._count += 1

    def take(self, may: Callable[[RunKey], bool] | None = None) -> Queued | None:
        """Remove and return the first op of the next run that `may` have one; None where there is none."""
        for key in self._runs:  # those that may not are few: each of them holds a share of all slots
            if may is None or may(key):
                break
        else:
            return None
        partition, ops = self._runs.pop(key)
        op = ops.popleft()
        self._count -= 1
        if ops:
            self._runs[key] = (partition, ops)
        return Queued(partition, key[1], op)

    def drop(self, partitions: Container[int]) -> None:
        """Forget what waits in these partitions."""
        for key in [key for key in self._runs if key[0] in partitions]:
            self._count -= len(self._runs.pop(key)[1])
