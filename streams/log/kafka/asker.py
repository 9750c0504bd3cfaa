"""Asks for the committed offsets of a group with a consumer of its own, which never joins the group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from streams.errors import LogUnavailable
from streams.log.kafka.clients import OnError
from streams.log.kafka.failures import UNSTABLE, error_of, sort
from streams.log.kafka.lane import Lane

__all__ = ["Asker"]

CLOSE_SECONDS = 5.0
_CALL_SECONDS = 0.5
_LOOK_SECONDS = 0.02
_PENDING = frozenset({UNSTABLE, KafkaError._TIMED_OUT})


class Asker:
    """Asks for one partition at a time, while the member polls.

    Not the admin client: librdkafka aborts the whole process (its issue 3663) when the coordinator goes away or moves
    while the admin client asks for the offsets of a group, and a broker that restarts under load does just that.
    """

    def __init__(self, group: str, topic: str, make: Callable[[OnError], Consumer]) -> None:
        self._group, self._topic = group, topic
        self._make = make
        self._client: Consumer | None = None
        self._lane = Lane(f"offsets of {group}")

    async def stable_offset(self, partition: int, seconds: float) -> int | None:
        """The group's offset, None where it has none. A pending one is waited for; then `LogUnavailable`."""
        deadline = time.monotonic() + seconds
        while True:
            place = await self._lane.run(lambda: self._ask(partition))
            if place is not None:
                return place.offset if place.offset >= 0 else None
            if time.monotonic() > deadline:
                raise LogUnavailable(
                    f"the offset of group {self._group} for {self._topic}[{partition}] is pending in an open "
                    "transaction, or no broker tells it; it ends by its time-out, or when its owner comes back"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    def _ask(self, partition: int) -> TopicPartition | None:
        """The answer, or None while it is pending. On the client's thread."""
        if self._client is None:
            self._client = self._make(_ignore)
        try:
            (place,) = self._client.committed([TopicPartition(self._topic, partition)], _CALL_SECONDS)
        except KafkaException as raised:
            error = error_of(raised)
        else:
            if place.error is None:
                return place
            error = place.error
        if error.code() in _PENDING:
            return None
        raise sort(error, f"asking for the offset of group {self._group} for {self._topic}[{partition}]")

    async def close(self) -> None:
        """Free the client."""
        await self._lane.close(self._free, CLOSE_SECONDS)

    def _free(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _ignore(_: KafkaError) -> None:
    """What troubles this client shows in its answers."""
