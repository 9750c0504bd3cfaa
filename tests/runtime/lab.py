"""Workers of an app inside the test's process, on a memory log or a sqlite log."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streams import App
from streams.errors import Fenced
from streams.log.memory import open_memory
from streams.log.port import Log
from streams.log.sqlite import open_sqlite
from streams.observer import Observer
from streams.ops.verify import verify
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from tests.runtime.checker import Checked, check_log
from tests.runtime.history import HANG_SECONDS, History, until

__all__ = ["Lab", "Recorder", "Running", "case"]

PARTITIONS = 4

POLL_SECONDS = 0.02


class Recorder(Observer):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in Observer.__dict__ and not name.startswith("_"):
            return lambda *what: self.told.append((name, *what))
        return super().__getattribute__(name)

    def heard(self, *begin: Any) -> list[tuple[Any, ...]]:
        return [what for what in self.told if what[: len(begin)] == begin]


class Running:
    """A worker at work."""

    def __init__(self, worker: Worker, log: Log, told: Recorder) -> None:
        self.worker = worker
        self.log = log
        self.told = told
        self.task = asyncio.create_task(worker.run())
        self.killed = False

    @property
    def owned(self) -> set[int]:
        return {number for number, partition in self.worker.owner.partitions.items() if partition.running}

    async def owns(self, count: int) -> None:
        await until(lambda: len(self.owned) == count or self.task.done(), f"{count} partitions")
        assert len(self.owned) == count, self.told.told

    async def stop(self) -> None:
        """Stop gracefully."""
        self.worker.stop()
        await asyncio.wait_for(self.task, HANG_SECONDS)

    async def kill(self) -> None:
        """Stop like a crash: nothing of it reaches the log any more."""

        async def dead(*_: Any) -> Any:
            raise Fenced("this worker is dead")

        self.killed = True
        self.worker.commit = dead
        self.worker.trust_producer = dead
        self.task.cancel()
        await self.log.close()
        await asyncio.wait([self.task], timeout=HANG_SECONDS)
        assert self.task.done()
        if not self.task.cancelled():
            self.task.exception()


class Lab:
    """One log, one app, its history, and any number of workers."""

    def __init__(self, app: App, open_log: Callable[[], Any], log: Log) -> None:
        self.app = app
        self.log = log
        self.history = History(log, app.name, tuple(app.effects), PARTITIONS)
        self.topics = self.history.topics
        self.running: list[Running] = []
        self.open_log = open_log
        self.damaged: set[str] = set()
        self.divergent: set[str] = set()
        """Runs of which `streams verify` complains, because a test has spoilt what belongs to them on purpose."""
        self.unchecked = False
        """Set by a test that has spoilt what the checker reads."""

    async def worker(self, app: App | None = None, *, clock: Any = None, **settings: Any) -> Running:
        """Start a worker; with `owns=n` wait until it has so many partitions, by default all."""
        owns = settings.pop("owns", PARTITIONS)
        faults = settings.pop("faults", None)
        store = settings.pop("store", None)
        log = await self.open_log()
        if faults is not None:
            faults.into(log)
        told = Recorder()
        # A test that moves the clock lets time pass with it, which the clock of the log does not.
        moved = {"clock_refuse_seconds": math.inf} if clock is not None else {}
        chosen = WorkerSettings(**({"partitions": PARTITIONS, "poll_seconds": POLL_SECONDS} | moved | settings))
        worker = Worker(
            app or self.app,
            log,
            settings=chosen,
            observer=told,
            clock=clock,
            owner=f"w{len(self.running) + 1}",
            store=store,
        )
        running = Running(worker, log, told)
        self.running.append(running)
        if owns:
            await running.owns(owns)
        return running

    async def check(self) -> Checked:
        """Prove the log right, twice: by the checker of the tests, and by what users have for it."""
        checked = await check_log(
            self.log, self.app.name, self.app.effects, partitions=PARTITIONS, damaged=frozenset(self.damaged)
        )
        report = await verify(self.log, self.app.name)
        expected = self.damaged | self.divergent
        divergent = [found for found in report.divergences if found.run_id not in expected]
        assert not divergent, divergent
        return checked

    async def end(self) -> None:
        for running in self.running:
            if not running.task.done():
                running.worker.stop()
        tasks = [running.task for running in self.running]
        if tasks:
            await asyncio.wait(tasks, timeout=HANG_SECONDS)
        for running in self.running:
            await running.log.close()
        await self.log.close()
        for running in self.running:
            if not running.killed:
                await running.task


@asynccontextmanager
async def lab(app: App, kind: str, folder: Path) -> AsyncIterator[Lab]:
    """A lab on a fresh log."""
    if kind == "memory":
        first: Any = await open_memory()

        async def share() -> Log:
            return first.share()

        found = Lab(app, share, first)
    else:
        url = f"sqlite:///{folder}/log.db?session_timeout_ms=1000"
        found = Lab(app, functools.partial(open_sqlite, url), await open_sqlite(url))
    await ensure_topics(found.log, found.topics, PARTITIONS)
    try:
        yield found
    finally:
        await found.end()


def case(app: App, *kinds: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a coroutine function that takes a `Lab` first; it runs on each kind of log.

    What else it takes are fixtures or parameters of pytest. Every test of it ends with a log that is proven right.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        more = list(inspect.signature(function).parameters.values())[1:]

        def run(on: str, tmp_path: Path, **arguments: Any) -> None:
            async def scenario() -> None:
                async with lab(app, on, tmp_path) as found:
                    await function(found, **arguments)
                    for running in found.running:
                        if not running.task.done():
                            await running.stop()
                    if not found.unchecked:
                        await found.check()

            asyncio.run(scenario())

        first = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("on", "tmp_path")]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*first, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in more)]
        )
        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.pytestmark = getattr(function, "pytestmark", [])  # type: ignore[attr-defined]
        run.scenario, run.app, run.kinds = function, app, kinds  # type: ignore[attr-defined] - for other logs
        return pytest.mark.parametrize("on", kinds or ("memory", "sqlite"))(run)

    return decorate
