"""One worker process of a supervisor: a fresh interpreter, the pipes it speaks through, and what it has told."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

__all__ = ["Child", "Line", "command_line", "outlive_readers"]

_READ_BYTES = 65_536
_LINE_BYTES_MAX = 1_048_576
"""A line that grows longer is passed on in parts: user code may print without an end."""


class Line(NamedTuple):
    """What a child wrote: an object of the worker's own, or text of whoever else prints there."""

    stderr: bool
    text: str
    told: dict[str, Any] | None


class Child:
    """A place for a worker; the process in it may be a new one after each end.

    WAITING ──▶ RUNNING ──▶ ENDED ──▶ WAITING …
    """

    def __init__(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self.restarts = -1
        """How often it was started again."""
        self.again_at: float | None = 0.0
        """When it is to be started; None while it runs, or is to stay ended."""
        self.pause = 0.0
        self.began = 0.0
        self.joined = False
        """Whether this process has entered the group: from there on it was called in the right way."""
        self.code: int | None = None
        self.owned: list[int] = []
        self._arguments = list(arguments)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._rest: dict[int, bytes] = {}

    @property
    def running(self) -> bool:
        """Whether there is a process that was not seen to end."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Of the process, while it runs."""
        return None if self._process is None else self._process.pid

    def start(self, now: float, life: int) -> list[IO[bytes]]:
        """Begin a process, and return what it writes to. It reads `life`, which ends when its supervisor does.

        Not a fork: clients in C and connections of sqlite do not survive one. In a process group of its own, so that
        Ctrl-C at the terminal reaches the supervisor alone, which asks once.
        """
        self._process = subprocess.Popen(  # noqa: S603 - this program again
            [*command_line(), "worker", *self._arguments, "--supervisor", str(life)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(life,),
            process_group=0,
        )
        self.restarts += 1
        self.began, self.again_at, self.joined, self.code = now, None, False, None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes: list[IO[bytes]] = [self._process.stdout, self._process.stderr]
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
            self._rest[pipe.fileno()] = b""
        return pipes

    def has_ended(self) -> bool:
        """Whether the process has ended since the last look; its code is in `code` then."""
        return self._process is not None and self._process.poll() is not None

    def bury(self) -> list[IO[bytes]]:
        """Take note of the end; returns the pipes, read to their end, to be closed."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.code, self.owned = process.returncode, []
        return [process.stdout, process.stderr]

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def read(self, pipe: IO[bytes], *, to_the_end: bool = False) -> tuple[list[Line], bool]:
        """The whole lines that have come, and whether the pipe has come to its end. `to_the_end`: all that is there."""
        number, stderr = pipe.fileno(), self._process is not None and pipe is self._process.stderr
        found: list[bytes] = []
        empty = ended = False
        while not empty:
            try:
                data = os.read(number, _READ_BYTES)
            except BlockingIOError:
                data, ended = b"", False
            else:
                ended = not data
            empty = not data or not to_the_end
            *lines, rest = (self._rest[number] + data).split(b"\n")
            if rest and (len(rest) > _LINE_BYTES_MAX or ended or (to_the_end and not data)):
                lines.append(rest)
                rest = b""
            self._rest[number] = rest
            found += lines
        return [self._line(line, stderr=stderr) for line in found], ended

    def _line(self, data: bytes, *, stderr: bool) -> Line:
        text = data.decode("utf-8", "backslashreplace")
        told = None
        if not stderr and data.startswith(b"{"):
            try:
                told = json.loads(text)
            except ValueError:
                told = None
            if not isinstance(told, dict) or "kind" not in told:
                told = None
        return Line(stderr, text, told)


def command_line() -> list[str]:
    """How this program is called again, in the way it was called: that decides where modules are looked for."""
    script = Path(sys.argv[0])
    if script.name == "streams" and script.is_file():
        return [sys.executable, str(script)]
    return [sys.executable, "-m", "streams"]


class _Pipe(io.FileIO):
    """What is written here goes nowhere when nobody reads any more: a task that prints must not fail for that."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def outlive_readers() -> None:
    """Let this process print on when its supervisor is gone: it has tasks to finish."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        stream.flush()
        pipe = io.BufferedWriter(_Pipe(number, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(pipe, stream.encoding, "backslashreplace", line_buffering=True))
