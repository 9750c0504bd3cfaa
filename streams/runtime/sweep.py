"""What a sweep finds: events that have gone without a checkpoint for long, and early input of runs never started."""

from __future__ import annotations

from collections.abc import Iterator

from streams.kernel.run import Phase, Run
from streams.runtime.partition import Hot, Partition
from streams.runtime.settings import WorkerSettings
from streams.wire.records import DeadLetter

__all__ = ["early_letters", "is_forgotten", "overdue"]

_SECOND_US = 1_000_000


def overdue(partition: Partition, now: int, settings: WorkerSettings) -> list[Hot]:
    """Runs whose oldest event without a checkpoint would outlive its bound before the next sweep."""
    bound = now - int((settings.checkpoint_age_seconds - settings.sweep_seconds) * _SECOND_US)
    return [
        hot
        for hot in partition.runs.values()
        if hot.first_offset is not None and hot.first_at <= bound and hot.damaged is None
    ]


def is_forgotten(run: Run, now: int, settings: WorkerSettings) -> bool:
    """Whether a run has only early input, and nobody has started it in time."""
    return run.phase is Phase.PENDING and now - run.at >= settings.early_input_seconds * _SECOND_US


def early_letters(topic: str, partition: int, run: Run, now: int, settings: WorkerSettings) -> Iterator[DeadLetter]:
    """The early input of a forgotten run as dead letters."""
    for item in run.inbox:
        reason = (
            f"signal {item.name!r} waited {settings.early_input_seconds:.0f} s for run {run.run_id!r} to be started"
        )
        yield DeadLetter(topic, partition, run.offset, reason, run.run_id.encode(), item.value, now)
