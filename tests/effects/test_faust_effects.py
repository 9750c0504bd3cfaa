"""Effects carried out by Faust services on a real broker: none skipped, none twice, whatever dies in between."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from streams import App, EffectContext, Fail, Retry, TryAgain
from streams.clock import SystemClock
from streams.dev import Kafka
from streams.effects.faust import effect_agent, make_app
from streams.effects.memory import MemoryLedger
from streams.effects.port import Ledger, Query, Status
from streams.effects.subscriber.settings import SubscriberSettings
from streams.errors import LedgerMismatch
from streams.wire.records import decode_command, decode_dead_letter, encode_effect
from streams.wire.topics import Topics, topics_of
from tests.effects.faust_lab import (
    Writer,
    committed,
    effect,
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

SOON = Retry(max_attempts=3, initial=0.05, max_delay=0.1)


def outbox(kafka: Kafka, partitions: int = 1) -> Topics:
    """The topics of an app of its own."""
    topics = topics_of(fresh("app"), ["pay"])
    for name in (topics.commands, topics.effect("pay"), topics.effect_dead("pay")):
        make_topic(kafka, name, partitions)
    return topics


def read(kafka: Kafka, topic: str, partitions: int = 1) -> list[Any]:
    """All committed records of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": fresh("read-"), "enable.partition.eof": True}
    )
    consumer.assign([Place(topic, number, 0) for number in range(partitions)])
    found, ends = [], 0
    while ends < partitions:
        message = consumer.poll(30)
        assert message is not None
        ends += message.error() is not None
        found += [message] if message.error() is None else []
    consumer.close()
    return found


def replies(kafka: Kafka, topics: Topics, partitions: int = 1) -> list[Any]:
    found = read(kafka, topics.commands, partitions)
    return [decode_command(m.key(), m.value(), default_id="", offset=0).request for m in found]


def letters(kafka: Kafka, topics: Topics) -> list[str]:
    return [decode_dead_letter(m.value()).code for m in read(kafka, topics.effect_dead("pay"))]


class Shop:
    """A service in the test's loop that carries out `pay`, with a ledger in memory."""

    def __init__(self, kafka: Kafka, topics: Topics, handler: Any, **options: Any) -> None:
        self.kafka, self.topics = kafka, topics
        self.ledger = MemoryLedger(SystemClock())
        self.service = make_app(fresh("shop-"), kafka.url, web_enabled=False, broker_commit_interval=0.2)
        app = App(topics.app)
        pay = app.effect("pay", dict, reply=str)
        settings = SubscriberSettings(lease_seconds=1.0, ask_again_seconds=0.1)
        self.agent = effect_agent(self.service, app, self._open, settings=settings)(
            app.subscriber(pay, retry=SOON, looks=SOON, **options)(handler)
        )

    async def _open(self) -> Ledger:
        return self.ledger

    async def finished(self) -> None:
        topic = self.topics.effect("pay")
        await until(lambda: committed(self.kafka, self.service.conf.id, topic) == end(self.kafka, topic))


@in_loop
async def test_every_ending_is_answered_recorded_and_passed(kafka: Kafka) -> None:
    topics = outbox(kafka)
    calls: list[str] = []

    async def pay(ctx: EffectContext, payload: dict) -> Any:
        calls.append(ctx.idempotency_key)
        match payload.get("do"):
            case "fail":
                raise Fail("DECLINED", "no money")
            case "again":
                raise TryAgain("too busy")
            case "boom":
                raise RuntimeError("boom")
            case "odd":
                return object()
        return "ok"

    sent = [
        *(effect(1), effect(1)),
        *(effect(2, '{"do": "fail"}'), effect(3, '{"do": "again"}'), effect(4, '{"do": "boom"}')),
        *(effect(5, '{"do": "odd"}'), effect(6, '{"x": 1}', key="key1"), effect(7, "[1]"), effect(8, attempt=0)),
    ]
    writer = Writer(kafka, topics.effect("pay"))
    writer.write([*(encode_effect(message) for message in sent), b"junk"])
    writer.write([encode_effect(effect(9))], commit=False)
    shop = Shop(kafka, topics, pay)
    async with serving(shop.service):
        await shop.finished()
        entries = {entry.key.key: entry for entry in await shop.ledger.entries(Query())}
    assert Counter(calls) == {"key1": 1, "key2": 1, "key3": 3, "key4": 1, "key5": 1, "key8": 1}
    assert {key: entry.status for key, entry in entries.items()} == {
        **dict.fromkeys(["key1", "key8"], Status.DONE),
        **dict.fromkeys(["key2", "key3", "key7"], Status.FAILED),
        **dict.fromkeys(["key4", "key5"], Status.PARKED),
    }
    codes = ["DECLINED", "RETRIES_EXHAUSTED", "OUTCOME_UNKNOWN", "VALUE_NOT_STORABLE", "KEY_CONFLICT"]
    assert letters(kafka, topics) == [*codes, "VALUE_UNREADABLE", "EFFECT_UNREADABLE"]
    answers = [(reply.op, reply.value or reply.error[1]) for reply in replies(kafka, topics)]
    assert answers == [
        *(("1", b'"ok"'), ("2", "DECLINED"), ("3", "RETRIES_EXHAUSTED"), ("6", "KEY_CONFLICT")),
        ("7", "VALUE_UNREADABLE"),
    ]


