"""The plot: runs a second by engine, and the cost of a run as things grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streams.errors import UsageError

__all__ = ["draw", "engines", "growth"]

_OURS, _OTHERS = "#2563eb", "#9aa5b1"
_LABELS = {"kafka-2000": "streams, Kafka", "saturated-2000": "streams, sqlite"}


def engines(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Runs a second, saturated, of each engine that was measured; the best last."""
    rates = {}
    for entry in found:
        name, rate = entry["scenario"], entry["metrics"].get("runs_per_s")
        if rate and (name in _LABELS or name.startswith("peer-")):
            rates[_LABELS.get(name, name.removeprefix("peer-"))] = float(rate["median"])
    return dict(sorted(rates.items(), key=lambda item: item[1]))


def growth(curves: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Of each curve the first cost whose growth is bounded, in shares of the cost of its smallest size."""
    found = {}
    for curve in curves:
        bounded = [metric for metric in curve["metrics"].values() if "must" in metric and metric["values"][0] > 0]
        if bounded:
            costs = bounded[0]["values"]
            found[curve["axis"]] = [(size, cost / costs[0]) for size, cost in zip(curve["sizes"], costs, strict=True)]
    return found


def draw(whole: Mapping[str, Any], path: Path) -> None:
    """Write it, as SVG or PNG by the name."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("the plot needs matplotlib: pip install 'streams-engine[bench]'") from error
    mpl.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none"})  # the same figures give the same bytes
    rates, curves = engines(whole["results"]), growth(whole.get("growth", ()))
    plot = Figure(figsize=(9, 3.6), layout="constrained")
    axes = plot.subplots(1, 2 if curves else 1, squeeze=False)[0]
    colours = [_OURS if name.startswith("streams") else _OTHERS for name in rates]
    bars = axes[0].barh(list(rates), list(rates.values()), color=colours)
    axes[0].bar_label(bars, fmt="{:,.0f}", padding=3)
    axes[0].margins(x=0.15)
    axes[0].set_title("three-step runs a second, saturated")
    for name, points in curves.items():
        axes[1].loglog(*zip(*points, strict=True), marker="o", label=name)
        axes[1].set_title("cost, in shares of that of the smallest size")
        axes[1].legend(fontsize="small")
    plot.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
