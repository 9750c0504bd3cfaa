"""`streams` as a process of its own whose lines are read while it runs, as a person at a terminal reads them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Done", "Streams", "streams"]

ROOT = Path(__file__).resolve().parents[2]
HANG_SECONDS = 120.0
"""A guard against hangs: no test measures time with it."""


class Done(NamedTuple):
    """How it ended: what it printed, lines of stderr apart."""

    code: int
    out: str
    lines: list[str]


def streams(*arguments: str, cwd: Path | None = None, **environment: str) -> Done:
    """Run one command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "streams", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr.splitlines())


class Streams:
    """One that stays: a worker. Everything that it prints goes into one file."""

    def __init__(self, output: Path, *arguments: str, **environment: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "streams", *arguments],
                env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def lines(self) -> list[str]:
        return self._output.read_text("utf-8", "replace").splitlines()

    def saying(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]

    def until(self, words: str, times: int = 1) -> str:
        """Wait for a line; returns the last of them."""
        deadline = time.monotonic() + HANG_SECONDS
        while len(found := self.saying(words)) < times:
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.05)
        return found[-1]

    def gone(self) -> int:
        """Wait for its end by itself."""
        return self.process.wait(HANG_SECONDS)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.gone()