@pytest.mark.parametrize("ours", [True, False])
@in_loop
async def test_a_handler_that_raises_skips_the_event_only_in_a_plain_agent(kafka: Kafka, *, ours: bool) -> None:
    topics = outbox(kafka)
    messages = [effect(number) for number in range(4)]
    Writer(kafka, topics.effect("pay")).write(map(encode_effect, messages))
    tries: Counter[str] = Counter()
    done: list[str] = []

    def carry_out(key: str) -> None:
        tries[key] += 1
        if tries[key] == 1 and key == "key1":
            raise RuntimeError("the first time")
        done.append(key)

    async def pay(ctx: EffectContext, payload: dict) -> None:
        carry_out(ctx.idempotency_key)

    shop = Shop(kafka, topics, pay, idempotent=True)
    if not ours:
        chosen = {"web_enabled": False, "broker_commit_interval": 0.2, "agent_supervisor": "mode.OneForOneSupervisor"}
        shop.service = make_app(fresh("plain-"), kafka.url, **chosen)

        @shop.service.agent(shop.service.log_topic(topics.effect("pay"), value_serializer="streams-effect"))
        async def plain(stream):
            async for message in stream:
                carry_out(message.idempotency_key)

    async with serving(shop.service):
        await shop.finished()
    assert sorted(done) == [f"key{number}" for number in range(4) if ours or number != 1]


@in_loop
async def test_order_is_kept_per_run_and_others_are_not_held_up(kafka: Kafka) -> None:
    topics = outbox(kafka)
    writer = Writer(kafka, topics.effect("pay"))
    for number, run in enumerate(["slow", "slow", "fast", "fast"]):
        writer.write([encode_effect(effect(number, run=run))], key=run.encode())
    done: list[str] = []
    seen_fast = asyncio.Event()

    async def pay(ctx: EffectContext, payload: dict) -> None:
        if ctx.run_id == "slow":
            await seen_fast.wait()
        done.append(ctx.idempotency_key)
        if ctx.idempotency_key == "key3":
            seen_fast.set()

    shop = Shop(kafka, topics, pay)
    async with serving(shop.service):
        await shop.finished()
    assert done == ["key2", "key3", "key0", "key1"]


@pytest.mark.parametrize("method", ["check", "claim"])
@in_loop
async def test_a_ledger_of_another_release_ends_the_service_and_nothing_is_passed(kafka: Kafka, method: str) -> None:
    topics = outbox(kafka)
    topic = topics.effect("pay")
    Writer(kafka, topic).write([encode_effect(effect(1))])

    async def pay(ctx: EffectContext, payload: dict) -> None: ...

    async def mismatch(*_: Any) -> None:
        raise LedgerMismatch("its tables are of version 99")

    shop = Shop(kafka, topics, pay)
    setattr(shop.ledger, method, mismatch)
    async with serving(shop.service):
        await until(shop.service._crashed.is_set)
    assert isinstance(shop.service.crash_reason, LedgerMismatch)
    assert committed(kafka, shop.service.conf.id, topic) <= 0


