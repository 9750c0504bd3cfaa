"""What the Faust driver cures, on a real broker; each fault is shown too, with its cure taken out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faust
import pytest
from faust.transport.drivers import aiokafka as stock

from streams.dev import Kafka
from streams.effects.faust import driver, make_app
from tests.effects.faust_lab import (
    Service,
    Writer,
    committed,
    delete_before,
    end,
    fresh,
    in_loop,
    lines,
    make_topic,
    serving,
    start,
    until,
    wait_for,
)

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


class StockSeek(driver.Consumer):
    """Faust goes back to the committed offset after a rebalance, and nowhere where there is none."""

    seek_to_committed = stock.Consumer.seek_to_committed


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


@pytest.mark.parametrize(("consumer", "times"), [(driver.Consumer, 2), (StockSeek, 1)])
@in_loop
async def test_before_the_first_commit_a_rebalance_goes_back_to_the_start_only_with_the_cure(
    kafka: Kafka, consumer: type, times: int
) -> None:
    """Faust drops what it has fetched in a rebalance, and goes back; what it does not go back for is lost."""
    topic = story(kafka)
    app, seen = reader(kafka, topic, consumer, broker_commit_interval=1000)
    async with serving(app):
        await until(lambda: len(seen) == 6)
        await app.consumer.perform_seek()
        await until(lambda: len(seen) >= 6 * times)
        await asyncio.sleep(1)
        assert len(seen) == 6 * times


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


def test_deleted_messages_that_were_never_taken_stop_the_service(kafka: Kafka, tmp_path: Path) -> None:
    topic = story(kafka)
    out = tmp_path / "out"
    out.touch()
    service = partial(start, "collect", log=kafka.url, group=fresh("late-"), topic=topic, out=out)
    with service() as first:
        wait_for(lambda: len(lines(out)) == 6)
        wait_for(lambda: committed(kafka, first.group, topic) == end(kafka, topic))
        first.process.terminate()
        assert first.ended() == (0, "")
    Writer(kafka, topic).write([b"lost", b"lost too", b"kept"])
    delete_before(kafka, topic, end(kafka, topic) - 2)
    with service(group=first.group) as second:
        code, text = second.ended()
    assert code == 1
    assert "messages were deleted before they were taken" in text
    assert len(lines(out)) == 6


class Pair(NamedTuple):
    """Two workers of one group, a partition each."""

    writer: Writer
    killed: Service
    outs: list[Path]

    def write(self, value: bytes) -> None:
        for partition in range(2):
            self.writer.write([value], partition=partition)

    def both_at_work(self) -> bool:
        self.write(b"before")
        return all(lines(out) for out in self.outs)


@contextmanager
def pair(kafka: Kafka, folder: Path, times: str) -> Iterator[Pair]:
    topic, group = fresh(f"{times}-"), fresh(f"{times}-")
    make_topic(kafka, topic, 2)
    outs = [folder / f"{times}{number}" for number in range(2)]
    for out in outs:
        out.touch()
    service = partial(start, "collect", log=kafka.url, group=group, topic=topic, times=times)
    with service(out=outs[0]) as first, service(out=outs[1]):
        yield Pair(Writer(kafka, topic), first, outs)


def test_a_killed_worker_is_replaced_within_fifteen_seconds_only_with_short_time_outs(
    kafka: Kafka, tmp_path: Path
) -> None:
    """With Faust's own, the others of a group wait a minute for one that is gone."""
    with pair(kafka, tmp_path, "ours") as ours, pair(kafka, tmp_path, "stock") as stock:
        wait_for(ours.both_at_work)
        wait_for(stock.both_at_work)
        for each in (ours, stock):
            each.killed.process.kill()
            each.write(b"after")
        time.sleep(15)
        assert lines(ours.outs[1]).count("after") == 2
        assert lines(stock.outs[1]).count("after") < 2
