"""The app whose effects are carried out: rows in the ledger's database, and calls to a service outside."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streams import App, BatchContext, EffectContext

__all__ = ["INSERT", "TABLE", "Call", "Provider", "Row", "calls_app", "rows_app"]

TABLE = "CREATE TABLE IF NOT EXISTS bench_rows (key text PRIMARY KEY, amount bigint NOT NULL, note text NOT NULL)"
INSERT = "INSERT INTO bench_rows VALUES (%s, %s, %s)"


@dataclass(frozen=True)
class Row:
    """About 150 bytes."""

    amount: int
    note: str


@dataclass(frozen=True)
class Call:
    """What the service outside is asked for."""

    amount: int


def _name() -> str:
    return os.environ.get("STREAMS_BENCH_APP", "bench")


def rows_app(ledger: str, *, many: bool = False) -> App:
    """A transactional subscriber, in the form that the ledger's database takes; of one row, or of many."""
    app = App(_name())
    rows = app.effect("rows", Row, reply=type(None))
    on_postgres = ledger.startswith("postgresql:")
    single, several = (_one_into_postgres, _into_postgres) if on_postgres else (_one_into_sqlite, _into_sqlite)
    options: Any = {"transactional": True, "many": many, "batch": 500}
    app.subscriber(rows, **options)(several if many else single)
    return app


async def _one_into_postgres(ctx: EffectContext, row: Row) -> None:
    await ctx.connection.execute(INSERT, (ctx.idempotency_key, row.amount, row.note))


def _one_into_sqlite(ctx: EffectContext, row: Row) -> None:
    connection: sqlite3.Connection = ctx.connection
    connection.execute(INSERT.replace("%s", "?"), (ctx.idempotency_key, row.amount, row.note))


async def _into_postgres(ctx: BatchContext, rows: Sequence[Row]) -> None:
    async with ctx.connection.cursor() as cursor:
        await cursor.executemany(INSERT, _values(ctx, rows))


def _into_sqlite(ctx: BatchContext, rows: Sequence[Row]) -> None:
    ctx.connection.executemany(INSERT.replace("%s", "?"), _values(ctx, rows))


def _values(ctx: BatchContext, rows: Sequence[Row]) -> list[tuple[str, int, str]]:
    return [(one.idempotency_key, row.amount, row.note) for one, row in zip(ctx.deliveries, rows, strict=True)]


class Provider:
    """Connections to the service, each with one call at a time; how many calls were under way at once."""

    def __init__(self) -> None:
        self._free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()
        self._running = 0
        self.most = 0

    async def open(self, port: int, connections: int) -> None:
        """Connect so often."""
        for _ in range(connections):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", port))

    async def call(self, key: str) -> str:
        """Ask, and wait for the answer."""
        self._running += 1
        self.most = max(self.most, self._running)
        reader, writer = await self._free.get()
        writer.write(f"{key}\n".encode())
        answer = await reader.readline()
        self._free.put_nowait((reader, writer))
        self._running -= 1
        return answer.decode().rstrip()

    def close(self) -> None:
        """Hang up."""
        while not self._free.empty():
            self._free.get_nowait()[1].close()


def calls_app(provider: Provider) -> App:
    """A subscriber that calls a service outside and replies with what it says."""
    app = App(_name())
    calls = app.effect("calls", Call, reply=str)

    @app.subscriber(calls, idempotent=True)
    async def call(ctx: EffectContext, payload: Call) -> str:
        del payload
        return await provider.call(ctx.idempotency_key)

    return app
