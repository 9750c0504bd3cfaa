"""Moves the worker group back, so that it reads old commands again; it skips those that it has applied.

Rewinding is for groups that lost their place, and for proof: it changes no run. Moving ahead would pass over commands
that nobody has applied, and is another thing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streams.client import PartitionView
from streams.client.reading import Progress, scan
from streams.errors import Refused, UsageError, WireError
from streams.log.port import Log, Span
from streams.ops.replay.places import Goal, offset_at
from streams.wire.records import decode_dead_letter
from streams.wire.topics import Topics, topics_of

__all__ = ["Counts", "PartPlan", "RewindPlan", "plan_rewind", "rewind"]


@dataclass(slots=True)
class Counts:
    """Commands that will be read again, by what becomes of them.

    known: applied, and skipped. expired: applied as well, but the run has left since, or there never was one.
    dead_lettered: set aside when they were read. new: not applied yet, so they are decided on as ever.
    """

    known: int = 0
    expired: int = 0
    dead_lettered: int = 0
    new: int = 0

    def add(self, other: Counts) -> None:
        """Sum up."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    @property
    def skipped(self) -> int:
        """What the workers will skip and count."""
        return self.known + self.expired + self.dead_lettered


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One partition: where the group stands (None: nowhere), where it would go, and what it has applied."""

    partition: int
    group: int | None
    to: int
    applied: int
    counts: Counts

    @property
    def moves(self) -> bool:
        """Whether the group's offset changes; it never goes ahead."""
        return self.group is not None and self.to < self.group

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        place = {"partition": self.partition, "group": self.group, "to": self.to, "applied": self.applied}
        return {**place, "moves": self.moves, **asdict(self.counts)}


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind does, partition by partition."""

    topics: Topics
    parts: tuple[PartPlan, ...]

    @property
    def total(self) -> Counts:
        """All partitions together."""
        total = Counts()
        for part in self.parts:
            total.add(part.counts)
        return total

    @property
    def offsets(self) -> dict[int, int | None]:
        """The group's new offsets, for the partitions that move."""
        return {part.partition: part.to for part in self.parts if part.moves}

    def plain(self) -> dict[str, Any]:
        """As JSON shows it."""
        total = self.total
        return {
            "app": self.topics.app,
            "group": self.topics.group,
            "partitions": [part.plain() for part in self.parts],
            "total": {**asdict(total), "skipped": total.skipped},
        }


async def plan_rewind(
    log: Log,
    app: str,
    goal: Goal,
    *,
    partition: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RewindPlan:
    """Look up where the group would go, and what it would read there; nothing is moved.

    A `dry_run` is a plan for nobody to follow: it may be made beside workers, which go on meanwhile.

    Raises:
        UsageError: there is no such app or partition, or an offset was given for all partitions at once.
        Refused: the move would go ahead, or to commands that are gone.
        LogUnavailable: workers are in the group, and this is no dry run.
    """
    topics = topics_of(app)
    found = await log.describe_topics([topics.commands])
    if topics.commands not in found:
        raise UsageError(f"no app {app!r} has topics in {log.url}")
    count = found[topics.commands].partitions
    if partition is not None and partition >= count:
        raise UsageError(f"app {app!r} has the partitions 0 to {count - 1}, no {partition}")
    if goal.offset is not None and partition is None:
        raise UsageError("an offset means one partition: say which with --partition, or give a time instead")
    if not dry_run:
        await log.rewind_group(topics.group, topics.commands, {})  # refused while workers are in the group
    group = await log.group_offsets(topics.group, topics.commands)
    numbers = range(count) if partition is None else [partition]
    parts = [await _part(log, topics, number, goal, group.get(number), progress) for number in numbers]
    return RewindPlan(topics, tuple(parts))


async def rewind(log: Log, plan: RewindPlan) -> None:
    """Move the group as planned. Raises `LogUnavailable` while workers are in it."""
    if plan.offsets:
        await log.rewind_group(plan.topics.group, plan.topics.commands, plan.offsets)


async def _part(
    log: Log, topics: Topics, number: int, goal: Goal, group: int | None, progress: Progress | None
) -> PartPlan:
    span = await log.span(topics.commands, number)
    view = await PartitionView.load(log, topics, number, progress=progress)
    to = await _target(log, topics, number, goal, span, view.applied, group)
    return PartPlan(number, group, to, view.applied, await _count(log, topics, view, to, span.end))


async def _target(
    log: Log, topics: Topics, number: int, goal: Goal, span: Span, applied: int, group: int | None
) -> int:
    stands = span.start if group is None else min(group, applied)
    if goal.offset is not None:
        _check_offset(topics, number, goal.offset, span, stands)
        return goal.offset
    if goal.at_us is not None:
        return min(await offset_at(log, topics.commands, number, span, goal.at_us), stands)
    return min(span.start, stands)


def _check_offset(topics: Topics, number: int, offset: int, span: Span, stands: int) -> None:
    where = f"partition {number} of group {topics.group}"
    if offset > stands:
        message = (
            f"{where} stands at {stands}, so {offset} is ahead: that would pass over commands which nobody has "
            "applied, or stop skipping early. Rewind only goes back"
        )
        raise Refused("FORWARD_MOVE", message)
    if offset < span.start:
        message = f"{where}: the commands before offset {span.start} are gone, by retention; the first left is there"
        raise Refused("COMMANDS_GONE", message)


async def _count(log: Log, topics: Topics, view: PartitionView, to: int, end: int) -> Counts:
    counts = Counts()
    letters = await _dead(log, topics, view.partition, to, view.applied)
    async for record in scan(log, topics.commands, view.partition, to, end):
        if record.offset >= view.applied:
            counts.new += 1
        elif record.offset in letters:
            counts.dead_lettered += 1
        elif (record.key or b"").decode("utf-8", "backslashreplace") in view.runs:
            counts.known += 1
        else:
            counts.expired += 1
    return counts


async def _dead(log: Log, topics: Topics, number: int, start: int, end: int) -> set[int]:
    """The offsets of the commands between the two that lie among the dead letters."""
    span = await log.span(topics.dead_letters, number)
    found = set()
    if start < end:
        async for record in scan(log, topics.dead_letters, number, span.start, span.end):
            try:
                letter = decode_dead_letter(record.value or b"")
            except WireError:  # a letter that nobody can read names no offset; its command is counted as the others
                continue
            if letter.topic == topics.commands and start <= letter.offset < end:
                found.add(letter.offset)
    return found
