"""Acquiring a partition: find the true end, claim, restore. The order is the guarantee."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from streams.errors import LogDamaged, WireError
from streams.kernel.bodies import RunExpired, RunRepaired
from streams.kernel.events import Event
from streams.kernel.evolve import UnknownEvent, evolve
from streams.kernel.run import Run, is_terminal
from streams.log.port import Isolation, Log, Member, Record, Span, TopicPartition
from streams.runtime import crash
from streams.runtime.marks import REBUILDING, rebuild_command
from streams.runtime.mirroring import follow_checkpoints, newer_release
from streams.runtime.partition import Hot, Partition
from streams.wire.records import Damaged, Lease, decode_checkpoint, decode_event, decode_lease
from streams.wire.schemas import SchemaUnknown
from streams.wire.topics import Topics

__all__ = [
    "Found",
    "Seen",
    "check_tail",
    "find_ends",
    "fold_event",
    "hot_of",
    "last_lease",
    "newer_release",
    "owner_ids",
    "passed_over",
    "read_lease",
    "read_range",
    "restore",
    "shown_without_lease",
    "stable_offset",
]

_CHUNK = 5_000
_PATIENCE_SECONDS = 1.0
_READ_SECONDS = 0.02
"""Short, because what is left before the end may be a hole, for which no record will ever come."""


class Found(NamedTuple):
    """What a restore brought: the highest epoch, the next command to apply, and damaged runs with the bad offset."""

    epoch_seen: int
    applied: int
    damaged: list[tuple[Hot, int]]


class Seen(NamedTuple):
    """What an event shows: its epoch, the next command to apply, and the run that it has changed or ended for good."""

    epoch: int
    applied: int
    hot: Hot | None = None
    expired: bool = False


async def stable_offset(member: Member, partition: int, settle: Callable[[], Awaitable[None]]) -> int | None:
    """The group's offset, which a pending transaction of the last owner withholds; `settle` ends one that stays."""
    asked = asyncio.ensure_future(member.committed(partition))
    try:
        done, _ = await asyncio.wait([asked], timeout=_PATIENCE_SECONDS)
        if not done:
            await settle()
        return await asked
    finally:
        asked.cancel()


async def find_ends(log: Log, topics: Topics, partition: int, settle: Callable[[], Awaitable[None]]) -> dict[str, Span]:
    """Capture the read_uncommitted ends of events, checkpoints and leases, and wait until readers see up to them.

    After an acknowledged commit its markers appear per partition with a delay, so the visible end is not the end. If
    it takes over a second, `settle` ends what the last owner left open; then the wait goes on.
    """
    names = (topics.events, topics.checkpoints, topics.leases)
    ends = {name: await log.span(name, partition, "read_uncommitted") for name in names}
    crash.passing("acquire.captured")
    loop = asyncio.get_running_loop()
    began, settled = loop.time(), False
    for name, span in ends.items():
        while (await log.span(name, partition)).end < span.end:
            if not settled and loop.time() - began > _PATIENCE_SECONDS:
                settled = True
                await settle()
            await asyncio.sleep(0.005)
    crash.passing("acquire.visible")
    return ends


async def last_lease(
    log: Log, topics: Topics, partition: int, span: Span, isolation: Isolation = "read_committed"
) -> Record | None:
    """The record of the last lease of the partition, as it is."""
    last: Record | None = None
    async for record in read_range(log, TopicPartition(topics.leases, partition), span.start, span.end, isolation):
        if record.key == str(partition).encode():
            last = record
    return None if last is None or last.value is None else last


async def shown_without_lease(log: Log, topics: Topics, number: int, ends: Mapping[str, Span]) -> Seen:
    """The highest epoch and the next command to apply, by older leases and all events, where the last lease is lost.

    Before the claim, so that it is above the epochs of others, and says what was applied.
    """
    epoch = applied = 0
    async for record in read_range(log, TopicPartition(topics.leases, number), *ends[topics.leases]):
        with suppress(WireError):
            epoch = max(epoch, decode_lease(record.value or b"").epoch)
    async for record in read_range(log, TopicPartition(topics.events, number), *ends[topics.events]):
        with suppress(WireError):  # the fold meets it as well, and tells
            event = decode_event(record.value or b"")
            epoch = max(epoch, event.epoch)
            applied = max(applied, 0 if event.offset is None else event.offset + 1)
    return Seen(epoch, applied)


