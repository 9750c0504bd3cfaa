"""Workers of the test's own process on a broker, whose history is followed as it grows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streams import App
from streams.log.kafka import open_kafka
from streams.log.port import Log
from streams.runtime.topics import ensure_topics
from tests.runtime.lab import PARTITIONS, Lab
from tests.system.processes import Follower

__all__ = ["lab"]


@asynccontextmanager
async def lab(app: App, url: str) -> AsyncIterator[Lab]:
    """A lab for an app, whose name must be one that no other test uses."""

    async def opened() -> Log:
        return await open_kafka(url)

    found = Lab(app, opened, await opened())
    found.history = Follower(found.log, app.name, tuple(app.effects), PARTITIONS)
    await ensure_topics(found.log, found.topics, PARTITIONS)
    try:
        yield found
    finally:
        await found.end()
