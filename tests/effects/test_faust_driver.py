"""What the Faust driver cures, on a real broker; each fault is shown too, with its cure taken out."""

from __future__ import annotations

import asyncio

import faust
import pytest
from faust.transport.drivers import aiokafka as stock

from streams.dev import Kafka
from streams.effects.faust import driver, make_app
from tests.effects.faust_lab import Writer, committed, end, fresh, in_loop, make_topic, serving, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class Uncommitted(driver.ConsumerThread):
    isolation = "read_uncommitted"


class StockIsolation(driver.Consumer):
    """Our commits, Faust's isolation."""

    Thread = stock.AIOKafkaConsumerThread


class StockCommits(driver.Consumer):
    """Our isolation, Faust's commits."""

    _add_gap = stock.Consumer._add_gap
    _filter_tps_with_pending_acks = stock.Consumer._filter_tps_with_pending_acks
    _new_offset = stock.Consumer._new_offset


def reader(kafka: Kafka, topic: str, consumer: type) -> tuple[faust.App, list[bytes]]:
    app = make_app(fresh("reader-"), kafka.url, web_enabled=False, broker_commit_interval=0.2)
    app._new_transport = lambda: type("Own", (driver.Transport,), {"Consumer": consumer})(app.conf.broker_consumer, app)
    seen: list[bytes] = []

    @app.agent(app.log_topic(topic))
    async def read(stream):
        async for value in stream:
            seen.append(value)

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


@in_loop
async def test_without_the_cure_commits_stall(kafka: Kafka) -> None:
    topic = story(kafka)
    app, seen = reader(kafka, topic, StockCommits)
    async with serving(app):
        await until(lambda: len(seen) == 6)
        await asyncio.sleep(3)
        assert committed(kafka, app.conf.id, topic) < end(kafka, topic) - 3
