"""Named crash points: places where a test or a demo can end the process. They cost one comparison when unused.

`STREAMS_CRASH_AT=POINT[:N]` ends the process with SIGKILL at the N-th time that it passes the point. Some points lie
inside a log, which may not import this module: it takes `passing` as a callback when it is opened (`KAFKA_POINTS`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

from streams.errors import UsageError

__all__ = ["KAFKA_POINTS", "POINTS", "install", "install_from", "passing"]

KAFKA_POINTS = frozenset({"commit.begun", "commit.produced", "commit.flushed", "commit.fenced", "commit.ended"})
"""The steps of a transaction on Kafka; on a sqlite log a commit is one job, and they are never passed."""

POINTS = frozenset(
    {
        "turn.taken",
        "turn.decided",
        "commit.before",
        *KAFKA_POINTS,
        "commit.after",
        "turn.adopted",
        "task.started",
        "task.returned",
        "acquire.claimed",
        "acquire.restored",
        "release.before",
    }
)

_hooks: list[Callable[[str], None]] = []


def passing(point: str) -> None:
    """Tell the hook, if there is one, that `point` is passed. A task's points end in `/TASKNAME`."""
    if _hooks:
        _hooks[0](point)


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
