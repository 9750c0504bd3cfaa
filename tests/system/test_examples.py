"""The examples with a real provider and a real table: what goes wrong outside is made good or told of."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from streams import App, RunTerminal
from streams.client import Client
from streams.client.reading import scan
from streams.errors import RunCancelled, RunFailed
from streams.log.memory import MemoryLog
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker
from tests.loaded_examples import order, report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.slow

LARGE = {"order_id": "o-1", "customer": "Ада", "items": [{"sku": "lamp", "quantity": 30, "unit_price": "45.00"}]}
SMALL = LARGE | {"items": [{"sku": "lamp", "quantity": 2, "unit_price": "45.00"}]}
TWO = LARGE | {"items": [*SMALL["items"], {"sku": "OUT-OF-STOCK", "quantity": 1, "unit_price": "1"}]}


class Provider:
    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        script = str(EXAMPLES / "provider.py")
        line = [sys.executable, script, "--port", str(port), "--db", str(folder / "provider.db"), *flags]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rsplit(":", 1)[1])

    def get(self, path: str) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        with closing(connection):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def counts(self, *names: str) -> list[int]:
        stats = self.get("/stats")
        return [stats[name] for name in names]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    open_: list[Provider] = []

    def start(*flags: str, port: int = 0) -> Provider:
        open_.append(Provider(tmp_path, *flags, port=port))
        monkeypatch.setenv("ORDERS_PROVIDER", f"127.0.0.1:{open_[-1].port}")
        return open_[-1]

    yield start
    for each in open_:
        each.close()


async def wait_for(look: Callable[[], Awaitable[Any]]) -> None:
    while True:
        if await look():
            return
        await asyncio.sleep(0.02)


async def until(client: Client, run_id: str, kind: str) -> Any:
    """Wait for an op of the run: "interrupt", or "parked"."""
    await wait_for(lambda: ops_of(client, run_id, kind))
    return (await ops_of(client, run_id, kind))[0]


async def ops_of(client: Client, run_id: str, kind: str) -> list[Any]:
    view = await client.get(run_id)
    ops = view.run.ops.values() if view is not None and view.run is not None else ()
    return [op for op in ops if kind in (op.kind, op.phase.value) and op.phase.value in ("waiting", "parked")]


async def effects(client: Client) -> int:
    topic, count = client.topics.effect("shipments"), 0
    for place in range(2):
        end = (await client.log.span(topic, place)).end
        count += len([record async for record in scan(client.log, topic, place, 0, end)])
    return count


def play(story: Callable[[Client], Any], app: App = order.app) -> Any:
    """Tell a story to a client of a worker; the worker's own end would be the end of it."""

    async def main() -> Any:
        log = MemoryLog()
        worker = Worker(app, log, settings=WorkerSettings(partitions=2, stop_seconds=1))
        running = asyncio.create_task(worker.run())
        async with Client(log, app) as client:
            telling = asyncio.create_task(told(client, story))
            await asyncio.wait({running, telling}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            worker.stop()
            telling.cancel()
            await running
            return await telling

    return asyncio.run(main())


async def told(client: Client, story: Callable[[Client], Any]) -> Any:
    await wait_for(client.log.list_topics)
    return await story(client)


async def bought(client: Client, value: dict[str, Any]) -> Any:
    await client.start("order", value, run_id="o-1")
    return await client.result("o-1")


# ---- the order ------------------------------------------------------------------------------------------------------


def test_a_small_order_needs_nobody(provider) -> None:
    outside = provider()
    receipt = play(lambda client: bought(client, SMALL))
    assert receipt == order.Receipt("confirmed", "o-1", Decimal("90.00"), "pay-1")
    assert outside.counts("payments", "reservations", "voided") == [1, 1, 0]


@pytest.mark.parametrize("mode", ["fail_before", "fail_after", "drop_after"])
@pytest.mark.parametrize("flags", [(), ("--ignore-keys",)], ids=["honours keys", "ignores keys"])
def test_one_payment_whatever_the_provider_does(mode: str, flags: tuple[str, ...], provider) -> None:
    """A provider that ignores keys is the reason for `reconcile`: it would take the money again."""
    outside = provider(*flags)
    trouble = {"behaviour": {"operation": "confirm", "mode": mode, "times": 2}}

    async def story(client: Client) -> int:
        receipt = await bought(client, SMALL | trouble)
        assert receipt.status == "confirmed"
        return await effects(client)

    assert play(story) == 1
    assert outside.counts("payments", "second_keys") == [1, 0]


def test_a_declined_card_gives_everything_back(provider) -> None:
    outside = provider()
    with pytest.raises(RunFailed, match="CARD_DECLINED: the card was declined"):
        play(lambda client: bought(client, SMALL | {"card": "declined"}))
    assert outside.counts("payments", "voided", "reservations", "released") == [0, 1, 0, 1]


def test_what_is_out_of_stock_gives_the_rest_back(provider) -> None:
    outside = provider()
    with pytest.raises(RunFailed, match="OUT_OF_STOCK"):
        play(lambda client: bought(client, TWO))
    assert outside.counts("payments", "voided", "reservations", "released") == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "items",
    [
        [],
        [{"sku": "lamp", "quantity": 0, "unit_price": "1"}],
        [{"sku": "lamp", "quantity": 1, "unit_price": "-1"}],
        [{"sku": "lamp", "quantity": 1, "unit_price": "NaN"}],
        [{"sku": "lamp", "quantity": 1, "unit_price": "1e1000"}],
        [{"sku": "lamp", "quantity": 1, "unit_price": "1"}, {"sku": "lamp", "quantity": 2, "unit_price": "1"}],
    ],
)
def test_what_can_be_no_order_touches_nothing(items: list[Any], provider) -> None:
    outside = provider()
    with pytest.raises(RunFailed, match="INVALID_ORDER"):
        play(lambda client: bought(client, SMALL | {"items": items}))
    assert outside.counts("intents", "reservations") == [0, 0]


