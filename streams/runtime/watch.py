"""What is looked at again while a worker runs: the settings of its topics, and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streams.errors import LogError, UsageError
from streams.runtime.ends import pass_markers
from streams.runtime.origin import actual_topics
from streams.runtime.topics import check_topics, ensure_topics

if TYPE_CHECKING:
    from streams.runtime.partition import Partition
    from streams.runtime.worker import Worker

__all__ = ["Watch", "prepare_topics"]


async def prepare_topics(worker: Worker) -> None:
    """Create or check the topics, and let the worker know them. Raises UsageError for what would lose data."""
    engine = worker.engine
    settings = engine.settings
    engine.topics, origin = await actual_topics(worker.log, engine.topics.app, engine.app.effects)
    engine.publishes = origin is None or origin.publishes
    if origin is not None and not engine.publishes:
        engine.observer.message(
            f"app {engine.topics.app} is a copy of {origin.app} with effects off: what it emits stands in its "
            "histories and is published nowhere. Its tasks run"
        )
    found = await ensure_topics(
        worker.log,
        engine.topics,
        settings.partitions,
        age_seconds=settings.checkpoint_age_seconds,
        warn=engine.risks.add,
    )
    for line in sorted(engine.risks):
        engine.observer.message(line)
    worker.topic_ids = {name: info.id for name, info in found.items()}
    engine.know(found)


class Watch:
    """Looks once between two sweeps."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def run(self) -> None:
        """Look for as long as the worker works."""
        seconds = self._worker.engine.settings.sweep_seconds
        await asyncio.sleep(seconds / 2)
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._topics()
                await self._clock()
                await self._ends()
            except (LogError, UsageError) as error:  # turns find out by themselves what it means for them
                self._worker.engine.observer.message(f"the topics could not be checked again: {error}")

    async def _topics(self) -> None:
        """Say what was changed under a running worker. What it has accepted goes on; its next start is refused."""
        engine = self._worker.engine
        age = engine.settings.checkpoint_age_seconds
        checkup = await check_topics(self._worker.log, engine.topics, age_seconds=age)
        # A fault is said each time, for data is lost while it stands; a risk once.
        for line in checkup.faults:
            engine.observer.message(f"changed while this worker runs: {line}")
        for line in checkup.warnings:
            if line not in engine.risks:
                engine.observer.message(line)
        engine.risks = set(checkup.warnings)
        commands = checkup.found.get(engine.topics.commands)
        if commands is not None and commands.id != self._worker.topic_ids[engine.topics.commands]:
            # Offsets of the old one would be taken for places in the new one: acquiring compares them.
            await self._again([p for p in self._worker.owner.partitions.values() if p.running])

    async def _ends(self) -> None:
        """Let the next sweep write a tail that no quiet time makes too old."""
        worker = self._worker
        async with worker.turn_lock:
            await pass_markers(worker, [p for p in worker.owner.partitions.values() if p.running])

    async def _clock(self) -> None:
        """Refuse what is served under a wrong clock: acquiring it anew compares again."""
        worker = self._worker
        running = [partition for partition in worker.owner.partitions.values() if partition.running]
        refused = await worker.engine.skew.compare(worker.log, running)
        await self._again([partition for partition in running if partition.number in refused])

    async def _again(self, partitions: Sequence[Partition]) -> None:
        async with self._worker.turn_lock:
            await self._worker.owner.again({p.number: p.incarnation for p in partitions if p.running})
