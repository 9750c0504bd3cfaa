"""What the ledger says to PostgreSQL: a call's entries travel as one parameter, so a batch is few round trips."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from psycopg import AsyncCursor
from psycopg.rows import tuple_row

from streams.effects.columns import COLUMNS, column_of, entry_of, storable
from streams.effects.port import Entry, Key, Query, Status
from streams.effects.postgres.server import Connection

__all__ = ["CHANGING", "Found", "clean", "clock", "delete", "digest", "insert", "listed", "lock", "read", "write"]

DIGESTS_MAX = 20_000
"""Of the last keys: one is needed at the claim, at its outcome, and when that is published."""

BYTES_MAX = 8_000_000
"""Of one parameter: a batch of large responses goes in several."""

_TYPES = dict.fromkeys(COLUMNS, "text") | dict.fromkeys(
    ("epoch", "attempt", "deliveries", "looks", "created_at", "updated_at", "due", "lease_until", "conflicts"), "bigint"
)
_TYPES |= {"hash": "bytea", "request_hash": "bytea", "response": "bytea", "published": "boolean"}
_FIXED = frozenset({"app", "operation", "key", "request_hash", "effect_id", "run_id", "op", "created_at"})
"""Never changed after the entry was made."""

_ALL = ", ".join(COLUMNS)
_ALL_BUT_RESPONSE = _ALL.replace(" response,", " NULL::bytea AS response,")
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_BEGUN = "(extract(epoch FROM transaction_timestamp()) * 1000000)::bigint"
CHANGING = tuple(column for column in COLUMNS if column not in _FIXED)


def _table(columns: Iterable[str]) -> str:
    """A table of parameters, an array for each column."""
    arrays = ", ".join(f"%s::{_TYPES[column]}[]" for column in ("hash", *columns))
    return f"unnest({arrays}) AS x(hash, {', '.join(columns)})"


_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

# fmt: off
_CLOCK = f"SELECT {_NOW}, {_BEGUN}"
_READ = f"""
    SELECT clock.now, clock.begun, {_ALL} FROM (SELECT {_NOW} AS now, {_BEGUN} AS begun) AS clock
    LEFT JOIN streams_ledger ON hash = ANY(%b::bytea[])
"""
_INSERT = f"""
    INSERT INTO streams_ledger (hash, {_ALL})
    SELECT hash, {_ALL} FROM {_table(COLUMNS)} ORDER BY hash
    ON CONFLICT (hash) DO NOTHING RETURNING hash
"""
_CLEAN = """
    DELETE FROM streams_ledger WHERE hash IN (
        SELECT hash FROM streams_ledger
        WHERE app = %s AND operation = %s AND created_at <= %s AND updated_at <= %s
            AND (status = 'done' OR (status = 'failed' AND due IS NULL))
        LIMIT %s FOR UPDATE SKIP LOCKED)
"""
# fmt: on


class Found(NamedTuple):
    """Entries, the server's clock after they were read, and when the transaction began."""

    entries: dict[Key, Entry]
    now: int
    begun: int


@lru_cache(DIGESTS_MAX)
def digest(key: Key) -> bytes:
    """The primary key of an entry. Never change it: it is how entries of old releases are found."""
    app, operation, name = map(storable, key)
    return sha256(f"{len(app)}:{app}{len(operation)}:{operation}{name}".encode()).digest()


async def clock(connection: Connection) -> tuple[int, int]:
    """The server's clock, and when the transaction began, which tells one of a connection from another."""
    row = await (await _execute(connection, _CLOCK)).fetchone()
    assert row is not None
    return row[0], row[1]


async def read(connection: Connection, keys: Iterable[Key]) -> Found:
    """Those of the keys that are known, as they are at this moment."""
    rows = await (await _execute(connection, _READ, list(map(digest, keys)))).fetchall()
    now, begun, first, *_ = rows[0]
    entries = () if first is None else (entry_of(row[2:]) for row in rows)
    return Found({entry.key: entry for entry in entries}, now, begun)


async def lock(connection: Connection, keys: Iterable[Key], *, responses: bool) -> Found:
    """Those of the keys that are known, kept from everybody else until the transaction ends.

    Always in the same order, or two calls that share keys would wait for each other.
    """
    columns = _ALL if responses else _ALL_BUT_RESPONSE
    statement = f"SELECT {columns} FROM streams_ledger WHERE hash = ANY(%b::bytea[]) ORDER BY hash FOR UPDATE"
    async with connection.pipeline():
        locked = await _execute(connection, statement, list(map(digest, keys)))
        timed = await _execute(connection, _CLOCK)  # after the wait for the locks
        rows, time = await locked.fetchall(), await timed.fetchone()
    assert time is not None
    return Found({entry.key: entry for entry in map(entry_of, rows)}, time[0], time[1])


