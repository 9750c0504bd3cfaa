"""Subscribers on the real pair, Kafka and PostgreSQL, and on the embedded one, two sqlite files."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from streams import App, BatchContext, EffectContext, Fail, Found, NotFound, Retry
from streams.dev import Kafka
from streams.effects.port import Ledger, Query, Status
from streams.effects.postgres import open_postgres_ledger
from streams.effects.sqlite import open_sqlite_ledger
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.errors import LogUnavailable
from streams.log.kafka import open_kafka
from streams.log.port import Log, NewRecord, Record, TopicPartition
from streams.log.sqlite import open_sqlite
from streams.runtime.topics import ensure_topics
from streams.wire.app_codec import make_codec
from streams.wire.headers import headers_of
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, decode_command, decode_dead_letter, encode_effect
from streams.wire.topics import topics_of
from tests.effects.lab import Recorder
from tests.runtime.history import HANG_SECONDS

PARTITIONS = 2
TABLE = "CREATE TABLE bookings (effect_id TEXT PRIMARY KEY, amount BIGINT CHECK (amount < 1000))"


class Shop:
    """An app with one effect that is an outside call, and one whose handler writes into the ledger's database.

    That one takes one message, or `many`.
    """

    def __init__(self, *, asynchronous: bool, many: bool) -> None:
        self.app = App(f"shop-{uuid4().hex[:8]}")
        self.paid: list[str] = []
        payments = self.app.effect("payments", str, reply=str)
        bookings = self.app.effect("bookings", int, reply=int)

        async def find(ctx: EffectContext, order: str) -> Found[str] | NotFound:
            return Found(order) if order in self.paid else NotFound()

        @self.app.subscriber(payments, reconcile=find, retry=Retry(initial=0.05), looks=Retry(initial=0.05))
        async def pay(ctx: EffectContext, order: str) -> str:
            if order == "refused":
                raise Fail("REFUSED", "no funds")
            self.paid.append(order)
            if order.endswith("7"):
                raise ConnectionError("the answer was lost")
            return order

        retry, sql = Retry(max_attempts=2, initial=0.05), "INSERT INTO bookings VALUES "

        async def book(ctx: EffectContext, amount: int) -> int:
            await ctx.connection.execute(sql + "(%s, %s)", (ctx.effect_id, amount))
            return amount

        def book_plainly(ctx: EffectContext, amount: int) -> int:
            ctx.connection.execute(sql + "(?, ?)", (ctx.effect_id, amount))
            return amount

        async def book_many(ctx: BatchContext, amounts: Sequence[int]) -> Sequence[int]:
            async with ctx.connection.cursor() as cursor:
                await cursor.executemany(sql + "(%s, %s)", rows_of(ctx, amounts))
            return amounts

        def book_many_plainly(ctx: BatchContext, amounts: Sequence[int]) -> Sequence[int]:
            ctx.connection.executemany(sql + "(?, ?)", rows_of(ctx, amounts))
            return amounts

        single, several = (book, book_many) if asynchronous else (book_plainly, book_many_plainly)
        options: Any = {"transactional": True, "many": many, "retry": retry}
        self.app.subscriber(bookings, **options)(several if many else single)
        self.topics = topics_of(self.app.name, self.app.effects)
        self.codec = make_codec(self.app.annotations, self.app.named_types)

    def message(self, effect: str, payload: Any, run: str) -> NewRecord:
        op = f"{effect}.1"
        effect_id = f"{run}@0/{op}"
        message = EffectMessage(
            effect_id, run, effect, self.codec.encode(payload), f"{effect}/{run}", 1, 1, "w", 1, op, 1
        )
        data, partition = encode_effect(message), partition_of(run.encode(), PARTITIONS)
        return NewRecord(self.topics.effect(effect), partition, run.encode(), data, headers_of("effect", data))


def rows_of(ctx: BatchContext, amounts: Sequence[int]) -> list[tuple[str, int]]:
    return [(one.effect_id, amount) for one, amount in zip(ctx.deliveries, amounts, strict=True)]


async def read(log: Log, topic: str) -> list[Record]:
    found: list[Record] = []
    spans = {TopicPartition(topic, number): await log.span(topic, number) for number in range(PARTITIONS)}
    reader = log.reader({place: span.start for place, span in spans.items()})
    while any(reader.position(place) < span.end for place, span in spans.items()):
        found += await reader.read(10_000, 0.1)
    await reader.close()
    return found


async def finished(log: Log, shop: Shop, *tasks: asyncio.Task[None], only: tuple[str, ...] = ()) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        for effect in only or shop.app.effects:
            while not await is_finished(log, shop, effect):
                for task in tasks:
                    if task.done():
                        await task
                await asyncio.sleep(0.05)


async def is_finished(log: Log, shop: Shop, effect: str) -> bool:
    """Whether the group stands at the end; a broker that still loads its groups is asked again."""
    topic = shop.topics.effect(effect)
    ends = {number: (await log.span(topic, number)).end for number in range(PARTITIONS)}
    try:
        return ends == await log.group_offsets(shop.topics.subscribers(effect), topic)
    except LogUnavailable:
        return False


async def go_through(shop: Shop, log: Log, ledger: Ledger, rows: Any) -> None:
    await ensure_topics(log, shop.topics, PARTITIONS)
    orders = [*(f"o{number}" for number in range(40)), "refused"]
    amounts = [*range(100), 5_000]
    await log.append([shop.message("payments", order, f"r-{order}") for order in orders])
    await log.append([shop.message("bookings", amount, f"b-{amount}") for amount in amounts])
    settings = SubscriberSettings(partitions=PARTITIONS, poll_seconds=0.05)
    subscriber = Subscriber(shop.app, log, ledger, settings=settings)
    task = asyncio.create_task(subscriber.run())
    await finished(log, shop, task)
    subscriber.stop()
    await asyncio.wait_for(task, HANG_SECONDS)

    assert sorted(shop.paid) == sorted(orders[:-1])
    assert await rows() == [(f"b-{amount}@0/bookings.1", amount) for amount in amounts[:-1]]
    commands = [
        decode_command(r.key, r.value, default_id="x", offset=0).request for r in await read(log, shop.topics.commands)
    ]
    assert len(commands) == len(orders) + len(amounts)
    errors = sorted(reply.error[1] for reply in commands if reply.error)
    assert errors == ["REFUSED", "RETRIES_EXHAUSTED"]
    letters = [
        decode_dead_letter(r.value or b"")
        for effect in ("payments", "bookings")
        for r in await read(log, shop.topics.effect_dead(effect))
    ]
    assert [letter.code for letter in letters] == ["REFUSED", "RETRIES_EXHAUSTED"]
    assert "constraint" in letters[1].reason.lower()

    for effect in shop.app.effects:
        zero = dict.fromkeys(range(PARTITIONS), 0)
        await log.rewind_group(shop.topics.subscribers(effect), shop.topics.effect(effect), dict(zero))
    told = Recorder()
    again = Subscriber(shop.app, log, ledger, settings=settings, observer=told)
    task = asyncio.create_task(again.run())
    await asyncio.sleep(0.1)
    await finished(log, shop, task)
    again.stop()
    await asyncio.wait_for(task, HANG_SECONDS)
    assert sorted(shop.paid) == sorted(orders[:-1])
    assert sum(what[2] for what in told.heard("effects_known")) == len(orders) + len(amounts)
    assert len(await read(log, shop.topics.commands)) == len(commands)
    page = await ledger.entries(Query(app=shop.app.name, limit=1_000))
    assert sorted({(entry.status, entry.published) for entry in page}) == [(Status.DONE, True), (Status.FAILED, True)]


on_both_forms = pytest.mark.parametrize("many", [False, True], ids=["one", "many"])


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.slow
@on_both_forms
def test_effects_on_kafka_and_postgresql(kafka: Kafka, database: str, many: bool) -> None:
    async def scenario() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
            await connection.execute(TABLE)

            async def rows() -> Any:
                found = await connection.execute("SELECT effect_id, amount FROM bookings ORDER BY amount")
                return await found.fetchall()

            ledger = await open_postgres_ledger(database)
            log = await open_kafka(kafka.url)
            await go_through(Shop(asynchronous=True, many=many), log, ledger, rows)
            await log.close()
            await ledger.close()

    asyncio.run(scenario())


@on_both_forms
def test_effects_on_the_embedded_pair(tmp_path: Path, many: bool) -> None:
    async def scenario() -> None:
        path = tmp_path / "ledger.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute(TABLE)

        async def rows() -> Any:
            return connection.execute("SELECT effect_id, amount FROM bookings ORDER BY amount").fetchall()

        ledger = await open_sqlite_ledger(f"sqlite:///{path}")
        log = await open_sqlite(f"sqlite:///{tmp_path}/log.db")
        await go_through(Shop(asynchronous=False, many=many), log, ledger, rows)
        await log.close()
        await ledger.close()
        connection.close()

    asyncio.run(scenario())
