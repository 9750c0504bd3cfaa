"""Copies commands of one app to another, each exactly once, however often it is broken off and begun again.

Each batch is one transaction, fenced by membership in a group of its own on the target's commands: two copies at once
are one too many, and one of them ends. Every copied command names its source in a header, so a copy that is begun again
reads in the target what it has done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from streams.client.reading import Progress, scan
from streams.errors import CommitAborted, LogError, SendRefused, StreamsError
from streams.kernel import commands as cmd
from streams.kernel.commands import Command
from streams.log.port import GroupSnapshot, Headers, Log, Member, NewRecord, Producer, Record, Span
from streams.ops.replay.guide import Followed, Guide, read_guide
from streams.wire.headers import CONTENT_TYPE, SCHEMA, headers_of
from streams.wire.origin import Origin
from streams.wire.partitioner import partition_of
from streams.wire.records import CommandUnreadable, decode_command, encode_command
from streams.wire.topics import Topics

__all__ = ["COPIED_FROM", "Copied", "Copier", "CopyInterrupted"]

COPIED_FROM = "streams-copied-from"
"""The header that names the source of a copy: topic id/partition/offset. Never change it."""

BATCH_MAX = 1_000
_BATCH_BYTES_MAX = 8_000_000
WAITING_BYTES_MAX = 64_000_000
"""What is kept of commands that wait for their runs."""
IDLE_SECONDS = 30.0
"""How long nothing may get on before the rest is told as held."""
_TIMED = (cmd.Resume, cmd.Cancel, cmd.Reply)
"""Commands that mean something only where the run stands at the time."""
_REPAIRS = (cmd.Retry, cmd.Skip, cmd.Complete, cmd.Repair)
_JOIN_SECONDS = 90.0
"""A copy that has died leaves its group by time-out."""
_REDO_SECONDS = 60.0


class CopyInterrupted(StreamsError):
    """The copy could not go on. What was copied stays; the same command again goes on from there."""


@dataclass(slots=True)
class Copied:
    """What has become of the commands.

    commands: copied now. before: copied by an earlier try. held: not copied, since their runs have not come so far; the
    same call again goes on with them. Left out are refused: answers, replies and cancels that the old app had turned
    down; repairs: an operator's words on a trouble that the copy need not have; replies, where the effects of the copy
    are on and its own subscribers reply; strays: on a wrong partition; too_large.
    cut: partitions of which retention has deleted commands since the copy was begun.
    """

    commands: int = 0
    before: int = 0
    refused: int = 0
    repairs: int = 0
    replies: int = 0
    strays: int = 0
    too_large: int = 0
    cut: int = 0
    held: int = 0
    holding: tuple[str, ...] = ()
    """Some of the runs whose commands are held."""


class _Waiting(NamedTuple):
    """A copy that waits for its run to come to an op, or only for the commands before it.

    A `reply` also waits for its attempt, and then names the one that the run of the copy has come to.
    """

    copy: NewRecord
    op: str | None
    reply: Command | None = None
    attempt: int = 0


class _Bitmap:
    """Which source offsets of a partition have been copied; one bit each."""

    def __init__(self, start: int, end: int) -> None:
        self._start = start
        self._bits = bytearray((max(0, end - start) + 7) // 8)

    def add(self, offset: int) -> None:
        at = offset - self._start
        if 0 <= at < len(self._bits) * 8:
            self._bits[at // 8] |= 1 << at % 8

    def __contains__(self, offset: int) -> bool:
        at = offset - self._start
        return bool(self._bits[at // 8] & 1 << at % 8)


class _Ownership:
    """Nothing to do: each batch asks the snapshot of its own poll what is owned."""

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None: ...
    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None: ...
    async def lost(self, partitions: Mapping[int, int]) -> None: ...


class Copier:
    """One copy, from `source` to `target`, as its origin says."""

    def __init__(
        self,
        log: Log,
        source: Topics,
        target: Topics,
        origin: Origin,
        partitions: int,
        *,
        rate: float | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._log = log
        self._source = source
        self._target = target
        self._origin = origin
        self._partitions = partitions
        self._rate = rate
        self._idle_seconds = idle_seconds
        self._keys: Collection[bytes] = {run_id.encode() for run_id in origin.runs}
        self._member: Member
        self._producer: Producer
        self._copied = Copied()
        self._done = [_Bitmap(*ends) for ends in zip(origin.start, origin.end, strict=True)]
        self._guides: list[Guide] = []
        self._followed = Followed(log, target, partitions)
        self._waiting: dict[bytes, deque[_Waiting]] = {}
        self._waiting_bytes = 0
        self._batch: list[NewRecord] = []
        self._batch_bytes = 0

    async def run(self, progress: Progress | None = None) -> Copied:
        """Copy all that is not copied yet. Raises `CopyInterrupted` where it cannot go on.

        It follows the copy's worker. Where nothing gets on for `idle_seconds`, the rest is told as held.
        """
        group = f"{self._target.app}.reprocess"
        self._member = self._log.member(group, self._target.commands, client_id=group)
        try:
            await self._member.join(_Ownership())
            await self._own_all()
            self._producer = await self._log.producer(group)  # ends what an earlier try has left open
            try:
                await self._copy_all(progress)
            finally:
                await self._producer.close()
        except LogError as error:
            raise CopyInterrupted(f"{error}; give the same command again: it goes on from what is copied") from error
        finally:
            await self._followed.close()
            await self._member.close()
        return self._copied

    async def _copy_all(self, progress: Progress | None) -> None:
        await self._find_done()
        for number in range(len(self._origin.start)):
            await self._learn(number, progress)
        for number in range(len(self._origin.start)):
            if not await self._read(number, progress):
                break
        await self._wait(0)
        self._copied.held = sum(map(len, self._waiting.values()))
        self._copied.holding = tuple(key.decode("utf-8", "backslashreplace") for key in list(self._waiting)[:10])

    # -- alone, and from where ------------------------------------------------------------------------------------

    async def _own_all(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _JOIN_SECONDS
        while len((await self._poll(0.2)).owned) < self._partitions:
            if loop.time() > deadline:
                message = f"another copy to app {self._target.app} is under way; let it end, or stop it"
                raise CopyInterrupted(message)

    async def _poll(self, seconds: float) -> GroupSnapshot:
        """Keep the membership alive; the partitions are paused, so nothing is delivered."""
        return (await self._member.poll(1, seconds)).snapshot

    async def _find_done(self) -> None:
        """What earlier tries have copied stands in the target."""
        for number in range(self._partitions):
            span = await self._settled(number)
            async for record in scan(self._log, self._target.commands, number, span.start, span.end):
                place = self._source_of(record)
                if place is not None:
                    self._done[place[0]].add(place[1])
                    self._copied.before += 1

    async def _learn(self, number: int, progress: Progress | None) -> None:
        """Read the old histories: what the commands of this partition came after."""
        start, end = self._origin.start[number], self._origin.end[number]
        guide = await read_guide(self._log, self._source, number, start, end, keys=self._keys, progress=progress)
        self._guides.append(guide)
        for key, op in (*guide.after.values(), *guide.requests):
            self._followed.want(key, op)
        await self._poll(0.0)

    async def _settled(self, number: int) -> Span:
        """The ends once readers see all: after a commit its markers appear with a delay."""
        end = (await self._log.span(self._target.commands, number, "read_uncommitted")).end
        while True:
            span = await self._log.span(self._target.commands, number)
            if span.end >= end:
                return span
            await self._poll(0.05)

    def _source_of(self, record: Record) -> tuple[int, int] | None:
        for name, value in record.headers:
            if name == COPIED_FROM and value is not None:
                id_, _, rest = value.decode("utf-8", "replace").rpartition("/")[0].rpartition("/")
                if id_ == self._origin.topic_id:
                    return int(rest), int(value.rpartition(b"/")[2])
        return None

    # -- copying -------------------------------------------------------------------------------------------------

    async def _read(self, number: int, progress: Progress | None) -> bool:
        """Copy a partition, or put aside what has to wait. False where too much of that stands still."""
        start, end = self._origin.start[number], self._origin.end[number]
        first = (await self._log.span(self._source.commands, number)).start
        if first > start:
            self._copied.cut += 1
        start = min(max(start, first), end)
        most = BATCH_MAX if self._rate is None else max(1, min(BATCH_MAX, int(self._rate)))
        records = scan(self._log, self._source.commands, number, start, end, progress=progress)
        async with aclosing(records):
            async for record in records:
                if record.offset not in self._done[number]:
                    self._sort(record)
                if len(self._batch) >= most or self._batch_bytes >= _BATCH_BYTES_MAX:
                    await self._flush()
                    self._release(await self._followed.look(0.0))
                if self._waiting_bytes > WAITING_BYTES_MAX and not await self._wait(WAITING_BYTES_MAX // 2):
                    return False
        await self._flush()
        return True

    def _sort(self, record: Record) -> None:
        """Put a command into the batch, behind what its run has to come to first, or leave it out."""
        key = record.key
        if self._keys and key not in self._keys:
            return
        if key is not None and partition_of(key, len(self._origin.start)) != record.partition:
            self._copied.strays += 1
            return
        place = f"{self._origin.topic_id}/{record.partition}/{record.offset}"
        command = _command_of(record, place)
        guide = self._guides[record.partition]
        if command is not None and isinstance(command.request, _REPAIRS):
            self._copied.repairs += 1
            return
        if command is not None and isinstance(command.request, _TIMED) and record.offset in guide.refused:
            self._copied.refused += 1
            return
        if command is not None and isinstance(command.request, cmd.Reply) and self._origin.publishes:
            self._copied.replies += 1
            return
        to = record.partition % self._partitions if key is None else partition_of(key, self._partitions)
        value, headers = with_id(record, command, place)
        copy = NewRecord(self._target.commands, to, key, value, (*headers, (COPIED_FROM, place.encode())))
        waiting = _Waiting(copy, guide.after.get(record.offset, (key, None))[1])
        if command is not None and isinstance(command.request, cmd.Reply):
            waiting = _Waiting(copy, command.request.op, command, _attempt_of(command.request))
        if key is not None and (key in self._waiting or not self._followed.ready(key, waiting.op, waiting.attempt)):
            self._waiting.setdefault(key, deque()).append(waiting)
            self._waiting_bytes += len(value or b"")
        else:
            self._put(self._aimed(waiting))

    def _aimed(self, waiting: _Waiting) -> NewRecord:
        """The copy; that of a reply names the request as the copy has made it."""
        copy, reply = waiting.copy, waiting.reply
        token = None if reply is None else self._followed.token(copy.key or b"", waiting.op or "")
        if reply is None or token is None or not isinstance(reply.request, cmd.Reply):
            return copy
        request = reply.request._replace(
            effect_id=f"{token.identity}/{waiting.op}", attempt=token.attempt, epoch=token.epoch
        )
        value = encode_command(request, command_id=reply.command_id, operator=reply.operator)
        kept = tuple(header for header in copy.headers if header[0] not in (CONTENT_TYPE, SCHEMA))
        return copy._replace(value=value, headers=(*headers_of("command", value), *kept))

    def _put(self, copy: NewRecord) -> None:
        self._batch.append(copy)
        self._batch_bytes += len(copy.value or b"")

    def _release(self, keys: Iterable[bytes]) -> int:
        """Take what need not wait any more into the batch; return how much that is."""
        count = 0
        for key in keys:
            queue = self._waiting.get(key, deque())
            while queue and self._followed.ready(key, queue[0].op, queue[0].attempt):
                waiting = queue.popleft()
                self._waiting_bytes -= len(waiting.copy.value or b"")
                self._put(self._aimed(waiting))
                count += 1
            if not queue:
                self._waiting.pop(key, None)
        return count

    async def _wait(self, bytes_max: int) -> bool:
        """Follow the copy until no more than so much waits; False where nothing gets on for too long."""
        loop = asyncio.get_running_loop()
        moved_at = loop.time()
        while self._waiting_bytes > bytes_max or (bytes_max == 0 and self._waiting):
            if self._release(await self._followed.look(0.1)):
                moved_at = loop.time()
                await self._flush()
            elif loop.time() - moved_at > self._idle_seconds:
                return False
            await self._poll(0.0)
        return True

    async def _flush(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        for at in range(0, len(batch), BATCH_MAX):
            part = batch[at : at + BATCH_MAX]
            await self._write(part)
            if self._rate is not None:
                await self._rest(len(part) / self._rate)

    async def _write(self, batch: list[NewRecord]) -> None:
        """One transaction. What a rebalance has aborted is redone; a record that can never be written is left out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REDO_SECONDS
        records = batch
        while records:
            snapshot = await self._poll(0.0)
            if len(snapshot.owned) < self._partitions and loop.time() > deadline:
                raise CopyInterrupted(f"another copy to app {self._target.app} has begun, and this one ends")
            offsets = {record.partition: 0 for record in records}
            if set(offsets) <= set(snapshot.owned):
                try:
                    await self._producer.commit(snapshot, records, offsets)
                except SendRefused as refused:
                    if refused.index is None:
                        raise
                    records = [record for index, record in enumerate(records) if index != refused.index]
                    self._copied.too_large += 1
                    continue
                except CommitAborted:
                    if loop.time() > deadline:
                        raise
                else:
                    self._copied.commands += len(records)
                    return
            await self._poll(0.1)

    async def _rest(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self._poll(min(1.0, max(0.0, until - loop.time())))


def _attempt_of(reply: cmd.Reply) -> int:
    """The attempt that a reply waits for: a result, or an error that is final, settles any."""
    return 0 if reply.error is None or reply.error[0] == "terminal" else reply.attempt


def _command_of(record: Record, place: str) -> Command | None:
    """The command in a record; None for what is none."""
    try:
        return decode_command(record.key, record.value, default_id=place, offset=record.offset)
    except CommandUnreadable:
        return None


def with_id(record: Record, command: Command | None, place: str) -> tuple[bytes | None, Headers]:
    """The value and headers of a copy: as they are, but for an id that a command took from its place.

    The place of the copy is another one, so that a duplicate of it would not be known: its id is written into it.
    """
    if command is None or command.command_id != place or isinstance(command.request, cmd.Unsupported):
        return record.value, record.headers
    value = encode_command(command.request, command_id=place, operator=command.operator)
    kept = tuple(header for header in record.headers if header[0] not in (CONTENT_TYPE, SCHEMA))
    return value, (*kept, *headers_of("command", value))
