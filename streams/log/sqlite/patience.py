"""Waiting for sqlite's write lock: for as long as it takes, but never silently."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from streams.embedded.file import is_busy, lock_holder, stall_message
from streams.errors import LogUnavailable

__all__ = ["Patience", "is_busy", "lock_holder"]

T = TypeVar("T")

STALL_SECONDS = 5.0
STALL_AGAIN_SECONDS = 30.0
PAUSE_SECONDS_MIN = 0.0003
PAUSE_SECONDS_MAX = 0.004


class Patience:
    """Retries what sqlite answers with BUSY, and reports who is in the way.

    A process that is frozen inside a commit keeps the lock; nothing but a person (or SIGCONT) can end that.
    """

    def __init__(self, path: str, report: Callable[[str], None]) -> None:
        self.path = path
        self.report = report
        self._reported = -STALL_AGAIN_SECONDS
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let every waiter give up: the log is being closed."""
        self._stopped.set()

    def retry(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, as soon as nobody else is in the way."""
        began = time.monotonic()
        pause = PAUSE_SECONDS_MIN
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                if self._stopped.wait(pause):
                    raise LogUnavailable(f"{self.path} was closed while this waited for its write lock") from error
            pause = min(pause * 1.5, PAUSE_SECONDS_MAX)
            self._complain(time.monotonic(), began)

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction that writes."""
        self.retry(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _complain(self, now: float, began: float) -> None:
        # Several threads of one log may wait; one of them speaks for all.
        if now - began >= STALL_SECONDS and now - self._reported >= STALL_AGAIN_SECONDS:
            self._reported = now
            self.report(stall_message(self.path, now - began, lock_holder(self.path)))
