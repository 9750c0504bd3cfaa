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
from typing import Any, TypeVar

from streams.errors import UsageError

__all__ = ["Lane", "same_process"]

T = TypeVar("T")


class Lane:
    """Runs jobs one after another on its thread. The connection is opened there, by the first job.

    A pool of one thread would do, but takes twice the time for each job, and a commit is a job.
    """

    def __init__(
        self,
        path: str,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        translated: Callable[[sqlite3.Error], Exception],
    ) -> None:
        self._path = path
        self._connect = connect
        self._translated = translated
        self._jobs: SimpleQueue[tuple[Callable[[sqlite3.Connection], Any] | None, asyncio.Future[Any]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"sqlite-{name}", daemon=True)
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._closed = False
        self._thread.start()

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` on the thread and return its result; sqlite's errors come out translated."""
        same_process(self._pid, self._path)
        if self._closed:
            raise ValueError(f"{self._path} is closed: open it again")
        found: T = await self._hand_over(job)
        return found

    async def close(self) -> None:
        """Close the connection and end the thread, after the jobs that wait."""
        same_process(self._pid, self._path)
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
                self._connection = self._connect()
            return job(self._connection)
        except sqlite3.Error as error:
            raise self._translated(error) from error

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
            "a sqlite connection must not cross a fork; open it again in the child"
        )
