"""What a sweep finds: events long without a checkpoint, input of runs never started, runs that ended long ago."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streams.kernel.bodies import RunExpired
from streams.kernel.commands import Cancel, Request, Signal
from streams.kernel.events import Event
from streams.kernel.run import Phase, Run, is_stub, is_terminal, stub_of
from streams.log.port import NewRecord
from streams.runtime.inputs import Sweep
from streams.runtime.outgoing import letter_record
from streams.runtime.settings import WorkerSettings
from streams.runtime.working import Working
from streams.wire.records import DeadLetter, encode_command, encode_event

if TYPE_CHECKING:
    from streams.runtime.partition import Hot, Partition
    from streams.runtime.turn import Turn

__all__ = ["sweep"]

# What is kept for how long, and why it can be forgotten then: decision 0009.

_SECOND_US = 1_000_000
_DAY_SECONDS = 86_400
_LOOKS_MAX = 20_000
"""Runs that one turn looks at: some ten milliseconds."""


def sweep(turn: Turn, item: Sweep) -> None:
    """Look at the runs of a partition; where the turn is full before the end, the next one goes on."""
    partition, at = item.partition, item.next
    runs = tuple(partition.runs) if item.runs is None else item.runs
    settings = turn.engine.settings
    end = min(len(runs), at + max(0, _LOOKS_MAX - turn.looked))
    turn.looked += end - at
    while at < end and turn.aged < settings.sweep_records_max and turn.bytes <= settings.turn_bytes_max:
        hot = partition.runs.get(runs[at])
        if hot is not None and hot.damaged is None and _look(turn, partition, hot):
            turn.aged += 1
        at += 1
    if at < len(runs):
        turn.more.append(Sweep(partition, runs, at))
    else:
        turn.swept.append(partition)


def _look(turn: Turn, partition: Partition, hot: Hot) -> bool:
    """Do what is due for one run; say whether anything was."""
    known = turn.working.get((partition.number, hot.run.run_id))
    if known is not None and known.gone:
        return False  # a slow turn may hold two sweeps of one partition
    engine, now = turn.engine, turn.now
    run = hot.run if known is None else known.run
    if is_terminal(run):
        kept, settings = (now - run.at) / _SECOND_US, engine.settings
        if kept >= settings.result_kept_seconds + engine.stub_seconds:
            _expire(turn, partition, hot, f"it ended {kept / _DAY_SECONDS:.0f} days ago")
            return True
        if kept >= settings.result_kept_seconds and not is_stub(run):
            working = _working(turn, partition, hot)
            working.run = stub_of(run)
            turn.checkpoint(working)
            return True
    elif _is_forgotten(run, now, engine.settings):
        for letter in _early_letters(engine.topics.commands, partition.number, run, now, engine.settings):
            turn.letters.append(letter)
            turn.add(letter_record(engine.topics, letter), None)
        _expire(turn, partition, hot, "its early input waited too long for a start")
        return True
    if not _is_overdue(hot, now, engine.settings) or (known is not None and known.checkpoint is not None):
        return False
    turn.checkpoint(_working(turn, partition, hot))
    return True


def _working(turn: Turn, partition: Partition, hot: Hot) -> Working:
    return turn.working.setdefault((partition.number, hot.run.run_id), Working(partition, hot))


def _expire(turn: Turn, partition: Partition, hot: Hot, reason: str) -> None:
    """Forget a run: a null among the checkpoints, and an event, so that what came before it never counts again."""
    working = _working(turn, partition, hot)
    run = working.run
    at = max(turn.now, run.at)
    event = Event(run.run_id, run.identity, run.seq + 1, at, None, None, partition.epoch, RunExpired(reason))
    working.gone = True
    turn.gone.append((partition, run.run_id))
    turn.add_event(working, event, encode_event(event))
    turn.add(NewRecord(turn.engine.topics.checkpoints, partition.number, run.run_id.encode(), None), working)


def _is_overdue(hot: Hot, now: int, settings: WorkerSettings) -> bool:
    """Whether its oldest event without a checkpoint would outlive its bound before the next sweep."""
    bound = now - int((settings.checkpoint_age_seconds - settings.sweep_seconds) * _SECOND_US)
    return hot.first_offset is not None and hot.first_at <= bound


def _is_forgotten(run: Run, now: int, settings: WorkerSettings) -> bool:
    """Whether a run has only early input, and nobody has started it in time."""
    return run.phase is Phase.PENDING and now - run.at >= settings.early_input_seconds * _SECOND_US


def _early_letters(topic: str, partition: int, run: Run, now: int, settings: WorkerSettings) -> Iterator[DeadLetter]:
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
