"""Real processes around one log: workers, subscribers and the provider; a test kills, freezes and stops them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from streams.cli.logs import open_log
from streams.dev import Kafka
from streams.log.port import Log
from streams.runtime.topics import ensure_topics
from tests.effects.real.outside import Outside
from tests.runtime.checker import Checked, check_log
from tests.system.processes import Follower, Process, members

__all__ = ["PARTITIONS", "Stage", "stage"]

PARTITIONS = 2
HERE = Path(__file__).parent


class Stage:
    """A log, the provider, and the processes of a test."""

    def __init__(self, folder: Path, log: Log, url: str, app: str, effects: tuple[str, ...]) -> None:
        self.folder = folder
        self.log = log
        self.url = url
        self.app = app
        self.effects = effects
        self.outside = Outside(folder)
        self.history = Follower(log, app, effects, PARTITIONS)
        self.processes: list[Process] = []

    async def worker(self, module: str, crash_at: str = "", *, freeze_at: str = "", **settings: Any) -> Process:
        """Start a worker of a module's app; it dies or stands still at a crash point."""
        told = json.dumps({"partitions": PARTITIONS} | settings)
        return await self.process("run_worker.py", module, self.url, told, crash_at=crash_at, freeze_at=freeze_at)

    async def process(self, program: str, *arguments: str, crash_at: str = "", freeze_at: str = "") -> Process:
        environment = os.environ | {"STREAMS_CRASH_AT": crash_at, "FREEZE_AT": freeze_at}
        environment |= {"STAGE_APP": self.app, "ORDERS_PROVIDER": self.outside.address}
        line = [sys.executable, str(HERE / program), *arguments]
        process = Process(await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE, env=environment))
        self.processes.append(process)
        return process

    async def check(self) -> Checked:
        """Prove the log right."""
        return await check_log(self.log, self.app, self.effects, partitions=PARTITIONS)


@asynccontextmanager
async def stage(folder: Path, kafka: Kafka | None = None, effects: tuple[str, ...] = ()) -> AsyncIterator[Stage]:
    """An app of its own on a fresh sqlite log or on a broker; ends every process of the test."""
    url = members(kafka) if kafka else f"sqlite:///{folder}/log.db?session_timeout_ms=1000"
    log = await open_log(url)
    found = Stage(folder, log, url, f"stage-{uuid4().hex[:8]}", effects)
    try:
        await found.outside.up()
        await ensure_topics(log, found.history.topics, PARTITIONS)
        yield found
    finally:
        for process in found.processes:
            await process.end()
        await found.outside.down()
        await log.close()
