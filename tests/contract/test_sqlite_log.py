"""The sqlite log passes the contract, and stands what happens to files and processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streams.errors import CommitAborted, InDoubt, LogDamaged, LogUnavailable, UsageError
from streams.log.port import NewRecord, TopicPartition
from streams.log.sqlite import SqliteLog, groups
from streams.log.sqlite.core import topic_rows
from streams.log.sqlite.lane import connect, transaction
from streams.log.sqlite.patience import Patience, lock_holder
from streams.log.sqlite.place import network_filesystem, parse_url
from streams.log.sqlite.pulse import Silence
from streams.log.sqlite.rows import FRESH_RECORDS_MAX, headers_in, headers_out, insert
from tests.contract.log_contract import EmbeddedContract
from tests.contract.sqlite_config import SqliteConfig
from tests.contract.worlds import World, case, new, until, values


class TestSqliteLog(SqliteConfig, EmbeddedContract):
    """All cases of the contract."""


class TestFiles(SqliteConfig):
    """Files that are not what they should be."""

    @case
    async def test_everything_is_there_after_closing_and_opening_again(self, world: World):
        log = await world.log()
        topic = await world.topic(log, "t", 2, cleanup_policy="compact")
        await log.append([new(topic, b"x"), new(topic, b"y")])
        worker, producer = await world.owner(log, topic, 2)
        await producer.commit(worker.snapshot, [], {0: 1})
        incarnation = worker.snapshot.owned[0]
        info = await log.describe_topics([topic])
        await log.close()
        await log.close()
        again = await world.log()
        assert await again.describe_topics([topic]) == info
        assert await values(again, topic) == [b"x", b"y"]
        assert await again.group_offsets(worker.group, topic) == {0: 1}
        late, _ = await world.owner(again, topic, 2)
        assert late.snapshot.owned[0] == incarnation + 1

    @case
    async def test_a_full_disk_aborts_a_commit_and_harms_nothing(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        await producer.commit(worker.snapshot, [new(events, b"before")], {0: 1})
        await log._core.writer.run(lambda connection: connection.execute("PRAGMA max_page_count=60"))
        with pytest.raises(CommitAborted, match="full"):
            await producer.commit(worker.snapshot, [new(events, bytes(400_000))], {0: 2})
        await log._core.writer.run(lambda connection: connection.execute("PRAGMA max_page_count=100000"))
        assert await worker.member.committed(0) == 1
        await producer.commit(worker.snapshot, [new(events, b"after")], {0: 2})
        assert await values(log, events) == [b"before", b"after"]

    @case
    async def test_many_open_a_new_file_at_once(self, world: World):
        logs = await asyncio.gather(*(world.log() for _ in range(8)))
        topics = await asyncio.gather(*(world.topic(log, "t", 3) for log in logs))
        found = await asyncio.gather(*(log.describe_topics(topics) for log in logs))
        assert all(some == found[0] for some in found)

    @case
    async def test_a_closed_log_says_so(self, world: World):
        log = await world.log()
        topic = await world.topic(log, "t")
        waiting = asyncio.create_task(log.reader({TopicPartition(topic, 0): 0}).read(1, 60.0))
        await asyncio.sleep(0.1)
        await log.close()
        with pytest.raises(ValueError, match="is closed"):
            await waiting
        with pytest.raises(ValueError, match="is closed"):
            await log.append([new(topic, b"x")])

    @case
    async def test_closing_does_not_wait_for_a_lock_that_is_never_released(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        await world.owner(log, commands)
        await log.append([new(commands, b"x")])
        holder = sqlite3.connect(self.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(log.append([new(commands, b"never")]))
        await asyncio.sleep(0.1)
        assert lock_holder(str(self.path)) in (os.getpid(), None)
        await log.close()
        with pytest.raises((LogUnavailable, asyncio.CancelledError)):
            await waiting
        holder.close()
        again = await world.log()
        assert await values(again, commands) == [b"x"]
        heir, _ = await world.owner(again, commands)
        assert heir.snapshot.owned == {0: 2}

    def test_garbage_is_no_database(self):
        self.path.write_bytes(b"this is no database, but long enough to be looked at " * 100)
        self.refused(LogDamaged, "no sqlite database")

    def test_a_damaged_file_says_so(self):
        asyncio.run(self.filled())
        size = self.path.stat().st_size
        with self.path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        self.refused(LogDamaged, "damaged")

    async def filled(self) -> None:
        log = await self.open()
        await log.close()

    def test_a_newer_file_is_left_alone(self):
        asyncio.run(self.filled())
        with sqlite3.connect(self.path) as connection:
            connection.execute("INSERT INTO streams_schema VALUES (99)")
        connection.close()
        self.refused(UsageError, "schema 99.*upgrade streams")

    def test_the_database_of_another_program_is_left_alone(self):
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE photos (a)")
        connection.close()
        self.refused(UsageError, "another program.*photos")

    def test_a_missing_folder_is_named(self):
        self.url = f"sqlite:///{self.path.parent}/missing/x.db"
        self.refused(UsageError, "missing does not exist")

    def test_a_file_that_cannot_be_opened_is_a_usage_error(self):
        self.path.mkdir()
        self.refused(UsageError, "cannot be opened")

    def refused(self, kind: type[Exception], match: str) -> None:
        with pytest.raises(kind, match=match):
            asyncio.run(self.open())

    def test_two_loops_in_two_threads_wake_each_other(self):
        async def body() -> None:
            world = World(self)
            log = await world.log()
            topic = await world.topic(log, "t")
            waiting = asyncio.create_task(asyncio.to_thread(asyncio.run, other(topic)))
            await asyncio.sleep(0.2)
            await log.append([new(topic, b"news")])
            assert await waiting == 1
            await world.close()

        async def other(topic: str) -> int:
            log = await self.open()
            found = await log.reader({TopicPartition(topic, 0): 0}).read(10, 60.0)
            await log.close()
            return len(found)

        asyncio.run(body())


class Foreign:
    """Another process, as far as this one can tell: it writes the same file through a connection of its own."""

    def __init__(self, log: SqliteLog) -> None:
        self.place = log._core.place
        self.patience = Patience(self.place.path, print)

    async def write(self, body: Callable[[sqlite3.Connection], Any]) -> None:
        await asyncio.to_thread(self._write, body)

    def _write(self, body: Callable[[sqlite3.Connection], Any]) -> None:
        with closing(connect(self.patience, "FULL")) as connection:
            transaction(connection, self.patience, body)

    async def append(self, record: NewRecord) -> None:
        await self.write(lambda c: insert(c, [record], topic_rows(c, [record.topic]), 0))


class TestWaking(SqliteConfig):
    """Who waits is told of what he waits for, and of nothing else."""

    def looks(self, log: SqliteLog) -> list[object]:
        """Every job of the reading thread from now on."""
        jobs: list[object] = []
        run = log._core.looker.run

        async def counted(job: Callable[[sqlite3.Connection], Any]) -> Any:
            jobs.append(job)
            return await run(job)

        log._core.looker.run = counted  # type: ignore[method-assign]
        return jobs

    @case
    async def test_a_reader_sleeps_through_commits_to_other_partitions(self, world: World):
        log, other = await world.log(), await world.log()
        topic = await world.topic(log, "t", 3)
        reader = log.reader({TopicPartition(topic, p): 0 for p in (0, 1)})
        assert await reader.read(10, 0) == []
        jobs = self.looks(log)
        waiting = asyncio.create_task(reader.read(10, 60.0))
        for n in range(20):
            await (log, other)[n % 2].append([new(topic, b"not his", partition=2)])
            await asyncio.sleep(0.003)
        assert not waiting.done()
        assert jobs == []
        await other.append([new(topic, b"his", partition=1)])
        assert [record.value for record in await waiting] == [b"his"]
        assert await log.reader({TopicPartition(topic, 1): 0}).read(10, 60.0) == waiting.result()

    @case
    async def test_what_this_process_wrote_is_read_without_a_look_at_the_file(self, world: World):
        log = await world.log()
        topic = await world.topic(log, "t", 2)
        worker, _ = await world.owner(log, topic, 2)
        reader = log.reader({TopicPartition(topic, p): 0 for p in (0, 1)})
        await reader.read(10, 0)
        for partition in (0, 1):
            await worker.member.resume(partition, 0)
        await worker.poll()
        jobs = self.looks(log)
        found, header = [], (("h", b"1"), ("empty", None))
        for n in range(20):
            worker.member._group_due = float("inf")
            tasks = [asyncio.create_task(reader.read(10, 60.0)), asyncio.create_task(worker.poll(60.0))]
            await asyncio.sleep(0)
            await log.append([new(topic, b"%d" % n)._replace(headers=header), new(topic, None, partition=1)])
            found += (await asyncio.gather(*tasks))[0]
        assert len(jobs) <= 2, "the watch of the group may have had news of it meanwhile"
        await until(lambda: len(worker.records) == len(found), worker)
        again = await log.reader({TopicPartition(topic, p): 0 for p in (0, 1)}).read(100, 0)
        assert len(again) == 40
        assert sorted(found) == sorted(again) == sorted(worker.records)

    @case
    async def test_a_large_commit_is_read_back_in_parts(self, world: World):
        log = await world.log()
        topic = await world.topic(log, "t")
        reader = log.reader({TopicPartition(topic, 0): 0})
        await reader.read(10, 0)
        for count in (FRESH_RECORDS_MAX + 1, 7):
            waiting = asyncio.create_task(reader.read(5, 60.0))
            await asyncio.sleep(0)
            await log.append([new(topic, b"%d" % n) for n in range(count)])
            found = await waiting
            assert len(found) == 5
            while len(found) < count:
                found += await reader.read(5, 60.0)
            assert [record.value for record in found] == [b"%d" % n for n in range(count)]

    @case
    async def test_another_process_wakes_those_who_wait(self, world: World):
        log = await world.log()
        topic = await world.topic(log, "t", 2)
        worker, _ = await world.owner(log, topic, 2)
        reader = log.reader({TopicPartition(topic, p): 0 for p in (0, 1)})
        await worker.member.resume(1, 0)
        foreign, began = Foreign(log), time.monotonic()
        for n in range(5):
            tasks = [asyncio.create_task(reader.read(10, 60.0)), asyncio.create_task(worker.poll(60.0))]
            await asyncio.sleep(0.03)
            await log.append([new(topic, b"ours", partition=0)])
            await foreign.append(new(topic, b"theirs", partition=1))
            await tasks[1]
            found = await tasks[0]
            while len(found) < 2:
                found += await reader.read(10, 60.0)
            assert [record.value for record in sorted(found)] == [b"ours", b"theirs"]
            assert worker.values == [b"theirs"] * (n + 1)
        assert time.monotonic() - began < 30

    @case
    async def test_a_change_of_the_group_wakes_a_member(self, world: World):
        log = await world.log()
        topic = await world.topic(log, "t", 2)
        worker, _ = await world.owner(log, topic, 2)
        foreign, began = Foreign(log), time.monotonic()
        polling = asyncio.create_task(worker.poll(60.0))
        await asyncio.sleep(0.03)
        row = (worker.group, topic, "them", "them", 1)
        await foreign.write(lambda connection: groups.enter(connection, row))
        await polling
        await until(lambda: len(worker.owned) == 1, worker)
        assert worker.told("revoked")
        polling = asyncio.create_task(worker.poll(60.0))
        await asyncio.sleep(0.03)
        await foreign.write(lambda connection: groups.leave(connection, worker.snapshot.token))
        await polling
        assert worker.told("lost")
        assert time.monotonic() - began < 30

    @case
    async def test_a_busy_member_sees_that_its_group_has_changed(self, world: World):
        log, other = await world.log(), await world.log()
        topic = await world.topic(log, "t", 2)
        worker, _ = await world.owner(log, topic, 2)
        worker.resume_from = 0
        await worker.member.resume(0, 0)
        foreign = Foreign(log)
        row = (worker.group, topic, "them", "them", 1)
        await foreign.write(lambda connection: groups.enter(connection, row))
        while not worker.told("revoked"):
            await other.append([new(topic, b"work")])
            await worker.poll(60.0)


class FailingCommit:
    """A connection whose commit fails."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.in_transaction = True
        self.did: list[str] = []

    def execute(self, statement: str) -> None:
        self.did.append(statement)
        if statement == "COMMIT":
            error = sqlite3.OperationalError("the test says so")
            error.sqlite_errorcode = self.code
            raise error


