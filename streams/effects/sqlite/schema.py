"""The tables of a ledger in sqlite, and the steps that bring an older file up to date."""

from __future__ import annotations

import sqlite3

from streams.errors import LedgerMismatch

__all__ = ["VERSION", "check", "migrate"]

# Never change a step that was released; add one. Tables of users live in the same file and are nobody's business here.
STEPS = (
    """
    CREATE TABLE streams_ledger (
        app TEXT NOT NULL, operation TEXT NOT NULL, key TEXT NOT NULL,
        request_hash BLOB NOT NULL, status TEXT NOT NULL, effect_id TEXT NOT NULL, run_id TEXT NOT NULL,
        op TEXT NOT NULL, epoch INTEGER NOT NULL, attempt INTEGER NOT NULL, place TEXT NOT NULL,
        deliveries INTEGER NOT NULL, looks INTEGER NOT NULL,
        created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, due INTEGER,
        owner TEXT NOT NULL, claim TEXT NOT NULL, lease_until INTEGER, response BLOB, error TEXT,
        conflicts INTEGER NOT NULL, conflict TEXT NOT NULL, resent TEXT NOT NULL, operator TEXT NOT NULL,
        published INTEGER NOT NULL, UNIQUE (app, operation, key));
    CREATE INDEX streams_ledger_by_run ON streams_ledger (run_id);
    CREATE INDEX streams_ledger_by_age ON streams_ledger (app, operation, created_at);
    CREATE INDEX streams_ledger_unsettled ON streams_ledger (app, operation, key) WHERE status <> 'done';
    """,
)
VERSION = len(STEPS)


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the tables up to date, inside the caller's transaction."""
    connection.execute("CREATE TABLE IF NOT EXISTS streams_ledger_version (version INTEGER NOT NULL)")
    found = _version(connection)
    _refuse_newer(found, path)
    for number in range(found, VERSION):
        for statement in STEPS[number].split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO streams_ledger_version VALUES (?)", (number + 1,))


def check(connection: sqlite3.Connection, path: str) -> None:
    """Raise LedgerMismatch unless the tables are those that this release writes."""
    known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'streams_ledger_version'"
    found = _version(connection) if connection.execute(known).fetchone() else 0
    _refuse_newer(found, path)
    if found < VERSION:
        what = f"has tables of version {found}" if found else "has no tables of a ledger"
        raise LedgerMismatch(
            f"{path} {what}, this release of streams writes version {VERSION}: "
            "`streams subscribe MODULE:APP --ledger …` makes them, or brings them up to date"
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT max(version) FROM streams_ledger_version").fetchone()[0] or 0)


def _refuse_newer(found: int, path: str) -> None:
    if found > VERSION:
        raise LedgerMismatch(
            f"{path} has tables of version {found}, written by a newer release of streams; this one knows version "
            f"{VERSION}: upgrade streams here"
        )
