"""What waits for a turn: commands as they were read, and what happened on this worker."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.inputs import Input
from streams.log.port import Record
from streams.runtime.partition import Hot, Partition

__all__ = ["Arrived", "Damage", "Happened", "Item", "Sweep"]


class Arrived(NamedTuple):
    """A record of the commands topic."""

    partition: Partition
    record: Record


class Happened(NamedTuple):
    """An outcome, a due time, or a recovery of one run."""

    partition: Partition
    run_id: str
    input: Input


class Sweep(NamedTuple):
    """Checkpoints and a lease are due for what has grown old."""

    partition: Partition


class Damage(NamedTuple):
    """A restore found a run that cannot be folded, from the record at `offset` on."""

    partition: Partition
    hot: Hot
    offset: int


Item = Arrived | Happened | Sweep | Damage
