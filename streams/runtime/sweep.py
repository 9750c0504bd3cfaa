"""What a sweep finds: events long without a checkpoint, input of runs never started, runs that ended long ago."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from streams.kernel.bodies import RunExpired
from streams.kernel.commands import Cancel, Request, Signal
from streams.kernel.events import Event
from streams.kernel.run import Phase, Run, is_stub, is_terminal, stub_of
from streams.kernel.wake import Stage
from streams.log.port import NewRecord
from streams.runtime import crash
from streams.runtime.inputs import Sweep
from streams.runtime.outgoing import letter_record
from streams.runtime.settings import WorkerSettings
from streams.runtime.working import Working
from streams.wire.records import DeadLetter, encode_command, encode_event

if TYPE_CHECKING:
    from streams.runtime.partition import Hot, Partition
    from streams.runtime.turn import Turn

__all__ = ["Swept", "sweep"]

# What is kept for how long, and why it can be forgotten then: decision 0009.

_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
_LOOKS_MAX = 5_000
"""Runs that one turn looks at: some ten milliseconds."""


class _Bounds(NamedTuple):
    """Times: what is as old or older is due."""

    forget: float
    strip: float
    early: float
    checkpoint: float

    @classmethod
    def at(cls, now: int, settings: WorkerSettings, stub_seconds: float) -> _Bounds:
        """The checkpoint is due before its event would be too old at the next sweep."""
        age = settings.checkpoint_age_seconds - settings.sweep_seconds
        kept = settings.result_kept_seconds
        ages = (kept + stub_seconds, kept, settings.early_input_seconds, age)
        return cls(*(now - seconds * _SECOND_US for seconds in ages))


class Swept:
    """What the sweeps of one turn have come to."""

    __slots__ = ("aged", "done", "gone", "looked", "more")

    def __init__(self) -> None:
        self.done: list[Partition] = []
        """Partitions of which all runs have been looked at: their leases are due."""
        self.more: list[Sweep] = []
        """What to go on with in the next turn."""
        self.gone: list[tuple[Partition, str]] = []
        """Runs that have expired."""
        self.looked = 0
        self.aged = 0
        """How many runs were looked at, and for how many something was due."""


def sweep(turn: Turn, item: Sweep) -> None:
    """Look at the runs of a partition; where the turn is full before the end, the next one goes on."""
    crash.passing("sweep.begun")
    partition, at, engine = item.partition, item.next, turn.engine
    bounds = _Bounds.at(turn.now, engine.settings, engine.stub_seconds)
    runs = _to_look_at(partition, bounds) if item.runs is None else item.runs
    youngest = max(bounds.strip, bounds.early)
    while at < len(runs) and turn.swept.looked < _LOOKS_MAX and not _is_full(turn):
        hot = partition.runs.get(runs[at])
        at += 1
        turn.swept.looked += 1
        # Most runs are young and covered by a checkpoint: they cost no more than this line.
        if hot is None or hot.damaged is not None or (hot.first_offset is None and hot.run.at > youngest):
            continue
        if _do_what_is_due(turn, partition, hot, bounds):
            turn.swept.aged += 1
    if at < len(runs):
        turn.swept.more.append(Sweep(partition, runs, at))
    else:
        turn.swept.done.append(partition)
        crash.passing("sweep.done")


def _to_look_at(partition: Partition, bounds: _Bounds) -> tuple[str, ...]:
    """All runs in memory; of the others, those that the index names. Some of them wait for the next sweep, if many."""
    hot = tuple(partition.runs)
    if partition.mirror is None:
        return hot
    aged = partition.mirror.aged({Stage.STUB: bounds.forget, Stage.ENDED: bounds.strip, Stage.EARLY: bounds.early})
    return (*hot, *(run_id for run_id in aged if run_id not in partition.runs))


def _is_full(turn: Turn) -> bool:
    settings = turn.engine.settings
    return turn.swept.aged >= settings.sweep_records_max or turn.bytes > settings.turn_bytes_max


def _do_what_is_due(turn: Turn, partition: Partition, hot: Hot, bounds: _Bounds) -> bool:
    """At most one thing; whether there was one."""
    known = turn.working.get((partition.number, hot.run.run_id))
    if known is not None and known.gone:
        return False  # a slow turn may hold two sweeps of one partition
    run = hot.run if known is None else known.run
    if is_terminal(run):
        if run.at <= bounds.forget:
            _expire(turn, partition, hot, f"it ended {(turn.now - run.at) // _DAY_US} days ago")
            return True
        if run.at <= bounds.strip and not is_stub(run):
            _working(turn, partition, hot).run = stub_of(run)
            turn.checkpoint(_working(turn, partition, hot))
            crash.passing("sweep.stripped")
            return True
    elif run.phase is Phase.PENDING and run.at <= bounds.early:
        for letter in _early_letters(turn, partition, run):
            turn.letters.append(letter)
            turn.add(letter_record(turn.engine.topics, letter), None)
            crash.passing("sweep.letter")
        _expire(turn, partition, hot, "its early input waited too long for a start")
        return True
    covered = hot.first_offset is None or (known is not None and known.checkpoint is not None)
    if covered or hot.first_at > bounds.checkpoint:
        return False
    turn.checkpoint(_working(turn, partition, hot))
    crash.passing("sweep.checkpointed")
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
    turn.swept.gone.append((partition, run.run_id))
    turn.add_event(working, event, encode_event(event))
    turn.add(NewRecord(turn.engine.topics.checkpoints, partition.number, run.run_id.encode(), None), working)
    crash.passing("sweep.expired")


def _early_letters(turn: Turn, partition: Partition, run: Run) -> Iterator[DeadLetter]:
    """The early input of a forgotten run as dead letters; each holds a command, to be sent back as it is."""
    topic, seconds = turn.engine.topics.commands, turn.engine.settings.early_input_seconds
    requests: list[Request] = [Signal(item.name, item.value) for item in run.inbox]
    if run.cancel_requested:
        requests.append(Cancel())
    for request in requests:
        what = f"signal {request.name!r}" if isinstance(request, Signal) else "a cancel"
        reason = f"{what} waited {seconds:.0f} s for run {run.run_id!r} to be started"
        value = encode_command(request, command_id=None)
        key = run.run_id.encode()
        yield DeadLetter(topic, partition.number, run.offset, reason, key, value, turn.now, code="EARLY_INPUT_EXPIRED")
