"""What was found: medians, spread and ratios, as a table for people and as JSON for machines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import summary
from bench.ratios import Values, to_floor

__all__ = ["figure", "is_met", "results", "table", "verdict"]


def results(values: Values) -> list[dict[str, Any]]:
    """Medians, spread, and the ratio to the floor of the same round."""
    found = []
    for step, metrics in values.items():
        entry: dict[str, dict[str, Any]] = {name: summary(some) for name, some in metrics.items()}
        for name in metrics:
            ratios = to_floor(step, name, values)
            if ratios:
                entry[name]["ratio"] = statistics.median(ratios)
        found.append({"scenario": step, "metrics": entry})
    return found


def table(found: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> str:
    """All of it, for a terminal."""
    lines = [f"{'scenario':<20}{'metric':<30}{'median':>12}{'min':>12}{'max':>12}{'spread':>8}{'to floor':>10}"]
    for entry in found:
        name = entry["scenario"]
        for metric, value in entry["metrics"].items():
            ratio = f"{value['ratio']:.3g}" if "ratio" in value else ""
            figures = "".join(f"{figure(value[key]):>12}" for key in ("median", "min", "max"))
            lines.append(f"{name:<20}{metric:<30}{figures}{_spread(value):>8}{ratio:>10}".rstrip())
            name = ""
    lines += ["", *(_goal_line(goal) for goal in judged)]
    return "\n".join(lines)


def _spread(value: Mapping[str, Any]) -> str:
    """How far apart lowest and highest are, in shares of the median."""
    if len(value["values"]) < 2 or not value["median"]:
        return ""
    return f"{(value['max'] - value['min']) / abs(value['median']):.0%}"


def figure(value: float) -> str:
    """Three digits, or all of them before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def is_met(goal: Mapping[str, Any]) -> bool | None:
    """None where it was not measured. Where the file does not say it, less is better."""
    if goal["value"] is None:
        return None
    found: bool = goal.get("met", goal["value"] <= goal["goal"])
    return found


def verdict(goal: Mapping[str, Any]) -> str:
    """In words."""
    return {None: "not measured in this run", True: "met", False: "not met"}[is_met(goal)]


def _goal_line(goal: Mapping[str, Any]) -> str:
    if goal["value"] is None:
        return f"goal {goal['name']}: {goal['goal']:,} {goal['unit']}; {verdict(goal)}"
    return f"goal {goal['name']}: {figure(goal['value'])} of {goal['goal']:,} {goal['unit']}: {verdict(goal)}"
