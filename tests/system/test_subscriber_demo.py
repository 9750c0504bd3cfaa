"""The demos via a subscriber: it is killed before its call, after its payment, before its commit; it is done once."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streams.cli.ledgers import open_ledger
from streams.dev import Kafka
from streams.effects.port import Query, Status
from tests.system.test_demo import SECONDS_MAX, assert_nothing_is_left, command, environment, play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

PAID = {
    "status": "completed",
    "worker_kills": 1,
    "subscriber_kills": 2,
    "effects": 2,
    "provider_requests": 2,
    "provider_payments": 1,
}


def entries(url: str, effect: str) -> list[Any]:
    async def look() -> list[Any]:
        ledger = await open_ledger(url)
        try:
            return await ledger.entries(Query(operation=effect))
        finally:
            await ledger.close()

    return asyncio.run(look())


def test_an_order_is_paid_once_by_subscribers_that_are_killed_before_and_after(tmp_path: Path) -> None:
    end, told = play(tmp_path, "order", "--via", "subscriber", "--approve")
    result = end.pop("result")
    assert end == PAID
    assert (result["status"], result["payment_id"]) == ("confirmed", "pay-1")
    assert "subscriber 1 is gone, after its claim and before its call" in told
    assert "subscriber 2 is gone, at the worst moment" in told


def test_a_rejected_order_asks_no_subscriber(tmp_path: Path) -> None:
    end, _ = play(tmp_path, "order", "--via", "subscriber", "--reject")
    assert end.pop("result")["status"] == "rejected"
    assert end == {
        "status": "completed",
        "worker_kills": 1,
        "subscriber_kills": 0,
        "effects": 0,
        "provider_requests": 0,
        "provider_payments": 0,
    }


def test_the_ledger_of_the_demo_may_be_a_file_that_stays(tmp_path: Path) -> None:
    """Each demo has an app of its own there: the next one must not find this one's payment."""
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    for _ in range(2):
        end, _ = play(tmp_path, "order", "--via", "subscriber", "--approve", "--ledger", url)
        assert end["provider_payments"] == 1
    found = entries(url, "payments")
    assert [entry.status for entry in found] == [Status.DONE] * 2
    assert len({entry.key.app for entry in found}) == 2


@pytest.mark.kafka
@pytest.mark.postgres
def test_an_order_is_paid_once_by_subscribers_on_kafka_with_a_postgres_ledger(
    kafka: Kafka, database: str, tmp_path: Path
) -> None:
    """What `Done when` asks for."""
    arguments = ("--via", "subscriber", "--approve", "--log", kafka.url, "--ledger", database)
    end, told = play(tmp_path, "order", *arguments)
    assert end.pop("result")["status"] == "confirmed"
    assert end == PAID
    (entry,) = entries(database, "payments")
    assert (entry.status, entry.published, entry.looks) == (Status.DONE, True, 1)
    assert "subscriber 2 is gone, at the worst moment" in told


@pytest.mark.postgres
@pytest.mark.parametrize("approve", [True, False], ids=["approved", "rejected"])
def test_a_report_is_written_once_by_subscribers_in_the_ledgers_transaction(
    approve: bool, database: str, tmp_path: Path
) -> None:
    answer = "--approve" if approve else "--reject"
    end, told = play(tmp_path, "report", "--via", "subscriber", answer, "--ledger", database)
    assert end.pop("result")["status"] == ("inserted" if approve else "rejected")
    done = 1 if approve else 0
    assert end == {
        "status": "completed",
        "worker_kills": 1,
        "subscriber_kills": done,
        "effects": done,
        "rows": done,
    }
    assert ("PostgreSQL takes back both" in told) == approve
    assert [entry.deliveries for entry in entries(database, "reports")] == [1] * done


def test_a_subscriber_of_the_demo_that_cannot_start_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'subscribe' in sys.orig_argv:\n    sys.exit('no luck today')\n"
    )
    done = subprocess.run(
        command("order", "--via", "subscriber", "--approve"),
        env=environment(tmp_path) | {"PYTHONPATH": f"{tmp_path}:{environment(tmp_path)['PYTHONPATH']}"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "subscriber 1 ended by itself and was not killed between its claim and its call" in done.stderr
    assert "no luck today" in done.stderr
    assert_nothing_is_left(tmp_path)
