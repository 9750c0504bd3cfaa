"""Several processes on one ledger: migrating at once, racing for claims, killed with a claim and inside a handler."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from streams.effects.port import Ledger, Status, Word
from streams.effects.postgres import open_postgres_ledger
from streams.effects.sqlite import open_sqlite_ledger
from tests.contract.ledgers import HANG_SECONDS, LEASE, ask, claim_one, done, eventually

pytestmark = pytest.mark.slow

CHILD = Path(__file__).with_name("ledger_worker.py")


class Child:
    """The worker in another process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def hear(self, what: str) -> dict[str, Any]:
        """What it says next, which must be this."""
        async with asyncio.timeout(HANG_SECONDS / 2):
            line = await self.process.stdout.readline()
        assert line, "the child has ended: its traceback is on stderr"
        said = json.loads(line)
        assert said["what"] == what
        return said

    async def go(self) -> None:
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()


@asynccontextmanager
async def children(url: str, *modes: tuple[str, ...]) -> AsyncIterator[list[Child]]:
    """Processes that stand ready together."""
    pipe = asyncio.subprocess.PIPE
    started = [
        Child(await asyncio.create_subprocess_exec(sys.executable, str(CHILD), url, *mode, stdin=pipe, stdout=pipe))
        for mode in modes
    ]
    try:
        for child in started:
            await child.hear("ready")
        yield started
    finally:
        for child in started:
            if child.process.returncode is None:
                child.process.kill()
            await child.process.wait()


class Processes:
    """What holds for every ledger that several processes can share."""

    url: str

    async def open(self) -> Ledger:
        raise AssertionError("of a subclass")

    def tables(self) -> set[str]:
        raise AssertionError("of a subclass")

    def run(self, body: Callable[[Ledger], Coroutine[Any, Any, None]]) -> None:
        async def within() -> None:
            ledger = await self.open()
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    await body(ledger)
            finally:
                await ledger.close()

        asyncio.run(within())

    def test_tables_are_made_once_by_many_at_once(self) -> None:
        async def body(ledger: Ledger) -> None:
            async with children(self.url, *[("migrate",)] * 4) as started:
                await asyncio.gather(*(child.go() for child in started))
                for child in started:
                    await child.hear("migrated")
            await ledger.check()
            assert (await claim_one(ledger, ask("k"))).word is Word.CARRY_OUT

        self.run(body)

    def test_f18_processes_who_race_get_each_key_once(self) -> None:
        async def body(ledger: Ledger) -> None:
            await ledger.migrate()
            async with children(self.url, ("race", "1"), ("race", "2"), ("race", "3")) as started:
                await asyncio.gather(*(child.go() for child in started))
                won = [key for child in started for key in (await child.hear("won"))["keys"]]
            assert sorted(won) == [f"k{n:03}" for n in range(200)]

        self.run(body)

    def test_f17_the_claim_of_a_killed_process_is_looked_up(self) -> None:
        async def body(ledger: Ledger) -> None:
            await ledger.migrate()
            async with children(self.url, ("claim", "3")) as (child,):
                await child.go()
                await child.hear("claimed")
                child.process.kill()
                await child.process.wait()
            assert (await claim_one(ledger, ask("k"))).word is Word.WAIT

            async def taken() -> bool:
                return (await claim_one(ledger, ask("k"))).word is not Word.WAIT

            found = await ledger.look([ask("k").key])
            assert found[ask("k").key].deliveries == 1
            await eventually(taken)
            entry = (await ledger.look([ask("k").key]))[ask("k").key]
            assert (entry.status, entry.looks, entry.owner) == (Status.CLAIMED, 1, "a")

        self.run(body)

    def test_f17_a_process_killed_inside_a_handler_leaves_nothing_and_holds_up_nobody(self) -> None:
        async def body(ledger: Ledger) -> None:
            await ledger.migrate()
            async with children(self.url, ("handler",)) as (child,):
                await child.go()
                await child.hear("inside")
                waiting = asyncio.create_task(ledger.claim([ask("k")], "b", LEASE))
                await asyncio.sleep(0.2)
                assert not waiting.done()
                child.process.kill()
                (verdict,) = await waiting
            assert (verdict.word, verdict.entry.deliveries, verdict.entry.owner) == (Word.CARRY_OUT, 1, "b")
            assert await ledger.settle([done(verdict)]) == [True]
            assert "shop" not in self.tables()

        self.run(body)


class TestSqliteProcesses(Processes):
    @pytest.fixture(autouse=True)
    def _url(self, tmp_path: Path) -> None:
        self.path = tmp_path / "ledger.db"
        self.url = f"sqlite:///{self.path}"

    async def open(self) -> Ledger:
        return await open_sqlite_ledger(self.url)

    def tables(self) -> set[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


@pytest.mark.postgres
class TestPostgresProcesses(Processes):
    @pytest.fixture(autouse=True)
    def _url(self, database: str) -> None:
        self.url = database

    async def open(self) -> Ledger:
        return await open_postgres_ledger(self.url)

    def tables(self) -> set[str]:
        with psycopg.connect(self.url) as connection:
            return {name for (name,) in connection.execute("SELECT tablename FROM pg_tables")}
