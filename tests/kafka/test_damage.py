"""What a group's consumer tells of partitions that have lost their next command, with a client that stands in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from streams.errors import LogDamaged, LogUnavailable
from streams.log.kafka.consumer import Cursor, GroupConsumer


class Message:
    def __init__(self, partition: int, error: int | None = None) -> None:
        self._partition, self._error = partition, error

    def error(self) -> KafkaError | None:
        return KafkaError(self._error) if self._error is not None else None

    def partition(self) -> int:
        return self._partition

    def topic(self) -> str:
        return "commands"

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)

    def key(self) -> None: ...

    def value(self) -> None: ...

    def headers(self) -> None: ...


def lost(partition: int) -> Message:
    return Message(partition, KafkaError._AUTO_OFFSET_RESET)


class Client:
    """Brings what the test has put into it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.fetched: set[int] = set()
        self.away = False
        self.assign: Any = None
        self.revoke: Any = None
        self.trouble: Any = None

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.assign, self.revoke = on_assign, on_revoke

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.fetched |= {place.partition for place in places}

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.fetched -= {place.partition for place in places}

    def consumer_group_metadata(self) -> None: ...

    def list_topics(self, topic: str, timeout: float) -> None:
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, timeout: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        taken, self.messages = self.messages, []
        return taken


class Deaf:
    """A listener that is not called: the consumer is silent."""

    async def on_assigned(self, token: bytes | None, partitions: Mapping[int, int]) -> None: ...

    async def on_revoked(self, token: bytes | None, partitions: Mapping[int, int]) -> None: ...

    async def on_lost(self, token: bytes | None, partitions: Mapping[int, int]) -> None: ...


def consumer() -> tuple[GroupConsumer, Client]:
    """One that fetches the partitions 0, 1 and 2."""
    client = Client()

    def make(on_trouble: Any) -> Any:
        client.trouble = on_trouble
        return client

    found = GroupConsumer("commands", make, Deaf())
    found.silent = True
    no_loop: Any = object()
    found.open(no_loop)
    client.assign(client, [TopicPartition("commands", number) for number in range(3)])
    resume(found, 0, 1, 2)
    assert client.fetched == {0, 1, 2}
    return found, client


def resume(found: GroupConsumer, *partitions: int) -> None:
    for partition in partitions:
        found.orders.append((partition, Cursor(found._held[partition], 0)))
    found.poll(10, 0.0)


def damaged(found: GroupConsumer) -> int | None:
    with pytest.raises(LogDamaged) as raised:
        found.poll(10, 0.1)
    return raised.value.partition


def test_f21_every_partition_that_has_lost_its_next_command_is_told_by_a_poll_of_its_own() -> None:
    found, client = consumer()
    client.messages = [lost(0), lost(2), Message(1)]
    found.poll(10, 0.1)
    assert [fetched.record.partition for fetched in found.ready] == [1]
    assert client.fetched == {1}
    found.ready.clear()
    client.messages = [Message(1)]  # the topic stays busy
    assert [damaged(found), damaged(found)] == [0, 2]
    found.poll(10, 0.1)
    assert len(found.ready) == 1


def test_f21_a_broker_that_goes_away_meanwhile_does_not_hide_it() -> None:
    found, client = consumer()
    client.messages = [lost(1), Message(0)]
    found.poll(10, 0.1)
    found.ready.clear()
    client.away = True
    client.trouble(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(LogUnavailable):
        found.poll(10, 0.1)
    client.away = False
    assert damaged(found) == 1
    found.poll(10, 0.0)


def test_f21_what_was_lost_is_not_told_of_a_partition_that_goes_on_elsewhere_or_left() -> None:
    found, client = consumer()
    client.messages = [lost(0), lost(1), lost(2), Message(9)]
    found._fetch(10, 0.0)
    client.revoke(client, [TopicPartition("commands", 2)])
    found.orders.append((0, Cursor(found._held[0], 5)))
    assert damaged(found) == 1
    found.poll(10, 0.0)
    assert client.fetched == {0}
