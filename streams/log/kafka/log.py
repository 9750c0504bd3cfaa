"""The Kafka log itself: opening, and the parts that a log is made of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from streams.errors import UsageError
from streams.log.kafka.appender import Appender
from streams.log.kafka.clients import Clients
from streams.log.kafka.member import KafkaMember
from streams.log.kafka.producer import KafkaProducer
from streams.log.kafka.reader import KafkaReader
from streams.log.kafka.settings import parse_url
from streams.log.kafka.transaction import OnStep, untold
from streams.log.port import Isolation, NewRecord, Span, TopicInfo, TopicPartition, TopicSpec
from streams.log.rules import is_compacted

__all__ = ["KafkaLog", "open_kafka"]


class KafkaLog:
    """See `streams.log.port.Log`. Made by `open_kafka`; it belongs to the event loop that opened it."""

    def __init__(self, clients: Clients, on_step: OnStep = untold) -> None:
        self.url = clients.settings.url
        self._on_step = on_step
        self._clients = clients
        self._admin = clients.admin
        self._appender = Appender(clients.admin, clients.appender)
        self._members: list[KafkaMember] = []
        self._readers: list[KafkaReader] = []
        self._producers: list[KafkaProducer] = []
        self._closed = False

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing. `replication.factor` in a config is the topic's, not the broker's default."""
        await self._open()._admin.create(specs)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """Those of the named topics that exist; their config also tells the least `replication.factor`."""
        return await self._open()._admin.describe(names)

    async def list_topics(self) -> list[str]:
        """The names of all topics but the brokers' own."""
        return await self._open()._admin.names()

    async def span(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> Span:
        """The ends of a partition now."""
        return await self._open()._admin.span(topic, partition, isolation)

    async def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Write records outside any transaction, with acks=all."""
        return await self._open()._appender.append(records)

    def reader(self, start: Mapping[TopicPartition, int], isolation: Isolation = "read_committed") -> KafkaReader:
        """A reader that begins at the given offsets."""
        reader = KafkaReader(self._open()._clients.reader(isolation), start)
        self._readers = [known for known in self._readers if not known.closed]
        self._readers.append(reader)
        return reader

    def member(self, group: str, topic: str, *, client_id: str) -> KafkaMember:
        """A consumer that takes part in a group."""
        member = KafkaMember(self._admin, group, topic, self._open()._clients.consumer(group, client_id), self._renew)
        self._members.append(member)
        return member

    async def producer(self, transactional_id: str) -> KafkaProducer:
        """A transactional producer; whoever used the id before is fenced."""
        producer = KafkaProducer(transactional_id, self._admin, self._open()._clients.transactional, self._on_step)
        self._producers = [known for known in self._producers if not known.closed]
        self._producers.append(producer)
        try:
            await producer.initialise()
        except BaseException:
            await producer.close()
            raise
        return producer

    async def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a group."""
        return await self._open()._admin.group_offsets(group, topic)

    async def rewind_group(self, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
        """Set the group's offsets while nobody is in it."""
        for partition in offsets:
            await self._open()._admin.require(topic, partition)
        await self._admin.rewind(group, topic, offsets)

    async def compact(self, topic: str) -> None:
        """Nothing but a check: a broker compacts by its own clock and cannot be asked."""
        found = await self._open()._admin.describe([topic])
        if topic not in found:
            raise UsageError(f"there is no topic {topic}: create it first")
        if not is_compacted(found[topic]):
            raise ValueError(f"topic {topic} is not compacted: its cleanup.policy does not contain compact")

    async def close(self) -> None:
        """End all clients. Its members are gone as after a crash; whoever wants to be told closes them first."""
        if self._closed:
            return
        self._closed = True
        parts = [*(member.vanish() for member in self._members), *(reader.close() for reader in self._readers)]
        await asyncio.gather(*parts, *(producer.close() for producer in self._producers), self._appender.close())
        await self._admin.close()

    def _renew(self) -> None:
        """The brokers were away. See `Admin.renew` for what clients forget then."""
        self._admin.renew()
        for producer in self._producers:
            producer.wear()

    def _open(self) -> KafkaLog:
        if self._closed:
            raise ValueError(f"the log {self.url} is closed: open it again")
        return self


async def open_kafka(
    url: str,
    properties: Mapping[str, str] | None = None,
    *,
    on_stall: Callable[[str], None] | None = None,
    on_step: OnStep = untold,
) -> KafkaLog:
    """Open `kafka://HOST:PORT[,HOST:PORT][?name=value…]` and wait until a broker answers.

    `on_stall` is called with one line of text while none does; `on_step` with the name of each step of a commit, on
    the thread that makes it: there a test or a demo ends the process. Raises `UsageError` for wrong settings, and
    `LogUnavailable` when no broker has answered within `connect_timeout_ms`, 30 s by default.
    """
    clients = Clients(parse_url(url, properties))
    await clients.wait_for_broker(on_stall or logging.getLogger("streams.log.kafka").warning)
    return KafkaLog(clients, on_step)
