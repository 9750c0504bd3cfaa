"""The ledgers under test, and what the contract's cases are written with."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from streams.effects.memory import MemoryLedger
from streams.effects.port import Ask, Body, Key, Ledger, Outcome, Settlement, Status, Verdict
from streams.effects.postgres import open_postgres_ledger
from streams.effects.sqlite import open_sqlite_ledger

HANG_SECONDS = 90.0
"""A guard against hangs: no case measures time with it, so a slow machine fails nothing."""

LEASE = 600.0
"""Never over while a case runs, where the case does not let time pass."""

Work = Callable[[Sequence[Verdict]], tuple[Sequence[str], Sequence[Settlement]]]
"""A transactional handler of any ledger: the rows that it writes, and what its claims came to."""


class Config(Protocol):
    """What a ledger gives to the contract. `short` is a lease or a delay that a case waits for."""

    short: float

    async def open(self) -> Ledger: ...

    async def sleep(self, seconds: float) -> None: ...

    def body(self, work: Work) -> Body: ...

    async def rows(self) -> list[str]: ...


class HandClock:
    """Time that a test moves by hand."""

    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1_000_000


class ByHand:
    """A ledger with a clock that the test moves."""

    clock: HandClock
    short = 30.0

    async def sleep(self, seconds: float) -> None:
        self.clock.us += round(seconds * 1_000_000)


class MemoryConfig(ByHand):
    @pytest.fixture(autouse=True)
    def _ledger(self):
        self.clock = HandClock()
        self.ledger = MemoryLedger(self.clock)

    async def open(self) -> Ledger:
        return self.ledger

    def body(self, work: Work) -> Body:
        def body(tables: dict[str, bool], verdicts: Sequence[Verdict]) -> Sequence[Settlement]:
            names, settlements = work(verdicts)
            tables |= dict.fromkeys(names, True)
            return settlements

        return body

    async def rows(self) -> list[str]:
        return sorted(self.ledger.tables)


class SqliteConfig(ByHand):
    @pytest.fixture(autouse=True)
    def _ledger(self, tmp_path: Path):
        self.clock = HandClock()
        self.path = tmp_path / "ledger.db"
        self.url = f"sqlite:///{self.path}"

    async def open(self) -> Ledger:
        ledger = await open_sqlite_ledger(self.url, clock=self.clock)
        await ledger.migrate()
        return ledger

    def body(self, work: Work) -> Body:
        def body(connection: sqlite3.Connection, verdicts: Sequence[Verdict]) -> Sequence[Settlement]:
            names, settlements = work(verdicts)
            connection.execute("CREATE TABLE IF NOT EXISTS shop (name TEXT PRIMARY KEY)")
            connection.executemany("INSERT INTO shop VALUES (?)", [(name,) for name in names])
            return settlements

        return body

    async def rows(self) -> list[str]:
        with closing(sqlite3.connect(self.path)) as connection:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'shop'").fetchone()
            return sorted(name for (name,) in connection.execute("SELECT name FROM shop")) if there else []


class PostgresConfig:
    short = 1.5  # long enough for a few calls on a machine that is busy

    @pytest.fixture(autouse=True)
    def _ledger(self, database: str):
        self.url = database
        with psycopg.connect(database) as connection:
            connection.execute("CREATE TABLE shop (name text PRIMARY KEY)")

    async def open(self) -> Ledger:
        ledger = await open_postgres_ledger(self.url)
        await ledger.migrate()
        return ledger

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # the server's clock counts, which nobody moves

    def body(self, work: Work) -> Body:
        async def body(connection: Any, verdicts: Sequence[Verdict]) -> Sequence[Settlement]:
            names, settlements = work(verdicts)
            await connection.cursor().executemany("INSERT INTO shop VALUES (%s)", [(name,) for name in names])
            return settlements

        return body

    async def rows(self) -> list[str]:
        with psycopg.connect(self.url) as connection:
            return sorted(name for (name,) in connection.execute("SELECT name FROM shop"))


class World:
    """One case's handles of its ledger."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._ledgers: list[Ledger] = []

    async def ledger(self) -> Ledger:
        """Another handle of the same ledger, as another process has it."""
        ledger = await self.config.open()
        self._ledgers.append(ledger)
        return ledger

    def keep(self, ledger: Ledger) -> Any:
        """Close one that the case has opened by itself."""
        self._ledgers.append(ledger)
        return ledger

    async def sleep(self, seconds: float) -> None:
        await self.config.sleep(seconds)

    async def close(self) -> None:
        for ledger in self._ledgers:
            await ledger.close()


def run(world: World, body: Coroutine[Any, Any, None]) -> None:
    """Run one case to its end and close what it opened, whatever happens."""

    async def within() -> None:
        try:
            async with asyncio.timeout(HANG_SECONDS):
                await body
        finally:
            await world.close()

    asyncio.run(within())


def case(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Let plain pytest run an async case."""

    def test(self: Any) -> None:
        world = World(self)
        run(world, body(self, world))

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + HANG_SECONDS / 2
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def ask(name: str, content: bytes = b"content", *, operation: str = "pay", **more: Any) -> Ask:
    """A message of the outbox that asks for the operation under this key."""
    defaults = {"effect_id": f"run-{name}/1/pay", "run_id": f"run-{name}", "op": "pay", "epoch": 1, "attempt": 1}
    return Ask(Key("shop", operation, name), content * 4, **({"place": f"pay/0@{name}"} | defaults | more))


def done(verdict: Verdict, response: bytes | None = b'"paid"') -> Settlement:
    return Settlement(verdict.entry.key, verdict.entry.claim, Status.DONE, response)


def outcome(verdict: Verdict, status: Status = Status.DONE) -> Outcome:
    entry = verdict.entry
    return Outcome(entry.key, entry.effect_id, entry.epoch, entry.attempt, status)


async def claim_one(ledger: Ledger, wanted: Ask, owner: str = "a", lease: float = LEASE) -> Verdict:
    (verdict,) = await ledger.claim([wanted], owner, lease)
    return verdict