async def read_lease(
    log: Log,
    topics: Topics,
    partition: int,
    span: Span,
    isolation: Isolation = "read_committed",
    *,
    serving: bool = False,
) -> Lease | None:
    """The last lease of the partition. Raises `LogDamaged` for one that cannot be read.

    `serving` raises it also for a partition whose checkpoints are being made anew.
    """
    last = await last_lease(log, topics, partition, span, isolation)
    if last is None or last.value is None:
        return None
    if serving and any(name == REBUILDING for name, _ in last.headers):
        message = (
            f"partition {partition}: a rebuild of its checkpoints has begun and not ended. Stop all workers and run it "
            f"again: {rebuild_command(topics)} --partition {partition}"
        )
        raise LogDamaged(message)
    try:
        return decode_lease(last.value)
    except SchemaUnknown as error:
        raise newer_release(partition, last, error) from error
    except WireError as error:
        message = (
            f"the lease of partition {partition} at offset {last.offset} cannot be read: {error}. Stop all workers and "
            f"have it made good from the events: {rebuild_command(topics)} --partition {partition}"
        )
        raise LogDamaged(message) from error


async def owner_ids(log: Log, topics: Topics, partition: int) -> list[str]:
    """The transactional ids of the last owner, and of one that has died in its claim: that lease is not visible yet."""
    visible = await log.span(topics.leases, partition)
    written = await log.span(topics.leases, partition, "read_uncommitted")
    last = await read_lease(log, topics, partition, visible)
    pending = await read_lease(log, topics, partition, Span(visible.end, written.end), "read_uncommitted")
    return [id for lease in (last, pending) if lease is not None for id in lease.transactional_ids]


def check_tail(topics: Topics, partition: int, tail: int, events: Span) -> None:
    """Raise `LogDamaged` where events that no checkpoint covers are gone. Before the claim: nothing is written then."""
    if events.start > tail or events.end < tail:
        message = (
            f"partition {partition}: the events from offset {tail} on are needed, and the log holds "
            f"{events.start} to {events.end}. Restore the topic {topics.events} from a copy; or stop all workers and "
            f"make the best of what is left: {rebuild_command(topics)} --partition {partition}"
        )
        raise LogDamaged(message)


def passed_over(partition: Partition, start: int, commands: Span, topic: str) -> str:
    """Why commands between the applied offset and the group's are not read."""
    if commands.start <= partition.applied:
        return f"the group's offset {start} was moved ahead; {partition.applied} is next"
    gone = f"commands from offset {partition.applied} to {commands.start - 1} were deleted before a worker took them"
    return f"{gone}: {topic} keeps them for too short a time"


async def restore(log: Log, topics: Topics, partition: Partition, tail: int, ends: Mapping[str, Span]) -> Found:
    """Checkpoints, then events from `tail` on, up to the captured ends.

    Raises `LogDamaged` for a record of a newer release. The claim has been written by then, which harms nobody: a
    lease changes no run, and a worker that knows the record claims above it and goes on. A `damaged` checkpoint, or a
    command set aside, would end a healthy run in the middle of a rolling deploy.
    """
    end = ends[topics.events].end
    if partition.mirror is not None:
        shown = await follow_checkpoints(log, topics, partition, partition.mirror, ends[topics.checkpoints])
    else:
        await _read_checkpoints(log, topics, partition, ends[topics.checkpoints])
        shown = max((hot.run.epoch for hot in partition.runs.values()), default=0)
    crash.passing("acquire.checkpoints_read")
    found = await _read_events(log, partition, TopicPartition(topics.events, partition.number), tail, end)
    crash.passing("acquire.events_read")
    partition.events_end = end
    return found._replace(epoch_seen=max(found.epoch_seen, shown))


async def _read_checkpoints(log: Log, topics: Topics, partition: Partition, span: Span) -> None:
    latest: dict[bytes, Record] = {}
    place = TopicPartition(topics.checkpoints, partition.number)
    async for record in read_range(log, place, span.start, span.end):
        if record.key is None:
            continue
        if record.value is None:
            latest.pop(record.key, None)
        else:
            latest[record.key] = record
    for count, (key, record) in enumerate(latest.items()):
        _add_checkpoint(partition, key, record)
        if count % _CHUNK == _CHUNK - 1:
            await asyncio.sleep(0)


def _add_checkpoint(partition: Partition, key: bytes, record: Record) -> None:
    run_id = key.decode("utf-8", "backslashreplace")
    try:
        hot = hot_of(run_id, record.value or b"", f"its checkpoint at offset {record.offset}")
    except SchemaUnknown as error:
        raise newer_release(partition.number, record, error) from error
    partition.runs[run_id] = hot


def hot_of(run_id: str, value: bytes, what: str) -> Hot:
    """A run as its checkpoint has it; `what` names that, where it cannot be read. Raises SchemaUnknown."""
    try:
        state = decode_checkpoint(value)
    except SchemaUnknown:
        raise
    except WireError as error:
        state = Damaged(run_id, -1, f"{what} cannot be read: {error}")
    if isinstance(state, Damaged):
        hot = _nameless(run_id)
        if state.identity:
            hot.run = hot.run._replace(identity=state.identity, seq=state.seq)
        hot.damaged = state.reason
    else:
        hot = Hot(state)
        hot.checkpoint_bytes = len(value)
    return hot


