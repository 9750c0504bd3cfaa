"""Bounded memory: which runs are in it, and how the least recently used ones leave it.

A run leaves memory once a committed checkpoint covers all its events, and that checkpoint is in the local mirror. Where
events are not covered, a turn writes the checkpoint, and the run leaves after the commit. Nothing else is written.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from streams.kernel.run import is_terminal
from streams.kernel.wake import Stage, times_of, wake_of
from streams.runtime.mirror import Mirror
from streams.runtime.partition import Hot, Partition, PartitionState
from streams.runtime.restore import hot_of
from streams.runtime.working import Working

if TYPE_CHECKING:
    from streams.runtime.engine import Engine
    from streams.runtime.timers import Timers
    from streams.runtime.turn import Turn
    from streams.store.port import Store

__all__ = ["HORIZON_US", "PagedRuns", "Pager", "attach", "count_runs", "forget", "load_due"]

HORIZON_US = 5_000_000
"""Runs that go on by themselves within this time are loaded, and do not leave memory."""
_HOT_BYTES = 1_000
"""What a run takes beside its encoded state, at least."""
_LOOKS_MAX = 4_000
"""Runs that one turn looks at, and so the most that it writes checkpoints of: twice what it takes inputs for."""
_PRUNED_MIN = 10_000
_CROWDED_TIMES = 2


class PagedRuns(dict[str, Hot]):
    """The runs of a partition that are in memory; asked for another one, it loads it from the mirror."""

    def __init__(self, pager: Pager, partition: Partition, mirror: Mirror) -> None:
        super().__init__()
        self._pager = pager
        self._partition = partition
        self._mirror = mirror

    def get(self, run_id: str, default: Any = None, /) -> Any:
        """The run, from memory or from the mirror."""
        hot = super().get(run_id)
        if hot is None:
            hot = self._load(run_id)
        return default if hot is None else hot

    def __missing__(self, run_id: str) -> Hot:
        hot = self._load(run_id)
        if hot is None:
            raise KeyError(run_id)
        return hot

    def __setitem__(self, run_id: str, hot: Hot) -> None:
        before = super().get(run_id)
        if before is not None and before is not hot:
            self._pager.left(before)
        super().__setitem__(run_id, hot)
        self._mirror.gone.discard(run_id)
        self._pager.used(hot, self._partition)

    def pop(self, run_id: str, default: Any = None, /) -> Any:
        """Forget a run that has expired, also what the mirror has of it."""
        if self._mirror.value(run_id) is not None:
            self._mirror.gone.add(run_id)
        return self.leave(run_id) or default

    def leave(self, run_id: str) -> Hot | None:
        """Take a run out of memory."""
        hot: Hot | None = super().pop(run_id, None)
        if hot is not None:
            self._pager.left(hot)
        return hot

    def clear(self) -> None:
        """Take all runs out of memory; a new restore follows."""
        for hot in self.values():
            self._pager.left(hot)
        super().clear()

    def _load(self, run_id: str) -> Hot | None:
        value = self._mirror.value(run_id)
        if value is None:
            return None
        hot = hot_of(run_id, value, "its checkpoint in the local store")
        self[run_id] = hot
        self._pager.loaded(self._partition, hot)
        return hot


class Pager:
    """The runs in memory of all partitions of a worker, in the order of their last use."""

    def __init__(self, store: Store, engine: Engine, timers: Timers) -> None:
        self.store = store
        self._engine = engine
        self._timers = timers
        self._loop = asyncio.get_running_loop()
        self._recent: OrderedDict[Hot, Partition] = OrderedDict()
        self._bytes = 0
        self._leaving: list[tuple[Partition, str]] = []
        """Runs that have ended: they leave memory with the next turn."""
        self._loaded: list[tuple[Partition, Hot]] = []
        self._left = 0
        self.paged = 0
        """Checkpoints that were written for no other reason than to let a run leave memory."""

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def crowded(self) -> bool:
        """Whether so many runs are in memory that few should be loaded which nobody waits for."""
        return len(self._recent) > _CROWDED_TIMES * self._engine.settings.hot_runs_max

    # -- what is in memory ---------------------------------------------------------------------------------------

    def used(self, hot: Hot, partition: Partition) -> None:
        """Note that a run is in memory, and was used now."""
        size = hot.checkpoint_bytes + hot.since_bytes + _HOT_BYTES
        self._bytes += size - hot.counted
        hot.counted = size
        self._recent[hot] = partition
        self._recent.move_to_end(hot)

    def left(self, hot: Hot) -> None:
        """Note that a run is not in memory any more."""
        if self._recent.pop(hot, None) is not None:
            self._bytes -= hot.counted
            hot.counted = 0

    def loaded(self, partition: Partition, hot: Hot) -> None:
        """Set going what a run needs that was loaded. Turns load with the event loop hidden, so it waits for that."""
        if not partition.running:
            return  # a restore looks at all runs in memory at its end
        if not self._loaded:
            self._loop.call_soon(self._set_going)
        self._loaded.append((partition, hot))

    def _set_going(self) -> None:
        """Only times: of a run with an attempt, or whose repair is under way, a new owner has thought at once."""
        loaded, self._loaded = self._loaded, []
        for partition, hot in loaded:
            run_id = hot.run.run_id
            if hot.damaged is not None:
                self._engine.observer.run_blocked(run_id, "RUN_DAMAGED", hot.damaged)
            elif wake_of(hot.run).stage == Stage.OPEN:
                for due, op in times_of(hot.run):
                    self._timers.add(due, partition, run_id, op)

    # -- leaving -------------------------------------------------------------------------------------------------

    def page(self, turn: Turn) -> None:
        """Let runs leave memory, and write with this turn the checkpoints of those that need one before."""
        self._ended(turn)
        settings, looks = self._engine.settings, 0
        over = len(self._recent) - settings.hot_runs_max
        bytes_over = self._bytes - settings.hot_bytes_max
        while (over > 0 or bytes_over > 0) and looks < min(_LOOKS_MAX, len(self._recent)) and not turn.full:
            looks += 1
            hot, partition = next(iter(self._recent.items()))
            self._recent.move_to_end(hot)
            size = hot.counted
            if self._may_leave(turn, partition, hot) and self._go(turn, partition, hot):
                over, bytes_over = over - 1, bytes_over - size

    def _may_leave(self, turn: Turn, partition: Partition, hot: Hot) -> bool:
        run = hot.run
        key = (partition.number, run.run_id)
        if not partition.running or hot.damaged is not None or key in turn.working or key in turn.working_before:
            return False
        if hot.too_large == run.seq:
            return False
        stage, at = wake_of(run)
        if stage != Stage.OPEN or at is None:
            return True
        assert partition.mirror is not None
        return at > max(turn.now, partition.mirror.woken.at) + HORIZON_US

    def _go(self, turn: Turn, partition: Partition, hot: Hot) -> bool:
        """Whether the run has left memory, or leaves it after the commit."""
        if hot.first_offset is None:
            self._leave(partition, hot.run.run_id)
            return True
        working = turn.working[partition.number, hot.run.run_id] = Working(partition, hot)
        turn.checkpoint(working)
        if working.checkpoint is None:
            hot.too_large = hot.run.seq
            return False
        turn.partitions[partition.number] = partition
        turn.paged.append((partition, hot.run.run_id))
        return True

    def _ended(self, turn: Turn) -> None:
        leaving, self._leaving = self._leaving, []
        for partition, run_id in leaving:
            hot = dict.get(partition.runs, run_id)
            if hot is None or hot.first_offset is not None or not is_terminal(hot.run):
                continue
            if self._may_leave(turn, partition, hot):
                self._leave(partition, run_id)

    def landed(self, turn: Turn) -> None:
        """The turn is committed and adopted: what it has made a checkpoint of may leave."""
        for partition, run_id in turn.paged:
            hot = dict.get(partition.runs, run_id)
            if hot is not None and hot.first_offset is None and partition.state is not PartitionState.CLOSED:
                self.paged += 1
                self._leave(partition, run_id)
        for working in turn.working.values():
            if working.checkpoint is not None and is_terminal(working.run):
                self._leaving.append((working.partition, working.run.run_id))
        if self._left > max(_PRUNED_MIN, len(self._timers) // 2):
            self._left = 0
            self._timers.prune()

    def _leave(self, partition: Partition, run_id: str) -> None:
        assert isinstance(partition.runs, PagedRuns)
        hot = partition.runs.leave(run_id)
        if hot is not None:
            self._engine.evict(hot)
            self._left += 1


def attach(partition: Partition, pager: Pager | None) -> None:
    """Give a new partition its mirror, where there is a store."""
    if pager is not None:
        partition.mirror = Mirror(pager.store.partition(partition.number))
        partition.runs = PagedRuns(pager, partition, partition.mirror)


def forget(partition: Partition, pager: Pager | None) -> None:
    """The partition is given up: none of its runs counts any more."""
    if pager is not None:
        for hot in partition.runs.values():
            pager.left(hot)


def load_due(partition: Partition, now: int) -> None:
    """Before the partition is served: what has come due while nobody was there goes on in the order of its times."""
    if partition.mirror is not None:
        for run_id in partition.mirror.waking(now + HORIZON_US, _LOOKS_MAX):
            partition.runs.get(run_id)


def count_runs(partition: Partition, pager: Pager | None) -> str:
    """How many runs there are, for people."""
    if pager is None:
        return f"{len(partition.runs)} runs"
    return f"{len(partition.runs)} runs in memory; about {pager.store.count()} of all partitions in the local store"
