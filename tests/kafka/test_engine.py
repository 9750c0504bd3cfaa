"""Scenarios of the runtime, as they are, on the broker: chosen ones, or all of them with STREAMS_WHOLE_ON_KAFKA=1."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from tests.kafka.lab import kafka_case
from tests.runtime import (
    rewinding,
    test_bad_records,
    test_expiry,
    test_happy_path,
    test_inputs,
    test_overlap,
    test_ownership,
    test_pipelined,
    test_polling,
    test_requests,
    test_rewind,
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
    "test_what_is_for_a_run_under_way_waits_and_so_do_the_commands_behind_it",
    "test_a_turn_that_applies_no_command_carries_the_offset_of_the_one_before",
    "test_f03_the_second_turn_is_dropped_with_the_first",
    "test_f03_a_record_that_is_refused_in_a_release_blocks_its_run_and_no_other",
    "test_a_request_without_a_time_out_waits_over_take_overs_and_eviction",
    "test_time_outs_and_back_off_survive_a_crash",
    "test_the_client_replies_and_hears_what_became_of_it",
    "test_three_steps_are_decided_beside_the_first_commit_and_make_one_more",
    "test_a_turn_that_fails_takes_what_it_has_begun_and_what_follows_with_it",
    "test_a_command_is_not_starved_by_a_run_that_never_waits",
    "test_f26_of_several_results_the_first_valid_one_wins",
    "test_f26_nothing_leaves_before_it_is_committed_and_nothing_twice",
    "test_f09_a_reply_after_the_end_changes_nothing_however_often",
}
WHOLE = bool(os.environ.get("STREAMS_WHOLE_ON_KAFKA"))
"""Not STREAMS_KAFKA_…: what begins so is taken for a setting of Kafka's client."""
UNFIT = {
    "test_f21_a_partition_that_lost_commands_since_an_old_lease_is_refused_without_a_spin",  # it reaches into the store
    "test_f21_topics_that_would_lose_data_are_refused",  # its topics have one name, and the broker is shared
    "test_f16_the_topic_of_a_new_effect_gets_the_count_of_the_others",
}
MODULES = [
    test_bad_records,
    test_expiry,
    test_happy_path,
    test_inputs,
    test_overlap,
    test_ownership,
    test_pipelined,
    test_polling,
    test_requests,
    test_rewind,
    test_sizes,
    test_tasks,
    test_timers,
    test_transactions,
    test_workflow_code,
]


@pytest.fixture(autouse=True)
def _fresh():
    test_expiry.calls.clear()
    test_expiry.gate.clear()
    test_inputs.calls.clear()
    test_overlap.driven.clear()
    test_overlap.called.clear()
    test_overlap.gates[:] = [asyncio.Event()]
    test_pipelined.called.clear()
    test_pipelined.failures[:] = [0]
    test_pipelined.gates[:] = [asyncio.Event()]
    test_ownership.paid.clear()
    test_ownership.till[:] = [asyncio.Event()]
    test_tasks.seen.clear()
    test_tasks.release.clear()
    test_transactions.seen.clear()
    rewinding.fresh()
    yield
    test_expiry.gate.set()
    test_tasks.release.set()


def fits(test: Any) -> bool:
    """Whether it runs on every log and is no matter of another one."""
    return hasattr(test, "scenario") and not test.kinds and test.__name__ not in UNFIT


def on_kafka(test: Any) -> Any:
    """The scenario of a test on the broker, with all its marks but the one that names the logs."""
    made: Any = kafka_case(test.app)(test.scenario)
    marks = [mark for mark in test.pytestmark if not (mark.name == "parametrize" and mark.args[0] == "on")]
    made.pytestmark = [*marks, pytest.mark.kafka.mark, pytest.mark.slow.mark, pytest.mark.timeout(240).mark]
    return made


def scenarios(module: ModuleType) -> dict[str, Any]:
    """Those of a module that run here."""
    return {name: on_kafka(test) for name, test in vars(module).items() if fits(test) and (WHOLE or name in CHOSEN)}


for _module in MODULES:
    globals().update(scenarios(_module))


def test_what_is_chosen_is_there():
    assert WHOLE or set(globals()) >= CHOSEN


def test_no_scenario_hides_another_of_its_name():
    names = Counter(name for module in MODULES for name, test in vars(module).items() if fits(test))
    assert [name for name, count in names.items() if count > 1] == []
