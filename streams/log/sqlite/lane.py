"""One thread with one sqlite connection that no other thread and no other process ever touches."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from streams.errors import CommitAborted, InDoubt, LogDamaged, LogError, LogUnavailable, UsageError
from streams.log.sqlite.patience import Patience, is_busy

__all__ = ["Lane", "connect", "same_process", "transaction", "translated"]

T = TypeVar("T")

WAL_PAGES_BEFORE_CHECKPOINT = 4_000
CACHE_KIB = 32_768


class Lane:
    """Runs jobs one after another on its thread. The connection is opened there, by the first job.

    A pool of one thread would do, but takes twice the time for each job, and a commit is a job.
    """

    def __init__(self, patience: Patience, name: str, durable: Literal["FULL", "NORMAL"] = "FULL") -> None:
        self.patience = patience
        self._durable: Literal["FULL", "NORMAL"] = durable
        self._jobs: SimpleQueue[tuple[Callable[[sqlite3.Connection], Any] | None, asyncio.Future[Any]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"sqlite-{name}", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._closed = False
        self._thread.start()

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` on the thread and return its result; sqlite's errors come out as ours."""
        same_process(self._pid, self.patience.path)
        if self._closed:
            raise ValueError(f"the log {self.patience.path} is closed: open it again")
        found: T = await self._hand_over(job)
        return found

    async def write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Run `body` inside one transaction that writes."""
        return await self.run(lambda connection: transaction(connection, self.patience, body))

    async def close(self) -> None:
        """Close the connection and end the thread, after the jobs that wait."""
        same_process(self._pid, self.patience.path)
        if not self._closed:
            self._closed = True
            await self._hand_over(None)

    def _hand_over(self, job: Callable[[sqlite3.Connection], Any] | None) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put((job, done))
        return done

    def _work(self) -> None:
        open_ = True
        while open_:
            open_ = self._serve(*self._jobs.get())

    def _serve(self, job: Callable[[sqlite3.Connection], Any] | None, done: asyncio.Future[Any]) -> bool:
        """Do one job, unless nobody waits for it any more; False after the last one, which has no job."""
        try:
            result = None if done.cancelled() or job is None else self._call(job)
            answer = partial(_answer, done, result, None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the job came from
            answer = partial(_answer, done, None, error)
        if job is None:
            self._disconnect()
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            done.get_loop().call_soon_threadsafe(answer)
        return job is not None

    def _call(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = connect(self.patience, self._durable)
            return job(self._connection)
        except sqlite3.Error as error:
            raise translated(error, self.patience.path) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def same_process(opened_by: int, path: str) -> None:
    """Raise UsageError in a forked child: its copy of a connection would break the parent's locks."""
    if os.getpid() != opened_by:
        raise UsageError(
            f"{path} was opened by process {opened_by} and is used in its fork {os.getpid()}: "
            "a sqlite connection must not cross a fork; open the log again in the child"
        )


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
