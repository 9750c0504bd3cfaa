"""Makes the checkpoints of an app anew: partition by partition, as the owner of each, or only on paper."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

from streams.authoring.app import App
from streams.client.reading import Progress
from streams.clock import Clock, SystemClock
from streams.errors import LogDamaged, UsageError
from streams.log.port import Log, NewRecord, Span, TopicPartition
from streams.observer import Observer
from streams.ops.rebuild.folding import Bounds, Folding
from streams.ops.rebuild.report import PartitionReport, RebuildReport
from streams.ops.rebuild.stored import Kind, read_bases, read_stored
from streams.runtime.letters import waiting_commands
from streams.runtime.marks import check_keys
from streams.runtime.owner import check_applied
from streams.runtime.partition import Partition
from streams.runtime.rebuilding import Claimed, RebuildOwner, RebuildWorker, last_known, refuse_members
from streams.runtime.restore import read_range
from streams.runtime.settings import WorkerSettings
from streams.wire.headers import REBUILT
from streams.wire.topics import Topics, topics_of

__all__ = ["rebuild"]

_SECOND_US = 1_000_000
_RECORDS_MAX = 2_000
_BYTES_MAX = 4_000_000
"""What one transaction carries: it takes milliseconds, and a rebuild that is broken off loses no more."""
_CHUNK = 1_000
_MEMBERS_SECONDS = 10.0
_FOREVER = 2**63 - 1

Flush = Callable[[dict[bytes, bytes | None]], Awaitable[None]]


async def rebuild(
    log: Log,
    app: str,
    *,
    partitions: Sequence[int] | None = None,
    dry_run: bool = False,
    settings: WorkerSettings | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    progress: Progress | None = None,
    members_seconds: float = _MEMBERS_SECONDS,
) -> RebuildReport:
    """Fold all events of these partitions (all, unless named) and write the checkpoints that are not as they should be.

    No worker may run: a rebuild is the owner of what it writes. Broken off anywhere, it is simply run again. Raises
    `Refused` beside a worker, and UsageError where there is nothing to rebuild from.
    """
    topics = topics_of(app)
    settings, clock = settings or WorkerSettings(), clock or SystemClock()
    counts = await _required(log, topics)
    numbers = sorted(set(range(counts) if partitions is None else partitions))
    if strange := [number for number in numbers if not 0 <= number < counts]:
        raise UsageError(f"there is no partition {strange[0]}: app {app!r} has {counts}, counted from 0")
    if dry_run:
        jobs = [_Job(log, topics, number, settings, clock, progress) for number in numbers]
        return RebuildReport(app, [await job.on_paper() for job in jobs], dry_run)
    await refuse_members(log, topics, members_seconds)
    name = f"rebuild/{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
    worker = RebuildWorker(App(app), log, owner=name, settings=settings, observer=observer, clock=clock)
    await worker.prepare()
    parts = []
    async with worker.joined() as owner:
        for number in numbers:
            job = _Job(log, topics, number, settings, clock, progress, worker.engine.stub_seconds)
            parts.append(await job.as_owner(owner, counts))
    return RebuildReport(app, parts, dry_run)


async def _required(log: Log, topics: Topics) -> int:
    """The partition count. Raises UsageError where the log does not have what checkpoints are made from."""
    found = await log.describe_topics([topics.commands, topics.events])
    for name in (topics.events, topics.commands):
        if name not in found:
            message = f"{log.url} has no topic {name}: the checkpoints of app {topics.app!r} are made from its events"
            raise UsageError(f"{message}. Restore it from a copy, or name another app with --app")
    return found[topics.events].partitions


class _Job:
    """One partition."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        number: int,
        settings: WorkerSettings,
        clock: Clock,
        progress: Progress | None,
        stub_seconds: float | None = None,
    ) -> None:
        self._log = log
        self._topics = topics
        self._number = number
        self._progress = progress
        self._report = PartitionReport(number)
        stub = settings.stub_kept_seconds if stub_seconds is None else stub_seconds
        strip = clock.now_us() - settings.result_kept_seconds * _SECOND_US
        self._bounds = Bounds(strip, strip - stub * _SECOND_US)

    # -- with and without an owner -------------------------------------------------------------------------------

    async def on_paper(self) -> PartitionReport:
        """Only count what would be written."""
        log, topics, number = self._log, self._topics, self._number
        names = (topics.events, topics.checkpoints, topics.leases)
        found = await log.describe_topics(list(names))
        ends = {name: await log.span(name, number) if name in found else Span(0, 0) for name in names}
        try:
            lease, _ = await last_known(log, topics, number, ends[topics.leases])
            folding = await self._fold(Partition(number, 0), ends, None if lease is None else lease.tail, _drop)
            topic_id = (await log.describe_topics([topics.commands]))[topics.commands].id
            self._report.sent_back = len(await self._waiting(folding, topic_id))
        except LogDamaged as error:
            self._report.refused = str(error)
        return self._report

    async def as_owner(self, owner: RebuildOwner, partitions: int) -> PartitionReport:
        """Claim, fold, write, and give up with a lease that is right."""
        number = self._number
        try:
            claimed = await owner.claim(number)
        except LogDamaged as error:
            self._report.refused = str(error)
            return self._report
        partition = claimed.partition

        async def flush(batch: dict[bytes, bytes | None]) -> None:
            await owner.write(claimed, self._records(batch))

        try:
            await owner.check_clock(claimed)
            folding = await self._fold(partition, claimed.ends, claimed.tail, flush, partitions)
            partition.applied = max(partition.applied, folding.applied)
            check_applied(number, partition.applied, await self._log.span(self._topics.commands, number))
        except LogDamaged as error:
            self._report.refused = str(error)
            await owner.give_back(claimed)
            return self._report
        await self._finish(owner, claimed, folding)
        return self._report

    async def _finish(self, owner: RebuildOwner, claimed: Claimed, folding: Folding) -> None:
        partition = claimed.partition
        if folding.epoch >= partition.epoch:  # the leases were lost
            await owner.claim_above(claimed, folding.epoch)
        partition.events_end = claimed.ends[self._topics.events].end
        back = await self._waiting(folding, partition.topic_id)
        self._report.sent_back = len(back)
        await owner.write(claimed, [*self._records(folding.batch), *back], last=True)
        owner.close(partition)

    # -- folding -------------------------------------------------------------------------------------------------

    async def _fold(
        self, partition: Partition, ends: Mapping[str, Span], tail: int | None, flush: Flush, partitions: int = 0
    ) -> Folding:
        topics, number = self._topics, self._number
        events = ends[topics.events]
        stored = await read_stored(self._log, topics.checkpoints, number, ends[topics.checkpoints])
        folding = Folding(partition, stored, self._bounds, self._report)
        self._note_holes(events, tail)
        await self._read(events, folding, folding.add, flush)
        folding.close()
        if partitions:
            check_keys(partition, partitions)
        await self._emit(folding, flush)
        if folding.again:
            await self._bases(folding, ends, max(events.start, tail or 0))
            await self._read(events, folding, folding.add_again, flush)
            await self._emit(folding, flush)
        folding.rest()
        return folding

    def _note_holes(self, events: Span, tail: int | None) -> None:
        notes = self._report.notes
        if tail is not None and events.end < tail:
            notes.append(f"events from offset {events.end} to {tail} are gone: what they said is lost")
        if events.start > 0:
            notes.append(
                f"events below offset {events.start} are gone: runs without a later one are known by checkpoints"
            )

    async def _read(self, span: Span, folding: Folding, add: Callable[..., None], flush: Flush) -> None:
        place, first = TopicPartition(self._topics.events, self._number), add == folding.add
        count = 0
        async for record in read_range(self._log, place, span.start, span.end):
            add(record)
            count += 1
            if count % _CHUNK == 0:
                await self._breathe(record.offset - span.start, span)
            if len(folding.batch) >= _RECORDS_MAX or folding.batch_bytes >= _BYTES_MAX:
                await _flushed(folding, flush)
        if first:
            self._report.events = count
        await self._breathe(span.end - span.start, span)

    async def _breathe(self, done: int, span: Span) -> None:
        if self._progress is not None:
            self._progress(done, span.end - span.start)
        await asyncio.sleep(0)

    async def _emit(self, folding: Folding, flush: Flush) -> None:
        for run_id in list(folding.partition.runs):
            folding.emit_open(run_id)
            if len(folding.batch) >= _RECORDS_MAX or folding.batch_bytes >= _BYTES_MAX:
                await _flushed(folding, flush)

    async def _bases(self, folding: Folding, ends: Mapping[str, Span], tail: int) -> None:
        """Checkpoints that can be read, for runs that cannot be folded from their first event on."""
        keys = {run_id.encode() for run_id in folding.again}
        keys = {key for key in keys if key in folding.stored and folding.stored[key].kind is Kind.RUN}
        if keys:
            name = self._topics.checkpoints
            bases = await read_bases(self._log, name, self._number, ends[name], keys)
            for run, size in bases.values():
                folding.base(run, size, tail)

    # -- records -------------------------------------------------------------------------------------------------

    def _records(self, batch: Mapping[bytes, bytes | None]) -> list[NewRecord]:
        topic = self._topics.checkpoints
        return [NewRecord(topic, self._number, key, data, ((REBUILT, b"1"),)) for key, data in batch.items()]

    async def _waiting(self, folding: Folding, topic_id: str) -> list[NewRecord]:
        """What was set aside for runs that had no checkpoint of use, and have one now."""
        if not folding.healed:
            return []
        runs = {key: range(opened, _FOREVER) for key, opened in folding.healed.items()}
        return (await waiting_commands(self._log, self._topics, self._number, topic_id, runs)).records


async def _flushed(folding: Folding, flush: Flush) -> None:
    batch, folding.batch, folding.batch_bytes = folding.batch, {}, 0
    await flush(batch)


async def _drop(_: dict[bytes, bytes | None]) -> None:
    """Where nothing is to be written."""
