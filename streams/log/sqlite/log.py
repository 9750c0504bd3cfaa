"""The sqlite log itself: opening, topics, ends, groups, compaction."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import uuid4

from streams.errors import LogUnavailable
from streams.log.port import Isolation, NewRecord, Span, TopicInfo, TopicPartition, TopicSpec
from streams.log.rules import is_compacted
from streams.log.sqlite import groups
from streams.log.sqlite.compaction import compact_partition
from streams.log.sqlite.core import Core, topic_rows
from streams.log.sqlite.member import SqliteMember
from streams.log.sqlite.place import parse_url, refuse_network
from streams.log.sqlite.producer import Appender, SqliteProducer, initialise
from streams.log.sqlite.reader import SqliteReader
from streams.log.sqlite.rows import spans
from streams.log.sqlite.schema import prepare

__all__ = ["SqliteLog", "open_sqlite"]

TOMBSTONE_MS_DEFAULT = "86400000"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _untold(step: str) -> None:
    """What is told of steps where nobody asks."""


class SqliteLog:
    """See `streams.log.port.Log`. Made by `open_sqlite`; it belongs to the event loop that opened it."""

    def __init__(self, core: Core, on_step: Callable[[str], None]) -> None:
        self.url = core.place.url
        self._core = core
        self._on_step = on_step
        self._appender = Appender(core)
        self._members: list[SqliteMember] = []
        self._closed = False

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing, all or nothing."""
        for spec in specs:
            if spec.partitions < 1:
                raise ValueError(f"topic {spec.name} needs at least one partition, not {spec.partitions}")
        await self._core.writer.write(partial(_create, specs=specs))

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that exist."""
        found = await self._core.looker.run(lambda connection: topic_rows(connection, names))
        return {name: topic.info for name, topic in found.items()}

    async def list_topics(self) -> list[str]:
        """The names of all topics."""
        rows = await self._core.looker.run(lambda connection: connection.execute("SELECT name FROM topics").fetchall())
        return sorted(name for (name,) in rows)

    async def span(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> Span:  # noqa: ARG002 - nothing is ever pending
        """The ends of a partition now, the same for both isolations."""
        pid = await self._core.pid(topic, partition)
        return (await self._core.looker.run(lambda connection: spans(connection, [pid])))[pid]

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records outside any transaction of the engine; those of one call appear together."""
        return await self._appender.append(records)

    def reader(
        self,
        start: Mapping[TopicPartition, int],
        isolation: Isolation = "read_committed",  # noqa: ARG002 - nothing is visible before its commit
    ) -> SqliteReader:
        """A reader that begins at the given offsets."""
        return SqliteReader(self._core, start)

    def member(self, group: str, topic: str, *, client_id: str) -> SqliteMember:
        """A consumer that takes part in a group."""
        member = SqliteMember(self._core, group, topic, client_id)
        self._members.append(member)
        return member

    async def producer(self, transactional_id: str) -> SqliteProducer:
        """A transactional producer; whoever used the id before is fenced."""
        epoch = await self._core.writer.write(lambda connection: initialise(connection, transactional_id))
        return SqliteProducer(self._core, transactional_id, epoch, self._on_step)

    async def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group."""
        return await self._core.looker.run(partial(groups.offsets, group=group, topic=topic))

    async def rewind_group(self, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
        """Set the group's offsets while nobody is in it. Rows of dead members are waited for and expired."""
        for partition in offsets:
            await self._core.pid(topic, partition)
        await self._until_empty(group, topic)

        def body(connection: sqlite3.Connection) -> None:
            if _members(connection, group, topic):
                raise _has_members(group, _members(connection, group, topic))
            groups.set_offsets(connection, group, topic, offsets)

        await self._core.writer.write(body)

    async def compact(self, topic: str) -> None:
        """Compact now; a tombstone is kept for `delete.retention.ms`, so that a reader under way still meets it."""
        found = await self._core.topic(topic)
        if not is_compacted(found.info):
            raise ValueError(f"topic {topic} is not compacted: its cleanup.policy does not contain compact")
        kept_ms = int(found.info.config.get("delete.retention.ms", TOMBSTONE_MS_DEFAULT))
        for pid in found.pids:
            oldest = self._core.clock() - kept_ms + 1
            await self._core.writer.write(partial(compact_partition, pid=pid, tombstones_before=oldest))

    async def close(self) -> None:
        """End all threads. Its members are gone as after a crash; whoever wants to be told closes them first."""
        if not self._closed:
            self._closed = True
            try:
                # A frozen process may hold the write lock: then our members expire by their silence instead.
                async with asyncio.timeout(self._core.place.session_timeout):
                    await self._appender.close()
                    for member in self._members:
                        await member.vanish()
            except TimeoutError:
                pass
            finally:
                await self._core.stop()

    async def _until_empty(self, group: str, topic: str) -> None:
        look = partial(_members, group=group, topic=topic)
        first = await self._core.looker.run(look)
        self._core.pulse.observe(+1)
        try:
            deadline = self._core.loop.time() + 2 * self._core.place.session_timeout
            members = first
            while members:
                alive = {m: row for m, row in members.items() if first.get(m) != row}
                if alive or self._core.loop.time() > deadline:
                    raise _has_members(group, alive or members)
                await asyncio.sleep(self._core.place.heartbeat_interval / 2)
                members = await self._core.looker.run(look)
        finally:
            self._core.pulse.observe(-1)


async def open_sqlite(
    url: str,
    *,
    clock: Callable[[], int] = _now,
    on_stall: Callable[[str], None] | None = None,
    on_step: Callable[[str], None] = _untold,
) -> SqliteLog:
    """Open or create `sqlite:///PATH[?session_timeout_ms=3000&max_poll_interval_ms=300000]`.

    `clock` gives append times in milliseconds; `on_stall` is called on the event loop with one line of text when
    another process stands in the way for long; `on_step` with the name of each step of a commit, on the writing thread.
    """
    place = parse_url(url)
    refuse_network(place.path)
    core = Core(place, clock, on_stall or logging.getLogger("streams.log.sqlite").warning)
    try:
        await core.writer.write(lambda connection: prepare(connection, place.path))
    except BaseException:
        await core.stop()
        raise
    core.start()
    return SqliteLog(core, on_step)


def _create(connection: sqlite3.Connection, specs: Sequence[TopicSpec]) -> None:
    for spec in specs:
        row = (spec.name, str(uuid4()), spec.partitions, json.dumps(dict(spec.config), sort_keys=True))
        if connection.execute("INSERT OR IGNORE INTO topics VALUES (?, ?, ?, ?)", row).rowcount:
            places = [(spec.name, partition) for partition in range(spec.partitions)]
            connection.executemany("INSERT INTO partitions (topic, partition) VALUES (?, ?)", places)


def _members(connection: sqlite3.Connection, group: str, topic: str) -> dict[str, tuple[str, int, int]]:
    rows = connection.execute(
        "SELECT member, client, pid, beats FROM members WHERE grp = ? AND topic = ?", (group, topic)
    )
    return {member: (client, pid, beats) for member, client, pid, beats in rows}


def _has_members(group: str, members: Mapping[str, tuple[str, int, int]]) -> LogUnavailable:
    named = ", ".join(f"{client} (process {pid})" for client, pid, _ in members.values())
    return LogUnavailable(f"the group {group} has members: {named}; stop them first")
