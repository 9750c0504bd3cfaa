"""The broker or the database goes away under subscribers at work, or is not what it should be."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from streams.dev import Kafka, Postgres, kill_kafka, start_kafka, start_postgres, stop_postgres
from streams.effects.port import Status
from tests.effects.real.books import sql
from tests.effects.real.conftest import new_database
from tests.effects.real.play import play
from tests.effects.real.stage import TILL, Pair, Stage, on_each_pair
from tests.runtime.history import until
from tests.system.streams_process import Streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS = ("holds", "keyed", "rows", "ticks")


async def feed(s: Stage, orders: list[str], *kinds: str) -> None:
    """Effects keep coming."""
    for order in orders:
        for kind in kinds:
            await s.ask(kind, order)
        await asyncio.sleep(0.02)


async def wait_for_rows(s: Stage, count: int) -> None:
    await until(lambda: len(s.calls("write")) >= count, f"{count} rows on their way")


async def prove(s: Stage, orders: list[str], *kinds: str, may_park: tuple[str, ...] = ()) -> None:
    """Everything was done once; of a kind that nobody can look up, what was cut off waits for a person."""
    await s.books.finished(*kinds, seconds=120)
    await s.close()
    await s.books.check(*kinds)
    assert s.books.rows() == {f"rows/{order}": 1 for order in orders}
    for kind in kinds:
        entries = (await s.books.entries(kind)).values()
        unknown = [entry for entry in entries if entry.status is Status.PARKED]
        assert {entry.status for entry in entries} - {Status.PARKED} == {Status.DONE}
        assert len(unknown) == len(await s.books.letters(kind))
        assert not unknown or kind in may_park


@pytest.mark.kafka
@pytest.mark.postgres
def test_a_broker_that_is_killed_and_restarted_under_a_subscriber(tmp_path: Path, own_kafka: Kafka, postgres: Postgres):
    async def scene(s: Stage) -> None:
        orders = [f"o{number}" for number in range(300)]
        await s.outside.down()
        await s.outside.up("--ignore-keys")
        kinds = ("holds", "rows", "ticks")
        for kind in kinds:
            await s.ask(kind, *orders)
        await s.subscriber(only=list(kinds))
        await s.subscriber(only=list(kinds))
        await wait_for_rows(s, 1)
        for seconds in (0.0, 3.0):
            await asyncio.to_thread(kill_kafka, own_kafka)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(start_kafka, own_kafka.folder, port=own_kafka.port, tied=True, seconds=110.0)
            await asyncio.sleep(1.0)
        await prove(s, orders, *kinds)
        assert s.outside.all_holds() == dict.fromkeys(orders, 1)
        assert len(s.calls("tick")) == len(orders)

    play(tmp_path, Pair(own_kafka, new_database(postgres.url)), scene)


@pytest.mark.kafka
@pytest.mark.postgres
def test_f17_a_postgres_ledger_that_is_restarted_under_load_of_subscribers(
    tmp_path: Path, kafka: Kafka, own_postgres: Postgres
):
    """Stopped in order, then killed so that it recovers from its log, then away for some seconds."""

    async def scene(s: Stage) -> None:
        orders = [f"o{number}" for number in range(300)]
        feeding = asyncio.create_task(feed(s, orders, *KINDS))
        await s.subscriber(only=list(KINDS))
        await s.subscriber(only=list(KINDS))
        server, count = own_postgres, 10
        for how, seconds in ((stop_postgres, 0.0), (crash_postgres, 0.5), (stop_postgres, 4.0)):
            await wait_for_rows(s, count)
            await asyncio.to_thread(how, server)
            await asyncio.sleep(seconds)
            server = await asyncio.to_thread(start_postgres, server.folder, tied=True)
            assert server.url == own_postgres.url
            count = len(s.calls("write")) + 30
        await feeding
        # A tick whose end found the ledger away for longer than its lease is unknown to whoever claims it next.
        await prove(s, orders, *KINDS, may_park=("ticks",))
        assert s.outside.all_holds() == dict.fromkeys(orders, 2)  # a hold of its own for each of two effects

    play(tmp_path, Pair(kafka, new_database(own_postgres.url)), scene)


def crash_postgres(server: Postgres) -> None:
    """Kill -9 of its first process; the others end by themselves."""
    os.kill(server.pid, signal.SIGKILL)
    stop_postgres(server)


@on_each_pair
def test_a_ledger_of_a_newer_schema_version_stops_a_subscriber_before_it_does_anything(tmp_path: Path, pair: Pair):
    async def scene(s: Stage) -> None:
        await s.ask("holds", "a")
        await s.ask("rows", "a")
        change = "UPDATE streams_ledger_version SET version = version + ?"
        await asyncio.to_thread(sql, s.ledger_url, change, 1_000)
        process = await s.subscriber(only=["holds", "rows"])
        assert await process.gone() == 1
        await asyncio.to_thread(sql, s.ledger_url, change, -1_000)
        assert s.calls() == []
        assert [await s.books.pending(kind) for kind in ("holds", "rows")] == [1, 1]
        await s.subscriber(only=["holds", "rows"])
        await s.books.finished("holds", "rows")
        await s.close(1)
        await s.books.check("holds", "rows")
        assert (s.outside.holds("a"), s.books.rows()) == (1, {"rows/a": 1})

    play(tmp_path, pair, scene)


@pytest.mark.kafka
@pytest.mark.postgres
def test_f17_a_postgres_ledger_that_is_away_when_streams_subscribe_starts(
    tmp_path: Path, kafka: Kafka, own_postgres: Postgres
):
    """It says so, waits, and then does what lies there."""

    async def scene(s: Stage) -> None:
        await s.ask("holds", "a")
        await s.ask("rows", "a")
        await s.books.close()
        await asyncio.to_thread(stop_postgres, own_postgres)
        target = [f"{TILL}:app", "--app", s.app, "--only", "holds", "--only", "rows", "--lease", "2"]
        addresses = ["--log", s.url, "--ledger", s.ledger_url]
        with Streams(tmp_path / "said", "subscribe", *target, *addresses, **s.environment) as subscriber:
            await asyncio.to_thread(subscriber.until, "ledger does not answer")
            await asyncio.to_thread(start_postgres, own_postgres.folder, tied=True)
            await s.books.open()
            await s.books.finished("holds", "rows")
            assert await asyncio.to_thread(subscriber.stop) == 0
        await s.books.check("holds", "rows")
        assert (s.outside.holds("a"), s.books.rows()) == (1, {"rows/a": 1})

    play(tmp_path, Pair(kafka, new_database(own_postgres.url)), scene)
