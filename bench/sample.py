"""The records of one three-step run, as a worker writes them: what the raw loop on Kafka sends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bench import app
from bench.streams_target import Watch
from streams.client import Client
from streams.log.memory import MemoryLog
from streams.log.port import Log, Record, TopicPartition
from streams.runtime.worker import Worker
from streams.wire.partitioner import partition_of
from streams.wire.topics import PARTITIONS_DEFAULT, topics_of

__all__ = ["Sample", "sample_run"]

_RUN = "run-12345"


class Sample(NamedTuple):
    """Values by topic. `checkpoint` is the last one, which is all that a run in a full turn writes."""

    command: bytes
    events: Sequence[bytes]
    checkpoint: bytes

    @property
    def size(self) -> int:
        """Bytes of values in all."""
        return len(self.command) + sum(map(len, self.events)) + len(self.checkpoint)


async def sample_run() -> Sample:
    """Run it in memory."""
    log = MemoryLog()
    worker = Worker(app.app, log, observer=Watch())
    working = asyncio.create_task(worker.run())
    client = Client(log, app.app)
    await client.start(app.order, _RUN, run_id=_RUN)
    await client.result(_RUN)
    await client.close()
    worker.stop()
    await working
    topics = topics_of(app.app.name, ())
    command, events, checkpoints = [
        [record.value or b"" for record in await _read(log, topic)]
        for topic in (topics.commands, topics.events, topics.checkpoints)
    ]
    await log.close()
    return Sample(command[0], events, checkpoints[-1])


async def _read(log: Log, topic: str) -> list[Record]:
    place = TopicPartition(topic, partition_of(_RUN.encode(), PARTITIONS_DEFAULT))
    reader = log.reader({place: 0})
    found = []
    while records := await reader.read(100, 0.05):
        found += [record for record in records if record.key == _RUN.encode()]
    await reader.close()
    return found
