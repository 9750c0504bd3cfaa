"""The ledger in sqlite: each call is one job of the connection's thread, and one transaction where it writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import iscoroutine
from typing import TypeVar
from uuid import uuid4

from streams.clock import Clock, SystemClock
from streams.effects import batch, rules
from streams.effects.columns import COLUMNS, entry_of, row_of, storable
from streams.effects.port import Ask, Body, Claim, Entry, Key, Outcome, Query, Resolution, Settlement, Verdict
from streams.effects.sqlite import schema
from streams.effects.sqlite.connection import HandlerRaised, connect, in_hand, path_of, transaction, translated
from streams.embedded.file import refuse_network
from streams.embedded.lane import Lane

__all__ = ["SqliteLedger", "open_sqlite_ledger"]

T = TypeVar("T")

BUSY_SECONDS = 15.0

_SELECT = f"SELECT {', '.join(COLUMNS)} FROM streams_ledger"
_IS_KEY = "app = ? AND operation = ? AND key = ?"
_CHANGING = COLUMNS[3:]
_WRITE = (
    f"INSERT INTO streams_ledger ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    f" ON CONFLICT (app, operation, key) DO UPDATE SET {', '.join(f'{c} = excluded.{c}' for c in _CHANGING)}"
)
_FINAL = "(status = 'done' OR (status = 'failed' AND due IS NULL))"
_CLEAN = f"""
    DELETE FROM streams_ledger WHERE rowid IN (
        SELECT rowid FROM streams_ledger
        WHERE app = ? AND operation = ? AND created_at <= ? AND updated_at <= ? AND {_FINAL} LIMIT ?)
