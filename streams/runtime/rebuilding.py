"""Owning partitions for a rebuild of their checkpoints: the group, the claim and the fence of a worker, no turns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from streams.errors import CommitAborted, Fenced, InDoubt, LogUnavailable, Refused, WireError
from streams.log.port import GroupSnapshot, Headers, Log, NewRecord, Span
from streams.runtime import crash
from streams.runtime.closing import close_producer, leave_group
from streams.runtime.marks import REBUILDING, check_number, topic_id
from streams.runtime.owner import Owner, check_applied
from streams.runtime.partition import Partition, PartitionState
from streams.runtime.restore import find_ends, last_lease, newer_release, owner_ids, shown_without_lease, stable_offset
from streams.runtime.starting import at_start
from streams.runtime.topics import ensure_topics
from streams.runtime.turn import Turn
from streams.runtime.worker import Worker
from streams.wire.records import Lease, decode_lease
from streams.wire.schemas import SchemaUnknown
from streams.wire.topics import Topics

__all__ = ["Claimed", "RebuildOwner", "RebuildWorker", "Taken", "last_known", "refuse_members"]

_REDO_MAX = 20
_PAUSE_SECONDS = 0.2
_JOIN_SECONDS = 60.0
"""How long to wait for all partitions: a group may need that long to notice that a worker has died."""


class Taken(Refused):
    """Somebody else has the partition now: nothing more is written there."""

    def __init__(self, number: int) -> None:
        message = (
            f"partition {number} was taken by a worker that has started meanwhile. It refuses to serve it before a "
            "rebuild has ended: stop all workers and run the rebuild again"
        )
        super().__init__("PARTITION_TAKEN", message)


class Claimed(NamedTuple):
    """A partition of which a rebuild is the owner. `tail` and `marks` are those of the last lease, if there is one.

    `unchanged` is the group's offset, which goes with each transaction as the fence.
    """

    partition: Partition
    ends: Mapping[str, Span]
    tail: int | None
    marks: Headers
    unchanged: int


async def refuse_members(log: Log, topics: Topics, seconds: float) -> None:
    """Raise `Refused`, naming them, while workers are in the group. One that has died is waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            # To move nothing is refused as any move is, with the names; the port has no other question about members.
            await log.rewind_group(topics.group, topics.commands, {})
        except LogUnavailable as error:
            if loop.time() >= deadline:
                message = f"a rebuild writes as the owner of all partitions, and others are at work: {error}"
                raise Refused("WORKERS_RUNNING", message) from error
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


async def last_known(log: Log, topics: Topics, number: int, span: Span) -> tuple[Lease | None, Headers]:
    """The last lease and its marks. One that cannot be read is as good as lost; a newer one raises `LogDamaged`."""
    record = await last_lease(log, topics, number, span)
    if record is None:
        return None, ()
    try:
        return decode_lease(record.value or b""), record.headers
    except SchemaUnknown as error:
        raise newer_release(number, record, error) from error
    except WireError:
        return None, record.headers


