"""The ledger in PostgreSQL: what each call of the port does in a session of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from streams.effects import batch, rules
from streams.effects.batch import keys_of
from streams.effects.port import (
    Ask,
    Body,
    Claim,
    Entry,
    Key,
    Outcome,
    Query,
    Resolution,
    Settlement,
    Verdict,
)
from streams.effects.postgres import schema, statements
from streams.effects.postgres.claims import Call, claim, claim_within
from streams.effects.postgres.server import Connection, Guard, Server, connect
from streams.errors import LedgerError, LedgerUnavailable

__all__ = ["PostgresLedger", "open_postgres_ledger"]

CONNECTIONS_MAX = 10
LEASE_COLUMNS = ("lease_until", "updated_at")


async def open_postgres_ledger(url: str, *, connections_max: int = CONNECTIONS_MAX) -> PostgresLedger:
    """Open `postgresql://USER@HOST:PORT/DATABASE`; libpq's settings may follow a question mark.

    Raises UsageError for an address or a password that the server turns down, LedgerUnavailable where none answers.
    """
    return PostgresLedger(await connect(url, connections_max))


class PostgresLedger:
    """See `streams.effects.port.Ledger`. Made by `open_postgres_ledger`; it belongs to the loop that opened it."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._server = server

    async def migrate(self) -> None:
        await self._server.ask(lambda connection, _: schema.migrate(connection, self.url))

    async def check(self) -> None:
        await self._server.ask(lambda connection, _: schema.check(connection, self.url))

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        call = Call(owner, lease_seconds)
        # Asked once more by the same call where an answer was lost: it knows its own claims again.
        return await self._server.ask(lambda connection, _: claim(connection, asks, call)) if asks else []

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> list[bool]:
        async def work(connection: Connection, _: Guard) -> list[bool]:
            async with connection.transaction():
                found = await statements.lock(connection, keys_of(claims), responses=False)
                held, changes = batch.extended(found.entries, claims, lease_seconds, found.now)
                await statements.write(connection, changes.values(), LEASE_COLUMNS)
            return held

        return await self._server.ask(work) if claims else []

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        written = False

        async def work(connection: Connection, _: Guard) -> list[bool]:
            nonlocal written
            async with connection.transaction():
                found = await statements.lock(connection, keys_of(settlements), responses=False)
                held, changes = batch.settled(found.entries, settlements, found.now)
                written = True
                await statements.write(connection, changes.values())
            return held

        # Asked a second time, claims that were settled the first time would seem to be gone.
        return await self._server.ask(work, lambda: not written) if settlements else []

    async def note_published(self, outcomes: Sequence[Outcome]) -> None:
        async def work(connection: Connection, _: Guard) -> None:
            async with connection.transaction():
                found = await statements.lock(connection, keys_of(outcomes), responses=False)
                changes = batch.noted(found.entries, outcomes)
                await statements.write(connection, changes.values(), ("published",))

        if outcomes:
            await self._server.ask(work)

    async def transact(self, asks: Sequence[Ask], owner: str, body: Body) -> list[Verdict]:
        """As the port says. The body's connection is in the transaction; `transaction()` of it makes savepoints."""
        given = False

        async def work(connection: Connection, guard: Guard) -> list[Verdict]:
            nonlocal given
            async with connection.transaction():
                claimed = await claim_within(connection, asks, Call(owner, batch.INSTANT_SECONDS))
                given = True
                with guard.off():
                    settlements = await self._in_hand(connection, partial(body, connection, claimed.verdicts))
                now = await _still_in(connection, claimed.begun)
                changes = batch.concluded(claimed.verdicts, claimed.changes, settlements, now)
                async with connection.pipeline():
                    # A handler may have looked for its own tables in another schema, where the ledger's are not.
                    await connection.execute("RESET search_path")
                    await statements.write(connection, changes.values())
                    await statements.delete(connection, claimed.inserted - changes.keys())
            return batch.with_entries(claimed.verdicts, changes)

        try:
            return await self._server.ask(work, lambda: not given)
        except _HandlerRaised as raised:
            raise raised.error from raised.error.__cause__

    async def look(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        return (await self._server.ask(lambda connection, _: statements.read(connection, dict.fromkeys(keys)))).entries

    async def entries(self, query: Query) -> list[Entry]:
        return await self._server.ask(lambda connection, _: statements.listed(connection, query))

    async def resolve(self, key: Key, resolution: Resolution) -> Entry:
        written = False

        async def work(connection: Connection, _: Guard) -> Entry:
            nonlocal written
            async with connection.transaction():
                found = await statements.lock(connection, [key], responses=True)
                entry = rules.resolve(found.entries.get(key), resolution, found.now)
                written = True
                await statements.write(connection, [entry])
            return entry

        return await self._server.ask(work, lambda: not written)

    async def clean(self, app: str, operation: str, older_than_seconds: float, limit: int = 10_000) -> int:
        async def work(connection: Connection, _: Guard) -> int:
            now, _begun = await statements.clock(connection)
            until = now - round(older_than_seconds * 1_000_000)
            return await statements.clean(connection, app, operation, until, limit)

        return await self._server.ask(work)

    async def now_us(self) -> int:
        return (await self._server.ask(lambda connection, _: statements.clock(connection)))[0]

    async def close(self) -> None:
        await self._server.close()

    async def _in_hand(self, connection: Connection, body: Callable[[], Any]) -> list[Settlement]:
        """Run a handler. Its own errors come out as they are, those of the server as LedgerUnavailable."""
        try:
            given = body()
            if not isawaitable(given):
                raise TypeError("a ledger in PostgreSQL awaits what it calls: write `async def`, not `def`")
            return list(await given)
        except psycopg.Error as error:
            if self._server.passes(error, connection):
                raise
            raise _HandlerRaised(error) from error
        except Exception as error:
            if connection.closed:
                raise LedgerUnavailable(f"the connection to {self.url} was cut inside a handler: {error}") from error
            raise


class _HandlerRaised(Exception):
    """Carries an error that is a handler's own past the place where those of the ledger are translated."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


async def _still_in(connection: Connection, begun: int) -> int:
    """The server's clock, if this is the transaction that began then."""
    status = connection.info.transaction_status
    if status is TransactionStatus.INERROR:
        raise LedgerError(
            "a transactional handler went on after an error of the database, which has rolled everything back: let the "
            "error out, or put what may fail into a savepoint, `async with ctx.connection.transaction():`"
        )
    if status is TransactionStatus.INTRANS:
        now, found = await statements.clock(connection)
        if found == begun:
            return now
    raise LedgerError(
        "a transactional handler ended the ledger's transaction by itself: what it did is not tied to its entry, which "
        "will be looked up or parked. Never commit there; the ledger does that, for both together"
    )
