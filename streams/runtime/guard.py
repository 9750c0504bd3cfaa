"""Driving user code: asyncio is hidden while it runs, and code that never waits is stopped."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["DriveGuard", "DriveTooLong"]

_LOOKS = 4


class DriveTooLong(BaseException):
    """Thrown into workflow code that has run for too long without waiting for an op."""

    def __str__(self) -> str:
        return (
            "it ran for too long without waiting for anything. Workflow code only decides: long computations and "
            "blocking calls belong into an app.task"
        )


class _Drive:
    """Watches what stands inside. There is one for all drives: `contextmanager` would make two objects for each."""

    __slots__ = ("_guard",)

    def __init__(self, guard: DriveGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard.begin()

    def __exit__(self, *error: object) -> None:
        self._guard.end()


class DriveGuard:
    """Wraps every drive of workflow code.

    The running loop is hidden, so that `asyncio.sleep` and its kin fail at the call instead of waiting for something
    that no journal records. A thread watches the time; it interrupts Python code, though not a blocking C call.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._drives = 0
        self._driving = False
        self._fired = False
        self._lock = threading.Lock()
        self._owner = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="streams-drive-guard", daemon=True)
        self._drive = _Drive(self)

    def start(self) -> None:
        """Begin to watch."""
        self._owner = threading.get_ident()
        self._thread.start()

    def close(self) -> None:
        """End the watching thread."""
        self._stop.set()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the running event loop; inside, `timed` bounds each drive."""
        loop = asyncio._get_running_loop()  # noqa: SLF001 - documented for those who implement event loops
        asyncio._set_running_loop(None)  # noqa: SLF001
        try:
            yield
        finally:
            self.end()  # the exception may have come between the last line of a drive and its end
            asyncio._set_running_loop(loop)  # noqa: SLF001

    def timed(self) -> AbstractContextManager[None]:
        """One drive; no other may be inside. It raises `DriveTooLong` in here and nowhere else."""
        return self._drive

    def begin(self) -> None:
        """From here on a drive is watched."""
        with self._lock:
            self._drives += 1
            self._driving = True

    def end(self) -> None:
        """The drive has ended, and what comes too late for it does not count."""
        while self._driving:
            try:
                self._end()
            except DriveTooLong:  # it came when the code had ended by itself
                continue

    def _end(self) -> None:
        with self._lock:
            if self._fired:
                # One that was set but not yet raised would hit the engine later: take it back.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._owner), None)
                self._fired = False
            self._driving = False

    def _watch(self) -> None:
        """Count looks at one and the same drive, not time: a process that was frozen must not blame a run for it.

        Code that swallows the exception gets it again at each further look.
        """
        drive, looks = 0, 0
        while not self._stop.wait(self._seconds / _LOOKS):
            with self._lock:
                same = self._driving and self._drives == drive
                drive, looks = self._drives, looks + 1 if same else 0
                if looks >= _LOOKS:
                    self._fired = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(self._owner), ctypes.py_object(DriveTooLong)
                    )
