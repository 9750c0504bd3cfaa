"""The tables of a sqlite log, and the steps that bring an older file up to date."""

from __future__ import annotations

import sqlite3

from streams.errors import UsageError

__all__ = ["VERSION", "prepare"]

# A record's id is its partition's id * 2^40 + its offset: one b-tree, in which a partition lies in one piece, with the
# large values in its leaves only. Never change a step that was released; add one.
STEPS = (
    """
    CREATE TABLE topics (name TEXT PRIMARY KEY, id TEXT NOT NULL, partitions INTEGER NOT NULL, config TEXT NOT NULL)
        WITHOUT ROWID;
    CREATE TABLE partitions (pid INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,
        start INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, partition));
    CREATE TABLE records (id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB);
    CREATE TABLE group_offsets (grp TEXT, topic TEXT, partition INTEGER, offset INTEGER NOT NULL,
        PRIMARY KEY (grp, topic, partition)) WITHOUT ROWID;
    CREATE TABLE members (grp TEXT, topic TEXT, member TEXT, client TEXT NOT NULL, pid INTEGER NOT NULL,
        beats INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (grp, topic, member)) WITHOUT ROWID;
    CREATE UNIQUE INDEX members_by_id ON members (member);
    CREATE TABLE owners (grp TEXT, topic TEXT, partition INTEGER, member TEXT, incarnation INTEGER NOT NULL,
        PRIMARY KEY (grp, topic, partition)) WITHOUT ROWID;
    CREATE TABLE producers (id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
    """,
)
VERSION = len(STEPS)


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create or upgrade the tables, inside the caller's transaction; refuse a file that is not ours or is newer."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and "streams_schema" not in names:
        raise UsageError(
            f"{path} is a database of another program (it has the table {min(names)}): choose another path"
        )
    connection.execute("CREATE TABLE IF NOT EXISTS streams_schema (version INTEGER NOT NULL)")
    found = connection.execute("SELECT max(version) FROM streams_schema").fetchone()[0] or 0
    if found > VERSION:
        raise UsageError(
            f"{path} was written by a newer version of streams (schema {found}; this one knows {VERSION}): "
            "upgrade streams"
        )
    for number in range(found, VERSION):
        for statement in STEPS[number].split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO streams_schema VALUES (?)", (number + 1,))
