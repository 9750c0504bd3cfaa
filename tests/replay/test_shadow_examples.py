"""The histories of the examples are the same under their own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams.client import Client
from streams.errors import RunFailed
from streams.ops.replay import Report, shadow
from tests.system.test_examples import LARGE, SMALL, TWO, Provider, order, play, report, until

pytestmark = pytest.mark.slow


async def told(client: Client, app: Any) -> Report:
    found = await shadow(client.log, app)
    assert found.same, str(found)
    return found


def test_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Provider(tmp_path)
    monkeypatch.setenv("ORDERS_PROVIDER", f"127.0.0.1:{provider.port}")
    trouble = {"behaviour": {"operation": "confirm", "mode": "drop_after", "times": 2}}

    async def story(client: Client) -> Report:
        for run_id, value in (("small", SMALL | trouble), ("large", LARGE), ("two", TWO), ("late", LARGE)):
            await client.start("order", value | {"order_id": run_id}, run_id=run_id)
        await until(client, "large", "interrupt")
        await client.resume("large", {"approved": True}, interrupt="approval")
        await client.result("small")
        await client.result("large")
        with pytest.raises(RunFailed):
            await client.result("two")
        await until(client, "late", "interrupt")
        return await told(client, order.app)

    try:
        found = play(story)
    finally:
        provider.close()
    assert found.runs == 4
    assert {"attempt.failed", "effect.emitted", "interrupt.answered", "run.failed", "run.completed"} <= found.seen


def test_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPORTS_DB", str(tmp_path / "reports.db"))

    async def story(client: Client) -> Report:
        for run_id in ("r-1", "r-2"):
            await client.start("report", {"topic": run_id, "period": "2026"}, run_id=run_id)
            await until(client, run_id, "interrupt")
        await client.resume("r-1", {"approved": True})
        await client.result("r-1")
        return await told(client, report.app)

    found = play(story, report.app)
    assert found.runs == 2
    assert {"state.advanced", "interrupt.answered", "run.completed"} <= found.seen
