"""The connection of a ledger in sqlite: how it is opened, its transactions, and what sqlite's errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from streams.embedded.file import is_busy, lock_holder, stall_message
from streams.errors import LedgerError, LedgerMismatch, LedgerUnavailable, UsageError

__all__ = ["HandlerRaised", "connect", "in_hand", "path_of", "transaction", "translated"]

T = TypeVar("T")

_WAL_PAGES_BEFORE_CHECKPOINT = 4_000
_ENDING = frozenset({"BEGIN", "COMMIT", "ROLLBACK"})
_OF_THE_DISK = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOMEM})
_ENDED_BY_ITSELF = (
    "a transactional handler tried to begin, commit or roll back by itself: the ledger does that, for the handler's "
    "writes and its own entry together; raise an error to have all of it rolled back, and use SAVEPOINT for a part"
)


def path_of(url: str) -> str:
    """The file that `sqlite:///relative.db` or `sqlite:////absolute.db` names."""
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket that is not closed
        parts = urlsplit("")
    path = unquote(parts.path)[1:]
    known = parts.scheme == "sqlite" and parts.path.startswith("/") and not (parts.netloc or parts.query)
    if not known or not path or "\0" in path:
        raise UsageError(
            f"{url.partition('?')[0].rpartition('@')[2]!r} is no address of a ledger in sqlite: "
            "write sqlite:///relative.db or sqlite:////absolute/path.db"
        )
    return os.path.realpath(path)


def connect(path: str, busy_seconds: float) -> sqlite3.Connection:
    """Open a connection in this thread; it waits so long for the locks of others."""
    connection = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, cached_statements=256)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise UsageError(f"the file system of {path} has no shared memory for sqlite: use a local disk")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES_BEFORE_CHECKPOINT}")
    except BaseException:
        connection.close()
        raise
    return connection


def transaction(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Run `work` between BEGIN IMMEDIATE and COMMIT; whatever it raises rolls everything back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk makes sqlite roll back by itself
            connection.execute("ROLLBACK")
        raise
    return result


def in_hand(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Run a handler, whose own errors come out as they are, and which can neither begin nor end a transaction."""
    connection.set_authorizer(_allow)
    try:
        return work()
    except sqlite3.Error as error:
        if "not authorized" in str(error):
            raise LedgerError(_ENDED_BY_ITSELF) from error
        if _code(error) in _OF_THE_DISK:
            raise
        raise HandlerRaised(error) from error
    finally:
        connection.set_authorizer(None)
        connection.row_factory, connection.text_factory = None, str  # the ledger reads rows by their places


def _allow(action: int, operation: str | None, *_: str | None) -> int:
    refused = action == sqlite3.SQLITE_TRANSACTION and operation in _ENDING
    return sqlite3.SQLITE_DENY if refused else sqlite3.SQLITE_OK


class HandlerRaised(Exception):
    """Carries an error of sqlite that is a handler's own past the place where those of the ledger are translated."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__(str(error))
        self.error = error


def translated(error: sqlite3.Error, path: str, busy_seconds: float) -> LedgerError | UsageError:
    """The error of `streams` that says what the caller must do about one of sqlite's."""
    code = _code(error)
    if is_busy(error):
        return LedgerUnavailable(stall_message(path, busy_seconds, lock_holder(path)))
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return UsageError(f"{path} cannot be opened for writing ({error}): check the rights of the file and its folder")
    if code == sqlite3.SQLITE_NOTADB:
        return UsageError(f"{path} is no sqlite database: choose another path, or restore the file from a backup")
    if code == sqlite3.SQLITE_CORRUPT:
        return LedgerError(f"{path} is damaged ({error}): stop every process that uses it and restore a backup")
    if "no such table: streams_ledger" in str(error):
        return LedgerMismatch(f"{path} has no tables of a ledger: `streams subscribe MODULE:APP --ledger …` makes them")
    if isinstance(error, sqlite3.OperationalError):
        return LedgerUnavailable(f"{path}: {error}")
    return LedgerError(f"{path}: {error}")


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
