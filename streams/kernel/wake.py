"""What a run needs its owner for while nothing new arrives for it: found without looking into it, once written down."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from streams.kernel.repair import waits_for_repair
from streams.kernel.run import REPAIR_PENDING, OpPhase, Phase, Run, is_stub, is_terminal

__all__ = ["AT_ONCE", "Stage", "Wake", "times_of", "wake_of"]

AT_ONCE = 0
"""The time of a run that a new owner has to look at before it does anything else."""


class Stage(IntEnum):
    """What the time of a `Wake` means. The numbers stand in checkpoints: never change one."""

    OPEN = 0
    """The run goes on at that time; without one, only input from outside wakes it."""
    ENDED = 1
    """It has ended then, and its result is kept."""
    STUB = 2
    """It has ended then, and its result is not kept any more."""
    EARLY = 3
    """Its last input came then, and nobody has started it."""


class Wake(NamedTuple):
    """When a run needs its owner next (µs), or since when it has been at rest."""

    stage: int
    at: int | None


_BY_INPUT = Wake(Stage.OPEN, None)
_AT_ONCE = Wake(Stage.OPEN, AT_ONCE)


def times_of(run: Run) -> Iterator[tuple[int, str]]:
    """When the ops of a run are due that wait for a time, or for a slot."""
    for op in run.ops.values():
        if op.phase is OpPhase.QUEUED:
            yield AT_ONCE, op.id
        elif op.due is not None and op.phase in (OpPhase.WAITING, OpPhase.BACKOFF):
            yield op.due, op.id


def wake_of(run: Run) -> Wake:
    """A function of the run alone, so that everybody writes the same checkpoint of it."""
    if is_terminal(run):
        return Wake(Stage.STUB if is_stub(run) else Stage.ENDED, run.at)
    if run.phase is Phase.PENDING:
        return Wake(Stage.EARLY, run.at)
    if waits_for_repair(run):
        return _AT_ONCE if run.blocked is not None and run.blocked.code == REPAIR_PENDING else _BY_INPUT
    if any(op.phase is OpPhase.RUNNING for op in run.ops.values()):
        return _AT_ONCE
    due = min((due for due, _ in times_of(run)), default=None)
    return _BY_INPUT if due is None else Wake(Stage.OPEN, max(due, AT_ONCE))
