"""Named crash points: places where a test or a demo can end the process. They cost one comparison when unused.

`STREAMS_CRASH_AT=POINT[:N]` ends the process with SIGKILL at the N-th time that it passes the point. Some points lie
inside a log, which may not import this module: it takes `passing` as a callback when it is opened (`LOG_POINTS`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from streams.errors import UsageError

__all__ = ["KAFKA_POINTS", "LOG_POINTS", "POINTS", "SQLITE_POINTS", "install", "install_from", "passing"]

KAFKA_POINTS = frozenset({"commit.begun", "commit.produced", "commit.flushed", "commit.fenced", "commit.ended"})
"""The steps of a transaction on Kafka: begun, records handed over, all reports in, offsets sent, end acknowledged."""

SQLITE_POINTS = frozenset({"commit.begun", "commit.checked", "commit.written", "commit.ended"})
"""The steps on a sqlite log: the write lock taken, owner and epoch checked, everything written, COMMIT done."""

LOG_POINTS = KAFKA_POINTS | SQLITE_POINTS

POINTS = frozenset(
    {
        *LOG_POINTS,
        # A partition comes to this worker: offset, ends, all below them visible; lease; claim; state; commands let in.
        *("acquire.stable", "acquire.captured", "acquire.visible", "acquire.lease_read", "acquire.claiming"),
        *("acquire.claimed", "acquire.checkpoints_read", "acquire.events_read", "acquire.restored"),
        *("acquire.recovered", "acquire.opened"),
        # What a dead owner left open is ended by its transactional ids.
        *("settle.before", "settle.after"),
        # One turn: inputs decided one after another, the effects of each, checkpoints made, closed.
        *("turn.taken", "turn.input", "turn.effect", "turn.finished", "turn.decided"),
        *("commit.before", "commit.after"),
        # A committed turn: states adopted, attempts begun, timers armed, everybody told. Or one that was not committed.
        *("turn.states_adopted", "turn.dispatched", "turn.timers_armed", "turn.adopted", "turn.undone"),
        # An attempt: before user code, before and after a look-up, after user code, its outcome queued for a turn.
        # One of a pure task may begin before the commit of its start.
        "task.begun_early",
        *("task.started", "task.looking_up", "task.looked_up", "task.returned", "task.told"),
        # A sweep: what was due was written into the turn.
        *("sweep.begun", "sweep.checkpointed", "sweep.stripped", "sweep.letter", "sweep.expired", "sweep.done"),
        # A producer is thrown away, closed, made anew, what it left open ended, the new one in its place.
        *("producer.distrusted", "producer.closed", "producer.made", "producer.settled", "producer.replaced"),
        # A partition is given up: turn in flight settled, outcomes taken, tasks broken off, leases written, committed.
        *("release.before", "release.taken", "release.handed_back", "release.committing", "release.committed"),
        "release.closed",
        # A subscriber: a message read, its claim durable, before and after a look-up, after its handler, outcome in the
        # ledger; reply, dead letter and offset committed.
        *("effect.taken", "effect.claimed", "effect.looking_up", "effect.looked_up", "effect.called"),
        *("effect.settled", "effect.committed"),
        # A graceful stop: running tasks have ended or were given up, the group is left.
        *("stop.drained", "stop.left"),
    }
)

_hooks: list[Callable[[str], None]] = []


def passing(point: str, about: str = "") -> None:
    """Tell the hook, if there is one, that `point` is passed; `about` follows after a slash, such as a task's name.

    The hook runs where the point is passed, and so in the context (`contextvars`) of that worker. Inside a log with
    threads that is the thread of its client.
    """
    if _hooks:
        _hooks[0](f"{point}/{about}" if about else point)


def install(hook: Callable[[str], None] | None) -> None:
    """Set or remove the hook of this process."""
    _hooks[:] = [] if hook is None else [hook]


def install_from(environment: Mapping[str, str]) -> None:
    """Set the hook that `STREAMS_CRASH_AT` asks for. Raises `UsageError` for a point that does not exist."""
    wanted = environment.get("STREAMS_CRASH_AT")
    if not wanted:
        return
    place, _, count = wanted.partition(":")
    if place.partition("/")[0] not in POINTS or (count and not count.isdigit()):
        message = f"STREAMS_CRASH_AT={wanted!r}: use POINT[:N] with one of {', '.join(sorted(POINTS))}"
        raise UsageError(message)
    left = int(count or "1")

    def hook(point: str) -> None:
        nonlocal left
        if point == place or point.partition("/")[0] == place:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    install(hook)
