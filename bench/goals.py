"""The goals: what each speaks of, whether a figure meets it, and why not."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.ratios import Values, to_floor, to_peer

__all__ = ["GOALS", "Goal", "goals", "merged", "reasons"]

REASONS = Path(__file__).resolve().parent / "reasons.toml"
_RATIOS = {"_to_floor": to_floor, "_to_peer": to_peer}


class Goal(NamedTuple):
    """A figure to reach. `size` is the number of runs that it speaks of, where that matters."""

    name: str
    step: str
    metric: str
    goal: float
    unit: str
    size: int | None = None
    more: bool = False

    def met(self, value: float) -> bool:
        """Whether more or less than the goal is wanted."""
        return value >= self.goal if self.more else value <= self.goal


def _least(name: str, step: str, metric: str, goal: float, unit: str, size: int | None = None) -> Goal:
    return Goal(name, step, metric, goal, unit, size, more=True)


GOALS = (
    _least("kafka_saturated_runs_per_s", "kafka-2000", "runs_per_s", 3_000, "runs/s"),
    _least("kafka_saturated_next_runs_per_s", "kafka-2000", "runs_per_s", 5_000, "runs/s"),
    _least("kafka_saturated_vs_raw", "kafka-2000", "runs_per_s_to_floor", 0.25, "x"),
    _least("kafka_saturated_vs_best_peer", "kafka-2000", "runs_per_s_to_peer", 2, "x"),
    Goal("worker_cpu_us_per_run", "kafka-2000", "cpu_us_per_run", 250, "µs"),
    Goal("kafka_alone_to_bare_transactions", "kafka-alone", "p50_ms_to_floor", 1.3, "x"),
    Goal("kafka_pipelined_to_bare_transactions", "kafka-pipelined", "p50_ms_to_floor", 1.3, "x"),
    Goal("sqlite_alone_p50_ms", "alone", "p50_ms", 3, "ms"),
    Goal("waiting_1m_mb", "kafka-waiting", "rest_mb", 1_500, "MB", 1_000_000),
    Goal("waiting_1m_warm_restart_s", "kafka-waiting", "warm_restart_s", 10, "s", 1_000_000),
    Goal("waiting_1m_cold_restart_s", "kafka-waiting", "cold_restart_s", 30, "s", 1_000_000),
    _least("sqlite_saturated_runs_per_s", "saturated-2000", "runs_per_s", 2_000, "runs/s"),
    Goal("kafka_takeover_s", "kafka-takeover", "takeover_s", 10, "s"),
    _least("kafka_restored_per_s", "kafka-restore", "restored_per_s", 50_000, "/s", 100_000),
    _least("simulated_histories_per_s", "sim", "histories_per_s", 200, "runs/s"),
    _least("verify_sqlite_events_per_core_s", "verify-sqlite", "events_per_core_s", 30_000, "/s"),
    _least("verify_kafka_events_per_core_s", "verify-kafka", "events_per_core_s", 30_000, "/s"),
    _least("rebuild_sqlite_events_per_core_s", "rebuild-sqlite", "events_per_core_s", 30_000, "/s"),
    _least("rebuild_kafka_events_per_core_s", "rebuild-kafka", "events_per_core_s", 30_000, "/s"),
    _least("effects_rows_per_s", "effects-rows-kafka", "rows_per_s", 3_000, "/s"),
    _least("effects_many_per_s", "effects-many-kafka", "rows_per_s", 3_000, "/s"),
    _least("effects_known_per_s", "effects-rows-kafka", "known_per_s", 20_000, "/s"),
    _least("effects_calls_in_flight", "effects-calls-kafka", "calls_most_in_flight", 1_000, "at once"),
    Goal("waiting_100k_mb", "waiting", "filled_mb", 600, "MB", 100_000),
)


def goals(values: Values, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Each goal with its figure and whether it is met; null where this run did not measure it."""
    found = []
    for goal in GOALS:
        measured = _measured(values, goal)
        right = measured and goal.size in (None, sizes.get(goal.step))
        value = round(statistics.median(measured), 3) if measured and right else None
        met = None if value is None else goal.met(value)
        found.append({"name": goal.name, "value": value, "goal": goal.goal, "unit": goal.unit, "met": met})
    return found


def _measured(values: Values, goal: Goal) -> Sequence[float]:
    for ending, ratio in _RATIOS.items():
        if goal.metric.endswith(ending):
            return ratio(goal.step, goal.metric.removesuffix(ending), values)
    return values.get(goal.step, {}).get(goal.metric, ())


def merged(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several files as one: of a scenario or goal that two have measured, the later one counts.

    A goal that compares what different files have measured gets its figure here.
    """
    scenarios = {entry["scenario"]: entry for whole in files for entry in whole["results"]}
    values = {
        step: {name: value["values"] for name, value in entry["metrics"].items()} for step, entry in scenarios.items()
    }
    sizes = {step: runs for whole in files for step, runs in (whole["options"].get("runs") or {}).items()}
    known = {goal.name: goal for goal in GOALS}
    judged = {goal["name"]: goal for goal in goals(values, sizes)}
    for goal in (goal for whole in files for goal in whole["goals"] if goal["value"] is not None):
        name, value = goal["name"], goal["value"]
        judged[name] = {**judged[name], "value": value, "met": known[name].met(value)} if name in known else goal
    return {
        **files[0],
        "results": [*scenarios.values()],
        "goals": [*judged.values()],
        "failed": [entry for whole in files for entry in whole["failed"]],
        "growth": [curve for whole in files for curve in whole.get("growth", ())],
    }


def reasons() -> Mapping[str, str]:
    """By the name of a goal: why it is not met."""
    return tomllib.loads(REASONS.read_text("utf-8"))
