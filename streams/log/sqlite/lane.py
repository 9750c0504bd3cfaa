"""The log's connections: how they are opened, what a transaction is, and what sqlite's errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Literal, TypeVar

from streams.embedded import lane as embedded
from streams.errors import CommitAborted, InDoubt, LogDamaged, LogError, LogUnavailable, UsageError
from streams.log.sqlite.patience import Patience, is_busy

__all__ = ["Lane", "connect", "transaction", "translated"]

T = TypeVar("T")

WAL_PAGES_BEFORE_CHECKPOINT = 4_000
CACHE_KIB = 32_768


class Lane(embedded.Lane):
    """A thread and a connection of the log; waiting for locks is its `patience`'s duty."""

    def __init__(self, patience: Patience, name: str, durable: Literal["FULL", "NORMAL"] = "FULL") -> None:
        self.patience = patience
        path = patience.path
        super().__init__(path, name, lambda: connect(patience, durable), lambda error: translated(error, path))

    async def write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Run `body` inside one transaction that writes."""
        return await self.run(lambda connection: transaction(connection, self.patience, body))


def connect(patience: Patience, durable: Literal["FULL", "NORMAL"]) -> sqlite3.Connection:
    """Open a connection in this thread. Waiting for locks is `patience`'s duty, not sqlite's."""
    connection = sqlite3.connect(patience.path, timeout=0, isolation_level=None, cached_statements=256)
    try:
        (mode,) = patience.retry(lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone())
        if mode != "wal":
            raise UsageError(f"the file system of {patience.path} has no shared memory for sqlite: use a local disk")
        connection.execute(f"PRAGMA synchronous={durable}")
        connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES_BEFORE_CHECKPOINT}")
        connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection


def transaction(connection: sqlite3.Connection, patience: Patience, body: Callable[[sqlite3.Connection], T]) -> T:
    """Run `body` between BEGIN IMMEDIATE and COMMIT; whatever it raises rolls everything back."""
    patience.begin(connection)
    try:
        result = body(connection)
    except BaseException:
        _roll_back(connection)
        raise
    try:
        patience.retry(lambda: connection.execute("COMMIT"))
    except (sqlite3.Error, LogUnavailable) as error:
        _roll_back(connection)
        raise _failed_commit(error, patience.path) from error
    return result


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:  # a full disk makes sqlite roll back by itself
        connection.execute("ROLLBACK")


def _failed_commit(error: Exception, path: str) -> LogError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_IOERR:
        # The commit frame may be in the file although its flush failed: a crash now would bring it back.
        return InDoubt(f"the disk failed during a commit to {path}: {error}")
    return CommitAborted(f"the commit to {path} was rolled back: {error}")


def translated(error: sqlite3.Error, path: str) -> LogError | UsageError:
    """The error of `streams` that says what the caller must do about one of sqlite's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return LogDamaged(f"{path} is no sqlite database: choose another path, or restore the file from a backup")
    if code == sqlite3.SQLITE_CORRUPT:
        return LogDamaged(f"{path} is damaged ({error}): stop every process that uses it and restore a backup")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return UsageError(f"{path} cannot be opened for writing ({error}): check the rights of the file and its folder")
    if is_busy(error) or isinstance(error, sqlite3.OperationalError):
        return LogUnavailable(f"{path}: {error}; nothing was written")
    return LogDamaged(f"{path}: {error}")
