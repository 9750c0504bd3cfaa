"""Faust services inside the test's process or beside it, on the real broker, and topics written in transactions."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from streams.dev import Kafka

HANG_SECONDS = 60.0


def in_loop(case: Callable[..., Any]) -> Callable[..., None]:
    """A test that is a coroutine function."""

    @functools.wraps(case)
    def run(**fixtures: Any) -> None:
        asyncio.run(case(**fixtures))

    return run


def fresh(stem: str) -> str:
    return f"{stem}{uuid4().hex[:8]}"


def make_topic(kafka: Kafka, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(30)


class Writer:
    """A transactional producer, as the engine's are."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.topic = topic
        self.producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": fresh("writer-")})
        self.producer.init_transactions(30)

    def write(self, values: Iterable[bytes], *, key: bytes = b"r", partition: int = 0, commit: bool = True) -> None:
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(self.topic, value, key, partition)
        self.producer.flush(30)
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)


def committed(kafka: Kafka, group: str, topic: str, partition: int = 0) -> int:
    """The group's committed offset, -1001 where there is none."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        return consumer.committed([Place(topic, partition)], 10)[0].offset
    except KafkaException:
        return -1
    finally:
        consumer.close()


def end(kafka: Kafka, topic: str, partition: int = 0) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "ends"})
    try:
        return consumer.get_watermark_offsets(Place(topic, partition), 10)[1]
    finally:
        consumer.close()


def delete_before(kafka: Kafka, topic: str, offset: int) -> None:
    """As retention does, on a clock of its own."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([Place(topic, 0, offset)]).values():
        future.result(30)


async def until(what: Callable[[], Any], seconds: float = HANG_SECONDS) -> Any:
    """Wait until `what` is true; a guard against hangs, not a measure."""
    give_up = time.monotonic() + seconds
    while not (found := await asyncio.to_thread(what)):
        assert time.monotonic() < give_up, f"still not after {seconds} s"
        await asyncio.sleep(0.1)
    return found


@asynccontextmanager
async def serving(app: Any):
    """A worker of the Faust app in this loop."""
    app.finalize()
    await app.start()
    try:
        yield app
    finally:
        await asyncio.wait_for(app.stop(), 30)
