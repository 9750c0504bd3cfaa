"""The examples whose effects a subscriber carries out: one payment, one row, whatever goes wrong outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from streams import App
from streams.client import Client
from streams.clock import SystemClock
from streams.effects.memory import MemoryLedger
from streams.effects.port import Entry, Key, Ledger, Status
from streams.effects.postgres import open_postgres_ledger
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.log.memory import MemoryLog
from streams.ops.dead_letters import Post, Which
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker
from tests.loaded_examples import order_request, report_postgres
from tests.system.test_examples import LARGE, SMALL, effects, told, until, wait_for
from tests.system.test_examples import provider as provider  # noqa: PLC0414 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

PAY = Key(order_request.app.name, "payments", "order/o-1/pay")


class Scene:
    """A worker and a subscriber of an example, on a log in memory."""

    def __init__(self, client: Client, ledger: Ledger) -> None:
        self.client = client
        self.ledger = ledger

    async def bought(self, value: dict[str, Any]) -> Any:
        await self.client.start("order", value, run_id="o-1")
        return await self.client.result("o-1")

    async def payment(self) -> Entry:
        return (await self.ledger.look([PAY]))[PAY]

    async def reported(self, run_id: str, *, approved: bool = True, **fields: str) -> Any:
        await self.client.start("report", {"topic": "sales", "period": "2026-09", **fields}, run_id=run_id)
        await until(self.client, run_id, "interrupt")
        await self.client.resume(run_id, {"approved": approved})
        return await self.client.result(run_id)


def play(
    story: Callable[[Scene], Awaitable[Any]],
    app: App = order_request.app,
    open_ledger: Callable[[], Awaitable[Ledger]] | None = None,
) -> Any:
    """Tell a story; the end of the worker or of the subscriber would be the end of it."""

    async def main() -> Any:
        log = MemoryLog()
        ledger = MemoryLedger(SystemClock()) if open_ledger is None else await open_ledger()
        await ledger.migrate()
        worker = Worker(app, log, settings=WorkerSettings(partitions=2, stop_seconds=1))
        subscriber = Subscriber(app, log, ledger, settings=SubscriberSettings(partitions=2, stop_seconds=1))
        serving = [asyncio.create_task(worker.run()), asyncio.create_task(subscriber.run())]
        async with Client(log, app) as client:
            telling = asyncio.create_task(told(client, lambda _: story(Scene(client, ledger))))
            await asyncio.wait({*serving, telling}, timeout=90, return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            subscriber.stop()
            telling.cancel()
            await asyncio.gather(*serving)
            await ledger.close()
            return await telling

    return asyncio.run(main())


# ---- the order ------------------------------------------------------------------------------------------------------


def test_a_small_order_is_paid_by_its_subscriber(provider) -> None:
    outside = provider()

    async def story(scene: Scene) -> Any:
        receipt = await scene.bought(SMALL)
        return receipt, (await scene.payment()).status, await effects(scene.client)

    paid = order_request.Receipt("confirmed", "o-1", Decimal("90.00"), "pay-1")
    assert play(story) == (paid, Status.DONE, 1)
    assert outside.counts("requests", "payments") == [1, 1]


@pytest.mark.parametrize("mode", ["fail_before", "fail_after", "drop_after"])
@pytest.mark.parametrize("flags", [(), ("--ignore-keys",)], ids=["honours keys", "ignores keys"])
def test_one_payment_of_the_subscriber_whatever_the_provider_does(mode: str, flags: tuple[str, ...], provider) -> None:
    """A provider that ignores keys is the reason for `reconcile`: it would take the money again."""
    outside = provider(*flags)
    trouble = {"behaviour": {"operation": "confirm", "mode": mode, "times": 2}}

    async def story(scene: Scene) -> str:
        return str((await scene.bought(SMALL | trouble)).status)

    assert play(story) == "confirmed"
    assert outside.counts("payments", "second_keys") == [1, 0]


def test_a_declined_card_ends_the_request_and_goes_to_the_dead_letters_of_the_effect(provider) -> None:
    outside = provider()

    async def story(scene: Scene) -> Any:
        receipt = await scene.bought(SMALL | {"card": "declined"})
        entry = await scene.payment()
        assert (entry.status, entry.due) == (Status.FAILED, None)
        post = Post(scene.client.log, scene.client.topics, "payments")
        return receipt, [letter.plain()["code"] async for letter in post.letters(Which())]

    receipt, letters = play(story)
    assert (receipt.status, receipt.note, letters) == ("declined", "CARD_DECLINED", ["CARD_DECLINED"])
    assert outside.counts("payments") == [0]


def test_without_its_provider_the_subscriber_tries_again_until_it_is_back(provider) -> None:
    gone = provider()
    port = gone.port
    gone.close()

    async def story(scene: Scene) -> str:
        await scene.client.start("order", SMALL, run_id="o-1")
        await wait_for(lambda: failed(scene))
        entry = await scene.payment()
        assert entry.error is not None
        assert f"start it with: python examples/provider.py --port {port}" in entry.error.message
        provider(port=port)
        return str((await scene.client.result("o-1")).status)

    async def failed(scene: Scene) -> bool:
        found = (await scene.ledger.look([PAY])).get(PAY)
        return found is not None and found.status is Status.FAILED

    assert play(story) == "confirmed"


def test_a_rejected_order_asks_for_no_effect(provider) -> None:
    outside = provider()

    async def story(scene: Scene) -> Any:
        await scene.client.start("order", LARGE, run_id="o-1")
        await until(scene.client, "o-1", "interrupt")
        await scene.client.resume("o-1", {"approved": False, "note": "too much"}, interrupt="approval")
        return await scene.client.result("o-1"), await effects(scene.client)

    assert play(story) == (order_request.Receipt("rejected", "o-1", Decimal("1350.00"), note="too much"), 0)
    assert outside.counts("requests", "intents") == [0, 0]


# ---- the report -----------------------------------------------------------------------------------------------------


@pytest.fixture
def table(database: str) -> str:
    """A database with the table of the example."""
    asyncio.run(report_postgres.make_table(database))
    return database


def reports(table: str, story: Callable[[Scene], Awaitable[Any]]) -> Any:
    return play(story, report_postgres.app, lambda: open_postgres_ledger(table))


@pytest.mark.postgres
def test_the_same_report_is_written_once_and_another_one_is_refused_by_the_ledger(table: str) -> None:
    async def story(scene: Scene) -> None:
        assert (await scene.reported("r-1")).status == "inserted"
        assert (await scene.reported("r-2")).status == "inserted"  # what the first one was told: it is one operation
        assert (await scene.reported("r-3", remark="But better.")).status == "refused: KEY_CONFLICT"
        assert (await scene.reported("r-4", period="2026-10")).status == "inserted"
        key = Key(report_postgres.app.name, "reports", "report/sales/2026-09")
        entry = (await scene.ledger.look([key]))[key]
        assert (entry.status, entry.conflicts, entry.run_id) == (Status.DONE, 1, "r-1")

    reports(table, story)
    assert [period for period, _ in asyncio.run(report_postgres.stored(table, "sales"))] == ["2026-09", "2026-10"]


@pytest.mark.postgres
def test_a_rejected_report_is_no_effect_and_an_empty_table_stays_empty(table: str) -> None:
    async def story(scene: Scene) -> Any:
        return (await scene.reported("r-1", approved=False)).status

    assert reports(table, story) == "rejected"
    assert asyncio.run(report_postgres.stored(table, "sales")) == []


@pytest.mark.postgres
def test_a_report_whose_table_is_missing_is_tried_again_by_the_subscriber_until_it_is_there(database: str) -> None:
    """Whatever a transactional handler raises is rolled back, so it is tried again."""

    async def story(scene: Scene) -> Any:
        telling = asyncio.create_task(scene.reported("r-1"))
        key = Key(report_postgres.app.name, "reports", "report/sales/2026-09")

        async def failed() -> bool:
            entry = (await scene.ledger.look([key])).get(key)
            return entry is not None and entry.status is Status.FAILED

        await wait_for(failed)
        await report_postgres.make_table(database)
        return (await telling).status

    assert reports(database, story) == "inserted"
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*), max(run_id) FROM reports").fetchone() == (1, "r-1")
