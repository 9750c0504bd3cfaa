"""What was found: medians and ratios, goals, a table for people, JSON for machines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench.measure import summary

__all__ = ["Goal", "Values", "goals", "results", "table"]

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By step and metric, what each round has given."""

COMMITS_ALONE = {"alone": 5, "kafka-alone": 4}
"""Commits that follow one another in one run alone: a turn for the start and each step's outcome.

On the embedded log the command's own is a commit as well; on Kafka it is an append, which needs no transaction.
"""


class Goal(NamedTuple):
    """A figure to reach. `size` is the number of runs that it speaks of, where that matters."""

    name: str
    step: str
    metric: str
    goal: float
    unit: str
    size: int | None = None

    def met(self, value: float) -> bool:
        """More is better for a rate and for what goes on at once, less for everything else."""
        return value >= self.goal if self.unit.endswith("/s") or self.unit == "at once" else value <= self.goal


GOALS = (
    Goal("sqlite_saturated_runs_per_s", "saturated-1000", "runs_per_s", 2_000, "runs/s"),
    Goal("sqlite_alone_p50_ms", "alone", "p50_ms", 5, "ms"),
    Goal("kafka_saturated_runs_per_s", "kafka-2000", "runs_per_s", 2_500, "runs/s"),
    Goal("kafka_alone_to_bare_transactions", "kafka-alone", "p50_ms_to_floor", 1.3, "x"),
    Goal("kafka_takeover_s", "kafka-takeover", "takeover_s", 10, "s"),
    Goal("kafka_restored_per_s", "kafka-restore", "restored_per_s", 50_000, "/s", 100_000),
    Goal("simulated_histories_per_s", "sim", "histories_per_s", 200, "runs/s"),
    Goal("verify_sqlite_events_per_core_s", "verify-sqlite", "events_per_core_s", 30_000, "/s"),
    Goal("verify_kafka_events_per_core_s", "verify-kafka", "events_per_core_s", 30_000, "/s"),
    Goal("rebuild_sqlite_events_per_core_s", "rebuild-sqlite", "events_per_core_s", 30_000, "/s"),
    Goal("rebuild_kafka_events_per_core_s", "rebuild-kafka", "events_per_core_s", 30_000, "/s"),
    Goal("effects_rows_per_s", "effects-rows-kafka", "rows_per_s", 3_000, "/s"),
    Goal("effects_many_per_s", "effects-many-kafka", "rows_per_s", 3_000, "/s"),
    Goal("effects_known_per_s", "effects-rows-kafka", "known_per_s", 20_000, "/s"),
    Goal("effects_calls_in_flight", "effects-calls-kafka", "calls_most_in_flight", 1_000, "at once"),
    Goal("waiting_100k_mb", "waiting", "filled_mb", 600, "MB", 100_000),
)


def goals(values: Values, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Each goal with its figure, null where this run did not measure it."""
    found = []
    for goal in GOALS:
        measured = _measured(values, goal)
        right = measured and goal.size in (None, sizes.get(goal.step))
        value = round(statistics.median(measured), 3) if measured and right else None
        found.append({"name": goal.name, "value": value, "goal": goal.goal, "unit": goal.unit})
    return found


def _measured(values: Values, goal: Goal) -> Sequence[float] | None:
    metrics = values.get(goal.step, {})
    name = goal.metric.removesuffix("_to_floor")
    if name == goal.metric or name not in metrics:
        return metrics.get(goal.metric)
    return list(_ratios(goal.step, name, metrics[name], values)) or None


def results(values: Values) -> list[dict[str, Any]]:
    """Medians, spread, and the ratio to the floor of the same round."""
    found = []
    for step, metrics in values.items():
        entry: dict[str, dict[str, Any]] = {name: summary(some) for name, some in metrics.items()}
        for name, some in metrics.items():
            ratios = list(_ratios(step, name, some, values))
            if ratios:
                entry[name]["ratio"] = statistics.median(ratios)
        found.append({"scenario": step, "metrics": entry})
    return found


def _ratios(step: str, metric: str, some: Sequence[float], values: Values) -> Iterator[float]:
    """A saturated rate against the best batches; one run alone against as many bare commits as it waits for."""
    floor = values.get("kafka-floor" if step.startswith("kafka") else "floor", {})
    if metric == "runs_per_s":
        batches = [rates for name, rates in floor.items() if name.startswith("batch") and name.endswith("runs_per_s")]
        yield from (mine / max(rates) for mine, *rates in zip(some, *batches, strict=False) if rates)
    elif step in COMMITS_ALONE and metric == "p50_ms":
        yield from (
            mine / (commit * COMMITS_ALONE[step]) for mine, commit in zip(some, floor.get("p50_ms", ()), strict=False)
        )


def table(found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> str:
    """All of it, for a terminal."""
    lines = [f"{'scenario':<20}{'metric':<26}{'median':>12}{'min':>12}{'max':>12}{'to floor':>10}"]
    for entry in found:
        name = entry["scenario"]
        for metric, value in entry["metrics"].items():
            ratio = f"{value['ratio']:.3g}" if "ratio" in value else ""
            figures = "".join(f"{_figure(value[key]):>12}" for key in ("median", "min", "max"))
            lines.append(f"{name:<20}{metric:<26}{figures}{ratio:>10}".rstrip())
            name = ""
    lines += ["", *(_goal_line(goal) for goal in judged)]
    return "\n".join(lines)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _goal_line(goal: Mapping[str, Any]) -> str:
    if goal["value"] is None:
        return f"goal {goal['name']}: {goal['goal']:,} {goal['unit']}; not measured in this run"
    mark = next(g for g in GOALS if g.name == goal["name"]).met(goal["value"])
    verdict = "met" if mark else "not met"
    return f"goal {goal['name']}: {_figure(goal['value'])} of {goal['goal']:,} {goal['unit']}: {verdict}"
