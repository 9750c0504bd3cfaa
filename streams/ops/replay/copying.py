"""Copies commands of one app to another, each exactly once, however often it is broken off and begun again.

Each batch is one transaction, fenced by membership in a group of its own on the target's commands: two copies at once
are one too many, and the later one ends the earlier. Every copy names its source in a header, so a copy that is begun
again reads in the target how far it had come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import NamedTuple

from streams.client.reading import Progress, scan
from streams.errors import CommitAborted, LogError, SendRefused, StreamsError
from streams.kernel import commands as cmd
from streams.log.port import GroupSnapshot, Headers, Log, Member, NewRecord, Producer, Record, Span
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
_JOIN_SECONDS = 90.0
"""A copy that has died leaves its group by time-out."""
_REDO_SECONDS = 60.0


class CopyInterrupted(StreamsError):
    """The copy could not go on. What was copied stays; the same command again goes on from there."""


class Copied(NamedTuple):
    """What has been done: commands copied now, and those that an earlier try had copied; strays are left out."""

    commands: int = 0
    before: int = 0
    strays: int = 0
    left_out: int = 0


class _Ownership:
    """Nothing to do: each batch asks the snapshot of its own poll what is owned."""

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None: ...
    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None: ...
    async def lost(self, partitions: Mapping[int, int]) -> None: ...


class Copier:
    """One copy, from `source` to `target`, as its origin says."""

    def __init__(
        self, log: Log, source: Topics, target: Topics, origin: Origin, partitions: int, *, rate: float | None = None
    ) -> None:
        self._log = log
        self._source = source
        self._target = target
        self._origin = origin
        self._partitions = partitions
        self._rate = rate
        self._keys: Collection[bytes] = {run_id.encode() for run_id in origin.runs}
        self._member: Member
        self._producer: Producer
        self._copied = Copied()

    async def run(self, progress: Progress | None = None) -> Copied:
        """Copy all that is not copied yet. Raises `CopyInterrupted` where it cannot go on."""
        group = f"{self._target.app}.reprocess"
        self._producer = await self._log.producer(group)  # ends what an earlier try left open, and the try itself
        self._member = self._log.member(group, self._target.commands, client_id=group)
        try:
            await self._member.join(_Ownership())
            await self._copy_all(progress)
        except LogError as error:
            raise CopyInterrupted(f"{error}; give the same command again: it goes on from what is copied") from error
        finally:
            await self._member.close()
            await self._producer.close()
        return self._copied

    async def _copy_all(self, progress: Progress | None) -> None:
        await self._own_all()
        done = await self._done()
        for number in range(len(self._origin.start)):
            await self._copy(number, done.get(number, -1) + 1, progress)

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

    async def _done(self) -> dict[int, int]:
        """The last source offset that was copied, for each source partition: batches are whole, and in order."""
        found: dict[int, int] = {}
        for number in range(self._partitions):
            span = await self._settled(number)
            async for record in scan(self._log, self._target.commands, number, span.start, span.end):
                place = self._source_of(record)
                if place is not None:
                    found[place[0]] = max(found.get(place[0], -1), place[1])
                    self._copied = self._copied._replace(before=self._copied.before + 1)
        return found

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

    async def _copy(self, number: int, from_: int, progress: Progress | None) -> None:
        start = max(from_, self._origin.start[number])
        batches = self._batches(number, start, progress)
        async with aclosing(batches):
            async for batch in batches:
                await self._write(batch)
                if self._rate is not None:
                    await self._rest(len(batch) / self._rate)

    async def _batches(
        self, number: int, start: int, progress: Progress | None
    ) -> AsyncGenerator[list[NewRecord], None]:
        most = BATCH_MAX if self._rate is None else max(1, min(BATCH_MAX, int(self._rate)))
        batch: list[NewRecord] = []
        size = 0
        end = self._origin.end[number]
        async for record in scan(self._log, self._source.commands, number, start, end, progress=progress):
            copy = self._copy_of(record)
            if copy is None:
                continue
            batch.append(copy)
            size += len(copy.value or b"")
            if len(batch) >= most or size >= _BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _copy_of(self, record: Record) -> NewRecord | None:
        """The command under the same key; None for one that is not wanted, or that no worker would take."""
        key = record.key
        if self._keys and key not in self._keys:
            return None
        if key is not None and partition_of(key, len(self._origin.start)) != record.partition:
            self._copied = self._copied._replace(strays=self._copied.strays + 1)
            return None
        to = record.partition % self._partitions if key is None else partition_of(key, self._partitions)
        place = f"{self._origin.topic_id}/{record.partition}/{record.offset}"
        value, headers = with_id(record, place)
        return NewRecord(self._target.commands, to, key, value, (*headers, (COPIED_FROM, place.encode())))

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
                    records = [record for index, record in enumerate(records) if index != refused.index]
                    self._copied = self._copied._replace(left_out=self._copied.left_out + 1)
                    continue
                except CommitAborted:
                    if loop.time() > deadline:
                        raise
                else:
                    self._copied = self._copied._replace(commands=self._copied.commands + len(records))
                    return
            await self._poll(0.1)

    async def _rest(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self._poll(min(1.0, max(0.0, until - loop.time())))


def with_id(record: Record, place: str) -> tuple[bytes | None, Headers]:
    """The value and headers of a copy: as they are, but for an id that a command took from its place.

    The place of the copy is another one, so that a duplicate of it would not be known: its id is written into it.
    """
    try:
        command = decode_command(record.key, record.value, default_id=place, offset=record.offset)
    except CommandUnreadable:
        return record.value, record.headers
    if command.command_id != place or isinstance(command.request, cmd.Unsupported):
        return record.value, record.headers
    value = encode_command(command.request, command_id=place, operator=command.operator)
    kept = tuple(header for header in record.headers if header[0] not in (CONTENT_TYPE, SCHEMA))
    return value, (*kept, *headers_of("command"))
