"""What a verification has found: counts, what could not be compared, and where the log differs from itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["DAMAGE", "KINDS", "Divergence", "NotCompared", "Progress", "Report"]

Progress = Callable[[int, int], None]
"""Called with how many offsets have been read, and how many there are to read; the second grows with more passes."""

DAMAGE = frozenset(
    {"event.unreadable", "event.schema", "event.seq", "event.identity", "event.fold", "event.after-end", "event.id"}
)
"""Divergences that a worker would call damage; an operator who ends or repairs the run has dealt with them."""

_LOOK = "see it with: streams history {run} --json, and streams diagnose {run}"
_REPAIR = (
    "streams diagnose {run} tells whether workers call it damaged, and then it is repaired with: streams rebuild {run} "
    "--reason TEXT. If not, they go on from a checkpoint behind it"
)
_REBUILD = "write it anew from the events with: streams rebuild"
_ADVICE = {
    "event.unreadable": "its history is not whole: " + _REPAIR,
    "event.schema": "verify with the release of streams that wrote it, or find out which other program writes here",
    "event.key": "another program writes into the events; only workers may: look at the rights on the topic",
    "event.id": "the record was not written by a worker: look at the rights on the topic",
    "event.seq": "events are missing, or were written twice; only a copy of the topic has them. " + _REPAIR,
    "event.identity": "two runs of one name are mixed: " + _LOOK,
    "event.fold": "the run cannot be put together: " + _REPAIR,
    "event.time": _LOOK,
    "event.cause": _LOOK,
    "event.epoch": "two workers have written for one partition: look for workers of another group or of another log",
    "event.owner": "two workers have written for one partition: look for workers of another group or of another log",
    "event.after-end": "something was written for a run that had ended: " + _LOOK,
    "checkpoint.differs": _REBUILD + "; a worker that restores the run now goes on from what the checkpoint says",
    "checkpoint.unreadable": _REBUILD,
    "checkpoint.schema": "verify with the release of streams that wrote it",
    "checkpoint.key": _REBUILD,
    "checkpoint.missing": "a take-over would lose these events: " + _REBUILD,
    "checkpoint.orphan": "the events that it speaks of are gone: restore the events from a copy",
    "checkpoint.damaged": "the events fold, and the run is marked as damaged: " + _REBUILD,
    "checkpoint.not-deleted": "the run has expired and would come back: " + _REBUILD,
    "command.lost": "send it again, if its sender has had no answer; and keep this log for an analysis",
    "command.twice": "a command was applied twice: " + _LOOK,
    "command.unknown": "the commands topic has lost records, or is another one: restore it from a copy",
    "command.key": "the outcome belongs to another run: " + _LOOK,
    "effect.lost": "its subscriber has never seen it: publish it by hand, or repair by an operator's command",
    "effect.orphan": "its subscriber may have acted on it: look at the ledger, and for who else writes to the topic",
    "effect.twice": "subscribers with a ledger do it once: look at the ledger, and for who else writes to the topic",
    "effect.differs": "its subscriber has acted on other content than the run meant: look at the ledger",
    "effect.unreadable": "subscribers set it aside: look for who else writes to the topic",
    "lease.unreadable": "no worker serves the partition: stop them, and have it made good with: streams rebuild",
    "lease.differs": "two workers have owned one partition: look for workers of another group or of another log",
    "lease.goes-back": "two workers have owned one partition: look for workers of another group or of another log",
    "lease.tail": "events that no checkpoint covers are gone: restore the events from a copy, or: streams rebuild",
    "lease.applied": "the commands topic has lost records: restore it from a copy",
    "lease.topic": "the commands topic was deleted and created again: move the app to a new name, or restore the topic",
    "dead-letter.unreadable": "look for who else writes to the topic",
}
KINDS = tuple(_ADVICE)
_RANKS = {"event": 0, "checkpoint": 1, "effect": 2, "command": 3, "lease": 4, "dead-letter": 5}


class Divergence(NamedTuple):
    """Where a run differs first. Values are shortened, and those of users are never shown.

    `offset` is that in `topic`; `field` a dotted path into what `topic` holds there; `code` the version of the workflow
    and the fingerprint of its code; `more` counts what was found of the same run besides. `run_id` is empty for what
    belongs to a partition as a whole.
    """

    kind: str
    run_id: str
    partition: int
    topic: str
    offset: int | None
    message: str
    seq: int | None = None
    field: str = ""
    expected: str = ""
    found: str = ""
    code: str = ""
    more: int = 0

    @property
    def advice(self) -> str:
        """What to do next."""
        return _ADVICE[self.kind].replace("{run}", self.run_id or "RUN")

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The lowest is the first: events before what follows from them, then by place."""
        rank = _RANKS[self.kind.partition(".")[0]]
        return rank, sys.maxsize if self.offset is None else self.offset, self.seq or 0, self.kind

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {**self._asdict(), "advice": self.advice}


class NotCompared(NamedTuple):
    """What could not be proven, because there is no other side of it, in most cases since retention deleted it.

    `runs`: their first events are gone; `runs_unknown`: those of them that have no checkpoint either; `checkpoints`:
    their events are gone; `effects`: messages or events that are gone, or an app that publishes none because it is a
    copy; `commands`: outcomes of commands that are gone.
    """

    runs: int = 0
    runs_unknown: int = 0
    checkpoints: int = 0
    effects: int = 0
    commands: int = 0


class Report(NamedTuple):
    """What was compared, and what differs. `divergences` holds one a run, and `divergent` counts them all.

    `damaged` counts runs whose events could not all be folded and which an operator has ended or repaired since.
    """

    app: str
    partitions: tuple[int, ...]
    runs: int = 0
    events: int = 0
    checkpoints: int = 0
    effects: int = 0
    commands: int = 0
    leases: int = 0
    dead_letters: int = 0
    damaged: int = 0
    not_compared: NotCompared = NotCompared()
    divergences: tuple[Divergence, ...] = ()
    divergent: int = 0
    passes: int = 0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing differs."""
        return self.divergent == 0

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it. Its fields are a contract."""
        return {
            **self._asdict(),
            "partitions": list(self.partitions),
            "not_compared": self.not_compared._asdict(),
            "divergences": [divergence.plain() for divergence in self.divergences],
            "seconds": round(self.seconds, 3),
        }
