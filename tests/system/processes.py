"""Real worker processes on one log, sqlite or Kafka, for tests that kill, freeze and stop them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streams.cli.logs import open_log
from streams.dev import Kafka
from streams.errors import LogUnavailable
from streams.log.port import Log, Reader, TopicPartition
from streams.runtime.topics import ensure_topics
from tests.runtime.checker import Checked, check_log, try_event
from tests.runtime.history import HANG_SECONDS, History, until
from tests.system import shop

__all__ = ["PARTITIONS", "Follower", "Process", "World", "broker_of", "members", "on_each_log", "world"]

PARTITIONS = 4
EFFECTS = ("mails", "parcels")
RUNNER = Path(__file__).with_name("run_worker.py")
on_each_log = pytest.mark.parametrize(
    "broker", ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)
"""For tests that take the fixture `broker`, which is None for sqlite."""

SESSION_MS = 2_000
"""On Kafka: how soon a killed worker is missed. Short, so that many deaths fit into one test run."""


def broker_of(request: pytest.FixtureRequest) -> Kafka | None:
    """The broker of the run, where a test of `on_each_log` runs on Kafka."""
    return request.getfixturevalue("kafka") if request.param == "kafka" else None


def members(kafka: Kafka, session_ms: int = SESSION_MS, **more: Any) -> str:
    """The address of a broker for workers that are missed so soon."""
    url = f"{kafka.url}?session.timeout.ms={session_ms}&heartbeat.interval.ms={session_ms // 6}"
    return url + "".join(f"&{name.replace('_', '.')}={value}" for name, value in more.items())


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

    @property
    def frozen(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        state = Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        return state == "T"

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


class Follower(History):
    """Keeps one reader: on Kafka each is a client with threads and connections of its own."""

    _reader: Reader | None = None

    async def read(self) -> None:
        with suppress(LogUnavailable):  # a test may have killed the broker; whoever waits reads again
            await self._read()

    async def _read(self) -> None:
        async with self._reading:
            places = [TopicPartition(self.topics.events, number) for number in range(self.partitions)]
            ends = await asyncio.gather(*(self.log.span(*place) for place in places))
            if self._reader is None:
                self._reader = self.log.reader(dict.fromkeys(places, 0))
            while any(self._reader.position(place) < span.end for place, span in zip(places, ends, strict=True)):
                for record in await self._reader.read(10_000, 0.02):
                    event = try_event(record)
                    if event is not None:
                        self.events.setdefault(event.run_id, []).append(event)


class World:
    """A log, the outside database, and the processes of a test."""

    def __init__(self, folder: Path, log: Log, url: str, app: str) -> None:
        self.folder = folder
        self.log = log
        self.url = url
        self.app = app
        self.outside_path = str(folder / "outside.db")
        self.history = Follower(log, app, EFFECTS, PARTITIONS)
        self.processes: list[Process] = []

    async def worker(self, crash_at: str = "", *, freeze_at: str = "", **settings: Any) -> Process:
        """Start a worker process; `crash_at` is a crash point as in STREAMS_CRASH_AT, `freeze_at` too."""
        environment = os.environ | {"STREAMS_CRASH_AT": crash_at, "FREEZE_AT": freeze_at}
        environment |= {"SHOP_DB": self.outside_path, "SHOP_APP": self.app}
        settings = {"partitions": PARTITIONS} | settings
        process = Process(
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(RUNNER),
                self.url,
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
        checked = await check_log(self.log, self.app, EFFECTS, partitions=PARTITIONS)
        rows = self.outside("SELECT key, run, attempt FROM attempts")
        for key, run_id, attempt in rows:
            op = key.rpartition("/")[2]
            starts = {(o.rpartition("/")[2], a) for o, a in checked.starts(run_id)}
            assert (op, attempt) in starts, f"attempt {attempt} of {key} ran without a start record"
        return checked


@asynccontextmanager
async def world(folder: Path, kafka: Kafka | None = None, *, url: str = "") -> AsyncIterator[World]:
    """An app of its own with topics, on a fresh sqlite log or on a broker; ends every process of the test.

    `url` is the address for its workers, where it is another than usual.
    """
    usual = members(kafka) if kafka else f"sqlite:///{folder}/log.db?session_timeout_ms=1000"
    log = await open_log(usual)
    found = World(folder, log, url or usual, f"shop-{uuid4().hex[:8]}")
    shop.prepare(found.outside_path)
    try:
        await ensure_topics(log, found.history.topics, PARTITIONS)
        yield found
    finally:
        for process in found.processes:
            await process.end()
        await log.close()