class TestParts:
    """Small parts that decide much."""

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (sqlite3.SQLITE_IOERR, InDoubt),
            (sqlite3.SQLITE_IOERR | 4 << 8, InDoubt),
            (sqlite3.SQLITE_FULL, CommitAborted),
        ],
    )
    def test_f04_only_a_failing_disk_leaves_a_commit_in_doubt(self, code, kind):
        connection = FailingCommit(code)
        with pytest.raises(kind):
            transaction(connection, Patience("x.db", print), lambda _: None)
        assert connection.did == ["BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"]

    @pytest.mark.parametrize(
        ("url", "path"),
        [
            ("sqlite:///a.db", str(Path("a.db").resolve())),
            ("sqlite:////tmp/a%20b.db?session_timeout_ms=500", "/tmp/a b.db"),
        ],
    )
    def test_urls(self, url, path):
        place = parse_url(url)
        assert place.path == os.path.realpath(path)
        assert place.session_timeout == (0.5 if "?" in url else 3.0)

    @pytest.mark.parametrize(
        "url",
        [
            "sqlite://a.db",
            "sqlite:///",
            "sqlite:a.db",
            "/a.db",
            "sqlite:///a?x=1",
            "sqlite:///a?session_timeout_ms=no",
            "sqlite:///a?session_timeout_ms=1",
            f"sqlite:///a?session_timeout_ms={'9' * 5000}",
            "sqlite://[",
            "sqlite:///a%00b",
        ],
    )
    def test_wrong_urls_are_usage_errors(self, url):
        with pytest.raises(UsageError):
            parse_url(url)

    def test_network_file_systems_are_recognised(self):
        mounts = "/dev/x / ext4 rw 0 0\nsrv:/e /home/a\\040b nfs4 rw 0 0\nx /home/a\\040b/local ext4 rw 0 0\nshort\n"
        assert network_filesystem("/home/a b/c", mounts) == "nfs4"
        assert network_filesystem("/home/a b", mounts) == "nfs4"
        assert network_filesystem("/home/a b/local/c", mounts) is None
        assert network_filesystem("/home/a bc", mounts) is None
        assert network_filesystem("/tmp", "") is None

    @pytest.mark.parametrize("headers", [(), (("a", None),), (("", b""), ("", b"\xff"), ("日本", b"x" * 300))])
    def test_headers_come_back(self, headers):
        assert headers_in(headers_out(headers)) == headers

    def test_a_member_is_dead_after_a_session_without_a_beat(self):
        silence = Silence(3.0)
        dead = [silence.dead({"a": 1, "b": n}, n * 0.5) for n in range(8)]
        assert dead == [[]] * 6 + [["a"]] * 2

    def test_f20_a_stall_that_hit_us_too_gives_everybody_a_new_session(self):
        silence = Silence(3.0)
        for n in range(5):
            assert silence.dead({"a": 1}, n * 0.5) == []
        assert silence.dead({"a": 1}, 100.0) == []
        assert silence.dead({"a": 1}, 100.5) == []
        assert [silence.dead({"a": 1}, 100.5 + n * 0.5) for n in range(1, 6)] == [[]] * 4 + [["a"]]

    def test_one_beat_in_time_is_enough(self):
        silence = Silence(3.0)
        assert not any(silence.dead({"a": n // 5}, n * 0.5) for n in range(100))
