"""What a ledger in PostgreSQL promises beside the contract: lost answers, restarts, its handlers, its address."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psycopg
import pytest

from streams.dev import Postgres, start_postgres, stop_postgres
from streams.dev.process import free_port, wait_for
from streams.effects.port import Claim, Ledger, Query, Status, Word
from streams.effects.postgres import open_postgres_ledger, schema, server
from streams.errors import LedgerError, LedgerMismatch, LedgerUnavailable, UsageError
from tests.contract.cutting import Cut, Proxy, cutting
from tests.contract.ledgers import LEASE, PostgresConfig, World, ask, case, claim_one, done, eventually, outcome

pytestmark = pytest.mark.postgres

COMMIT = b"COMMIT\0"  # as it is sent; each BEGIN names READ COMMITTED


async def pay(connection, verdicts):
    """A handler that writes a row."""
    for verdict in verdicts:
        if verdict.word is Word.CARRY_OUT:
            await connection.execute("INSERT INTO shop VALUES (%s)", (verdict.entry.key.key,))
    return [done(verdict) for verdict in verdicts if verdict.word is Word.CARRY_OUT]


class TestLostAnswers(PostgresConfig):
    """The connection is cut before or after the server has committed."""

    async def cut(self, world: World, proxy: Proxy) -> Ledger:
        """A ledger behind the proxy, which has connected once."""
        await world.ledger()
        ledger = world.keep(await open_postgres_ledger(proxy.url))
        await ledger.now_us()
        return ledger

    @pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
    def test_f17_a_first_claim_whose_answer_is_lost_is_known_again(self, when: Cut):
        self._claimed_again(b"INSERT INTO", when, known=False)

    @pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
    def test_f17_a_retry_whose_answer_is_lost_is_known_again(self, when: Cut):
        self._claimed_again(COMMIT, when, known=True)

    def _claimed_again(self, word: bytes, when: Cut, *, known: bool) -> None:
        @case
        async def claimed(self, world: World):
            async with cutting(self.url) as proxy:
                ledger = await self.cut(world, proxy)
                if known:
                    first = await claim_one(ledger, ask("k"))
                    await ledger.settle([done(first)._replace(status=Status.FAILED, due_in=0)])
                proxy.arm(word, when)
                verdict = await claim_one(ledger, ask("k"))
                assert (proxy.cut, verdict.word, verdict.entry.deliveries) == (1, Word.CARRY_OUT, 1 + known)
                assert await ledger.settle([done(verdict)]) == [True]

        claimed(self)

    @pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
    def test_an_outcome_whose_answer_is_lost_is_in_doubt_and_may_be_asked_again(self, when: Cut):
        @case
        async def settled(self, world: World):
            async with cutting(self.url) as proxy:
                ledger = await self.cut(world, proxy)
                verdict = await claim_one(ledger, ask("k"))
                proxy.arm(COMMIT, when)
                with pytest.raises(LedgerUnavailable):
                    await ledger.settle([done(verdict)])
                assert proxy.cut == 1
                assert await ledger.settle([done(verdict)]) == [when is Cut.BEFORE]
                assert (await claim_one(ledger, ask("k"))).word is Word.DONE

        settled(self)

    @pytest.mark.parametrize("when", [Cut.BEFORE, Cut.AFTER])
    def test_f17_a_handler_whose_commit_is_in_doubt_has_happened_once_in_the_end(self, when: Cut):
        @case
        async def transacted(self, world: World):
            async with cutting(self.url) as proxy:
                ledger = await self.cut(world, proxy)
                proxy.arm(COMMIT, when)
                with pytest.raises(LedgerUnavailable):
                    await ledger.transact([ask("k")], "a", pay)
                assert (proxy.cut, await self.rows()) == (1, ["k"] if when is Cut.AFTER else [])
                (again,) = await ledger.transact([ask("k")], "a", pay)
                assert again.word is (Word.DONE if when is Cut.AFTER else Word.CARRY_OUT)
                assert (again.entry.status, await self.rows()) == (Status.DONE, ["k"])

        transacted(self)

    @case
    async def test_a_connection_that_is_cut_inside_a_handler_is_nobodys_fault(self, world: World):
        async with cutting(self.url) as proxy:
            ledger = await self.cut(world, proxy)
            proxy.arm(b"INSERT INTO shop", Cut.BEFORE)
            with pytest.raises(LedgerUnavailable):
                await ledger.transact([ask("k")], "a", pay)

            async def wrapped(connection, verdicts):
                try:
                    return await pay(connection, verdicts)
                except psycopg.Error as error:
                    raise RuntimeError("the handler says") from error

            proxy.arm(b"INSERT INTO shop", Cut.BEFORE)
            with pytest.raises(LedgerUnavailable, match="cut inside a handler: the handler says"):
                await ledger.transact([ask("k")], "a", wrapped)
            assert await self.rows() == []
            assert await ledger.look([ask("k").key]) == {}

    @case
    async def test_dead_connections_are_replaced_before_a_handler_is_begun(self, world: World):
        ledger = await world.ledger()
        await asyncio.gather(*(ledger.now_us() for _ in range(20)))
        with psycopg.connect(self.url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            (verdict,) = await ledger.transact([ask("k")], "a", pay)
            assert verdict.entry.status is Status.DONE
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await ledger.note_published([outcome(verdict)])
            assert (await claim_one(ledger, ask("k"))).entry.published

    @case
    async def test_a_server_that_never_answers_is_given_up(self, world: World):
        async with cutting(self.url) as proxy:
            ledger = await self.cut(world, proxy)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(server, "ANSWER_SECONDS", 0.5)
                proxy.arm(b"INSERT INTO", Cut.HUNG)
                verdict = await claim_one(ledger, ask("k"))
            assert (proxy.cut, verdict.word) == (1, Word.CARRY_OUT)


async def until_settled(ledger: Ledger, verdict) -> bool:
    while True:
        try:
            return await ledger.settle([done(verdict)]) == [True]
        except LedgerUnavailable:
            await asyncio.sleep(0.1)


def children_of(pid: int) -> list[int]:
    """The processes that this one has started, which for PostgreSQL are its connections and its helpers."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
