"""The transactional producer of a sqlite log, and the appender that lets many callers share one flush."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence

from streams.errors import CommitAborted, Fenced, InDoubt, LogUnavailable
from streams.log.port import GroupSnapshot, NewRecord
from streams.log.rules import check_commit, refuse_unwritable
from streams.log.sqlite import groups
from streams.log.sqlite.core import Core
from streams.log.sqlite.lane import transaction
from streams.log.sqlite.rows import Topic, Written, insert

__all__ = ["Appender", "SqliteProducer"]

APPEND_RECORDS_MAX = 5_000


class SqliteProducer:
    """See `streams.log.port.Producer`. Nothing is ever left open: a transaction is one job on the writing thread."""

    def __init__(self, core: Core, transactional_id: str, epoch: int, on_step: Callable[[str], None]) -> None:
        self.id = transactional_id
        self._core = core
        self._epoch = epoch
        self._on_step = on_step
        self._unusable = ""

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        """Check, write and commit in one transaction."""
        check_commit(snapshot, records, offsets)
        if self._unusable:
            raise ValueError(f"the producer {self.id} {self._unusable}: make a new one")
        topics = await writable(self._core, records)

        def body(connection: sqlite3.Connection) -> Written:
            self._on_step("commit.begun")
            _check_epoch(connection, self.id, self._epoch)
            groups.check_fence(connection, snapshot, offsets)
            self._on_step("commit.checked")
            written = insert(connection, records, topics, self._core.clock())
            groups.set_offsets(connection, snapshot.group, snapshot.topic, offsets)
            self._on_step("commit.written")
            return written

        def job(connection: sqlite3.Connection) -> Written:
            written = transaction(connection, self._core.writer.patience, body)
            self._on_step("commit.ended")
            return written

        try:
            written = await self._core.writer.run(job)
        except LogUnavailable as error:
            raise CommitAborted(str(error)) from error
        except (InDoubt, asyncio.CancelledError):
            self._unusable = "has a commit in doubt"
            raise
        self._core.wrote(written)
        return written.offsets

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        """Fence whoever uses these ids; there is no open transaction to end."""
        await self._core.writer.write(lambda connection: [initialise(connection, i) for i in transactional_ids])

    async def close(self) -> None:
        """Forget the id, unless somebody else has it now."""
        if not self._unusable:
            self._unusable = "is closed"
            own = (self.id, self._epoch)
            await self._core.writer.write(
                lambda connection: connection.execute("DELETE FROM producers WHERE id = ? AND epoch = ?", own)
            )


class Appender:
    """Many coroutines that append at once share one transaction, and so one flush of the disk."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: list[tuple[Sequence[NewRecord], Mapping[str, Topic], asyncio.Future[list[int]]]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Write `records`, all or none, and wait until they are durable."""
        topics = await writable(self._core, records)
        done: asyncio.Future[list[int]] = self._core.loop.create_future()
        self._waiting.append((records, topics, done))
        if self._flusher is None:
            self._flusher = self._core.loop.create_task(self._flush())
        return await done

    async def close(self) -> None:
        """Wait until what was accepted is written."""
        if self._flusher is not None:
            await self._flusher

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await self._write(self._next())
        finally:
            self._flusher = None

    def _next(self) -> list[tuple[Sequence[NewRecord], Mapping[str, Topic], asyncio.Future[list[int]]]]:
        taken, count = 0, 0
        while taken < len(self._waiting) and count < APPEND_RECORDS_MAX:
            count += len(self._waiting[taken][0])
            taken += 1
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return batch

    async def _write(
        self, batch: Sequence[tuple[Sequence[NewRecord], Mapping[str, Topic], asyncio.Future[list[int]]]]
    ) -> None:
        records = [record for some, _, _ in batch for record in some]
        topics = {name: topic for _, some, _ in batch for name, topic in some.items()}
        try:
            written = await self._core.writer.write(
                lambda connection: insert(connection, records, topics, self._core.clock())
            )
        except BaseException as error:
            for _, _, done in batch:
                if not done.done() and isinstance(error, Exception):
                    done.set_exception(error)
                done.cancel()
            if not isinstance(error, Exception):
                raise
            return
        self._core.wrote(written)
        at = 0
        for some, _, done in batch:
            if not done.done():
                done.set_result(written.offsets[at : at + len(some)])
            at += len(some)


async def writable(core: Core, records: Sequence[NewRecord]) -> dict[str, Topic]:
    """The topics of these records; raise SendRefused if one of them could never be written."""
    topics = await core.topics({record.topic for record in records})
    refuse_unwritable(records, {name: topic.info for name, topic in topics.items()})
    return topics


def initialise(connection: sqlite3.Connection, transactional_id: str) -> int:
    """Fence whoever used this id before; return the new epoch."""
    connection.execute(
        "INSERT INTO producers VALUES (?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1", (transactional_id,)
    )
    return _epoch(connection, transactional_id)


def _epoch(connection: sqlite3.Connection, transactional_id: str) -> int:
    row = connection.execute("SELECT epoch FROM producers WHERE id = ?", (transactional_id,)).fetchone()
    return int(row[0]) if row else 0


def _check_epoch(connection: sqlite3.Connection, transactional_id: str, epoch: int) -> None:
    if _epoch(connection, transactional_id) != epoch:
        raise Fenced(f"the transactional id {transactional_id} was initialised by somebody else since")
