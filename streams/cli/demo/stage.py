"""The stage of a demo: a folder, the example's code, and processes that all end with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from streams.errors import StreamsError

__all__ = ["Child", "Stage", "Stuck", "examples_folder"]

T = TypeVar("T")

POLL_SECONDS = 0.03
END_SECONDS = 5.0
WAIT_SECONDS_MAX = 60.0
TAIL_LINES = 8


class Stuck(StreamsError):
    """The demo did not get on; the message has what it waited for and what the process in question said last."""


def examples_folder() -> Path:
    """The examples: inside the wheel, or at the top of the checkout."""
    package = Path(str(files("streams")))
    for folder in (package / "_examples", package.parent / "examples"):
        if (folder / "order.py").is_file():
            return folder
    raise StreamsError(f"the examples are missing beside {package}: install streams-engine again")


class Child:
    """A process of the demo; what it prints goes into a file."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], output: Path) -> None:
        self.name = name
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own files
                command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    @property
    def killed(self) -> bool:
        """Whether it was ended by SIGKILL."""
        return self.process.poll() == -9

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait(END_SECONDS)

    def said(self) -> str:
        """The last lines that it printed."""
        return "\n".join(self.output.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:])


class Stage:
    """Starts processes and waits for things to happen, never for long."""

    def __init__(self, folder: Path, url: str | None = None, app: str | None = None, ledger: str | None = None) -> None:
        self.folder = folder
        self.log_is_shared = url is not None
        self.shared = self.log_is_shared or ledger is not None
        self.app = app
        self.examples = examples_folder()
        self.url = url or f"sqlite:///{folder / 'streams.db'}?session_timeout_ms=1000"
        self.environment: dict[str, str] = {"PYTHONUNBUFFERED": "1", "STREAMS_CRASH_AT": ""}
        self.ledger = ledger or f"sqlite:///{folder / 'ledger.db'}"
        self.kills = 0
        self.subscriber_kills = 0
        self._children: list[Child] = []

    def start(self, name: str, *command: str, crash_at: str = "") -> Child:
        """A Python process in this stage's environment."""
        environment = self.environment | {"STREAMS_CRASH_AT": crash_at}
        child = Child(name, [sys.executable, *command], environment, self.folder / f"{name.replace(' ', '-')}.log")
        self._children.append(child)
        return child

    def worker(self, number: int, example: str, *, crash_at: str = "") -> Child:
        """A worker of the example; with `crash_at` it is killed at that point of its own accord."""
        target = f"{self.examples / example}.py:app"
        command = ["-m", "streams", "worker", target, "--log", self.url]
        return self.start(f"worker {number}", *command, *(["--app", self.app] if self.app else []), crash_at=crash_at)

    def subscriber(self, number: int, example: str, *, crash_at: str = "") -> Child:
        """A subscriber, in the same way. Its claims are over soon, so that the next one need not wait for them."""
        target = f"{self.examples / example}.py:app"
        command = ["-m", "streams", "subscribe", target, "--log", self.url, "--ledger", self.ledger, "--lease", "1"]
        command += ["--app", self.app] if self.app else []
        return self.start(f"subscriber {number}", *command, crash_at=crash_at)

    def kill(self, child: Child) -> None:
        """Kill -9, and count it."""
        child.kill()
        self.kills += 1

    async def until(
        self, what: str, probe: Callable[[], Awaitable[T | None]], *, needs: Child, seconds: float = WAIT_SECONDS_MAX
    ) -> T:
        """What `probe` gives as soon as it gives something. Raises `Stuck` when `needs` has ended, or after a while."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            gone = needs.gone
            found = await probe()
            if found is not None:
                return found
            if gone:
                raise Stuck(f"{needs.name} ended before {what}; it said: {needs.said() or 'nothing'}")
            if asyncio.get_running_loop().time() > deadline:
                said = f"; {needs.name} said: {needs.said() or 'nothing'}"
                raise Stuck(f"waited {seconds:.0f} s for {what}{said}")
            await asyncio.sleep(POLL_SECONDS)

    async def until_killed(self, child: Child, where: str) -> None:
        """Wait for a worker or a subscriber to die at its crash point, and count it."""

        async def dead() -> bool | None:
            return True if child.gone else None

        await self.until(f"it was killed {where}", dead, needs=child)
        if not child.killed:
            raise Stuck(f"{child.name} ended by itself and was not killed {where}; it said: {child.said()}")
        if child.name.startswith("subscriber"):
            self.subscriber_kills += 1
        else:
            self.kills += 1

    def close(self) -> None:
        """End every process."""
        running = [child for child in self._children if not child.gone]
        for child in running:
            child.process.terminate()
        for child in running:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(END_SECONDS if child is running[0] else 1.0)
            if not child.gone:
                child.kill()