async def _read_events(log: Log, partition: Partition, place: TopicPartition, tail: int, end: int) -> Found:
    epoch, applied, count = 0, 0, 0
    damaged: dict[str, tuple[Hot, int]] = {}
    async for record in read_range(log, place, tail, end):
        count += 1
        if count % _CHUNK == 0:
            await asyncio.sleep(0)
        seen = fold_event(partition, record, damaged)
        epoch, applied = max(epoch, seen.epoch), max(applied, seen.applied)
    return Found(epoch, applied, list(damaged.values()))


def fold_event(partition: Partition, record: Record, damaged: dict[str, tuple[Hot, int]]) -> Seen:
    """Fold one event. Raises `LogDamaged` for one of a newer release."""
    run_id = (record.key or b"").decode("utf-8", "backslashreplace")
    try:
        event = decode_event(record.value if record.value is not None else b"")
    except SchemaUnknown as error:
        # Also under the key of a run that has ended: it may be the first event of the next run of that name.
        raise newer_release(partition.number, record, error) from error
    except WireError as error:
        known = partition.runs.get(run_id) or _nameless(run_id)
        _damage(partition, known, record, f"the event at offset {record.offset} cannot be read: {error}", damaged)
        return Seen(0, 0)
    shown = Seen(event.epoch, 0 if event.offset is None else event.offset + 1)
    if event.seq is None:
        return shown
    if _is_mirrored(partition, event):
        return shown
    hot = partition.runs.get(event.run_id)
    if isinstance(event.body, RunExpired):
        # A later run of this name has all its events after this one, whatever its checkpoint has shown of it.
        partition.runs.pop(event.run_id, None)
        damaged.pop(event.run_id, None)
        return shown._replace(expired=True)
    if hot is None:
        hot = Hot(Run(run_id=event.run_id, identity=event.identity))
    if event.seq <= hot.run.seq or (hot.damaged is not None and not isinstance(event.body, RunRepaired)):
        if hot.damaged is not None and event.seq > hot.run.seq:
            _note_seen(hot, event)
        elif hot.damaged is not None and _covered(hot, event):
            hot.damaged, hot.first_offset = None, None
            damaged.pop(event.run_id, None)
        return shown
    if is_terminal(hot.run):
        return shown  # nothing changes a run that has ended
    try:
        hot.run = evolve(hot.run, event)
    except UnknownEvent as error:
        raise newer_release(partition.number, record, error) from error
    except ValueError as error:
        _damage(partition, hot, record, str(error), damaged)
        _note_seen(hot, event)
        return shown
    if hot.damaged is not None:
        hot.damaged = None  # repaired: the event has taken the place of what could not be folded
        damaged.pop(event.run_id, None)
    hot.since_bytes += len(record.value or b"")
    if hot.first_offset is None:
        hot.first_offset, hot.first_at = record.offset, event.at
    partition.runs[event.run_id] = hot
    return Seen(shown.epoch, shown.applied, hot)


def _is_mirrored(partition: Partition, event: Event) -> bool:
    """Whether the event is in the checkpoint of a run that need not be loaded for it."""
    mirror = partition.mirror
    if mirror is None or event.run_id in partition.runs or isinstance(event.body, RunExpired):
        return False
    return mirror.covers(event.run_id, event.seq or 0)


def _covered(hot: Hot, event: Event) -> bool:
    """Whether what cannot be read came before an event that the checkpoint has in it: then it came before that, too.

    So it is with the damage before a repair, as long as the tail has not left it behind.
    """
    return hot.checkpoint_bytes > 0 and hot.since_bytes == 0 and event.identity == hot.run.identity


def _note_seen(hot: Hot, event: Event) -> None:
    """How far a damaged run has come: its forced end must repeat no event."""
    hot.since_bytes += 1  # no checkpoint has this in it
    at = max(event.at, hot.run.at)
    hot.run = hot.run._replace(identity=event.identity, seq=event.seq or 0, at=at, epoch=event.epoch)


def _nameless(run_id: str) -> Hot:
    """A run of which nothing is known but its id."""
    return Hot(Run(run_id, f"{run_id}@?"))


def _damage(partition: Partition, hot: Hot, record: Record, reason: str, damaged: dict[str, tuple[Hot, int]]) -> None:
    if hot.damaged is None and not is_terminal(hot.run):
        hot.damaged = reason
        if hot.first_offset is None:
            hot.first_offset = record.offset  # until its `damaged` checkpoint is committed
        partition.runs[hot.run.run_id] = hot
        damaged[hot.run.run_id] = (hot, record.offset)


async def read_range(
    log: Log, place: TopicPartition, start: int, end: int, isolation: Isolation = "read_committed"
) -> AsyncIterator[Record]:
    """The visible records of a partition from `start` up to the captured `end`; holes do not end it."""
    if start >= end:
        return
    reader = log.reader({place: start}, isolation)
    try:
        while reader.position(place) < end:
            for record in await reader.read(_CHUNK, _READ_SECONDS):
                if record.offset < end:
                    yield record
    finally:
        await reader.close()