class TestRestarts:
    """The server is stopped, killed, frozen."""

    def test_a_server_that_is_away_is_told_and_healed_from(self, own_postgres: Postgres):
        async def body() -> None:
            ledger = await open_postgres_ledger(own_postgres.url)
            await ledger.migrate()
            verdicts = await ledger.claim([ask("a"), ask("b")], "a", LEASE)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ledger._server._pool, "timeout", 1.0)
                stop_postgres(own_postgres)
                for work in (ledger.settle([done(verdicts[0])]), ledger.now_us()):
                    with pytest.raises(LedgerUnavailable):
                        await work
            start_postgres(own_postgres.folder, tied=True)
            assert await asyncio.wait_for(until_settled(ledger, verdicts[0]), 60)
            await ledger.close()

        asyncio.run(body())

    def test_a_server_that_is_frozen_is_given_up_and_found_again(self, own_postgres: Postgres):
        async def body() -> None:
            ledger = await open_postgres_ledger(f"{own_postgres.url}?connect_timeout=2")
            await ledger.migrate()
            verdict = await claim_one(ledger, ask("k"))
            frozen = [own_postgres.pid, *children_of(own_postgres.pid)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ledger._server._pool, "timeout", 2.0)
                patch.setattr(server, "ANSWER_SECONDS", 1.0)
                try:
                    for pid in frozen:
                        os.kill(pid, signal.SIGSTOP)
                    for work in (ledger.settle([done(verdict)]), ledger.now_us()):
                        with pytest.raises(LedgerUnavailable):
                            await work
                finally:
                    for pid in frozen:
                        os.kill(pid, signal.SIGCONT)
            async with asyncio.timeout(60):
                while (await until_answered(ledger)).word is not Word.DONE:
                    await until_settled(ledger, verdict)
            await ledger.close()

        async def until_answered(ledger: Ledger):
            while True:
                try:
                    return await claim_one(ledger, ask("k"))
                except LedgerUnavailable:
                    await asyncio.sleep(0.1)

        asyncio.run(body())

    @pytest.mark.parametrize("kill", [False, True])
    def test_f17_a_restart_under_load_loses_and_repeats_nothing(self, own_postgres: Postgres, kill: bool):
        with psycopg.connect(own_postgres.url) as connection:
            connection.execute("CREATE TABLE shop (name text)")
        asks = [ask(f"k{n:04}") for n in range(1_200)]

        async def serve(ledger: Ledger, part: list) -> None:
            for start in range(0, len(part), 10):
                while True:
                    try:
                        await ledger.transact(part[start : start + 10], "a", pay)
                        break
                    except LedgerUnavailable:
                        await asyncio.sleep(0.05)

        async def body() -> None:
            ledger = await open_postgres_ledger(own_postgres.url)
            await ledger.migrate()
            running = [asyncio.create_task(serve(ledger, asks[n::4])) for n in range(4)]
            running.append(asyncio.create_task(serve(ledger, asks[::2])))
            await eventually(lambda: some(ledger))
            if kill:
                os.kill(own_postgres.pid, signal.SIGQUIT)  # no farewell, and recovery from its log
                await asyncio.to_thread(wait_for, lambda: not own_postgres.alive, 30.0)
            else:
                await asyncio.to_thread(stop_postgres, own_postgres)
            await asyncio.to_thread(start_postgres, own_postgres.folder, tied=True)
            async with asyncio.timeout(90):
                await asyncio.gather(*running)
            await ledger.close()
            found.append(self.found(own_postgres))  # here: the server goes with the thread that has started it

        async def some(ledger: Ledger) -> bool:
            return len(await ledger.look([wanted.key for wanted in asks])) > 100

        found: list[tuple[list[str], list[tuple[str, int]]]] = []
        asyncio.run(body())
        assert found == [([wanted.key.key for wanted in asks], [("done", len(asks))])]

    def found(self, postgres: Postgres) -> tuple[list[str], list[tuple[str, int]]]:
        """The rows of the handlers, and how many entries there are of each status."""
        with psycopg.connect(postgres.url) as connection:
            rows = connection.execute("SELECT name FROM shop ORDER BY name").fetchall()
            states = connection.execute("SELECT status, count(*) FROM streams_ledger GROUP BY status").fetchall()
        return [name for (name,) in rows], states


