"""What the topics hold, read by a plain client of Kafka that knows nothing of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from streams.wire.records import (
    decode_checkpoint,
    decode_command,
    decode_dead_letter,
    decode_effect,
    decode_event,
    decode_lease,
)
from streams.wire.topics import Topics

__all__ = ["Dump", "Rec", "read_topics", "write_dump"]

_PATIENCE_SECONDS = 120.0


class Rec(NamedTuple):
    """A committed record."""

    offset: int
    key: bytes | None
    value: bytes | None


class Dump(NamedTuple):
    """All committed records of an app, by topic and partition. Lists, so that a test of the checker can tamper."""

    topics: Topics
    partitions: int
    records: dict[str, list[list[Rec]]]
    unread: Mapping[tuple[str, int], int] = {}
    """The ends of partitions that no reader of committed records has come to: a transaction hangs there."""

    def of(self, topic: str, partition: int) -> list[Rec]:
        return self.records[topic][partition]


def names_of(topics: Topics) -> list[str]:
    return [*topics.settings()]


def read_topics(bootstrap: str, topics: Topics, partitions: int) -> Dump:
    """Read every topic from its beginning to the read_uncommitted ends of this moment."""
    consumer = _consumer(bootstrap, "read_committed")
    ends = _ends(bootstrap, topics, partitions)
    found = Dump(topics, partitions, {name: [[] for _ in range(partitions)] for name in names_of(topics)})
    try:
        consumer.assign([TopicPartition(name, number, 0) for name, number in ends])
        left = {place: end for place, end in ends.items() if end > 0}
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while left and time.monotonic() < deadline:
            for message in consumer.consume(5_000, 0.05):
                _keep(found, message)
            left = {place: end for place, end in left.items() if _position(consumer, *place) < end}
    finally:
        consumer.close()
    return found._replace(unread=left)


def _keep(found: Dump, message: Message) -> None:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    name, number, offset = message.topic(), message.partition(), message.offset()
    assert name is not None
    assert number is not None
    assert offset is not None
    found.records[name][number].append(Rec(offset, message.key(), message.value()))


def _position(consumer: Consumer, name: str, number: int) -> int:
    (found,) = consumer.position([TopicPartition(name, number)])
    return int(found.offset)


def _ends(bootstrap: str, topics: Topics, partitions: int) -> dict[tuple[str, int], int]:
    consumer = _consumer(bootstrap, "read_uncommitted")
    try:
        places = [(name, number) for name in names_of(topics) for number in range(partitions)]
        return {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=30)[1] for place in places}
    finally:
        consumer.close()


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"chaos-{uuid4().hex}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )


def write_dump(dump: Dump, folder: Path) -> None:
    """All records as lines of text, a file a topic, for whoever looks for the cause of a violation."""
    folder.mkdir(parents=True, exist_ok=True)
    topics = dump.topics
    readers: dict[str, Callable[[bytes], object]] = {
        topics.events: decode_event,
        topics.checkpoints: decode_checkpoint,
        topics.leases: decode_lease,
        topics.dead_letters: decode_dead_letter,
        **{topics.effect(name): decode_effect for name in topics.effect_names},
    }
    for name, partitions in dump.records.items():
        with (folder / f"{name}.txt").open("w", encoding="utf-8") as file:
            for number, records in enumerate(partitions):
                for record in records:
                    file.write(f"{number} {record.offset} {record.key!r} {_shown(readers.get(name), record)}\n")


def _shown(read: Callable[[bytes], object] | None, record: Rec) -> str:
    try:
        if read is None:
            return repr(decode_command(record.key, record.value, default_id="-", offset=record.offset))
        return repr(read(record.value or b""))
    except Exception as error:  # noqa: BLE001 - shown in its place
        return f"{record.value!r} ({error})"