def test_a_rejection_gives_everything_back(provider) -> None:
    outside = provider()

    async def story(client: Client) -> Any:
        await client.start("order", LARGE, run_id="o-1")
        op = await until(client, "o-1", "interrupt")
        assert client.values.decode(op.args)["amount"] == Decimal("1350.00")
        await client.resume("o-1", {"approved": False, "note": "too much"}, interrupt="approval")
        receipt = await client.result("o-1")
        return receipt, await effects(client)

    assert play(story) == (order.Receipt("rejected", "o-1", Decimal("1350.00"), note="too much"), 0)
    assert outside.counts("payments", "requests", "voided", "reservations", "released") == [0, 0, 1, 0, 1]
    assert outside.get("/stock/lamp")["available"] == outside.get("/stock/lamp")["initial"]


def test_a_cancel_gives_everything_back(provider) -> None:
    outside = provider()

    async def story(client: Client) -> None:
        await client.start("order", LARGE, run_id="o-1")
        await until(client, "o-1", "interrupt")
        await client.cancel("o-1")
        with pytest.raises(RunCancelled):
            await client.result("o-1")
        sent = await client.resume("o-1", {"approved": True})
        with pytest.raises(RunTerminal):
            await client.accepted(sent)

    play(story)
    assert outside.counts("payments", "voided", "reservations", "released") == [0, 1, 0, 1]


def test_a_cancel_that_comes_after_the_payment_is_too_late(provider) -> None:
    """The money is taken: what is paid is shipped, and the run says that a cancel was asked for."""
    outside = provider()
    slow = {"behaviour": {"operation": "confirm", "mode": "slow", "times": 1, "delay_ms": 1_500}}

    async def story(client: Client) -> Any:
        await client.start("order", SMALL | slow, run_id="o-1")
        await wait_for(lambda: asyncio.to_thread(lambda: outside.counts("payments") == [1]))
        await client.cancel("o-1")
        receipt = await client.result("o-1")
        return receipt.status, await effects(client), (await client.get("o-1")).run.cancel_requested

    assert play(story) == ("confirmed", 1, True)
    assert outside.counts("payments", "voided", "reservations") == [1, 0, 1]


