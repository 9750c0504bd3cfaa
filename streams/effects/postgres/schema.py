"""The tables of a ledger in PostgreSQL, and the steps that bring older ones up to date."""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from streams.errors import LedgerMismatch

__all__ = ["VERSION", "check", "migrate"]

LOCK = 0x5354_5245_414D_4C44
"""The advisory lock under which tables are changed. Never change it: old and new releases must meet at it."""

# Never change a step that was released; add one. A row of an index takes 2,700 bytes and a key may be longer, so the
# primary key is a digest and an index holds beginnings. Texts are ordered by their bytes, as in every other ledger.
# No index looks at a column that an outcome changes, and pages are half filled: so the new version of a row lies beside
# the old one and no index is written (HOT). `unsettled` is there for that, and stays false while all goes well.
STEPS = (
    (
        """
        CREATE TABLE streams_ledger (
            hash bytea PRIMARY KEY,
            app text COLLATE "C" NOT NULL, operation text COLLATE "C" NOT NULL, key text COLLATE "C" NOT NULL,
            request_hash bytea NOT NULL, status text NOT NULL, effect_id text NOT NULL, run_id text NOT NULL,
            op text NOT NULL, epoch bigint NOT NULL, attempt bigint NOT NULL, place text NOT NULL,
            deliveries bigint NOT NULL, looks bigint NOT NULL,
            created_at bigint NOT NULL, updated_at bigint NOT NULL, due bigint,
            owner text NOT NULL, claim text NOT NULL, lease_until bigint, response bytea, error text,
            conflicts bigint NOT NULL, conflict text NOT NULL, resent text NOT NULL, operator text NOT NULL,
            published boolean NOT NULL,
            unsettled boolean NOT NULL GENERATED ALWAYS AS (status IN ('uncertain', 'parked', 'failed')) STORED)
            WITH (fillfactor = 50)
        """,
        "CREATE INDEX streams_ledger_by_key ON streams_ledger (app, operation, left(key, 200))",
        "CREATE INDEX streams_ledger_by_run ON streams_ledger USING hash (run_id)",
        "CREATE INDEX streams_ledger_by_age ON streams_ledger (app, operation, created_at)",
        """
        CREATE INDEX streams_ledger_unsettled ON streams_ledger (app, operation, left(key, 200))
            WHERE unsettled
        """,
    ),
)
VERSION = len(STEPS)

_MADE_BY = "`streams subscribe MODULE:APP --ledger …` makes them, or brings them up to date"


async def migrate(connection: AsyncConnection[Any], url: str) -> None:
    """Bring the tables up to date, in one transaction; who comes meanwhile waits for it and finds it done.

    Where nothing is to be done, no right to create anything is needed.
    """
    if await _found(connection, url) == VERSION:
        return
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        await connection.execute("CREATE TABLE IF NOT EXISTS streams_ledger_version (version integer NOT NULL)")
        found = await _version(connection)
        _refuse_newer(found, url)
        for number in range(found, VERSION):
            for statement in STEPS[number]:
                await connection.execute(statement.encode())
            await connection.execute("INSERT INTO streams_ledger_version VALUES (%s)", (number + 1,))


async def check(connection: AsyncConnection[Any], url: str) -> None:
    """Raise LedgerMismatch unless the tables are those that this release writes."""
    found = await _found(connection, url)
    if found < VERSION:
        what = f"has tables of version {found}" if found else "has no tables of a ledger"
        raise LedgerMismatch(f"{url} {what}, this release of streams writes version {VERSION}: {_MADE_BY}")


async def _found(connection: AsyncConnection[Any], url: str) -> int:
    """The version of the tables that are there, 0 where there are none."""
    cursor = await connection.execute("SELECT to_regclass('streams_ledger_version') IS NOT NULL")
    row = await cursor.fetchone()
    found = await _version(connection) if row is not None and row[0] else 0
    _refuse_newer(found, url)
    return found


async def _version(connection: AsyncConnection[Any]) -> int:
    cursor = await connection.execute("SELECT coalesce(max(version), 0) FROM streams_ledger_version")
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


def _refuse_newer(found: int, url: str) -> None:
    if found > VERSION:
        raise LedgerMismatch(
            f"{url} has tables of version {found}, written by a newer release of streams; this one knows version "
            f"{VERSION}: upgrade streams here"
        )