"""


async def open_sqlite_ledger(
    url: str, *, clock: Clock | None = None, busy_seconds: float = BUSY_SECONDS
) -> SqliteLedger:
    """Open `sqlite:///relative.db` or `sqlite:////absolute.db`; the file is made where there is none.

    What another process holds for `busy_seconds` raises LedgerUnavailable. Raises UsageError for an address or a file
    that cannot be used.
    """
    path = path_of(url)
    refuse_network(path, "the ledger", "postgresql://HOST/DATABASE")
    lane = Lane(
        path, "ledger", lambda: connect(path, busy_seconds), lambda error: translated(error, path, busy_seconds)
    )
    ledger = SqliteLedger(url, path, lane, clock or SystemClock())
    try:
        await lane.run(lambda connection: connection.execute("SELECT count(*) FROM sqlite_master").fetchone())
    except BaseException:
        await lane.close()
        raise
    return ledger


class SqliteLedger:
    """See `streams.effects.port.Ledger`. Made by `open_sqlite_ledger`; it belongs to the event loop that opened it."""

    def __init__(self, url: str, path: str, lane: Lane, clock: Clock) -> None:
        self.url = url
        self._path = path
        self._lane = lane
        self._clock = clock

    async def migrate(self) -> None:
        await self._write(partial(schema.migrate, path=self._path))

    async def check(self) -> None:
        await self._lane.run(partial(schema.check, path=self._path))

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        def judge(connection: sqlite3.Connection) -> tuple[list[Verdict], batch.Changes]:
            return batch.judged(_known(connection, batch.keys_of(asks)), asks, self._claims(owner, lease_seconds))

        def job(connection: sqlite3.Connection) -> list[Verdict]:
            verdicts, changes = judge(connection)
            return transaction(connection, lambda: self._claim(connection, judge)) if changes else verdicts

        # Read first: where a rewind asks for what is known, nobody has to wait for the write lock.
        return await self._lane.run(job)

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> list[bool]:
        def body(connection: sqlite3.Connection) -> list[bool]:
            known = _known(connection, batch.keys_of(claims))
            held, changes = batch.extended(known, claims, lease_seconds, self._clock.now_us())
            _save(connection, changes)
            return held

        return await self._write(body)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        def body(connection: sqlite3.Connection) -> list[bool]:
            held, changes = batch.settled(
                _known(connection, batch.keys_of(settlements)), settlements, self._clock.now_us()
            )
            _save(connection, changes)
            return held

        return await self._write(body)

    async def note_published(self, outcomes: Sequence[Outcome]) -> None:
        def body(connection: sqlite3.Connection) -> None:
            _save(connection, batch.noted(_known(connection, batch.keys_of(outcomes)), outcomes))

        await self._write(body)

    async def transact(self, asks: Sequence[Ask], owner: str, body: Body) -> list[Verdict]:
        def work(connection: sqlite3.Connection) -> list[Verdict]:
            claims = self._claims(owner, batch.INSTANT_SECONDS)
            verdicts, claimed = batch.judged(_known(connection, batch.keys_of(asks)), asks, claims)
            settlements = in_hand(connection, lambda: body(connection, verdicts))
            if not isinstance(settlements, Iterable):
                if iscoroutine(settlements):
                    settlements.close()
                raise TypeError("a ledger in sqlite calls a plain function: write `def`, not `async def`")
            changes = batch.concluded(verdicts, claimed, settlements, self._clock.now_us())
            _save(connection, changes)
            return batch.with_entries(verdicts, changes)

        try:
            return await self._write(work)
        except HandlerRaised as raised:
            raise raised.error from raised.error.__cause__

    async def look(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        return await self._lane.run(lambda connection: _known(connection, keys))

    async def entries(self, query: Query) -> list[Entry]:
        sql, values = _listing(query)
        rows = await self._lane.run(lambda connection: connection.execute(sql, values).fetchall())
        return [entry_of(row) for row in rows]

    async def resolve(self, key: Key, resolution: Resolution) -> Entry:
        def body(connection: sqlite3.Connection) -> Entry:
            found = rules.resolve(_known(connection, [key]).get(key), resolution, self._clock.now_us())
            _save(connection, {key: found})
            return found

        return await self._write(body)

    async def clean(self, app: str, operation: str, older_than_seconds: float, limit: int = 10_000) -> int:
        def body(connection: sqlite3.Connection) -> int:
            until = self._clock.now_us() - round(older_than_seconds * 1_000_000)
            return connection.execute(_CLEAN, (storable(app), storable(operation), until, until, limit)).rowcount

        return await self._write(body)

    async def now_us(self) -> int:
        return self._clock.now_us()

    async def close(self) -> None:
        await self._lane.close()

    async def _write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        return await self._lane.run(lambda connection: transaction(connection, lambda: body(connection)))

    def _claim(
        self,
        connection: sqlite3.Connection,
        judge: Callable[[sqlite3.Connection], tuple[list[Verdict], batch.Changes]],
    ) -> list[Verdict]:
        verdicts, changes = judge(connection)
        _save(connection, changes)
        return verdicts

    def _claims(self, owner: str, lease_seconds: float) -> batch.Claims:
        return batch.Claims(owner, lease_seconds, self._clock.now_us(), lambda: uuid4().hex)


def _known(connection: sqlite3.Connection, keys: Iterable[Key]) -> dict[Key, Entry]:
    execute, sql = connection.execute, f"{_SELECT} WHERE {_IS_KEY}"
    found = ((key, execute(sql, [storable(part) for part in key]).fetchone()) for key in keys)
    return {key: entry_of(row) for key, row in found if row is not None}


def _save(connection: sqlite3.Connection, changes: batch.Changes) -> None:
    connection.executemany(_WRITE, map(row_of, changes.values()))


def _listing(query: Query) -> tuple[str, list[object]]:
    conditions, values = ["1"], list[object]()
    for column, wanted in (("app", query.app), ("operation", query.operation), ("run_id", query.run_id)):
        if wanted is not None:
            conditions.append(f"{column} = ?")
            values.append(storable(wanted))
    if query.statuses:
        conditions.append(f"status IN ({', '.join('?' * len(query.statuses))})")
        values += query.statuses
        if "done" not in query.statuses:
            conditions.append("status <> 'done'")  # so that sqlite sees that its small index will do
    if query.after is not None:
        conditions.append("(app, operation, key) > (?, ?, ?)")
        values += map(storable, query.after)
    order = "ORDER BY app, operation, key LIMIT ?"
    return f"{_SELECT} WHERE {' AND '.join(conditions)} {order}", [*values, query.limit]
