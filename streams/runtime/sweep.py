"""What a sweep finds: events that have gone without a checkpoint for long, and early input of runs never started."""

from __future__ import annotations

from collections.abc import Iterator

from streams.kernel.commands import Cancel, Request, Signal
from streams.kernel.run import Phase, Run
from streams.runtime.partition import Hot, Partition
from streams.runtime.settings import WorkerSettings
from streams.wire.records import DeadLetter, encode_command

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
    """The early input of a forgotten run as dead letters; each holds a command, to be sent back as it is."""
    requests: list[Request] = [Signal(item.name, item.value) for item in run.inbox]
    if run.cancel_requested:
        requests.append(Cancel())
    for request in requests:
        what = f"signal {request.name!r}" if isinstance(request, Signal) else "a cancel"
        reason = f"{what} waited {settings.early_input_seconds:.0f} s for run {run.run_id!r} to be started"
        value = encode_command(request, command_id=None)
        key = run.run_id.encode()
        yield DeadLetter(topic, partition, run.offset, reason, key, value, now, code="EARLY_INPUT_EXPIRED")
