"""Verifies one partition: reads its topics side by side, in as many passes as memory asks for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import NamedTuple, Protocol

from streams.client.reading import batches
from streams.errors import WireError
from streams.log.port import Log, Record, Span
from streams.ops.verify.checkpoints import State
from streams.ops.verify.commands import CommandJoin
from streams.ops.verify.effects import EffectJoin, Orphan
from streams.ops.verify.ends import Ends, later
from streams.ops.verify.findings import Findings
from streams.ops.verify.folds import Folds
from streams.ops.verify.leases import Leases
from streams.ops.verify.owners import Owners
from streams.ops.verify.passes import Pass, emitted_ids
from streams.ops.verify.place import Place
from streams.ops.verify.report import Divergence, NotCompared
from streams.ops.verify.shares import Share
from streams.wire.records import decode_checkpoint, decode_dead_letter

__all__ = ["Meter", "Outcome", "PartitionCheck"]

_GAP_MAX = 5_000
"""Offsets that are read over rather than begun behind anew."""


class Meter(Protocol):
    """Is told how far the reading has come."""

    def more(self, offsets: int) -> None:
        """Another pass is needed."""

    def read(self, offsets: int) -> None:
        """So many offsets have been passed."""


class Outcome(NamedTuple):
    """What was found in a partition."""

    findings: list[Findings]
    not_compared: NotCompared
    runs: int = 0
    events: int = 0
    checkpoints: int = 0
    effects: int = 0
    commands: int = 0
    leases: int = 0
    dead_letters: int = 0
    damaged: int = 0
    passes: int = 0


class PartitionCheck:
    """One partition, from the captured ends."""

    def __init__(self, log: Log, place: Place, ends: Ends, topic_id: str, memory_bytes_max: int, meter: Meter) -> None:
        self._log = log
        self._place = place
        self._ends = ends
        self._topic_id = topic_id
        self._memory_bytes_max = memory_bytes_max
        self._meter = meter
        self._whole = Findings()
        """What the first pass finds of the partition as a whole."""
        self._leases = Leases(place, self._whole, ends.leases_sure)
        self._commands: CommandJoin
        self._shares: list[Share] = []

    @property
    def _trimmed(self) -> bool:
        """Whether the first events were deleted."""
        return self._ends.events.start > 0

    async def run(self) -> Outcome:
        """Verify it. Retention goes on meanwhile: what it has deleted is looked up before each pass."""
        topics = self._place.topics
        ends = self._ends = await later(self._log, topics, self._place.number, self._ends)
        self._commands = CommandJoin(self._place, self._whole, ends.commands, trimmed=self._trimmed)
        async for records in self._read(topics.leases, ends.leases):
            for record in records:
                self._leases.add(record)
        self._leases.check(ends.events, ends.commands, self._topic_id)
        letters = await self._dead_letters()
        passes = [await self._pass(Share(), first=True)]
        while self._shares:
            self._ends = await later(self._log, topics, self._place.number, self._ends)
            self._meter.more(self._ends.offsets)
            passes.append(await self._pass(self._shares.pop(), first=False))
        for key in frozenset().union(*(work.folds.dealt_with for work in passes)):
            self._whole.drop(key, {"command.lost"})  # its outcome was in an event that an operator has given up
        return _outcome(
            passes,
            Outcome(
                [self._whole],
                NotCompared(commands=self._commands.gone),
                commands=self._commands.compared,
                leases=self._leases.count,
                dead_letters=letters,
                passes=len(passes),
            ),
        )

    # -- one pass ------------------------------------------------------------------------------------------------

    async def _pass(self, share: Share, *, first: bool) -> Pass:
        topics, ends = self._place.topics, self._ends
        tail = self._leases.last.tail if self._leases.last is not None else 0
        folds = Folds(self._place, share, trimmed=self._trimmed, tail=tail)
        joins = {
            name: EffectJoin(self._place, folds.findings, name, span, ends.effects_sure[name])
            for name, span in ends.effects.items()
        }
        owners = Owners(self._place, self._whole, self._leases) if first else None
        work = Pass(folds, joins, owners, self._commands if first else None)
        async for records in self._metered(topics.checkpoints, ends.checkpoints):
            work.index(records)
            self._fit(work)
        await self._events(work)
        await self._decide(work)
        return work

    async def _events(self, work: Pass) -> None:
        """All events, and beside them what they have led to."""
        topics, ends = self._place.topics, self._ends
        effects = {name: self._read(topics.effect(name), span) for name, span in ends.effects.items()}
        commands = self._read(topics.commands, ends.commands)
        try:
            await self._follow(work, effects)
            async for records in self._metered(topics.events, ends.events):
                work.feed(records)
                while work.folds.checkpoints.suspects:
                    await self._resolve(work.folds)
                await self._follow(work, effects)
                if work.commands is not None:
                    while work.commands.wants_more and (some := await anext(commands, None)) is not None:
                        work.commands.feed(some)
                self._fit(work)
            for name, messages in effects.items():
                async for records in messages:
                    work.effects[name].feed(records, work.folds.share)
            if work.commands is not None:
                await self._rest_of(work.commands, commands)
        finally:
            for reading in (*effects.values(), commands):
                await reading.aclose()

    async def _follow(self, work: Pass, effects: Mapping[str, AsyncGenerator[list[Record], None]]) -> None:
        for name, join in work.effects.items():
            while join.wants_more:
                records = await anext(effects[name], None)
                if records is None:
                    join.end()
                else:
                    join.feed(records, work.folds.share)

    async def _rest_of(self, join: CommandJoin, commands: AsyncGenerator[list[Record], None]) -> None:
        applied = self._leases.last.applied if self._leases.last is not None else 0
        while join.finish(applied) and (records := await anext(commands, None)) is not None:
            join.feed(records)
        join.end()

    def _fit(self, work: Pass) -> None:
        """Leave runs to further passes while those of this one take too much memory."""
        while work.folds.held_bytes > self._memory_bytes_max and (other := work.split()) is not None:
            self._shares.append(other)

    async def _decide(self, work: Pass) -> None:
        """What can only be told once all was read."""
        folds, topics, ends = work.folds, self._place.topics, self._ends
        folds.finish()
        if folds.checkpoints.doubtful:
            now = await self._log.span(topics.checkpoints, self._place.number)
            newer = set()
            async for records in self._read(topics.checkpoints, Span(ends.checkpoints.end, now.end)):
                newer |= {record.key or b"" for record in records}
            folds.checkpoints.settle(newer)
        for join in work.effects.values():
            orphans = [one for one in join.finish(trimmed=self._trimmed) if one.effect_id not in work.untold]
            if orphans:
                join.judge(orphans, await self._emitted_by(orphans))

    async def _emitted_by(self, orphans: Iterable[Orphan]) -> set[str]:
        """Every effect of their runs: a message that is left may be the second one of its effect."""
        keys = frozenset(orphan.key for orphan in orphans)
        found: set[str] = set()
        async for records in self._read(self._place.topics.events, self._ends.events):
            found |= emitted_ids(records, keys)
        return found

    async def _resolve(self, folds: Folds) -> None:
        """Read the checkpoints in question; they lie close together where they are many."""
        suspects, folds.checkpoints.suspects = folds.checkpoints.suspects, []
        wanted = sorted({suspect.entry.offset for suspect in suspects})
        states: dict[int, State] = {}
        while wanted:
            count = 1
            while count < len(wanted) and wanted[count] - wanted[count - 1] <= _GAP_MAX:
                count += 1
            chosen, wanted = set(wanted[:count]), wanted[count:]
            async for records in self._read(self._place.topics.checkpoints, Span(min(chosen), max(chosen) + 1)):
                states |= {record.offset: _state(record) for record in records if record.offset in chosen}
        folds.resolve(suspects, states)

    # -- reading -------------------------------------------------------------------------------------------------

    async def _dead_letters(self) -> int:
        topic, count = self._place.topics.dead_letters, 0
        async for records in self._read(topic, self._ends.letters):
            for record in records:
                count += 1
                try:
                    letter = decode_dead_letter(record.value or b"")
                    text = f"it is of partition {letter.partition}"
                    if letter.partition == self._place.number:
                        continue
                except WireError as error:
                    text = f"it cannot be read: {error}"
                number = self._place.number
                self._whole.add(b"", Divergence("dead-letter.unreadable", "", number, topic, record.offset, text))
        return count

    def _read(self, topic: str, span: Span) -> AsyncGenerator[list[Record], None]:
        return batches(self._log, topic, self._place.number, span.start, span.end)

    async def _metered(self, topic: str, span: Span) -> AsyncGenerator[list[Record], None]:
        told = 0

        def progress(done: int, _: int) -> None:
            nonlocal told
            self._meter.read(done - told)
            told = done

        async for records in batches(self._log, topic, self._place.number, span.start, span.end, progress=progress):
            yield records


def _state(record: Record) -> State:
    try:
        return decode_checkpoint(record.value or b"")
    except WireError as error:
        return str(error)


def _outcome(passes: Iterable[Pass], base: Outcome) -> Outcome:
    """Add up what the passes have counted of the runs that they kept."""
    found = base
    for work in passes:
        folds, share = work.folds, work.folds.share
        checks, joins = folds.checkpoints, work.effects.values()
        missing = NotCompared(
            folds.cut.of(share),
            folds.unknown.of(share),
            checks.unmatched.of(share),
            sum(join.gone.of(share) for join in joins) + work.unpublished.of(share),
        )
        found = found._replace(
            findings=[*found.findings, folds.findings],
            not_compared=NotCompared(*map(sum, zip(found.not_compared, missing, strict=True))),
            runs=found.runs + folds.runs.of(share),
            events=found.events + work.events.of(share),
            checkpoints=found.checkpoints + checks.compared.of(share),
            effects=found.effects + sum(join.compared.of(share) for join in joins),
            damaged=found.damaged + folds.damaged.of(share),
        )
    return found