def test_without_its_provider_an_order_is_parked_and_says_how_to_start_it(provider) -> None:
    gone = provider()
    port = gone.port
    gone.close()

    async def story(client: Client) -> str:
        await client.start("order", SMALL, run_id="o-1")
        op = await until(client, "o-1", "parked")
        await wait_for(lambda: both_parked(client))
        assert f"start it with: python examples/provider.py --port {port}" in op.error.message
        assert op.error.code == "RETRIES_EXHAUSTED"
        provider(port=port)
        for op in ("1", "2"):
            await client.accepted(await client.retry("o-1", op=op))
        return (await client.result("o-1")).status

    assert play(story) == "confirmed"


async def both_parked(client: Client) -> bool:
    return len(await ops_of(client, "o-1", "parked")) == 2


def test_another_run_cannot_undo_an_order_that_is_not_its_own(provider) -> None:
    outside = provider()

    async def story(client: Client) -> None:
        await client.start("order", SMALL, run_id="o-1")
        await client.result("o-1")
        await client.start("order", SMALL | {"card": "declined"}, run_id="impostor")
        with pytest.raises(RunFailed, match="IDEMPOTENCY_CONFLICT"):
            await client.result("impostor")

    play(story)
    assert outside.counts("payments", "voided", "reservations", "released") == [1, 0, 1, 0]


def test_the_limit_is_judged_by_the_sum_that_is_paid() -> None:
    """The rows of the data are above the limit or not, whether the total is rounded or not."""
    above = Counter()
    for line in (EXAMPLES / "data" / "orders.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        exact = sum(item["quantity"] * Decimal(item["unit_price"]) for item in row["items"])
        items = [order.Item(i["sku"], i["quantity"], Decimal(i["unit_price"])) for i in row["items"]]
        paid = order.price(order.Order(row["order_id"], row["customer"], items))
        assert (paid > order.LIMIT) == (exact > order.LIMIT)
        above[paid > order.LIMIT] += 1
    assert above[True] >= 40


# ---- the report -----------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPORTS_DB", str(tmp_path / "reports.db"))
    return tmp_path / "reports.db"


async def reported(client: Client, run_id: str, **fields: str) -> Any:
    await client.start("report", {"topic": "sales", "period": "2026-09", **fields}, run_id=run_id)
    await until(client, run_id, "interrupt")
    await client.resume(run_id, {"approved": True})
    return await client.result(run_id)


def test_the_same_report_is_written_once_and_another_one_is_refused(table: Path) -> None:
    async def story(client: Client) -> None:
        assert (await reported(client, "r-1")).status == "inserted"
        assert (await reported(client, "r-2")).status == "already_exists"
        with pytest.raises(RunFailed, match="OPERATION_CONFLICT: another text is stored under 'report/sales/2026-09'"):
            await reported(client, "r-3", remark="But better.")
        assert (await reported(client, "r-4", period="2026-10")).status == "inserted"

    play(story, report.app)
    assert [key for key, _ in report.stored()] == ["report/sales/2026-09", "report/sales/2026-10"]
    with closing(sqlite3.connect(table)) as db:
        conflicts = db.execute("SELECT operation_id, run_id, text FROM conflicts").fetchall()
    assert conflicts == [("report/sales/2026-09", "r-3", "Report on sales in 2026-09. But better.")]


def test_a_rejected_report_is_not_written(table: Path) -> None:
    async def story(client: Client) -> Any:
        await client.start("report", {"topic": "sales", "period": "2026-09"}, run_id="r-1")
        await until(client, "r-1", "interrupt")
        await client.resume("r-1", {"approved": False, "note": "thin"})
        return await client.result("r-1")

    end = play(story, report.app)
    assert (end.status, end.decision) == ("rejected", report.Decision(approved=False, note="thin"))
    assert not table.exists()
