"""The group's offset of an idle effect goes past the markers of transactions, so that retention cannot overtake it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka.admin import AdminClient

from streams import App, EffectContext
from streams.clock import SystemClock
from streams.dev import Kafka
from streams.effects.memory import MemoryLedger
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.log.kafka import open_kafka
from streams.log.port import GroupSnapshot, Log, NewRecord
from streams.runtime.topics import ensure_topics
from tests.effects.lab import PARTITIONS, Lab, Recorder, virtual
from tests.effects.test_on_servers import Shop, finished
from tests.runtime.history import HANG_SECONDS


class Waits:
    """An owner who does nothing but own."""

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None: ...
    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None: ...
    async def lost(self, partitions: Mapping[int, int]) -> None: ...


async def write_in_a_transaction(log: Log, topic: str, records: list[NewRecord]) -> None:
    """As a worker's turn writes: the records are followed by a marker in each partition."""
    member = log.member(f"{topic}.writers", topic, client_id="writer")
    await member.join(Waits())
    producer = await log.producer(f"{topic}.writer")
    partitions = {record.partition for record in records}
    async with asyncio.timeout(HANG_SECONDS):
        while not partitions <= set(member.snapshot().owned):
            await member.poll(1, 0.05)
    await producer.commit(member.snapshot(), records, dict.fromkeys(partitions, 0))
    await producer.close()
    await member.close()


def mailing() -> App:
    app = App("mailing")
    app.calls = []
    mails = app.effect("mails", str)

    @app.subscriber(mails)
    async def send(ctx: EffectContext, text: str) -> None:
        app.calls.append(text)

    return app


async def message(lab: Lab, text: str) -> NewRecord:
    """A message as `Lab.send` makes it, taken from a log beside."""
    beside = Lab(lab.app)
    await beside.open()
    sent = await beside.send("mails", text, effect_id=f"r1@0/{text}")
    (record,) = await beside.records(lab.topics.effect("mails"))
    return NewRecord(record.topic, sent.partition, record.key, record.value, record.headers)


@virtual(mailing)
async def test_f01_an_idle_group_stands_behind_the_last_marker(lab: Lab) -> None:
    record = await message(lab, "a")
    await write_in_a_transaction(lab.log, record.topic, [record])
    running = lab.subscriber(idle_seconds=5.0)
    await lab.until(lambda: lab.app.calls)
    await lab.finished("mails")  # up to the end, which is one past the marker
    await running.stop()
    assert lab.app.calls == ["a"]


@virtual(mailing)
async def test_a_stop_leaves_the_group_behind_the_last_marker(lab: Lab) -> None:
    record = await message(lab, "a")
    await write_in_a_transaction(lab.log, record.topic, [record])
    running = lab.subscriber(idle_seconds=1e6)
    await lab.until(lambda: lab.app.calls)
    await asyncio.sleep(5)
    end = (await lab.log.span(record.topic, record.partition)).end
    assert (await lab.offsets("mails"))[record.partition] == end - 1, "nobody looked yet"
    await running.stop()
    assert (await lab.offsets("mails"))[record.partition] == end


@virtual(mailing)
async def test_a_message_behind_a_marker_is_never_passed_over(lab: Lab) -> None:
    running = lab.subscriber(idle_seconds=0.05)
    for number in range(40):
        record = await message(lab, f"m{number}")
        await write_in_a_transaction(lab.log, record.topic, [record])
        await asyncio.sleep(0.02)
    await lab.until(lambda: len(lab.app.calls) >= 40)
    await lab.finished("mails")
    await running.stop()
    assert sorted(lab.app.calls) == sorted(f"m{number}" for number in range(40))


@pytest.mark.kafka
@pytest.mark.slow
def test_f21_a_subscriber_goes_on_after_retention_has_emptied_its_topic(kafka: Kafka) -> None:
    """All was carried out, then nobody wrote for a week: nothing is missing, and nothing is refused."""
    shop = Shop(asynchronous=True, many=False)
    topic = shop.topics.effect("payments")

    async def serve(log: Log, told: Recorder) -> None:
        settings = SubscriberSettings(partitions=PARTITIONS, poll_seconds=0.05, idle_seconds=0.2)
        ledger = MemoryLedger(SystemClock())
        subscriber = Subscriber(shop.app, log, ledger, settings=settings, observer=told, only=["payments"])
        task = asyncio.create_task(subscriber.run())
        await finished(log, shop, task, only=("payments",))
        subscriber.stop()
        await asyncio.wait_for(task, HANG_SECONDS)

    async def scenario() -> None:
        log = await open_kafka(kafka.url)
        await ensure_topics(log, shop.topics, PARTITIONS)
        await write_in_a_transaction(log, topic, [shop.message("payments", f"o{n}", f"r{n}") for n in range(8)])
        await serve(log, Recorder())
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        everything = [KafkaPlace(topic, number, -1) for number in range(PARTITIONS)]
        for future in admin.delete_records(everything).values():
            await asyncio.to_thread(future.result, HANG_SECONDS)
        assert all([(span := await log.span(topic, number)).start == span.end for number in range(PARTITIONS)])
        await write_in_a_transaction(log, topic, [shop.message("payments", "new", "new")])
        told = Recorder()
        await serve(log, told)
        assert "new" in shop.paid
        assert not [what for what in told.heard("effect_partition") if what[3] == "refused"]
        await log.close()

    asyncio.run(scenario())