class TestHandlers(PostgresConfig):
    """Coroutine functions in the open transaction."""

    @pytest.mark.parametrize("statements", [["COMMIT"], ["ROLLBACK"], ["COMMIT", "BEGIN"], ["ROLLBACK", "BEGIN"]])
    def test_a_handler_that_ends_the_transaction_is_told(self, statements: list[str]):
        async def body(connection, verdicts):
            for statement in statements:
                await connection.execute(statement)
            return [done(verdict) for verdict in verdicts]

        @case
        async def told(self, world: World):
            ledger = await world.ledger()
            with pytest.raises(LedgerError, match="ended the ledger's transaction by itself"):
                await ledger.transact([ask("k")], "a", body)
            await world.sleep(0.01)
            expected = Word.LOOK_UP if statements[0] == "COMMIT" else Word.CARRY_OUT
            assert (await claim_one(ledger, ask("k"))).word is expected

        told(self)

    @case
    async def test_a_commit_by_the_connection_is_refused(self, world: World):
        ledger = await world.ledger()

        async def body(connection, verdicts):
            await connection.execute("INSERT INTO shop VALUES ('x')")
            await connection.commit()

        with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
            await ledger.transact([ask("k")], "a", body)
        assert await self.rows() == []
        assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT

    @case
    async def test_a_handler_that_goes_on_after_an_error_is_told_of_savepoints(self, world: World):
        ledger = await world.ledger()

        async def careless(connection, verdicts):
            try:
                await connection.execute("SELECT * FROM nowhere")
            except psycopg.Error:
                return [done(verdict) for verdict in verdicts]

        with pytest.raises(LedgerError, match="savepoint"):
            await ledger.transact([ask("k")], "a", careless)

        async def careful(connection, verdicts):
            try:
                async with connection.transaction():
                    await connection.execute("SELECT * FROM nowhere")
            except psycopg.Error:
                return [done(verdict) for verdict in verdicts]

        (verdict,) = await ledger.transact([ask("k")], "a", careful)
        assert (verdict.word, verdict.entry.status) == (Word.CARRY_OUT, Status.DONE)

    @case
    async def test_a_handlers_own_error_of_the_database_comes_out_as_it_is(self, world: World):
        ledger = await world.ledger()

        async def twice(connection, verdicts):
            await pay(connection, verdicts)
            await pay(connection, verdicts)

        with pytest.raises(psycopg.errors.UniqueViolation):
            await ledger.transact([ask("k")], "a", twice)
        assert await self.rows() == []
        assert await ledger.look([ask("k").key]) == {}

    @case
    async def test_an_error_that_each_try_would_meet_is_the_handlers_and_that_of_a_full_disk_is_not(self, world: World):
        ledger = await world.ledger()
        other = psycopg.connect(self.url)
        other.execute("LOCK TABLE shop")
        slow = "SET LOCAL statement_timeout = 50; SELECT pg_sleep(1000)"
        large = "SELECT " + ", ".join("1" for _ in range(2_000))
        for statement, error in (
            (slow, psycopg.errors.QueryCanceled),
            (large, psycopg.errors.TooManyColumns),
            ("LOCK TABLE shop NOWAIT", psycopg.errors.LockNotAvailable),
            ("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '53100'; END $$", LedgerUnavailable),
        ):

            async def body(connection, verdicts, statement=statement):
                await connection.execute(statement)
                return []

            with pytest.raises(error):
                await ledger.transact([ask("k")], "a", body)
        other.close()
        assert await ledger.look([ask("k").key]) == {}

    @case
    async def test_a_deadlock_between_handlers_passes(self, world: World):
        ledger = await world.ledger()
        with psycopg.connect(self.url) as connection:
            connection.execute("INSERT INTO shop VALUES ('x'), ('y')")
        both = asyncio.Barrier(2)

        async def serve(name: str, order: str) -> None:
            first = True

            async def body(connection, verdicts):
                nonlocal first
                await connection.execute("UPDATE shop SET name = name WHERE name = %s", (order[0],))
                if first:
                    first = False
                    await both.wait()
                await connection.execute("UPDATE shop SET name = name WHERE name = %s", (order[1],))
                return [done(verdict) for verdict in verdicts]

            while True:
                try:
                    await ledger.transact([ask(name)], name, body)
                    return
                except LedgerUnavailable as error:
                    met.append(str(error))

        met: list[str] = []
        await asyncio.gather(serve("a", "xy"), serve("b", "yx"))
        assert met  # who begins again may be quicker than who was let through, and meet it once more
        assert all("deadlock" in text for text in met)
        found = await ledger.look([ask("a").key, ask("b").key])
        assert {entry.status for entry in found.values()} == {Status.DONE}

    @case
    async def test_a_plain_function_is_refused(self, world: World):
        ledger = await world.ledger()
        with pytest.raises(TypeError, match="write `async def`"):
            await ledger.transact([ask("k")], "a", lambda connection, verdicts: [])
        assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT

    @case
    async def test_what_a_handler_does_to_its_connection_troubles_nobody_else(self, world: World):
        ledger = await world.ledger()

        async def body(connection, verdicts):
            connection.row_factory = psycopg.rows.dict_row
            await connection.execute("SET LOCAL DateStyle = 'SQL'")
            await connection.execute("SET LOCAL timezone = 'Asia/Shanghai'")
            await connection.execute("SET search_path TO pg_catalog")
            await connection.execute("SET LOCAL search_path TO information_schema")
            return [done(verdict) for verdict in verdicts]

        for name in ("a", "b", "c"):
            (verdict,) = await ledger.transact([ask(name)], "a", body)
            assert verdict.entry.status is Status.DONE

    @case
    async def test_a_handler_that_is_cancelled_leaves_nothing(self, world: World):
        ledger = await world.ledger()
        inside = asyncio.Event()

        async def body(connection, verdicts):
            await pay(connection, verdicts)
            inside.set()
            await connection.execute("SELECT pg_sleep(1000)")

        task = asyncio.create_task(ledger.transact([ask("k")], "a", body))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await self.rows() == []
        assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT

    @case
    async def test_a_key_that_a_handler_holds_too_long_is_given_up_for_now(self, world: World):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "LOCK_SECONDS", 1)
            ledger, other = await world.ledger(), await world.ledger()
        held, inside = asyncio.Event(), asyncio.Event()

        async def body(connection, verdicts):
            inside.set()
            await held.wait()
            return [done(verdict) for verdict in verdicts]

        task = asyncio.create_task(ledger.transact([ask("k")], "a", body))
        await inside.wait()
        with pytest.raises(LedgerUnavailable, match="lock"):
            await claim_one(other, ask("k"), "b")
        held.set()
        await task
        assert (await claim_one(other, ask("k"), "b")).word is Word.DONE


