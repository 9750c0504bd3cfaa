"""What only a real broker does: commits that its client lets through, open transactions, ends that are no record."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from streams.dev import Kafka, kill_kafka, start_kafka
from streams.errors import CommitAborted, InDoubt, LogDamaged, LogError, LogUnavailable, SendRefused, UsageError
from streams.log.kafka import KafkaLog, consumer, open_kafka, patience, transaction
from streams.log.kafka.consumer import generation
from streams.log.kafka.producer import KafkaProducer
from streams.log.kafka.transaction import State
from streams.log.port import NewRecord, TopicPartition
from tests.contract.kafka_config import KafkaConfig
from tests.contract.worlds import HANG_SECONDS, REFUSED, World, case, new, read_all, until, values

pytestmark = pytest.mark.kafka


async def hang(producer: KafkaProducer, snapshot, records: list[NewRecord], offsets: dict[int, int]) -> None:
    """Leave a transaction open with everything in it, as an owner does that dies before the end."""

    def job() -> None:
        client = producer._transactor._client
        client.begin_transaction()
        for record in records:
            client.produce(record.topic, record.value, record.key, record.partition)
        client.flush()
        places = [Place(snapshot.topic, partition, offset) for partition, offset in offsets.items()]
        client.send_offsets_to_transaction(places, snapshot.token)

    await producer._lane.run(job)


async def seen(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS / 2
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


class TestFences(KafkaConfig):
    """The broker and its client let these through, so the port must not."""

    @case
    async def test_the_client_commits_without_offsets_and_the_port_does_not(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await a.member.close()
        b = await world.worker(other, commands, "b")
        await until(lambda: b.owned == {0}, b)
        record = [new(events, b"zombie")]
        with pytest.raises(REFUSED):
            await producer.commit(a.snapshot._replace(owned={0: 1}), record, {0: 1})
        await producer._lane.run(lambda: producer._transactor.commit(record, a.snapshot.token, []))
        assert await values(log, events) == [b"zombie"], "the client fences by itself now: this guard can go"
        with pytest.raises(ValueError, match="fence"):
            await producer.commit(a.snapshot._replace(owned={0: 1}), record, {})

    @case
    async def test_metadata_of_an_unjoined_consumer_is_accepted_and_the_port_never_hands_it_out(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        unjoined = log._clients.consumer(a.group, "x")(print)
        metadata = unjoined.consumer_group_metadata()
        unjoined.close()
        assert generation(metadata) == -1
        places = [Place(commands, 0, 7)]
        await producer._lane.run(lambda: producer._transactor.commit([new(events, b"x")], metadata, places))
        assert await a.member.committed(0) == 7, "the broker refuses it now: this guard can go"
        assert generation(a.snapshot.token) >= 0
        await a.member.close()
        assert log.member(a.group, commands, client_id="y").snapshot().token is None
        with pytest.raises(ValueError, match="not in its group"):
            await producer.commit(a.snapshot._replace(owned={0: 1}, token=None), [new(events, b"x")], {0: 1})

    @case
    async def test_f05_a_member_that_was_thrown_out_keeps_metadata_that_the_broker_refuses(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        owned = a.snapshot.owned
        await self.freeze(log, a)
        await until(lambda: bool(a.told("lost")), a)
        assert generation(a.snapshot.token) >= 0
        with pytest.raises(REFUSED):
            await producer.commit(a.snapshot._replace(owned=owned), [new(events, b"zombie")], {0: 1})
        await until(lambda: a.owned == {0}, a)
        await producer.commit(a.snapshot, [new(events, b"back")], {0: 1})
        assert await values(log, events) == [b"back"]

    @case
    async def test_a_producer_is_as_good_as_before_when_the_group_refuses(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        stale = a.snapshot
        await a.member.close()
        b = await world.worker(log, commands, "b")
        await until(lambda: b.owned == {0}, b)
        client = producer._transactor._client
        for _ in range(3):
            with pytest.raises(CommitAborted):
                await producer.commit(stale._replace(owned={0: 1}), [new(events, b"x")], {0: 1})
        assert producer._transactor._client is client
        await producer.commit(b.snapshot, [new(events, b"y")], {0: 1})
        assert await values(log, events) == [b"y"]


class TestClientsThatBreak(KafkaConfig):
    """Seen under restarts of the broker, and found by the chaos test."""

    @case
    async def test_a_call_that_never_returns_leaves_the_outcome_to_the_log(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await producer.commit(a.snapshot, [new(events, b"before")], {0: 1})
        stuck = threading.Event()
        client = producer._transactor._client

        class Stuck:
            def __getattr__(self, name: str):
                return getattr(client, name)

            def send_offsets_to_transaction(self, *_):
                stuck.wait()

        producer._transactor._client = Stuck()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patience, "HANG_SECONDS", 0.0)
            patch.setattr(transaction, "_CALL_SECONDS", 0.5)
            with pytest.raises(InDoubt, match="does not return"):
                await producer.commit(a.snapshot, [new(events, b"stuck")], {0: 2})
        began = time.monotonic()
        await producer.close()
        assert time.monotonic() - began < 10, "nobody waits for the thread that hangs"
        fresh = await world.producer(log, "fresh")
        await fresh.settle([producer.id])
        await a.poll()
        await fresh.commit(a.snapshot, [new(events, b"after")], {0: 2})
        stuck.set()
        assert await values(log, events) == [b"before", b"after"]

    @case
    async def test_a_member_whose_client_never_returns_says_so_and_closes_all_the_same(self, world: World):
        log = await world.log()
        a, _ = await world.owner(log, await world.topic(log, "commands"))
        stuck = threading.Event()
        client = a.member._consumer._client

        class Stuck:
            def __getattr__(self, name: str):
                return getattr(client, name)

            def consumer_group_metadata(self):
                stuck.wait()
                return client.consumer_group_metadata()

        a.member._consumer._client = Stuck()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(patience, "HANG_SECONDS", 0.0)
            patch.setattr(consumer, "_METADATA_SECONDS", 0.5)
            with pytest.raises(LogError, match="start the worker again"):
                await a.poll()
        began = time.monotonic()
        await log.close()
        assert time.monotonic() - began < 30
        stuck.set()

    @case
    async def test_what_a_worker_asks_while_a_broker_restarts_goes_past_the_admin_client(self, world: World):
        """Its requests that time out free memory twice inside the client, which ends or stops the process."""
        log = await world.log()
        commands = await world.topic(log, "commands")
        a, producer = await world.owner(log, commands)
        await log.append([new(commands, b"1")])
        await producer.commit(a.snapshot, [], {0: 1})

        class Forbidden:
            def list_topics(self, *args, **kwargs):
                return client.list_topics(*args, **kwargs)

        client, log._admin._client = log._admin._client, Forbidden()
        assert await a.member.committed(0) == 1
        assert await log.span(commands, 0) == (0, 1)
        await a.member.resume(0, 0)
        await until(lambda: a.values == [b"1"], a)
        with pytest.raises(UsageError, match="no topic"):
            await log.span(world.name("missing"), 0)
        log._admin._client = client

    @case
    async def test_a_commit_that_failed_asks_the_admin_client_only_for_a_topic_that_is_gone(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await producer.commit(a.snapshot, [new(events, b"1")], {0: 1})

        class Forbidden:
            def __init__(self) -> None:
                self.away = False

            def list_topics(self, *args, **kwargs):
                if self.away:
                    raise KafkaException(KafkaError(KafkaError._TRANSPORT))
                return client.list_topics(*args, **kwargs)

        def unanswered(*_):
            raise LogUnavailable("no broker answers")

        client, commit = log._admin._client, producer._transactor.commit
        log._admin._client = forbidden = Forbidden()
        producer._transactor.commit = unanswered
        for forbidden.away in (False, True, False):
            with pytest.raises(LogUnavailable):
                await producer.commit(a.snapshot, [new(events, b"2")], {0: 2})
        await asyncio.wrap_future(client.delete_topics([events])[events])
        await seen(lambda: events not in client.list_topics(timeout=10).topics)
        with pytest.raises(LogUnavailable):
            await producer.commit(a.snapshot, [new(events, b"2")], {0: 2})
        log._admin._client, producer._transactor.commit = client, commit
        with pytest.raises(SendRefused, match="does not exist") as refused:
            await producer.commit(a.snapshot, [new(events, b"2")], {0: 2})
        assert refused.value.code == "TOPIC_MISSING"

    @case
    async def test_a_log_forgets_the_producers_that_are_closed(self, world: World):
        log = await world.log()
        for number in range(3):
            await (await world.producer(log, f"p{number}")).close()
        last = await world.producer(log, "last")
        assert log._producers == [last]

    @case
    async def test_an_append_that_stands_behind_another_ends_with_the_log(self, world: World):
        log = await world.log()
        events = await world.topic(log, "events")
        await log.append([new(events, b"first")])
        began, go = threading.Event(), threading.Event()
        write = log._appender._write

        def slow(groups):
            began.set()
            go.wait()
            return write(groups)

        log._appender._write = slow
        under_way = asyncio.create_task(log.append([new(events, b"under way")]))
        await asyncio.to_thread(began.wait)
        behind = asyncio.create_task(log.append([new(events, b"behind")]))
        await seen(lambda: bool(log._appender._waiting))
        asyncio.get_running_loop().call_later(0.2, go.set)
        await log.close()
        done, _ = await asyncio.wait([under_way, behind], timeout=30)
        assert {task for task in done if task.cancelled()} == {under_way, behind}


class TestDamage(KafkaConfig):
    """The next commands of partitions are gone."""

    @case
    async def test_f21_each_partition_whose_next_command_was_deleted_is_told(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands", 3)
        a, _ = await world.owner(log, commands, 3)
        await log.append([new(commands, b"%d" % n, partition=partition) for n in range(3) for partition in range(3)])
        client = a.member._consumer._client

        class Slow:
            """Polled so seldom that the errors of all partitions wait together."""

            def __getattr__(self, name: str):
                return getattr(client, name)

            def poll(self, timeout: float):
                time.sleep(1.0)
                return client.poll(timeout)

        a.member._consumer._client = Slow()
        for partition in range(3):
            await a.member.resume(partition, 0)
        gone = [Place(commands, partition, 2) for partition in (0, 2)]
        for future in log._admin._client.delete_records(gone).values():
            await asyncio.wrap_future(future)
        told: list[int | None] = []
        deadline = time.monotonic() + HANG_SECONDS / 2
        while len(told) < 2 or len(a.values) < 3:
            assert time.monotonic() < deadline, (told, a.values)
            try:
                await a.poll()
            except LogDamaged as damaged:
                told.append(damaged.partition)
        assert sorted(told) == [0, 2]
        assert a.values == [b"0", b"1", b"2"]


class TestHangingTransactions(KafkaConfig):
    """F02: an owner died before the end of its transaction."""

    @case
    async def test_f02_settling_ends_it_within_seconds(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await producer.commit(a.snapshot, [new(events, b"0")], {0: 1})
        await hang(producer, a.snapshot, [new(events, b"open")], {0: 2})
        await a.member.close()
        b = await world.worker(other, commands, "b")
        stable = asyncio.create_task(b.member.committed(0))
        await asyncio.sleep(0.5)
        assert not stable.done()
        assert (await other.span(events, 0)).end < (await other.span(events, 0, "read_uncommitted")).end
        began = time.monotonic()
        await (await world.producer(other, "b")).settle([producer.id])
        assert await stable == 1
        assert await values(other, events) == [b"0"]
        assert time.monotonic() - began < 8

    @case
    async def test_f04_a_fence_at_the_end_leaves_the_commit_in_doubt(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        other = await world.producer(log, "other")
        transactor = producer._transactor
        end = transactor._end

        def taken_over_before_the_end() -> None:
            asyncio.run_coroutine_threadsafe(other.settle([producer.id]), loop).result()
            end()

        loop = asyncio.get_running_loop()
        transactor._end = taken_over_before_the_end
        with pytest.raises(InDoubt):
            await producer.commit(a.snapshot, [new(events, b"x")], {0: 1})
        with pytest.raises(ValueError, match="in doubt"):
            await producer.commit(a.snapshot, [new(events, b"x")], {0: 1})
        assert await values(log, events) == []


class TestEnds(KafkaConfig):
    """F01: the last offset of a partition is no record."""

    @case
    async def test_f01_thousands_of_aborted_records_are_passed(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await producer.commit(a.snapshot, [new(events, b"first")], {0: 1})
        for _ in range(3):
            await hang(producer, a.snapshot, [new(events, b"x" * 50) for _ in range(2000)], {0: 2})
            await producer._lane.run(producer._transactor._client.abort_transaction)
        assert await values(log, events) == [b"first"]
        assert (await log.span(events, 0)).end >= 6000

    @case
    async def test_f01_a_compacted_tail_is_passed(self, world: World):
        log = await world.log()
        settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.001", "segment_ms": "200"}
        name = await world.topic(log, "checkpoints", **settings, delete_retention_ms="0", max_compaction_lag_ms="200")
        await log.append([new(name, b"%d" % n, key=b"k%d" % (n % 2)) for n in range(40)])
        await asyncio.sleep(0.5)
        await log.append([new(name, None, key=b"k0"), new(name, b"last", key=b"k1")])
        deadline = time.monotonic() + 60
        while len(found := await read_all(log, name)) > 4:
            assert time.monotonic() < deadline, "the broker never compacted"
            await log.append([new(name, b"tick", key=b"tick")])  # a segment is closed only when another record comes
            await asyncio.sleep(0.5)
        fold = {record.key: record.value for record in found}
        assert fold[b"k1"] == b"last"
        assert fold.get(b"k0") is None
        end = (await log.span(name, 0)).end
        reader = log.reader({TopicPartition(name, 0): found[-1].offset})
        while reader.position(TopicPartition(name, 0)) < end:
            await reader.read(100, 1.0)


class TestRefusals(KafkaConfig):
    """Records that the broker itself refuses, which no check of ours can foresee."""

    @case
    async def test_f03_a_record_over_the_limit_of_its_topic_is_blamed(self, world: World):
        log = await world.log()
        commands, small = await world.topic(log, "commands"), await world.topic(log, "small", max_message_bytes="5000")
        events = await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        with pytest.raises(SendRefused) as refused:
            await producer.commit(a.snapshot, [new(events, b"a"), new(small, bytes(6000)), new(events, b"b")], {0: 1})
        assert refused.value.index == 1
        await producer.commit(a.snapshot, [new(events, b"after")], {0: 1})
        assert await values(log, events) == [b"after"]
        with pytest.raises(SendRefused):
            await log.append([new(small, bytes(6000))])
        await log.append([new(small, b"fits")])
        assert await values(log, small) == [b"fits"]

    @case
    async def test_f03_a_full_queue_of_the_client_is_waited_for(self, world: World):
        self.url += "&queue.buffering.max.messages=100"
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await producer.commit(a.snapshot, [new(events, b"%d" % n) for n in range(1000)], {0: 1})
        assert await values(log, events) == [b"%d" % n for n in range(1000)]


@pytest.mark.slow
@pytest.mark.timeout(240)
class TestBrokerCrash:
    """The only broker is killed and comes back."""

    @pytest.fixture(autouse=True)
    def _broker(self, own_kafka: Kafka):
        self.kafka = own_kafka

    async def open(self) -> KafkaLog:
        return await open_kafka(f"{self.kafka.url}?heartbeat.interval.ms=200&session.timeout.ms=30000")

    @case
    async def test_a_commit_waits_for_it_and_is_written_once(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await producer.commit(a.snapshot, [new(events, b"before")], {0: 1})
        await asyncio.to_thread(kill_kafka, self.kafka)
        with pytest.raises((LogUnavailable, CommitAborted)):
            await producer.commit(a.snapshot, [new(events, b"lost")], {0: 2})
        assert producer._transactor.state is State.WORN
        await asyncio.to_thread(lambda: start_kafka(self.kafka.folder, port=self.kafka.port))
        written = False
        while not written:
            try:
                await producer.commit(a.snapshot, [new(events, b"once")], {0: 2})
                written = True
            except (LogUnavailable, CommitAborted):
                with suppress(LogUnavailable):
                    await a.poll(0.5)
        assert await values(log, events) == [b"before", b"once"]
        assert await a.member.committed(0) == 2

    @case
    async def test_f24_a_member_says_that_nobody_answers_and_closes_all_the_same(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        a, _ = await world.owner(log, commands)
        await asyncio.to_thread(kill_kafka, self.kafka)
        with pytest.raises(LogUnavailable, match="no broker"):
            while True:
                await a.poll(1.0)
        began = time.monotonic()
        await a.member.close()
        assert set(a.told("revoked")) | set(a.told("lost")) == {0}
        await log.close()
        assert time.monotonic() - began < 30
