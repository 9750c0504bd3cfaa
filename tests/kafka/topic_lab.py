"""Workers inside the test's process on the real broker, and what an operator does to topics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
)

from streams import App, Context, TaskContext
from streams.dev import Kafka
from streams.log.kafka import open_kafka
from streams.runtime.topics import ensure_topics
from tests.runtime.history import HANG_SECONDS
from tests.runtime.lab import PARTITIONS, Lab

__all__ = ["Operator", "kafka_lab", "running", "shop"]

QUERY = "heartbeat.interval.ms=200&topic.metadata.refresh.interval.ms=500"


def shop() -> App:
    """An app under a name of its own, with a task, an effect, a question and a nap."""
    app = App(f"shop-{uuid4().hex[:8]}")
    parcels = app.effect("parcels", str)
    news = app.signal("news", str)

    @app.task
    async def work(ctx: TaskContext, what: str) -> str:
        return what.upper()

    @app.workflow(version=1)
    async def simple(ctx: Context, what: str) -> str:
        found = await ctx.run(work, what)
        ctx.emit(parcels, found)
        return found

    @app.workflow(version=1)
    async def asks(ctx: Context, what: str) -> str:
        found = await ctx.run(work, what)
        answer = await ctx.interrupt("?", answer=str)
        ctx.emit(parcels, found)
        return f"{found} {answer}"

    @app.workflow(version=1)
    async def hears(ctx: Context, _: None) -> str:
        return await ctx.receive(news)

    @app.workflow(version=1)
    async def naps(ctx: Context, seconds: float) -> str:
        await ctx.sleep(seconds)
        return "awake"

    return app


@asynccontextmanager
async def kafka_lab(kafka: Kafka, app: App | None = None, *, topics: bool = True) -> AsyncIterator[Lab]:
    """A lab on the broker; with `topics` they are there from the start."""
    url = f"{kafka.url}?{QUERY}"

    async def open_log() -> Any:
        return await open_kafka(url)

    found = Lab(app or shop(), open_log, await open_log())
    if topics:
        await ensure_topics(found.log, found.topics, PARTITIONS)
    try:
        yield found
    finally:
        await found.end()


def running(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a test of a coroutine function that takes a `Lab` and an `Operator`; it ends with a log proven right."""

    def run(kafka: Kafka) -> None:
        async def scenario() -> None:
            async with kafka_lab(kafka) as lab:
                await function(lab, Operator(kafka))
                for worker in lab.running:
                    if not worker.task.done():
                        await worker.stop()
                if not lab.unchecked:
                    await lab.check()

        asyncio.run(scenario())

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.pytestmark = getattr(function, "pytestmark", [])  # type: ignore[attr-defined]
    return run


class Operator:
    """Does to the broker what operators do, with Kafka's own client."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    async def alter(self, topic: str, **config: str) -> None:
        """Set settings; `_` stands for the dots of a name."""
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        await _all(self.admin.incremental_alter_configs([resource]))

        def altered() -> bool:
            (future,) = self.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
            found = future.result(30)
            return all(found[entry.name].value == entry.value for entry in entries)

        await _until(altered)

    async def raise_counts(self, partitions: int, *topics: str) -> None:
        await _all(self.admin.create_partitions([NewPartitions(topic, partitions) for topic in topics]))
        await _until(lambda: all(len(self._topics()[topic].partitions) == partitions for topic in topics))

    async def delete_topic(self, topic: str) -> None:
        await _all(self.admin.delete_topics([topic]))
        await _until(lambda: topic not in self._topics())

    def _topics(self) -> Any:
        return self.admin.list_topics(timeout=30).topics

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the start of a partition, as retention does."""
        await _all(self.admin.delete_records([TopicPartition(topic, partition, before)]))

    async def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: Any,
        *,
        partition: int | None = None,
        headers: Any = None,
        **config: str,
    ) -> tuple[int, int]:
        """Produce as a foreign program does, with this partitioner of librdkafka; return partition and offset."""
        landed: list[tuple[int, int]] = []

        def report(error: Any, message: Any) -> None:
            assert error is None, error
            landed.append((message.partition(), message.offset()))

        def job() -> None:
            named = {name.replace("_", "."): setting for name, setting in config.items()}
            client = Producer({"bootstrap.servers": self.servers, **named})
            where = {} if partition is None else {"partition": partition}
            data = json.dumps(value) if isinstance(value, Mapping) else value
            client.produce(topic, data, key, on_delivery=report, headers=headers, **where)
            assert client.flush(30) == 0

        await asyncio.to_thread(job)
        return landed[0]


async def _until(condition: Callable[[], bool]) -> None:
    """Wait until the broker says so: what its controller has accepted shows a little later."""
    deadline = time.monotonic() + HANG_SECONDS
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def _all(futures: Mapping[Any, Any]) -> None:
    await asyncio.gather(*(asyncio.wrap_future(future) for future in futures.values()))
