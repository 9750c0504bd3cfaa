"""Scenarios of the runtime, as they are, on the broker: chosen ones, or all of them with STREAMS_KAFKA_WHOLE=1."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

from tests.kafka.lab import kafka_case
from tests.runtime import (
    test_bad_records,
    test_happy_path,
    test_inputs,
    test_ownership,
    test_sizes,
    test_tasks,
    test_timers,
    test_transactions,
    test_workflow_code,
)

CHOSEN = {
    "test_a_run_goes_from_command_to_events_effect_and_result",
    "test_f06_many_bad_records_among_good_ones",
    "test_f06_a_damaged_run_is_parked_and_ends_by_force",
    "test_f18_the_same_command_id_counts_once_inside_one_batch_and_later",
    "test_f21_rewinding_the_group_changes_no_run",
    "test_f21_lost_leases_are_made_good_from_the_events",
    "test_f24_polling_goes_on_while_a_commit_hangs",
    "test_f12_queued_tasks_are_not_unknown_after_a_crash",
    "test_what_a_heartbeat_leaves_reaches_the_next_attempt",
    "test_f20_timers_that_came_due_while_nobody_was_there_fire_once_in_order",
    "test_a_sweep_writes_checkpoints_and_moves_the_tail",
    "test_f04_any_faults_in_any_order",
    "test_f04_two_workers_with_faults_share_the_partitions",
    "test_f03_a_record_that_is_refused_blocks_its_run_and_no_other",
    "test_skipped_commands_are_counted_once_although_the_turn_is_redone",
}
WHOLE = bool(os.environ.get("STREAMS_KAFKA_WHOLE"))
MODULES = [
    test_bad_records,
    test_happy_path,
    test_inputs,
    test_ownership,
    test_sizes,
    test_tasks,
    test_timers,
    test_transactions,
    test_workflow_code,
]


@pytest.fixture(autouse=True)
def _fresh():
    test_inputs.calls.clear()
    test_tasks.seen.clear()
    test_tasks.release.clear()
    test_transactions.seen.clear()
    yield
    test_tasks.release.set()


def scenarios(module: ModuleType) -> dict[str, Any]:
    """The tests of a module that run on every log and are no matter of another one."""
    return {
        name: kafka_case(test.app)(test.scenario)
        for name, test in vars(module).items()
        if hasattr(test, "scenario") and not test.kinds and (WHOLE or name in CHOSEN)
    }


for _module in MODULES:
    for _name, _test in scenarios(_module).items():
        globals()[_name] = pytest.mark.timeout(240)(pytest.mark.slow(_test))


def test_what_is_chosen_is_there():
    assert WHOLE or set(globals()) >= CHOSEN