async def insert(connection: Connection, entries: Mapping[Key, Entry]) -> set[Key]:
    """Write entries under unknown keys; which of them were so still. Waits for others that just do the same."""
    if not entries:
        return set()
    keys = {digest(key): key for key in entries}
    rows = await (await _execute(connection, _INSERT, *_arrays(list(entries.values()), COLUMNS))).fetchall()
    return {keys[hash_] for (hash_,) in rows}


async def write(connection: Connection, entries: Iterable[Entry], columns: tuple[str, ...] = CHANGING) -> None:
    """Write these columns of entries that are locked."""
    assignments = ", ".join(f"{column} = x.{column}" for column in columns)
    statement = f"UPDATE streams_ledger AS l SET {assignments} FROM {_table(columns)} WHERE l.hash = x.hash"
    for part in _parts(entries):
        await _execute(connection, statement, *_arrays(part, columns))


async def delete(connection: Connection, keys: Iterable[Key]) -> None:
    """Take back what this transaction has inserted."""
    if hashes := list(map(digest, keys)):
        await _execute(connection, "DELETE FROM streams_ledger WHERE hash = ANY(%b::bytea[])", hashes)


async def clean(connection: Connection, app: str, operation: str, until: int, limit: int) -> int:
    """Delete final entries that have not changed since; how many."""
    return (await _execute(connection, _CLEAN, storable(app), storable(operation), until, until, limit)).rowcount


async def listed(connection: Connection, query: Query) -> list[Entry]:
    """A page of entries."""
    conditions, values = ["true"], list[Any]()
    for column, wanted in (("app", query.app), ("operation", query.operation), ("run_id", query.run_id)):
        if wanted is not None:
            conditions.append(f"{column} = %s")
            values.append(storable(wanted))
    if query.statuses:
        conditions.append("status = ANY(%s)")
        values.append([status.value for status in query.statuses])
        if {Status.DONE, Status.CLAIMED}.isdisjoint(query.statuses):
            conditions.append("unsettled")  # so that the planner sees that the small index will do
    found: list[Entry] = []
    for stretch, keys in _stretches(query.after):
        statement = (
            f"SELECT {_ALL} FROM streams_ledger WHERE {' AND '.join([*conditions, stretch])} "
            "ORDER BY app, operation, left(key, 200), key LIMIT %s"
        )
        rows = await (await _execute(connection, statement, *values, *keys, query.limit - len(found))).fetchall()
        found += map(entry_of, rows)
        if len(found) >= query.limit:
            break
    return found


def _stretches(after: Key | None) -> Sequence[tuple[str, Sequence[str]]]:
    """What comes behind a key, in pieces that the index has whole: comparing rows would make the planner read all."""
    if after is None:
        return (("true", ()),)
    app, operation, key = map(storable, after)
    there = "app = %s AND operation = %s"
    return (
        (f"{there} AND left(key, 200) = left(%s, 200) AND key > %s", (app, operation, key, key)),
        (f"{there} AND left(key, 200) > left(%s, 200)", (app, operation, key)),
        ("app = %s AND operation > %s", (app, operation)),
        ("app > %s", (app,)),
    )


async def _execute(connection: Connection, statement: str, *values: Any) -> AsyncCursor[tuple[Any, ...]]:
    # A cursor of its own kind: a handler may have given the connection another form of rows. Planned anew each time: a
    # plan that was made while the table was empty would read all of it for each batch, until statistics come.
    cursor = connection.cursor(binary=True, row_factory=tuple_row)
    return await cursor.execute(statement.encode(), values, prepare=False)


def _arrays(entries: Sequence[Entry], columns: Iterable[str]) -> Iterator[str]:
    """The parameters of a `_table`."""
    yield _array([digest(entry.key) for entry in entries], "bytea")
    for column in columns:
        yield _array(column_of(column, entries), _TYPES[column])


def _array(values: Sequence[Any], type_: str) -> str:
    """PostgreSQL's own notation, which is JSON's but for the brackets where a text holds no control character.

    The driver's takes five times as long, as it looks at each value in Python.
    """
    if type_ == "bytea":
        values = [None if value is None else f"\\x{value.hex()}" for value in values]
    return f"{{{_encode(values)[1:-1]}}}"


def _parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    part, size = list[Entry](), 0
    for entry in entries:
        part.append(entry)
        size += 2 * len(entry.response or b"") + len(entry.conflict) + 1_000
        if size > BYTES_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part