class RebuildOwner(Owner):
    """Takes what the group gives, and acquires it partition by partition when it is asked to."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._of = worker

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """Note what is owned."""
        del snapshot
        for number, incarnation in partitions.items():
            self.partitions[number] = Partition(number, incarnation)

    async def claim(self, number: int) -> Claimed:
        """The steps of acquiring up to the claim: its lease says that a rebuild is under way, and else what it said."""
        worker, engine = self._of, self._of.engine
        log, topics = worker.log, engine.topics
        partition = self.partitions.get(number)
        if partition is None:
            raise Taken(number)
        partition.move(PartitionState.RESTORING)

        async def settle() -> None:
            await worker.settle(number, await owner_ids(log, topics, number))

        committed = await stable_offset(worker.member, number, settle)
        ends = await find_ends(log, topics, number, settle)
        lease, marks = await last_known(log, topics, number, ends[topics.leases])
        commands = await log.span(topics.commands, number)
        check_number(number, engine.partitions)
        partition.topic_id = await topic_id(log, topics.commands)
        self.check_topic_id(partition, lease)
        check_applied(number, lease.applied if lease is not None else 0, commands)
        partition.applied = commands.start if lease is None else lease.applied
        tail = None if lease is None else lease.tail
        partition.events_end = tail or 0
        claimed = Claimed(partition, ends, tail, marks, commands.start if committed is None else committed)
        shown = 0 if lease is None else lease.epoch
        if lease is None:
            shown, applied, *_ = await shown_without_lease(log, topics, number, ends)
            partition.applied = max(partition.applied, applied)
        await self.claim_above(claimed, shown)
        return claimed

    async def check_clock(self, claimed: Claimed) -> None:
        """Raise `LogDamaged` where the clock is wrong, by which ends are told to be old. After the claim."""
        await self._of.engine.skew.check(self._of.log, claimed.partition)

    async def claim_above(self, claimed: Claimed, epoch: int) -> None:
        """Claim above an epoch that a lease, or an event where the leases were lost, has shown."""
        marks = (*self._of.engine.marks, (REBUILDING, b"1"))
        with self._marked(marks):
            await self._redo(claimed, lambda: self._claim(claimed.partition, epoch, claimed.unchanged))

    async def write(self, claimed: Claimed, records: Sequence[NewRecord], *, last: bool = False) -> None:
        """Write records in one transaction; with the `last` of them the lease that gives the partition up."""
        await self._redo(claimed, lambda: self._write(claimed, records, last=last))

    async def give_back(self, claimed: Claimed) -> None:
        """Let go of a partition that could not be rebuilt: its lease says again what it said before."""
        claimed.partition.runs.clear()
        claimed.partition.events_end = claimed.tail or 0
        with self._marked(claimed.marks):
            await self._redo(claimed, lambda: self._write(claimed, [], last=True))

    async def _write(self, claimed: Claimed, records: Sequence[NewRecord], *, last: bool) -> None:
        worker, partition = self._of, claimed.partition
        async with worker.turn_lock:
            await worker.trust_producer()
            snapshot = worker.member.snapshot()
            if snapshot.owned.get(partition.number) != partition.incarnation:
                raise Taken(partition.number)
            turn = Turn(worker.engine, {})
            turn.partitions[partition.number] = partition
            for record in records:
                turn.add(record, None)
            if last:
                turn.add_lease(partition, (), released=True)
            turn.applied[partition.number] = claimed.unchanged
            crash.passing("commit.before")
            await worker.commit(snapshot, turn)
            crash.passing("commit.after")

    async def _redo(self, claimed: Claimed, attempt: Callable[[], Awaitable[None]]) -> None:
        """Until it is committed. What may have happened is not done again: a new rebuild looks first."""
        worker, number = self._of, claimed.partition.number
        for count in range(_REDO_MAX):
            snapshot = worker.member.snapshot()
            try:
                return await attempt()
            except (CommitAborted, LogUnavailable):
                if count == _REDO_MAX - 1:
                    raise
                await worker.newer_snapshot(snapshot)
            except Fenced as error:
                raise Taken(number) from error
            except InDoubt as error:
                message = f"partition {number}: nobody knows whether a commit has happened ({error}); run it again"
                raise Refused("COMMIT_IN_DOUBT", message) from error
            if worker.member.snapshot().owned.get(number) != claimed.partition.incarnation:
                raise Taken(number)
        return None

    @contextmanager
    def _marked(self, marks: Headers) -> Iterator[None]:
        """Leases that are written meanwhile have these marks."""
        engine = self._of.engine
        before, engine.marks = engine.marks, marks
        try:
            yield
        finally:
            engine.marks = before


class RebuildWorker(Worker):
    """A member of the group as a worker is, which reads no command and runs no code."""

    rebuilder: RebuildOwner

    async def prepare(self) -> None:
        """Create what is missing beside commands and events. Raises UsageError for what no rebuild can mend."""
        engine = self.engine
        age = engine.settings.checkpoint_age_seconds
        count = engine.settings.partitions
        found = await ensure_topics(self.log, engine.topics, count, age_seconds=age, rebuilding=True)
        engine.know(found)

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[RebuildOwner]:
        """In the group, with all partitions; at the end they are given up. Raises `Refused` where others have some."""
        engine = self.engine
        crash.install_from(os.environ)
        self.rebuilder = RebuildOwner(self)
        self.owner = self.rebuilder
        self.producer = await at_start(engine, self._new_producer)
        self.member = self.log.member(engine.topics.group, engine.topics.commands, client_id=engine.owner)
        await at_start(engine, lambda: self.member.join(self.rebuilder))
        polling = asyncio.create_task(self._poll_loop())
        try:
            await self._all_given(polling)
            yield self.rebuilder
        finally:
            self._polling = False
            try:
                await leave_group(self, polling)
            finally:
                polling.cancel()
                await asyncio.gather(polling, return_exceptions=True)
                await self.rebuilder.end()
                await close_producer(self)

    async def _all_given(self, polling: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _JOIN_SECONDS
        while len(self.owner.partitions) < self.engine.partitions:
            if polling.done():
                polling.result()
            if loop.time() >= deadline:
                missing = sorted(set(range(self.engine.partitions)) - set(self.owner.partitions))
                message = f"the group gives partitions {missing} to others: stop all workers first"
                raise Refused("WORKERS_RUNNING", message)
            await asyncio.sleep(_PAUSE_SECONDS / 10)
