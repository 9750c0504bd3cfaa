"""Asks for the ends of partitions, with a consumer for each isolation level that never fetches anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streams.log.kafka.lane import Lane
from streams.log.port import Isolation, Span

__all__ = ["Ends"]

ASK_SECONDS = 5.0
CLOSE_SECONDS = 5.0


class Ends:
    """The ends of partitions.

    Not the admin client: a request of it that runs into its time-out while a broker restarts makes librdkafka free
    memory twice (its issues 3663 and 4605). It aborts the process, or a later call of any client never returns.
    """

    def __init__(self, make: Mapping[Isolation, Callable[[], Consumer]]) -> None:
        self._make = make
        self._clients: dict[Isolation, Consumer] = {}
        self._lanes: dict[Isolation, Lane] = {isolation: Lane(f"ends {isolation}") for isolation in make}

    async def span(self, topic: str, partition: int, isolation: Isolation) -> Span:
        """The ends now. Raises KafkaException."""
        return await self._lanes[isolation].run(lambda: self._ask(topic, partition, isolation))

    def _ask(self, topic: str, partition: int, isolation: Isolation) -> Span:
        client = self._clients.get(isolation)
        if client is None:
            client = self._clients[isolation] = self._make[isolation]()
        start, end = client.get_watermark_offsets(TopicPartition(topic, partition), ASK_SECONDS)
        if start < 0 or end < 0:
            # A partition whose broker is just going down or coming up. Taken for an end, it would look like lost data.
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return Span(start, end)

    async def close(self) -> None:
        """Free the clients."""
        frees = [lane.close(partial(self._free, name), CLOSE_SECONDS) for name, lane in self._lanes.items()]
        await asyncio.gather(*frees)

    def _free(self, isolation: Isolation) -> None:
        client = self._clients.pop(isolation, None)
        if client is not None:
            client.close()
