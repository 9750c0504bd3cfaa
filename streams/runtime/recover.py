"""What is set going for a run that was restored or repaired: its timers, and the search for what had run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.kernel.inputs import Recover
from streams.kernel.repair import waits_for_repair
from streams.kernel.run import REPAIR_PENDING, OpPhase, Run, is_terminal
from streams.kernel.wake import times_of
from streams.runtime.inputs import Happened

if TYPE_CHECKING:
    from streams.runtime.partition import Partition
    from streams.runtime.worker import Worker

__all__ = ["recover"]


def recover(worker: Worker, partition: Partition, run: Run) -> None:
    """Every unfinished op is waited for, tried again or looked up; of a run whose repair is not over, nothing is."""
    if is_terminal(run):
        return
    if waits_for_repair(run):
        if run.blocked is not None and run.blocked.code == REPAIR_PENDING:
            worker.send_backs.begin(partition, run.run_id)
        return
    if any(op.phase is OpPhase.RUNNING for op in run.ops.values()):
        worker.put(Happened(partition, run.run_id, Recover()))
    for due, op in times_of(run):
        worker.timers.add(due, partition, run.run_id, op)
