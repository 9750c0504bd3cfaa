"""What the Faust driver cures, on a real broker; each fault is shown too, with its cure taken out."""

from __future__ import annotations

import asyncio
from typing import Any

import faust
import pytest
from faust.transport.drivers import aiokafka as stock

from streams.dev import Kafka
from streams.effects.faust import driver, make_app
from streams.errors import LogDamaged
from tests.effects.faust_lab import Writer, committed, delete_before, end, fresh, in_loop, make_topic, serving, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class StockIsolation(driver.Consumer):
    """Our commits, Faust's isolation."""

    Thread = stock.AIOKafkaConsumerThread


class StockCommits(driver.Consumer):
    """Our isolation, Faust's commits."""

    _add_gap = stock.Consumer._add_gap
    _filter_tps_with_pending_acks = stock.Consumer._filter_tps_with_pending_acks
    _new_offset = stock.Consumer._new_offset


AT_WORK, LAST_GOOD = 5, 11  # the offsets of "good 1" and "good too 2" in the story


def reader(
    kafka: Kafka, topic: str, consumer: type, *, id: str = "", at_work: bytes = b"", **settings: Any
) -> tuple[faust.App, list[bytes]]:
    """A service that collects what it reads; it is never done with `at_work`."""
    chosen = {"web_enabled": False, "broker_commit_interval": 0.2, **settings}
    app = make_app(id or fresh("reader-"), kafka.url, **chosen)
    app._new_transport = lambda: type("Own", (driver.Transport,), {"Consumer": consumer})(app.conf.broker_consumer, app)
    seen: list[bytes] = []

    @app.agent(app.log_topic(topic))
    async def read(stream):
        async for event in stream.noack().events():
            seen.append(event.value)
            if event.value != at_work:
                event.ack()

    return app, seen


def story(kafka: Kafka) -> str:
    """Three transactions that count, among three that do not."""
    topic = fresh("story-")
    make_topic(kafka, topic)
    writer = Writer(kafka, topic)
    for number in range(3):
        writer.write([b"good %d" % number, b"good too %d" % number])
        writer.write([b"aborted"], commit=False)
    return topic


@pytest.mark.parametrize(("consumer", "shown"), [(driver.Consumer, 0), (StockIsolation, 3)])
@in_loop
async def test_aborted_records_are_seen_only_without_the_cure(kafka: Kafka, consumer: type, shown: int) -> None:
    topic = story(kafka)
    app, seen = reader(kafka, topic, consumer)
    async with serving(app):
        await until(lambda: b"good too 2" in seen and seen.count(b"aborted") >= shown)
        await asyncio.sleep(0.5)
    assert seen.count(b"aborted") == shown
    assert len(seen) == 6 + shown


@in_loop
async def test_offsets_are_committed_over_markers_and_aborted_records(kafka: Kafka) -> None:
    topic = story(kafka)
    app, seen = reader(kafka, topic, driver.Consumer)
    async with serving(app):
        await until(lambda: len(seen) == 6)
        await until(lambda: committed(kafka, app.conf.id, topic) == end(kafka, topic))


@pytest.mark.parametrize(("consumer", "all_at_once"), [(driver.Consumer, True), (StockCommits, False)])
@in_loop
async def test_one_commit_covers_all_that_is_done_only_with_the_cure(
    kafka: Kafka, consumer: type, *, all_at_once: bool
) -> None:
    """Faust gets over one hole a commit: where transactions are small, it never catches up."""
    topic = story(kafka)
    app, seen = reader(kafka, topic, consumer, broker_commit_interval=1000)
    async with serving(app):
        await until(lambda: len(seen) == 6)
        await asyncio.sleep(0.2)
        await app.consumer.commit()
        assert (committed(kafka, app.conf.id, topic) > LAST_GOOD) is all_at_once


@pytest.mark.parametrize(("consumer", "skipped"), [(driver.Consumer, False), (StockCommits, True)])
@in_loop
async def test_what_is_still_at_work_is_not_committed_only_with_the_cure(
    kafka: Kafka, consumer: type, *, skipped: bool
) -> None:
    """Else a worker that is killed now, with a later message done already, would have lost the one that it is at."""
    topic = story(kafka)
    app, seen = reader(kafka, topic, consumer, at_work=b"good 1", broker_commit_interval=1000)
    async with serving(app):
        await until(lambda: seen[-1:] == [b"good too 2"])
        for _ in range(3):
            await app.consumer.commit()
        assert (committed(kafka, app.conf.id, topic) > AT_WORK) is skipped


@pytest.mark.parametrize("more", [0, 1])
@in_loop
async def test_a_restart_goes_on_where_the_last_one_ended(kafka: Kafka, more: int) -> None:
    topic = story(kafka)
    group = fresh("again-")
    app, seen = reader(kafka, topic, driver.Consumer, id=group)
    async with serving(app):
        await until(lambda: committed(kafka, group, topic) == end(kafka, topic))
    writer = Writer(kafka, topic)
    writer.write([b"later %d" % number for number in range(more)])
    writer.write([b"last"])
    app, seen = reader(kafka, topic, driver.Consumer, id=group)
    async with serving(app):
        await until(lambda: b"last" in seen)
    assert seen == [b"later %d" % number for number in range(more)] + [b"last"]


@in_loop
async def test_deleted_messages_that_were_never_taken_stop_the_service(kafka: Kafka) -> None:
    topic = story(kafka)
    group = fresh("late-")
    app, seen = reader(kafka, topic, driver.Consumer, id=group)
    async with serving(app):
        await until(lambda: committed(kafka, group, topic) == end(kafka, topic))
    app, seen = reader(kafka, topic, driver.Consumer, id=group)
    Writer(kafka, topic).write([b"lost", b"lost too", b"kept"])
    delete_before(kafka, topic, end(kafka, topic) - 2)
    failures: list[BaseException] = []

    async def crash(reason: BaseException) -> None:
        failures.append(reason)

    app.crash = crash
    app.finalize()
    await app.start()
    await until(lambda: failures)
    await asyncio.wait_for(app.stop(), 30)
    assert isinstance(failures[0], LogDamaged)
    assert "messages were deleted before they were taken" in str(failures[0])
    assert seen == []
