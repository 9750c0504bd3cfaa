"""What a rebuild has done, or would do."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["PartitionReport", "RebuildReport", "Trouble"]


class Trouble(NamedTuple):
    """A run that is not as it should be after the rebuild."""

    run_id: str
    reason: str


class PartitionReport:
    """One partition. `refused` says why nothing of it was rebuilt, where nothing was."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.refused = ""
        self.runs = 0
        """Runs that the log knows at its end."""
        self.events = 0
        self.missing = 0
        self.unreadable = 0
        self.behind = 0
        """Checkpoints written: where none was, instead of one that could not be read, and of one that was older."""
        self.unchanged = 0
        self.deleted = 0
        """Checkpoints of runs that have expired."""
        self.sent_back = 0
        """Commands that had waited for a run that can be folded again."""
        self.damaged: list[Trouble] = []
        """Runs with an event that cannot be folded: they need a repair, each for itself."""
        self.lost: list[Trouble] = []
        """Runs whose first events are gone, and with them every checkpoint that could be read."""
        self.notes: list[str] = []

    @property
    def written(self) -> int:
        """Checkpoints written."""
        return self.missing + self.unreadable + self.behind

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        fields = {name: value for name, value in vars(self).items() if name not in ("damaged", "lost")}
        troubles = {name: [item._asdict() for item in getattr(self, name)] for name in ("damaged", "lost")}
        return {**fields, "written": self.written, **troubles}


class RebuildReport(NamedTuple):
    """All partitions that were looked at."""

    app: str
    partitions: list[PartitionReport]
    dry_run: bool

    @property
    def good(self) -> bool:
        """Whether all runs can be served as before."""
        return not any(part.refused or part.lost or part.damaged for part in self.partitions)

    def total(self, name: str) -> int:
        """A figure over all partitions."""
        return sum(getattr(part, name) for part in self.partitions)

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        names = ("runs", "events", "written", "missing", "unreadable", "behind", "unchanged", "deleted", "sent_back")
        parts = [part.plain() for part in self.partitions]
        totals = {name: self.total(name) for name in names}
        return {"app": self.app, "dry_run": self.dry_run, "good": self.good, **totals, "partitions": parts}
