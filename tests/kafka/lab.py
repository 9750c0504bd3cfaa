"""Workers of an app inside the test's process, on the real broker: the lab of the runtime with Kafka under it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from streams import App
from streams.log.kafka import KafkaLog, open_kafka
from streams.log.kafka.producer import KafkaProducer
from streams.log.port import GroupSnapshot, Isolation, Log, NewRecord, Record, Span, TopicPartition
from streams.runtime.topics import ensure_topics
from streams.wire.records import Lease, decode_lease
from tests.runtime.checker import Checked, check_log, try_event
from tests.runtime.history import History
from tests.runtime.lab import PARTITIONS, Lab, Running

__all__ = [
    "PARTITIONS",
    "KafkaLab",
    "Running",
    "Stopped",
    "configure",
    "foreign",
    "hang",
    "kafka_case",
    "kafka_lab",
    "leave_open",
    "read_places",
]

SETTINGS = "?heartbeat.interval.ms=200&session.timeout.ms=6000"
"""A rebalance is noticed with a heartbeat."""


async def read_places(
    log: Log, places: Sequence[TopicPartition], isolation: Isolation = "read_committed"
) -> dict[TopicPartition, list[Record]]:
    """Everything up to the ends as they are now, pending transactions included."""
    spans = {place: await log.span(*place, "read_uncommitted") for place in places}
    records: dict[TopicPartition, list[Record]] = {place: [] for place in places}
    reader = log.reader({place: span.start for place, span in spans.items() if span.end > span.start}, isolation)
    while any(span.end > span.start and reader.position(place) < span.end for place, span in spans.items()):
        for record in await reader.read(10_000, 0.1):
            records[TopicPartition(record.topic, record.partition)].append(record)
    await reader.close()
    return records


class Stopped:
    """A log that was read once, for whoever reads it over and over."""

    def __init__(self, records: Mapping[TopicPartition, Sequence[Record]]) -> None:
        self._records = records

    async def span(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> Span:
        records = self._records.get(TopicPartition(topic, partition), ())
        return Span(0, records[-1].offset + 1 if records else 0)

    def reader(self, start: Mapping[TopicPartition, int], isolation: Isolation = "read_committed") -> Any:
        return StoppedReader(self._records, start)


class StoppedReader:
    """Gives everything with one read."""

    def __init__(self, records: Mapping[TopicPartition, Sequence[Record]], start: Mapping[TopicPartition, int]) -> None:
        self._records = records
        self._positions = dict(start)

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        found = [r for place, at in self._positions.items() for r in self._records.get(place, ()) if r.offset >= at]
        for record in found:
            self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
        return found

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    async def close(self) -> None: ...


class KafkaHistory(History):
    """Follows the events with one reader, because each client costs a broker's answer or two."""

    _reader: Any = None

    async def read(self) -> None:
        async with self._reading:
            if self._reader is None:
                places = [TopicPartition(self.topics.events, number) for number in range(self.partitions)]
                self._reader = self.log.reader(dict.fromkeys(places, 0))
            for record in await self._reader.read(10_000, 0.05):
                event = try_event(record)
                if event is not None:
                    self.events.setdefault(event.run_id, []).append(event)


class KafkaLab(Lab):
    """See `tests.runtime.lab.Lab`."""

    log: KafkaLog

    def __init__(self, app: App, open_log: Callable[[], Any], log: KafkaLog) -> None:
        super().__init__(app, open_log, log)
        self.history = KafkaHistory(log, app.name, tuple(app.effects), PARTITIONS)

    async def check(self) -> Checked:
        """Prove the log right, from one reading of it."""
        names = self.topics.settings()
        places = [TopicPartition(name, number) for name in names for number in range(PARTITIONS)]
        stopped: Any = Stopped(await read_places(self.log, places))
        found = await check_log(
            stopped, self.app.name, self.app.effects, partitions=PARTITIONS, damaged=frozenset(self.damaged)
        )
        for running in self.running:
            assert not [told for told in running.told.heard("redo") if "another owner" in told[1]]
        return found

    async def leases(self, partition: int, isolation: Isolation = "read_committed") -> list[Lease]:
        """All leases of a partition in order."""
        place = TopicPartition(self.topics.leases, partition)
        return [decode_lease(r.value or b"") for r in (await read_places(self.log, [place], isolation))[place]]

    async def records(self, topic: str, partition: int, isolation: Isolation = "read_committed") -> list[Record]:
        """All records of a partition."""
        place = TopicPartition(topic, partition)
        return (await read_places(self.log, [place], isolation))[place]

    def runs_of(self, partition: int, count: int = 1, prefix: str = "r") -> list[str]:
        """Names of runs that belong to a partition."""
        names = (f"{prefix}{number}" for number in range(10_000))
        mine = (name for name in names if self.history.partition(name) == partition)
        return [next(mine) for _ in range(count)]


