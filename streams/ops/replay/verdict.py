"""What a shadow replay says: of one run, and of all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from streams.kernel.events import Event
from streams.ops.payload import plain_body
from streams.wire.values import ValueCodec

__all__ = ["Block", "Change", "Difference", "Group", "Report", "Shadowed", "Side", "Verdict", "difference_of"]

EXAMPLES_MAX = 3
"""Runs that a group of the report names."""


class Verdict(StrEnum):
    """What the new code would have done with a run."""

    SAME = "same"
    DIFFERS = "differs"
    WOULD_BLOCK = "would_block"
    NOT_COMPARABLE = "not_comparable"


class Side(NamedTuple):
    """What one side did: the type of the event, empty for nothing, and its fields as plain data."""

    type: str
    payload: dict[str, Any]

    def __str__(self) -> str:
        if not self.type:
            return "nothing more"
        parts = [str(self.payload[name]) for name in ("kind", "name", "effect", "workflow") if self.payload.get(name)]
        op = self.payload.get("op")
        return " ".join([self.type, *parts, *([f"as op {op}"] if op else [])])


class Change(NamedTuple):
    """One field in which the two sides differ."""

    field: str
    recorded: Any
    now: Any


class Difference(NamedTuple):
    """Where the new code did something else. `seq` is the recorded event's; `after` names the delivery before it.

    `note` says more where no event can show it, such as an answer that the new code refuses.
    """

    seq: int
    after: str
    recorded: Side
    now: Side
    changes: tuple[Change, ...] = ()
    note: str = ""

    @property
    def kind(self) -> str:
        """What differences of the same kind share, for the groups of a report."""
        if self.note:
            return f"{self.recorded.type}: {self.note}"
        if self.recorded.type == self.now.type:
            return f"{self.recorded.type}: {', '.join(change.field for change in self.changes)}"
        return f"{self.recorded.type or 'nothing more'} → {self.now.type or 'nothing more'}"

    def __str__(self) -> str:
        where = f"event {self.seq}" + (f", after {self.after}" if self.after else "")
        if self.note:
            return f"{where}: recorded {self.recorded}; now {self.note}"
        if self.recorded.type == self.now.type:
            changed = "; ".join(f"{c.field} was {c.recorded!r}, is {c.now!r}" for c in self.changes)
            return f"{where}: {self.recorded}: {changed}"
        return f"{where}: recorded {self.recorded}; now {self.now}"

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "kind": self.kind,
            "seq": self.seq,
            "after": self.after,
            "recorded": {"type": self.recorded.type, "payload": self.recorded.payload},
            "now": {"type": self.now.type, "payload": self.now.payload, "note": self.note},
            "fields": [change._asdict() for change in self.changes],
        }


class Block(NamedTuple):
    """Why the run would be blocked, and at which recorded event the new code stops."""

    code: str
    message: str
    seq: int


@dataclass(frozen=True, slots=True)
class Shadowed:
    """The verdict on one run. `ahead` says of a run that has not ended what the new code would do with it next."""

    run_id: str
    identity: str
    workflow: str
    version: int
    status: str
    events: int
    verdict: Verdict
    differences: tuple[Difference, ...] = ()
    block: Block | None = None
    reason: str = ""
    ahead: str = ""

    @property
    def kind(self) -> str:
        """What runs of one group of the report share."""
        if self.verdict is Verdict.WOULD_BLOCK and self.block is not None:
            return self.block.code
        if self.verdict is Verdict.NOT_COMPARABLE:
            return self.reason
        return self.differences[0].kind if self.differences else ""

    def __str__(self) -> str:
        if self.verdict is Verdict.WOULD_BLOCK and self.block is not None:
            return f"{self.run_id}: would block at event {self.block.seq}: {self.block.code}: {self.block.message}"
        if self.verdict is Verdict.NOT_COMPARABLE:
            return f"{self.run_id}: not comparable: {self.reason}"
        return f"{self.run_id}: {self.verdict}" + "".join(f"; {found}" for found in self.differences)

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "run_id": self.run_id,
            "identity": self.identity,
            "workflow": self.workflow or None,
            "version": self.version or None,
            "status": self.status,
            "events": self.events,
            "verdict": self.verdict.value,
            "kind": self.kind,
            "differences": [found.plain() for found in self.differences],
            "block": None if self.block is None else self.block._asdict(),
            "reason": self.reason,
            "ahead": self.ahead,
        }


@dataclass(slots=True)
class Group:
    """Runs of one workflow with one kind of difference; the first few stand for all of them."""

    workflow: str
    verdict: Verdict
    kind: str
    count: int = 0
    examples: list[Shadowed] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """All runs together. It keeps counts and a few examples a group, so that a topic of any size fits."""

    runs: int = 0
    events: int = 0
    counts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    seen: set[str] = field(default_factory=set)
    """The types of events that were compared or folded: what the histories did not hold is not proven."""
    limited: bool = False
    """Whether it ended at a limit, with histories left."""
    _groups: dict[tuple[str, Verdict, str], Group] = field(default_factory=dict)

    def add(self, found: Shadowed) -> None:
        """Count a run."""
        self.runs += 1
        self.events += found.events
        self.counts[found.verdict] += 1
        if found.verdict is Verdict.SAME:
            return
        key = (found.workflow, found.verdict, found.kind)
        group = self._groups.setdefault(key, Group(*key))
        group.count += 1
        if len(group.examples) < EXAMPLES_MAX:
            group.examples.append(found)

    @property
    def groups(self) -> list[Group]:
        """What was not the same, the most frequent first."""
        return sorted(self._groups.values(), key=lambda group: -group.count)

    @property
    def same(self) -> bool:
        """Whether there were runs, and the new code does with every one what the old code did."""
        return self.runs > 0 and self.counts[Verdict.SAME] == self.runs

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "runs": self.runs,
            "events": self.events,
            **{verdict.value: count for verdict, count in self.counts.items()},
            "limited": self.limited,
            "groups": [
                {
                    "workflow": group.workflow or None,
                    "verdict": group.verdict.value,
                    "kind": group.kind,
                    "count": group.count,
                    "examples": [example.plain() for example in group.examples],
                }
                for group in self.groups
            ],
        }

    def __str__(self) -> str:
        return "\n".join([self.headline, *self._lines()])

    @property
    def headline(self) -> str:
        """The counts in a line."""
        if not self.runs:
            return "no run was compared"
        names = {verdict: verdict.value.replace("_", " ") for verdict in Verdict}
        parts = [f"{count} {names[verdict]}" for verdict, count in self.counts.items() if count]
        return f"{self.runs} run{'' if self.runs == 1 else 's'} compared: {', '.join(parts)}"

    def _lines(self) -> Iterator[str]:
        for group in self.groups:
            yield f"{group.count} × {group.workflow or '?'} {group.verdict.value}: {group.kind}"
            for example in group.examples:
                yield f"  {example}"


def difference_of(
    recorded: Event | None, now: Any, now_type: str, codec: ValueCodec, *, seq: int, after: str, note: str = ""
) -> Difference:
    """The two sides with the fields that differ. `recorded` is None where the recorded run did nothing more."""
    was = Side("", {}) if recorded is None else Side(recorded.type, plain_body(recorded.body, codec))
    is_ = Side("", {}) if now is None else Side(now_type, plain_body(now, codec))
    changes = tuple(_changes(was, is_)) if was.type == is_.type else ()
    return Difference(seq, after, was, is_, changes, note)


def _changes(was: Side, is_: Side) -> list[Change]:
    skipped = {"attempt", "seed", "code", "owner", "input_hash"}
    pairs = ((name, value, is_.payload.get(name)) for name, value in was.payload.items())
    found = [Change(*pair) for pair in pairs if pair[0] not in skipped and pair[1] != pair[2]]
    others = [change for change in found if change.field != "hash"]
    return others or found  # the hash is of interest where nothing else shows what it is made of