class TestAddresses(PostgresConfig):
    """Addresses, tables and rights that are not what they should be."""

    @case
    async def test_the_address_is_shown_without_secrets(self, world: World):
        secret = self.url.replace("streams@", "streams:hunter2@") + "?sslmode=disable&password=hunter3"
        ledger = world.keep(await open_postgres_ledger(secret))
        assert "hunter" not in ledger.url
        assert ledger.url == f"{self.url}?sslmode=disable"

    @pytest.mark.parametrize(
        ("url", "words", "error"),
        [
            ("postgresql://a:hunter2@[", "is no address", UsageError),
            ("postgresql://a:hunter2@127.0.0.1:x/db", "is no address", UsageError),
            ("postgresql://a:hunter2@127.0.0.1/db?nosuch=1&password=hunter3", "is no address", UsageError),
            ("mysql://a:hunter2@127.0.0.1/db", "is no address", UsageError),
            ("postgresql://a:hunter2@127.0.0.1/d\0b", "is no address", UsageError),
            ("postgresql://a:hunter2@127.0.0.1:PORT/db", "cannot be reached.*refused", LedgerUnavailable),
            ("postgresql://a:hunter2@no.such.host.invalid/db", "cannot be reached", LedgerUnavailable),
        ],
    )
    def test_a_bad_address_is_one_clear_line(self, url: str, words: str, error: type[Exception]):
        with pytest.raises(error, match=words) as caught:
            asyncio.run(open_postgres_ledger(url.replace("PORT", str(free_port()))))
        assert "\n" not in str(caught.value)
        assert "hunter" not in str(caught.value)

    @pytest.mark.parametrize(
        ("part", "other", "words"),
        [("/test_", "/missing_", "does not exist"), ("streams@", "nobody@", 'role "nobody" does not exist')],
    )
    def test_what_the_server_turns_down_is_one_clear_line(self, part: str, other: str, words: str):
        with pytest.raises(UsageError, match=f"turned the connection down: .*{words}") as caught:
            asyncio.run(open_postgres_ledger(self.url.replace(part, other)))
        assert "\n" not in str(caught.value)

    @case
    async def test_without_tables_it_says_who_makes_them(self, world: World):
        ledger = world.keep(await open_postgres_ledger(self.url))
        with pytest.raises(LedgerMismatch, match="streams subscribe"):
            await ledger.check()
        with pytest.raises(LedgerMismatch, match="streams subscribe"):
            await claim_one(ledger, ask("k"))

    @case
    async def test_tables_of_a_newer_release_are_refused(self, world: World):
        ledger = await world.ledger()
        with psycopg.connect(self.url) as connection:
            connection.execute("INSERT INTO streams_ledger_version VALUES (%s)", (schema.VERSION + 1,))
        for refused in (ledger.check, ledger.migrate):
            with pytest.raises(LedgerMismatch, match=r"newer release.*upgrade streams here"):
                await refused()

    @case
    async def test_a_user_without_rights_is_told_which_and_needs_none_to_create(self, world: World):
        role = f"worker_{self.url[-8:]}"
        with psycopg.connect(self.url, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE {role} LOGIN")
            try:
                ledger = world.keep(await open_postgres_ledger(self.url.replace("streams@", f"{role}@")))
                with pytest.raises(UsageError, match="permission denied for schema"):
                    await ledger.migrate()
                await world.ledger()
                owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
                with pytest.raises(UsageError, match="permission denied for table streams_ledger"):
                    await claim_one(ledger, ask("k"))
                owner.execute(f"GRANT INSERT, UPDATE, DELETE ON streams_ledger TO {role}")
                await ledger.migrate()
                await ledger.check()
                assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT
                await ledger.close()
            finally:
                owner.execute(f"DROP OWNED BY {role}")
                owner.execute(f"DROP ROLE {role}")

    @pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
    def test_f23_a_database_of_another_encoding_keeps_every_text_or_is_refused(self, encoding: str):
        name = f"{self.url.rpartition('/')[2]}_{encoding.lower()}"

        @case
        async def kept(self, world: World):
            ledger = world.keep(await open_postgres_ledger(f"{self.url.rpartition('/')[0]}/{name}"))
            await ledger.migrate()
            verdict = await claim_one(ledger, ask("中/k"))
            assert await ledger.settle([done(verdict)]) == [True]
            (entry,) = await ledger.entries(Query())
            assert (entry.key.key, entry.run_id) == ("中/k", "run-中/k")

        with psycopg.connect(self.url, autocommit=True) as owner:
            owner.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
            try:
                if encoding == "LATIN1":
                    with pytest.raises(UsageError, match="encoding LATIN1, which cannot hold every text"):
                        kept(self)
                else:
                    kept(self)
            finally:
                owner.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @case
    async def test_commits_are_durable_whatever_the_server_does_by_default(self, world: World):
        with psycopg.connect(self.url, autocommit=True) as connection:
            name = self.url.rpartition("/")[2]
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        ledger = await world.ledger()
        seen = []

        async def body(connection, verdicts):
            for setting in ("synchronous_commit", "transaction_isolation"):
                cursor = await connection.execute(f"SHOW {setting}")
                seen.append((await cursor.fetchone())[0])
            return []

        await ledger.transact([], "a", body)
        assert seen == ["on", "read committed"]

    @case
    async def test_an_outcome_writes_no_index(self, world: World):
        ledger = await world.ledger()
        for batch in range(4):
            verdicts = await ledger.claim([ask(f"{batch}/{n}") for n in range(100)], "a", LEASE)
            await ledger.settle([done(verdict) for verdict in verdicts])
            await ledger.note_published([outcome(verdict) for verdict in verdicts])
        await ledger.close()  # statistics are told at the end of a session, if not before

        async def counted() -> bool:
            with psycopg.connect(self.url) as connection:
                cursor = connection.execute(
                    "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'streams_ledger'"
                )
                updates, hot = cursor.fetchone()
            assert updates <= 800
            return updates == 800 and hot >= 600

        await eventually(counted)

    @case
    async def test_a_listing_of_what_needs_somebody_reads_only_that(self, world: World):
        await world.ledger()
        listing = "SELECT * FROM streams_ledger WHERE {} ORDER BY app, operation, left(key, 200), key LIMIT 100"
        wanted = {
            "unsettled": listing.format("status = ANY('{parked}') AND unsettled"),
            "by_key": listing.format("app = 'shop' AND operation = 'pay' AND left(key, 200) > '5'"),
            "by_run": listing.format("run_id = 'run-7'"),
        }
        with psycopg.connect(self.url) as connection:
            connection.execute(
                "INSERT INTO streams_ledger SELECT sha256(n::text::bytea), 'shop', 'pay', n::text, '', "
                "CASE WHEN n % 1000 = 0 THEN 'parked' ELSE 'done' END, '', 'run-' || n, '', 1, 1, '', 1, 0, n, n, "
                "NULL, '', '', NULL, NULL, NULL, 0, '', '', '', true FROM generate_series(1, 20000) AS n"
            )
            connection.execute("ANALYZE streams_ledger")
            for index, statement in wanted.items():
                plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {statement}"))
                assert f"streams_ledger_{index}" in plan, plan
        found = await (await world.ledger()).entries(Query(statuses=(Status.PARKED,), limit=3))
        assert [entry.key.key for entry in found] == ["1000", "10000", "11000"]
        assert len(await (await world.ledger()).entries(Query(limit=30_000))) == 20_000

    @case
    async def test_more_calls_at_once_than_connections_wait_their_turn(self, world: World):
        ledger = world.keep(await open_postgres_ledger(self.url, connections_max=2))
        await ledger.migrate()
        verdicts = [
            v for vs in await asyncio.gather(*(ledger.claim([ask(f"k{n}")], "a", LEASE) for n in range(40))) for v in vs
        ]
        held = await asyncio.gather(*(ledger.extend([Claim(v.entry.key, v.entry.claim)], LEASE) for v in verdicts))
        assert held == [[True]] * 40

    @pytest.mark.slow
    def test_a_wrong_password_is_one_clear_line(self, own_postgres: Postgres):
        rules = Path(own_postgres.folder) / "data" / "pg_hba.conf"
        with psycopg.connect(own_postgres.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
            connection.execute("SELECT pg_reload_conf()")
        url = own_postgres.url.replace("streams@", "guarded:hunter2@")

        async def refused() -> str:
            while True:
                try:
                    await (await open_postgres_ledger(url)).close()
                    await asyncio.sleep(0.05)  # the server reads its rules a moment later
                except UsageError as error:
                    return str(error)

        told = asyncio.run(asyncio.wait_for(refused(), 30))
        assert "password authentication failed" in told
        assert "hunter2" not in told
        assert "\n" not in told
