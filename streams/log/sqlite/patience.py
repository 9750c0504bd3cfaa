"""Waiting for sqlite's write lock: for as long as it takes, but never silently."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from streams.errors import LogUnavailable

__all__ = ["Patience", "is_busy", "lock_holder"]

T = TypeVar("T")

STALL_SECONDS = 5.0
STALL_AGAIN_SECONDS = 30.0
PAUSE_SECONDS_MIN = 0.0003
PAUSE_SECONDS_MAX = 0.004
WAL_WRITE_LOCK_BYTE = 120
"""The byte of the -shm file that a writer locks. Part of SQLite's file format (walformat, section 2.3)."""

_LOCK = re.compile(r"POSIX\s+ADVISORY\s+WRITE\s+(\d+)\s+\w+:\w+:(\d+)\s+(\d+)\s+(\d+|EOF)")


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


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection is in the way. Nothing was written."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def stall_message(path: str, seconds: float, holder: int | None) -> str:
    """What a person needs to know to end the stall."""
    if holder is None:
        who, cure = "another process holds it", f"find it with `fuser {path}`, then continue or end it"
    elif holder == os.getpid():
        who, cure = f"this process ({holder}) holds it itself", "another connection of it is inside a transaction"
    else:
        who = f"process {holder}{_command(holder)} holds it, frozen or very slow"
        cure = f"continue it with `kill -CONT {holder}` or end it with `kill -KILL {holder}`; either is safe"
    return f"waiting for the write lock of {path} for {seconds:.0f} s: {who}; {cure}"


def lock_holder(path: str) -> int | None:
    """The process that holds the write lock, as the kernel knows it; None where it cannot be told.

    Never open the -shm or the database file to ask: closing it again would drop all of this process's own locks.
    """
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for pid, locked, first, last in _LOCK.findall(locks):
        end = WAL_WRITE_LOCK_BYTE if last == "EOF" else int(last)
        if int(locked) == inode and int(first) <= WAL_WRITE_LOCK_BYTE <= end:
            return int(pid)
    return None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return f" ({b' '.join(words).decode(errors='replace').strip()[:80]})"