@in_loop
async def test_a_stop_lets_a_running_handler_end_and_answers_for_it(kafka: Kafka) -> None:
    topics = outbox(kafka)
    topic = topics.effect("pay")
    Writer(kafka, topic).write([encode_effect(effect(1)), encode_effect(effect(2))])
    running = asyncio.Event()
    calls: list[str] = []

    async def pay(ctx: EffectContext, payload: dict) -> str:
        calls.append(ctx.idempotency_key)
        running.set()
        await asyncio.sleep(1.5)
        return "ok"

    shop = Shop(kafka, topics, pay)
    async with serving(shop.service):
        await running.wait()
    assert calls == ["key1"]
    assert [entry.published for entry in await shop.ledger.entries(Query())] == [True]
    assert [(reply.op, reply.value) for reply in replies(kafka, topics)] == [("1", b'"ok"')]
    assert committed(kafka, shop.service.conf.id, topic) == 1  # the second was not begun


POINTS = ["effect.taken", "effect.claimed", "effect.called", "effect.settled", "effect.committed"]


class Killed(NamedTuple):
    """What was left after a worker was killed at a point, and another one had finished."""

    codes: tuple[int, int]
    errors: str
    provided: list[str]
    answers: Counter[tuple[str, bytes | None]]


def kill_at(kafka: Kafka, folder: Path, point: str) -> Killed:
    topics = outbox(kafka)
    topic = topics.effect("pay")
    Writer(kafka, topic).write(encode_effect(effect(number)) for number in range(5))
    out = folder / f"provider-{point}"
    out.touch()
    options = {"log": kafka.url, "topic": topics.app, "out": out, "ledger": f"sqlite:///{folder}/{point}.db"}
    service = partial(start, "effects", group=fresh("killed-"), **options)
    with service(environ={"STREAMS_CRASH_AT": f"{point}:3"}) as first:
        killed, _ = first.ended()
    with service(group=first.group) as second:
        wait_for(lambda: committed(kafka, first.group, topic) == end(kafka, topic))
        second.process.terminate()
        stopped, errors = second.ended()
    answers = Counter((reply.op, reply.value) for reply in replies(kafka, topics))
    return Killed((killed, stopped), errors, sorted(lines(out)), answers)


@pytest.fixture(scope="module")
def kills(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Killed]]]:
    """All of them at once: most of their time is waiting for sessions to end."""
    folder = tmp_path_factory.mktemp("kills")
    with ThreadPoolExecutor(len(POINTS)) as pool:
        yield {point: pool.submit(kill_at, kafka, folder, point) for point in POINTS}


@pytest.mark.parametrize("point", POINTS)
def test_f17_killed_anywhere_nothing_is_skipped_or_done_twice(kills: dict[str, Future[Killed]], point: str) -> None:
    found = kills[point].result(100)
    assert found.codes == (-signal.SIGKILL, 0)
    assert [line for line in found.errors.splitlines() if "SUBSCRIBER_LOST" not in line] == []
    assert found.provided == [f"key{number}" for number in range(5)]
    assert set(found.answers) == {(str(number), b'"key%d"' % number) for number in range(5)}
    assert found.answers.total() <= 6  # the one at whose note it was killed is answered twice


def test_two_workers_share_the_work_and_one_takes_over_what_the_other_was_at(kafka: Kafka, tmp_path: Path) -> None:
    topics = outbox(kafka, partitions=2)
    topic = topics.effect("pay")
    out = tmp_path / "provider"
    out.touch()
    options = {"log": kafka.url, "topic": topics.app, "out": out, "ledger": f"sqlite:///{tmp_path}/ledger.db"}
    service = partial(start, "effects", group=fresh("two-"), **options)
    writer, count = Writer(kafka, topic), 40
    with service() as first, service() as second:
        for number in range(count):
            slow = '{"seconds": 0.2}'
            message = effect(number, slow, run=f"r{number % 8}")
            writer.write([encode_effect(message)], key=message.run_id.encode(), partition=number % 2)
        wait_for(lambda: len(lines(out)) > 10)
        first.process.kill()
        groups = [(first.group, topic, number) for number in range(2)]
        wait_for(lambda: all(committed(kafka, *group) == end(kafka, topic, group[2]) for group in groups))
        second.process.terminate()
        assert second.ended() == (0, "")
    assert sorted(lines(out)) == sorted(f"key{number}" for number in range(count))
    answered = {reply.op for reply in replies(kafka, topics, partitions=2)}
    assert answered == {str(number) for number in range(count)}
