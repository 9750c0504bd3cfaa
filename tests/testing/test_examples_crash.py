"""The examples with a worker that dies at every point: one payment, one shipment, one row."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from streams.testing import Report, Scenario, crash_everywhere
from tests.loaded_examples import order, provider, report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LARGE = {
    "order_id": "o-1",
    "customer": "Ada",
    "items": [
        {"sku": "lamp", "quantity": 30, "unit_price": "45.00"},
        {"sku": "table", "quantity": 1, "unit_price": "200.00"},
    ],
}


class InProcess:
    """The provider of the order example without its server: what it answers, it answers at once."""

    def __init__(self, *, ignore_keys: bool = False) -> None:
        settings = provider.Settings(ignore_keys=ignore_keys)
        self.store = provider.Store(provider.open_database(":memory:"), settings)
        order.post, order.get = self.post, self.get

    def post(self, path: str, body: dict[str, Any], *, key: str) -> dict[str, Any]:
        return self._taken(lambda: self.store.post(path, quote(key), encoded(body)))

    def get(self, path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        return self._taken(lambda: self.store.get(parts.path, parts.query))

    def _taken(self, ask: Any) -> dict[str, Any]:
        try:
            answer = ask()
        except provider.RefusedError as refused:
            answer = refused.answer
        if answer.status >= 400:
            raise order.ProviderRefused(answer.status, answer.body["code"], answer.body["message"])
        return json.loads(json.dumps(answer.body))

    def payments(self) -> tuple[int, int]:
        """How many payments there are, and how much stock is taken."""
        return len(self.get("/payments?order_id=o-1")["payments"]), 1_000_000 - self.get("/stock/lamp")["available"]


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the example's own connections back afterwards."""
    monkeypatch.setattr(order, "post", order.post)
    monkeypatch.setattr(order, "get", order.get)


async def approved(s: Scenario) -> None:
    run = await s.start(order.fulfil, LARGE, run_id="o-1")
    await s.waiting(run, "approval")
    await s.sleep(3_600)
    await s.resume(run, {"approved": True}, interrupt="approval")
    assert (await s.result(run)).status == "confirmed"


async def rejected(s: Scenario) -> None:
    run = await s.start(order.fulfil, LARGE, run_id="o-1")
    await s.waiting(run, "approval")
    await s.resume(run, {"approved": False, "note": "too large"})
    assert (await s.result(run)).status == "rejected"


async def cancelled(s: Scenario) -> None:
    run = await s.start(order.fulfil, LARGE, run_id="o-1")
    await s.waiting(run, "approval")
    await s.cancel(run)
    assert await s.ended(run) == "cancelled"


@pytest.mark.usefixtures("http")
@pytest.mark.parametrize(("scenario", "paid"), [(approved, (1, 30)), (rejected, (0, 0)), (cancelled, (0, 0))])
def test_an_order_is_paid_and_shipped_once(scenario: Any, paid: tuple[int, int]) -> None:
    def check(world: InProcess) -> None:
        assert world.payments() == paid

    found = crash_everywhere(order.app, scenario, resources=InProcess, check=check, points_max=200)
    assert found.ok, str(found)
    assert not found.parked


@pytest.mark.usefixtures("http")
def test_a_provider_that_ignores_keys_is_found() -> None:
    found = crash_everywhere(
        order.app,
        approved,
        resources=lambda: InProcess(ignore_keys=True),
        check=lambda world: world.payments(),
        only=["task.returned/reserve:1", "task.returned/confirm_payment:1"],
    )
    assert found.failed == ("task.returned/reserve:1",), found  # the payment is looked up, the reservation is not


async def stored(s: Scenario) -> None:
    run = await s.start(report.report, {"topic": "sales", "period": "2026-09"})
    await s.waiting(run, "approval")
    await s.resume(run, {"approved": True})
    await s.ended(run)


def test_a_report_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reports.db"
    monkeypatch.setenv("REPORTS_DB", str(path))

    def table() -> Path:
        with closing(report.connect()) as db, db:
            db.execute("PRAGMA synchronous=OFF")
            db.execute("DELETE FROM reports")
        return path

    def run(**options: Any) -> Report:
        return crash_everywhere(
            report.app, stored, resources=table, check=lambda _: report.stored(), points_max=200, **options
        )

    found = run(normal=once)
    assert found.ok, str(found)
    # Whoever died after it had written finds its own row, and the state of the run says so.
    found = run(only="task.returned/report.write:1")
    assert "'status': 'already_exists'" in str(found)
    assert {finding.what for finding in found.findings} == {"the result", "the outcome of report.write (op g3.1)"}, (
        found
    )


def once(value: Any) -> Any:
    """A row that was there already is as good as one that is inserted."""
    if isinstance(value, report.Report):
        return dataclasses.replace(value, status=value.status.replace("already_exists", "inserted"))
    return {"status": "inserted"} if value == {"status": "already_exists"} else value
