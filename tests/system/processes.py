"""Real worker processes on one sqlite log, for tests that kill, freeze and stop them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streams.log.sqlite import open_sqlite
from streams.runtime.topics import ensure_topics
from tests.runtime.checker import Checked, check_log
from tests.runtime.history import HANG_SECONDS, History, until
from tests.system import shop

__all__ = ["PARTITIONS", "Process", "World", "world"]

PARTITIONS = 4
EFFECTS = ("mails", "parcels")
RUNNER = Path(__file__).with_name("run_worker.py")


class Process:
    """A worker process, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.said: list[list[Any]] = []
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))

    def heard(self, *begin: Any) -> list[list[Any]]:
        return [line for line in self.said if line[: len(begin)] == list(begin)]

    @property
    def owned(self) -> set[int]:
        """The partitions that it says are running."""
        found: set[int] = set()
        for _, number, state, *_ in self.heard("partition"):
            (found.add if state == "running" else found.discard)(number)
        return found

    async def owns(self, count: int) -> None:
        await until(lambda: len(self.owned) == count or self.process.returncode is not None, f"{count} partitions")
        assert len(self.owned) == count, self.said

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def gone(self) -> int:
        """Wait for its end; return the exit code, negative after a signal."""
        await asyncio.wait_for(self.process.wait(), HANG_SECONDS)
        await self._hearing
        assert self.process.returncode is not None
        return self.process.returncode

    async def stop(self) -> int:
        """Stop it gracefully."""
        if self.process.returncode is None:
            self.signal(signal.SIGTERM)
        return await self.gone()

    async def end(self) -> None:
        """Kill what is still there."""
        if self.process.returncode is None:
            self.signal(signal.SIGKILL)
        await self.gone()


class World:
    """A sqlite log, the outside database, and the processes of a test."""

    def __init__(self, folder: Path, log: Any) -> None:
        self.folder = folder
        self.log = log
        self.outside_path = str(folder / "outside.db")
        self.history = History(log, "shop", EFFECTS, PARTITIONS)
        self.processes: list[Process] = []

    async def worker(self, crash_at: str = "", **settings: Any) -> Process:
        """Start a worker process; `crash_at` is a crash point as in STREAMS_CRASH_AT."""
        environment = os.environ | {"STREAMS_CRASH_AT": crash_at, "SHOP_DB": self.outside_path}
        settings = {"partitions": PARTITIONS} | settings
        process = Process(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(RUNNER),
                self.log.url,
                json.dumps(settings),
                stdout=asyncio.subprocess.PIPE,
                env=environment,
            )
        )
        self.processes.append(process)
        return process

    def outside(self, sql: str, *values: Any) -> list[Any]:
        return shop.outside(sql, *values, path=self.outside_path)

    def attempts(self, run_id: str, what: str) -> list[int]:
        """The numbers of the attempts that this kind of task noted outside."""
        rows = self.outside("SELECT attempt FROM attempts WHERE run = ? AND what = ? ORDER BY rowid", run_id, what)
        return [attempt for (attempt,) in rows]

    async def check(self) -> Checked:
        """Prove the log right, and what happened outside too."""
        checked = await check_log(self.log, "shop", EFFECTS, partitions=PARTITIONS)
        rows = self.outside("SELECT key, run, attempt FROM attempts")
        for key, run_id, attempt in rows:
            op = key.rpartition("/")[2]
            starts = {(o.rpartition("/")[2], a) for o, a in checked.starts(run_id)}
            assert (op, attempt) in starts, f"attempt {attempt} of {key} ran without a start record"
        return checked


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """A fresh log with topics; ends every process of the test."""
    url = f"sqlite:///{folder}/log.db?session_timeout_ms=1000"
    log = await open_sqlite(url)
    found = World(folder, log)
    shop.prepare(found.outside_path)
    try:
        await ensure_topics(log, found.history.topics, PARTITIONS)
        yield found
    finally:
        for process in found.processes:
            await process.end()
        await log.close()
