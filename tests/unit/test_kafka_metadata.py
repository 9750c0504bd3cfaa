"""A client of Kafka that has no group metadata to give, as seen when a frozen member thaws and closes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from streams.log.kafka.consumer import GroupConsumer


class Client:
    """Fails as confluent-kafka does where librdkafka gives nothing."""

    def consumer_group_metadata(self) -> Any:
        raise RuntimeError("Consumer group metadata not available")

    def incremental_unassign(self, places: Any) -> None:
        pass


class Listener:
    def __init__(self) -> None:
        self.told: list[Any] = []

    async def on_assigned(self, token: bytes | None, partitions: Mapping[int, int]) -> None:
        self.told.append(("assigned", token, dict(partitions)))

    async def on_revoked(self, token: bytes | None, partitions: Mapping[int, int]) -> None:
        self.told.append(("revoked", token, dict(partitions)))

    async def on_lost(self, token: bytes | None, partitions: Mapping[int, int]) -> None:
        self.told.append(("lost", token, dict(partitions)))


@pytest.mark.parametrize("what", ["revoked", "lost"])
def test_partitions_that_go_are_told_of_also_when_the_client_has_no_group_metadata(what: str):
    """With the last good one: a commit under it is refused, as it has to be."""
    listener = Listener()
    consumer = GroupConsumer("topic", lambda _: None, listener)
    consumer._held, consumer._token = {0: 7}, b"the last good one"

    async def tell() -> None:
        consumer._loop = asyncio.get_running_loop()
        call = consumer._on_revoke if what == "revoked" else consumer._on_lost
        await asyncio.to_thread(call, Client(), [TopicPartition("topic", 0)])

    asyncio.run(tell())
    assert listener.told == [(what, b"the last good one", {0: 7})]
