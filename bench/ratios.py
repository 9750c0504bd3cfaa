"""Ratios: what was found against the bare store of the same round, and against the best of the other engines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

__all__ = ["COMMITS_ALONE", "Values", "to_floor", "to_peer"]

Values = Mapping[str, Mapping[str, Sequence[float]]]
"""By step and metric, what each round has given."""

COMMITS_ALONE = {"alone": 5, "kafka-alone": 4, "kafka-pipelined": 2}
"""Commits that follow one another in one run alone: a turn for the start and each step's outcome.

On the embedded log the command's own is a commit as well; on Kafka it is an append, which needs no transaction. Pure
steps of a pipelined run share one with each other.
"""


def to_floor(step: str, metric: str, values: Values) -> list[float]:
    """By round: a saturated rate against the best batches; one run alone against the bare commits that it waits for."""
    mine = values.get(step, {}).get(metric, ())
    floor = values.get("kafka-floor" if step.startswith("kafka") else "floor", {})
    if metric == "runs_per_s":
        batches = [rates for name, rates in floor.items() if name.startswith("batch") and name.endswith("runs_per_s")]
        return [one / max(rates) for one, *rates in zip(mine, *batches, strict=False) if rates]
    if step in COMMITS_ALONE and metric == "p50_ms":
        commits = zip(mine, floor.get("p50_ms", ()), strict=False)
        return [one / (commit * COMMITS_ALONE[step]) for one, commit in commits]
    return []


def to_peer(step: str, metric: str, values: Values) -> list[float]:
    """Against the best median of any other engine, where there is one."""
    peers = [found[metric] for name, found in values.items() if name.startswith("peer-") and found.get(metric)]
    if not peers:
        return []
    best = max(map(statistics.median, peers))
    return [one / best for one in values.get(step, {}).get(metric, ())]
