"""Attempts of pure tasks that begin before their start is durable: which may, and what becomes of them.

A turn that is not committed takes such attempts with it. Each has a token, which every input that it leads to carries:
while the token is pending, the input belongs to the turn in flight or to the one that follows it; once it was dropped,
the input counts for nothing, whenever it arrives.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streams.authoring.task import Task
    from streams.runtime.attempt import Attempt
    from streams.runtime.engine import Engine
    from streams.runtime.working import Start, Working

__all__ = ["Early", "EarlyStarts", "EarlyState"]


class EarlyState(StrEnum):
    """The life of a token.

    pending ──▶ landed     its turn was committed: the start is durable, as that of any other attempt
       │
       └──────▶ dropped    its turn was not
    """

    PENDING = "pending"
    LANDED = "landed"
    DROPPED = "dropped"


class Early:
    """The token of an attempt that was begun before its start was durable."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = EarlyState.PENDING

    @property
    def pending(self) -> bool:
        """Whether its turn is still on its way."""
        return self.state is EarlyState.PENDING

    @property
    def dropped(self) -> bool:
        """Whether its turn was not committed."""
        return self.state is EarlyState.DROPPED

    def land(self) -> None:
        """The turn is committed."""
        assert self.pending
        self.state = EarlyState.LANDED

    def drop(self) -> None:
        """The turn was not committed."""
        assert self.pending
        self.state = EarlyState.DROPPED


class EarlyStarts:
    """What a turn begins before its commit."""

    __slots__ = ("allowed", "begun", "wanted")

    def __init__(self) -> None:
        self.allowed = False
        self.wanted: list[Start] = []
        """Decided on, and to be begun as soon as the turn has taken its inputs."""
        self.begun: list[Attempt] = []

    def take(self, engine: Engine, working: Working, task: Task[..., Any] | None, start: Start) -> bool:
        """Whether this attempt begins early; all others wait for the commit."""
        early = self.allowed and _may_begin_early(engine, working, task)
        if early:
            self.wanted.append(start)
        return early


def _may_begin_early(engine: Engine, working: Working, task: Task[..., Any] | None) -> bool:
    """Whether an attempt may begin before the commit: a pure task, of a pipelined workflow, of a run that is fresh.

    A run that was restored is none: it, or another like it, may be what ended the last process, and only starts that
    are durable are counted.
    """
    run = working.run
    return (
        task is not None
        and task.pure
        and working.hot.fresh
        and run.blocked is None
        and engine.app.is_pipelined(run.workflow, run.version)
    )
