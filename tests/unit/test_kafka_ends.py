"""Ends of partitions, asked of a client that stands in for Kafka's."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.log.kafka.ends import Ends


class Client:
    def __init__(self, *answers: tuple[int, int]) -> None:
        self.answers = list(answers)
        self.closed = False

    def get_watermark_offsets(self, place, timeout):
        return self.answers.pop(0)

    def close(self):
        self.closed = True


def test_a_partition_without_a_leader_has_no_ends() -> None:
    """Taken for an end, its -1001 had a worker refuse a healthy partition as one that has lost its records."""
    client = Client((-1001, -1001), (2, 7))

    async def ask() -> None:
        ends = Ends({"read_committed": lambda: client})
        with pytest.raises(KafkaException) as raised:
            await ends.span("orders", 0, "read_committed")
        assert raised.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE
        assert await ends.span("orders", 0, "read_committed") == (2, 7)
        await ends.close()

    asyncio.run(ask())
    assert client.closed
