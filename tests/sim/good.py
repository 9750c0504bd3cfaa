"""A true history in virtual time, without faults but for a worker that hands over to another one in the middle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from streams.log.memory import MemoryLog
from streams.log.port import Record
from streams.runtime.host import Host
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.testing.clock import VirtualClock
from streams.testing.loop import current_actor
from streams.testing.sim.history import Served
from streams.testing.sim.model import Plan
from streams.testing.sim.outside import Outside
from streams.testing.sim.workload import Accepted, Load, make_app
from streams.wire.topics import topics_of

PARTITIONS = 2


class StillHost(Host):
    """No threads, no chance."""

    watched = False

    def random_bytes(self, count: int) -> bytes:
        return bytes(count)

    def start_thread(self, work: Any, name: str) -> None:
        del name
        work()


class GoodWorld:
    """Has what `Judged` asks for."""

    def __init__(self, seed: int = 0) -> None:
        loop: Any = asyncio.get_running_loop()
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.log = MemoryLog(clock=self.clock.now_ms)
        self.outside = Outside(self.clock.now_us, self._name)
        self.app = make_app(self.outside)
        self.topics = topics_of(self.app.name, self.app.effects)
        self.partitions = PARTITIONS
        self.plans: dict[str, Plan] = {}
        self.sent: list[Accepted] = []
        self.kept: dict[tuple[str, int], dict[int, Record]] = {}
        self.calm_us: int | None = self.clock.now_us()
        self.served: Served | None = None
        self.settings = WorkerSettings()
        self.workers: list[Worker] = []
        self.rng = random.Random(seed)
        self.tasks: list[asyncio.Task[None]] = []

    def _name(self) -> str:
        actor = current_actor()
        return actor.name if actor is not None else ""

    def worker(self, name: str, settings: WorkerSettings) -> Worker:
        """Start a worker as an actor of its own."""
        made = Worker(
            self.app,
            self.log.share(),
            owner=name,
            settings=settings,
            clock=self.clock,
            host=StillHost(),
        )
        self.workers.append(made)
        self.tasks.append(self.loop.actor(name).start(made.run()))
        return made

    async def live(self, plans: Sequence[Plan], settings: WorkerSettings, *, until: float = 1.0) -> None:
        """Run the plans by one worker and then another; the second one is alive afterwards."""
        self.settings = settings
        await ensure_topics(self.log, self.topics, PARTITIONS)
        load = Load(self, plans, self.rng, spread=0.3)
        one = self.worker("w1", settings)
        task = asyncio.create_task(load.run())
        await asyncio.sleep(until)
        one.stop()
        await self.tasks[0]
        self.workers.remove(one)
        self.worker("w2", settings)
        async with asyncio.timeout(600):
            await task
            await asyncio.sleep(10)  # refusals of what came last, sweeps, and what is late
