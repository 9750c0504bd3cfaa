"""Faust services inside the test's process or beside it, on the real broker, and topics written in transactions."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from streams.dev import Kafka
from streams.wire.records import EffectMessage

HANG_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]


def in_loop(case: Callable[..., Any]) -> Callable[..., None]:
    """A test that is a coroutine function."""

    @functools.wraps(case)
    def run(**fixtures: Any) -> None:
        asyncio.run(case(**fixtures))

    return run


def fresh(stem: str) -> str:
    return f"{stem}{uuid4().hex[:8]}"


def effect(number: int, payload: str = "{}", *, key: str = "", run: str = "r", attempt: int = 1) -> EffectMessage:
    """A message of the outbox; of an attempt above 0 a reply is awaited."""
    op = str(number) if attempt else ""
    return EffectMessage(
        f"{run}@0/{number}", run, "pay", payload.encode(), key or f"key{number}", 1, 5, "flow", 1, op, attempt
    )


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


class Service(NamedTuple):
    """A service beside the test."""

    process: subprocess.Popen[str]
    group: str

    def ended(self) -> tuple[int, str]:
        """Its exit code, and all that it wrote on the error output."""
        _, text = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, "".join(line for line in text.splitlines(True) if not NOISE.search(line))


NOISE = re.compile(r"Coordinator|coordinator|Heartbeat|rebalanc|NotLeaderForPartition|UnknownTopicOrPartition")
"""What aiokafka says of a broker that has just begun, and of groups that move."""


@contextmanager
def start(role: str, *, group: str, environ: Mapping[str, str] | None = None, **options: Any) -> Iterator[Service]:
    """A service of `faust_service.py`. Warnings are shown, so that a test sees them."""
    command = [sys.executable, "-W", "default", "-m", "tests.effects.faust_service", role, "--group", group]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **(environ or {})}, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Service(process, group)
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def lines(file: Path) -> list[str]:
    return file.read_text("utf-8").splitlines()


def wait_for(what: Callable[[], Any], seconds: float = HANG_SECONDS) -> Any:
    """As `until`, in a test that has no loop."""
    give_up = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < give_up, f"still not after {seconds} s"
        time.sleep(0.1)
    return found
