"""What a ledger in sqlite promises beside the contract: files that are none, locks that others hold, its handlers."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from streams.effects.port import Status, Word
from streams.effects.sqlite import open_sqlite_ledger, schema
from streams.errors import LedgerError, LedgerMismatch, LedgerUnavailable, UsageError
from tests.contract.ledgers import LEASE, SqliteConfig, World, ask, case, claim_one, done


class TestFiles(SqliteConfig):
    """Files and addresses that are not what they should be."""

    @case
    async def test_a_ledger_outlives_its_handles(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([done(await claim_one(ledger, ask("k")))])
        await ledger.close()
        await ledger.close()
        with pytest.raises(ValueError, match="is closed"):
            await ledger.now_us() and await ledger.look([])
        assert (await claim_one(await world.ledger(), ask("k"))).word is Word.DONE

    @case
    async def test_without_tables_it_says_who_makes_them(self, world: World):
        ledger = world.keep(await open_sqlite_ledger(self.url))
        with pytest.raises(LedgerMismatch, match="streams subscribe"):
            await ledger.check()
        with pytest.raises(LedgerMismatch, match="streams subscribe"):
            await claim_one(ledger, ask("k"))

    @case
    async def test_tables_of_a_newer_release_are_refused(self, world: World):
        ledger = await world.ledger()
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("INSERT INTO streams_ledger_version VALUES (?)", (schema.VERSION + 1,))
        for refused in (ledger.check, ledger.migrate):
            with pytest.raises(LedgerMismatch, match=r"newer release.*upgrade streams here"):
                await refused()

    @case
    async def test_tables_of_others_in_the_file_are_left_alone(self, world: World):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("CREATE TABLE mine (x)")
            connection.execute("INSERT INTO mine VALUES (1)")
        await claim_one(await world.ledger(), ask("k"))
        with closing(sqlite3.connect(self.path)) as connection:
            assert connection.execute("SELECT x FROM mine").fetchall() == [(1,)]

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("sqlite:ledger.db", "is no address of a ledger"),
            ("sqlite://host/ledger.db", "is no address of a ledger"),
            ("sqlite:///", "is no address of a ledger"),
            ("sqlite:///x.db?timeout=3", "is no address of a ledger"),
            ("sqlite:///x\0.db", "is no address of a ledger"),
            ("sqlite:///[", "does not exist|no address|is no sqlite|cannot be opened"),
            ("sqlite:////no/such/folder/ledger.db", "does not exist"),
        ],
    )
    def test_an_address_that_is_none_is_told_in_a_line(self, url: str, words: str, tmp_path: Path, monkeypatch):
        monkeypatch.chdir(tmp_path)

        async def opened() -> None:
            await (await open_sqlite_ledger(url)).close()

        if url == "sqlite:///[":
            asyncio.run(opened())  # a strange name of a file, but a name
            return
        with pytest.raises(UsageError, match=words) as caught:
            asyncio.run(opened())
        assert "\n" not in str(caught.value)

    def test_another_file_is_refused(self, tmp_path: Path):
        path = tmp_path / "notes.txt"
        path.write_text("no database at all, but long enough to have a header" * 50)
        with pytest.raises(UsageError, match="is no sqlite database"):
            asyncio.run(open_sqlite_ledger(f"sqlite:///{path}"))
        assert path.read_text().startswith("no database")

    def test_a_folder_is_refused(self, tmp_path: Path):
        with pytest.raises(UsageError, match="cannot be opened"):
            asyncio.run(open_sqlite_ledger(f"sqlite:///{tmp_path}"))

    def test_a_network_file_system_is_refused(self, tmp_path: Path, monkeypatch):
        mounts = f"server:/x {tmp_path} nfs4 rw 0 0\n"
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts)
        with pytest.raises(UsageError, match=r"nfs4.*postgresql://"):
            asyncio.run(open_sqlite_ledger(f"sqlite:///{tmp_path}/ledger.db"))

    @pytest.mark.slow
    @case
    async def test_a_fork_cannot_use_it(self, world: World):
        ledger = await world.ledger()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                ledger.claim([ask("k")], "child", LEASE).send(None)
            except UsageError as error:
                status = 0 if "must not cross a fork" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0  # noqa: ASYNC222 - it ends at once


class TestLocks(SqliteConfig):
    """What another connection holds."""

    @case
    async def test_a_lock_that_is_not_given_up_is_told_and_nothing_is_written(self, world: World):
        await world.ledger()
        ledger = world.keep(await open_sqlite_ledger(self.url, busy_seconds=0.3))
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable, match="waiting for the write lock"):
                await claim_one(ledger, ask("k"))
            assert await ledger.look([ask("k").key]) == {}
            other.execute("ROLLBACK")
        assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT

    @case
    async def test_what_is_known_is_answered_while_another_writes(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([done(await claim_one(ledger, ask("k")))])
        quick = world.keep(await open_sqlite_ledger(self.url, busy_seconds=0.0, clock=self.clock))
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert (await claim_one(quick, ask("k"))).word is Word.DONE


class TestHandlers(SqliteConfig):
    """Plain functions in the ledger's thread."""

    @pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "BEGIN", "END"])
    def test_a_handler_cannot_end_the_transaction(self, statement: str):
        def body(connection, verdicts):
            connection.execute("CREATE TABLE shop (name)")
            connection.execute(statement)
            return [done(verdict) for verdict in verdicts]

        self._refused(body)

    def test_a_handler_cannot_commit_by_the_connection(self):
        def body(connection, verdicts):
            connection.execute("CREATE TABLE shop (name)")
            connection.commit()
            return [done(verdict) for verdict in verdicts]

        self._refused(body)

    def _refused(self, body) -> None:
        @case
        async def refused(self, world: World):
            ledger = await world.ledger()
            with pytest.raises(LedgerError, match="the ledger does that"):
                await ledger.transact([ask("k")], "a", body)
            assert await self.rows() == []
            assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT

        refused(self)

    @case
    async def test_what_a_handler_does_to_its_connection_troubles_nobody_else(self, world: World):
        ledger = await world.ledger()

        def body(connection, verdicts):
            connection.row_factory = lambda cursor, row: dict(
                zip([name for name, *_ in cursor.description], row, strict=True)
            )
            assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
            connection.text_factory = bytes
            return [done(verdict) for verdict in verdicts]

        for name in ("a", "b"):
            (verdict,) = await ledger.transact([ask(name)], "a", body)
            assert verdict.entry.status is Status.DONE
        assert (await ledger.look([ask("a").key]))[ask("a").key].status is Status.DONE

    @case
    async def test_savepoints_are_the_handlers_own(self, world: World):
        ledger = await world.ledger()

        def body(connection, verdicts):
            connection.execute("CREATE TABLE shop (name)")
            for verdict in verdicts:
                connection.execute("SAVEPOINT one")
                connection.execute("INSERT INTO shop VALUES (?)", (verdict.entry.key.key,))
                if verdict.entry.key.key == "bad":
                    connection.execute("ROLLBACK TO one")
                connection.execute("RELEASE one")
            return [done(verdict) for verdict in verdicts if verdict.entry.key.key != "bad"]

        await ledger.transact([ask("good"), ask("bad")], "a", body)
        assert await self.rows() == ["good"]
        assert (await claim_one(ledger, ask("good"))).entry.status is Status.DONE
        assert (await claim_one(ledger, ask("bad"))).word is Word.CARRY_OUT

    @case
    async def test_a_handlers_own_error_of_sqlite_comes_out_as_it_is(self, world: World):
        ledger = await world.ledger()

        def twice(connection, verdicts):
            connection.execute("CREATE TABLE shop (name PRIMARY KEY)")
            connection.executemany("INSERT INTO shop VALUES (?)", [("x",), ("x",)])

        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            await ledger.transact([ask("k")], "a", twice)
        with pytest.raises(sqlite3.OperationalError, match="no such table: nowhere"):
            await ledger.transact([ask("k")], "a", lambda c, _: c.execute("SELECT * FROM nowhere"))
        assert await self.rows() == []

    @case
    async def test_a_coroutine_function_is_refused(self, world: World):
        ledger = await world.ledger()

        async def body(connection, verdicts):
            return []

        with pytest.raises(TypeError, match="write `def`"):
            await ledger.transact([ask("k")], "a", body)
        assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT
