"""Rewind, reprocess and shadow on the real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.app import app as chaos
from tests.kafka.lab import KafkaLab, kafka_case
from tests.replay import reprocess_cases, rewind_cases, shadow_cases
from tests.runtime.rewinding import app as rewinds
from tests.runtime.rewinding import fresh

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh()
    monkeypatch.setenv("CHAOS_OUTSIDE", str(tmp_path / "outside"))


@kafka_case(rewinds)
async def test_f21_to_the_start_changes_nothing(lab: KafkaLab):
    await rewind_cases.to_the_start_changes_nothing(lab)


@kafka_case(rewinds)
async def test_f21_to_a_time_is_what_was_asked_for(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch):
    await rewind_cases.to_a_time_is_what_was_asked_for(lab, monkeypatch)


@kafka_case(rewinds)
async def test_f21_forward_moves_are_refused(lab: KafkaLab):
    await rewind_cases.forward_moves_are_refused(lab)


@kafka_case(rewinds)
async def test_workers_are_in_the_way(lab: KafkaLab):
    await rewind_cases.workers_are_in_the_way(lab)


@kafka_case(chaos)
async def test_unchanged_code_is_the_same_and_nothing_is_written(lab: KafkaLab):
    await shadow_cases.unchanged_code_is_the_same(lab)


@kafka_case(chaos)
async def test_memory_is_bounded(lab: KafkaLab):
    await shadow_cases.memory_is_bounded(lab)


@kafka_case(chaos)
async def test_everything_ends_as_before(lab: KafkaLab):
    await reprocess_cases.everything_ends_as_before(lab)


@kafka_case(chaos)
async def test_f18_a_copy_that_is_broken_off_goes_on(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch):
    await reprocess_cases.a_copy_that_is_broken_off_goes_on(lab, monkeypatch, (1, 2))
