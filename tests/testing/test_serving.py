"""`crash_everywhere` with subscribers: a right app passes at each point, and each mistake of a subscriber is named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from streams import EffectContext, NotFound
from streams.runtime.crash import POINTS
from streams.testing import crash_everywhere
from tests.testing.serving_apps import Provider, shelf, shop

LOOK_UPS = ("effect.looking_up", "effect.looked_up")


def tried(only: Any = None, **options: Any) -> Any:
    """With these options of the subscriber that pays."""
    app, script = shop(**options)
    return crash_everywhere(app, script, resources=Provider, check=lambda outside: outside.payments, only=only)


@pytest.mark.slow
def test_a_right_subscriber_passes_at_every_point() -> None:
    report = tried()
    report.raise_if_failed()
    points = Counter(position.partition("/")[0].partition(":")[0] for position in report.positions)
    mine = {point for point in POINTS if point.startswith("effect.")}
    passed = {point for point in points if point.startswith("effect.")}
    assert passed == (mine - set(LOOK_UPS)) | {"effect.waited", "effect.handover"}
    assert report.parked == ()


def test_a_key_that_the_provider_does_not_know_is_found() -> None:
    """It is said to be idempotent, and pays twice."""
    report = tried(idempotent=True, only="effect.called/payments:1")
    (finding,) = report.findings
    assert finding.what == "what the check returned"
    assert finding.found == "[('pay/o-1', 15), ('pay/o-1', 15)]"


def test_what_nobody_can_look_up_waits_for_a_person_and_is_no_fault() -> None:
    report = tried(timeout=60, only="effect.called/payments:1")
    assert report.ok
    (parked,) = report.parked
    assert (parked.run_id, parked.op, parked.code) == ("run-1", "effect payments (pay/o-1)", "OUTCOME_UNKNOWN")


def test_a_look_up_that_finds_nothing_is_found() -> None:
    async def finds_nothing(ctx: EffectContext, amount: int) -> NotFound:
        return NotFound()

    report = tried(reconcile=finds_nothing, only="effect.settled/payments:1")
    assert report.ok, "the outcome was in the ledger"
    report = tried(reconcile=finds_nothing, only="effect.called/payments:1")
    assert [finding.what for finding in report.findings] == ["what the check returned"]


def test_another_one_dies_in_the_look_up_of_what_the_first_one_left() -> None:
    """With the points of the other test, these are all of them."""
    second = [f"effect.called/payments:1+{point}/payments:1" for point in LOOK_UPS]
    report = tried(only=second)
    report.raise_if_failed()
    assert list(report.positions) == second


def test_a_subscriber_that_hands_over_repeats_nothing() -> None:
    report = tried(only=["effect.handover:1", "effect.handover:2", "doubt.committed:3", "doubt.open:3"])
    report.raise_if_failed()
    assert report.parked == ()


def test_a_handler_of_many_passes_at_every_point_of_its_batches() -> None:
    points = ["claimed/rows:1", "claimed/rows:3", "waited/rows:1", "called/rows:1", "settled/rows:1", "settled/rows:3"]
    report = crash_everywhere(*shelf(), only=[f"effect.{point}" for point in points])
    report.raise_if_failed()
    assert len(report.positions) == len(points)
