"""What waits for a turn: commands as they were read, and what happened on this worker."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.inputs import Due, Input
from streams.log.port import NewRecord, Record
from streams.runtime.early import Early
from streams.runtime.partition import Hot, Partition

__all__ = ["Arrived", "Damage", "Happened", "Item", "SendBack", "Sweep", "is_dropped", "is_early", "is_last"]


class Arrived(NamedTuple):
    """A record of the commands topic."""

    partition: Partition
    record: Record


class Happened(NamedTuple):
    """An outcome, a due time, or a recovery of one run."""

    partition: Partition
    run_id: str
    input: Input
    early: Early | None = None
    """Of what an attempt tells that was begun before its start was durable."""


class Sweep(NamedTuple):
    """Look for what has grown old. One that would fill a turn goes on in the next, with `runs` from `next` on."""

    partition: Partition
    runs: tuple[str, ...] | None = None
    next: int = 0


class Damage(NamedTuple):
    """A restore found a run that cannot be folded, from the record at `offset` on."""

    partition: Partition
    hot: Hot
    offset: int


class SendBack(NamedTuple):
    """The commands that have waited for a repaired run, to be written again."""

    partition: Partition
    run_id: str
    records: tuple[NewRecord, ...]


Item = Arrived | Happened | Sweep | Damage | SendBack


def is_early(item: Item) -> bool:
    """Whether it is of an attempt whose start a turn on its way writes, so that the next one may build on it."""
    return isinstance(item, Happened) and item.early is not None and item.early.pending


def is_dropped(item: Item) -> bool:
    """Whether it is of an attempt whose start was not committed: it counts for nothing."""
    return isinstance(item, Happened) and item.early is not None and item.early.dropped


def is_last(item: Item) -> bool:
    """Whether an input belongs into the last turn of a partition."""
    return isinstance(item, Damage) or (isinstance(item, Happened) and not isinstance(item.input, Due))
