"""One owned partition: its runs, its epoch, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streams.kernel.driver import Driver
    from streams.kernel.run import Run
    from streams.runtime.mirror import Mirror

__all__ = ["Hot", "Partition", "PartitionState", "Stamp"]


class PartitionState(StrEnum):
    """The life of an owned partition.

    created ──▶ restoring ──▶ running ──▶ draining ──▶ closed
                  │    ▲          │                      ▲
                  ▼    │          └──── lost, fenced ────┤
                refused ─────────────────────────────────┘
    """

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    DRAINING = "draining"
    REFUSED = "refused"
    CLOSED = "closed"


_S = PartitionState
_NEXT: Mapping[PartitionState, frozenset[PartitionState]] = {
    _S.CREATED: frozenset({_S.RESTORING, _S.CLOSED}),
    _S.RESTORING: frozenset({_S.RUNNING, _S.REFUSED, _S.CLOSED}),
    _S.REFUSED: frozenset({_S.RESTORING, _S.CLOSED}),
    _S.RUNNING: frozenset({_S.DRAINING, _S.CLOSED}),
    _S.DRAINING: frozenset({_S.CLOSED}),
    _S.CLOSED: frozenset(),
}


class Stamp(NamedTuple):
    """Where a lease of ours lies, and the readings of our clock (µs) before and after its commit."""

    offset: int
    before: int
    after: int


class Hot:
    """A run in memory: its committed state, the cached coroutine, and what no checkpoint covers yet."""

    __slots__ = (
        "checkpoint_bytes",
        "counted",
        "damaged",
        "first_at",
        "first_offset",
        "fresh",
        "live",
        "run",
        "since_bytes",
        "too_large",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self.live: Driver | None = None
        self.since_bytes = 0
        self.checkpoint_bytes = 0
        self.first_offset: int | None = None
        """Where the first event lies that no committed checkpoint covers."""
        self.first_at = 0
        self.damaged: str | None = None
        """Why the run cannot be folded, where it cannot."""
        self.fresh = False
        """Whether it began under this incarnation, with a command that nobody can have tried before."""
        self.counted = 0
        """The bytes that it is taken for, where memory is bounded."""
        self.too_large = -1
        """The seq at which no record could hold its checkpoint."""


class Partition:
    """A partition under one incarnation. A later assignment of the same number is another object."""

    def __init__(self, number: int, incarnation: int) -> None:
        self.number = number
        self.incarnation = incarnation
        self.state = PartitionState.CREATED
        self.epoch = 0
        self.topic_id = ""
        self.runs: dict[str, Hot] = {}
        self.applied = 0
        """The next command to apply: everything below it has had its outcome committed."""
        self.events_end = 0
        """One past the last event known to be committed."""
        self.fresh_from: float = math.inf
        """Commands from this offset on came after the claim: no worker that died of one of them is known."""
        self.stamp: Stamp | None = None
        """Of the last lease that this worker has written, until its clock was compared with it."""
        self.mirror: Mirror | None = None
        """Where a local store holds its checkpoints; `runs` are those in memory then."""

    def move(self, state: PartitionState) -> None:
        """Go to the next state; a move that the diagram does not have is a programming error."""
        if state not in _NEXT[self.state]:
            message = f"partition {self.number} cannot go from {self.state} to {state}"
            raise AssertionError(message)
        self.state = state

    @property
    def running(self) -> bool:
        """Whether turns may be taken for it."""
        return self.state is PartitionState.RUNNING

    def tail(self) -> int:
        """Every event below this offset is covered by a committed checkpoint."""
        firsts = [hot.first_offset for hot in self.runs.values() if hot.first_offset is not None]
        return min(firsts, default=self.events_end)
