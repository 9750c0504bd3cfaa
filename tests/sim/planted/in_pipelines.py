"""Mistakes around what a pipelined workflow begins before its commit."""

from __future__ import annotations

from tests.sim.planted.planting import Edit, Fault

__all__ = ["FAULTS"]

_EARLY, _TURN = "streams.runtime.early", "streams.runtime.turn"
_TEST = "tests/runtime/test_pipelined.py"

FAULTS = [
    Fault(
        "restored_run_driven_early",
        "A run that was restored, or that an old command begins, is pipelined: what kills its process is never counted",
        (Edit(_EARLY, "        and working.hot.fresh\n", ""),),
    ),
    Fault(
        "impure_task_begun_early",
        "A pipelined workflow begins all its tasks before their start is durable, also those that touch the world",
        (Edit(_EARLY, "        and task.pure\n", ""),),
    ),
    Fault(
        "early_outcome_from_the_state_before",
        "An outcome that came early is decided on the committed state, and not on that of the turn in flight",
        (Edit(_TURN, "Working.following(before)", "Working(partition, before.hot)"),),
    ),
    Fault(
        "early_outcome_of_a_dropped_turn",
        "An outcome counts although the turn that began its attempt was not committed",
        (
            Edit(
                "streams.runtime.inputs",
                "item.early is not None and item.early.dropped",
                "item.early is not None and item.early is None",
            ),
        ),
        test=f"{_TEST}::test_an_outcome_that_comes_after_its_turn_was_dropped_counts_for_nothing",
    ),
    Fault(
        "early_outcomes_overtake_commands",
        "A run whose steps never wait keeps its commands from their turn, and those behind them in the partition",
        (Edit("streams.runtime.inbox", "(is_early(item) and run not in self._held_runs)", "is_early(item)"),),
        test=f"{_TEST}::test_a_command_is_not_starved_by_a_run_that_never_waits",
    ),
]