@asynccontextmanager
async def kafka_lab(app: App, url: str, **topics: Mapping[str, str]) -> AsyncIterator[KafkaLab]:
    """A lab under a name of its own, since the broker is shared."""
    name = app.name
    app.name = f"{name}-{uuid4().hex[:8]}"
    try:
        open_log = functools.partial(open_kafka, url)
        found = KafkaLab(app, open_log, await open_log())
        await ensure_topics(found.log, found.topics, PARTITIONS)
        try:
            yield found
        finally:
            await found.end()
    finally:
        app.name = name


def kafka_case(app: App, settings: str = "") -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a coroutine function that takes a `KafkaLab` first; it ends with a log that is proven right.

    `settings` are added to the log's address.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        more = list(inspect.signature(function).parameters.values())[1:]

        def run(kafka: Any, **arguments: Any) -> None:
            async def scenario() -> None:
                async with kafka_lab(app, kafka.url + SETTINGS + settings) as found:
                    await function(found, **arguments)
                    for running in found.running:
                        if not running.task.done():
                            await running.stop()
                    if not found.unchecked:
                        await found.check()

            asyncio.run(scenario())

        first = inspect.Parameter("kafka", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [first, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in more)]
        )
        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.pytestmark = [*getattr(function, "pytestmark", []), pytest.mark.kafka]  # type: ignore[attr-defined]
        return run

    return decorate


async def configure(lab: KafkaLab, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    entries = [ConfigEntry(n, value, incremental_operation=AlterConfigOpType.SET) for n, value in settings.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    for future in lab.log._admin._client.incremental_alter_configs([resource]).values():
        await asyncio.wrap_future(future)


# -- what dies, and what is foreign ------------------------------------------------------------------------------------


async def hang(
    producer: KafkaProducer, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
) -> None:
    """Leave a transaction open with all of it in it, as an owner does that dies before the end."""

    def job() -> None:
        client = producer._transactor._client
        client.begin_transaction()
        for record in records:
            client.produce(record.topic, record.value, record.key, record.partition)
        client.flush()
        if offsets:
            places = [Place(snapshot.topic, partition, offset) for partition, offset in offsets.items()]
            client.send_offsets_to_transaction(places, snapshot.token)

    await producer._lane.run(job)


class _Gone:
    """The thread of a process that has died: nothing runs on it, so nothing is aborted either."""

    async def run(self, job: Any) -> None:
        raise AssertionError("this producer is dead")

    async def close(self, last: Any, seconds: float) -> None: ...


def leave_open(producer: Any) -> Any:
    """Keep the log from closing the client of a transaction that `hang` has left; returns its thread."""
    lane, producer._lane = producer._lane, _Gone()
    return lane


class Hung:
    """A transaction of a client that is none of ours."""

    def __init__(self, bootstrap: str, records: Sequence[NewRecord]) -> None:
        self.id = f"foreign-{uuid4().hex}"
        self._client = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": self.id, "transaction.timeout.ms": 60_000}
        )
        self._client.init_transactions()
        self._client.begin_transaction()
        for record in records:
            self._client.produce(record.topic, record.value, record.key, record.partition)
        self._client.flush()

    def commit(self) -> None:
        self._client.commit_transaction()

    def abort(self) -> None:
        with suppress(KafkaException):
            self._client.abort_transaction()


async def foreign(lab: KafkaLab, records: Sequence[NewRecord]) -> Hung:
    """Leave records pending in an open transaction that `commit` or `abort` ends: markers as late as a test wants."""
    servers = lab.log._clients.settings.servers
    return await asyncio.to_thread(Hung, servers, records)


def refusals(running: Running) -> list[str]:
    """The fences that a worker has met."""
    return [told[1] for told in running.told.heard("redo") if "fence" in told[1].lower()]
