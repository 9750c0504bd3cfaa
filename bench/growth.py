"""`python -m bench growth`: what a run costs against whatever may grow, as curves with an exponent each."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from bench.broker import broker, broker_url
from bench.measure import disk_folder, machine, summary

__all__ = ["CURVES", "Curve", "exponent", "growth", "main"]

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 0.15
"""An exponent that is this much above what it must be counts as growth: a fifth more for each tenfold is noise."""
Values = Mapping[int, Mapping[str, Sequence[float]]]


class Curve(NamedTuple):
    """What grows, and the exponent that each cost may have; costs that are not named are only told."""

    name: str
    axis: str
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    must: Mapping[str, float]
    seconds_max: float = 600.0


CURVES = (
    Curve(
        "past-runs", "runs that have ended", (1_000, 3_000, 10_000, 30_000, 100_000), (200, 2_000),
        {"cpu_us_per_run": 0, "bytes_per_past_run": 0},
    ),
    Curve(
        "waiting-runs", "runs that wait", (1_000, 10_000, 100_000, 300_000, 1_000_000), (200, 2_000),
        {"cpu_us_per_run": 0, "cpu_us_per_waiting_run": 0, "bytes_per_waiting_run": 0}, 1_800.0,
    ),
    Curve(
        "partitions", "partitions of one worker", (1, 4, 16, 64, 200), (1, 8),
        {"cpu_us_per_run": 0, "idle_cpu_ms_per_s": 1, "start_s": 1},
    ),
    Curve(
        "state-size", "bytes of state", (100, 1_000, 10_000, 100_000, 500_000), (100, 10_000),
        {"cpu_us_per_turn": 1},
    ),
    Curve("steps", "steps of one coroutine", (1, 10, 100, 1_000, 2_000), (10, 100), {"cpu_us_per_step": 0}),
    Curve("turns", "turns of one graph run", (10, 100, 1_000, 4_000), (10, 100), {"cpu_us_per_turn": 0}),
)  # fmt: skip


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size that the cost goes with: least squares through the logarithms."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(cost) for cost in costs]).slope


def growth(curve: Curve, values: Values) -> dict[str, Any]:
    """A curve for a report: medians by size, with the exponent of the whole and of its last stretch."""
    sizes = sorted(values)
    names = [name for name in values[sizes[0]] if all(name in values[size] for size in sizes)]
    metrics = {}
    for name in names:
        costs = [statistics.median(values[size][name]) for size in sizes]
        found: dict[str, Any] = {"values": costs}
        if len(sizes) > 1 and min(costs) > 0:
            found |= {"exponent": exponent(sizes, costs), "last_exponent": exponent(sizes[-2:], costs[-2:])}
        metrics[name] = {**found, "must": curve.must[name]} if name in curve.must else found
    return {"curve": curve.name, "axis": curve.axis, "sizes": sizes, "metrics": metrics}


def goals(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One for each cost whose growth is bounded, in the shape of the other goals: less is better."""
    return [
        {
            "name": f"growth_{curve['curve']}_{name}".replace("-", "_"),
            "value": round(metric["exponent"], 3),
            "goal": metric["must"] + TOLERANCE,
            "unit": "exponent",
        }
        for curve in curves
        for name, metric in curve["metrics"].items()
        if "must" in metric and "exponent" in metric
    ]


def table(curves: Sequence[Mapping[str, Any]]) -> str:
    """All curves, for a terminal."""
    lines = []
    for curve in curves:
        sizes = "".join(f"{size:>12,}" for size in curve["sizes"])
        lines += ["", f"{curve['curve']}: {curve['axis']}", f"{'':<26}{sizes}{'exponent':>10}{'last':>8}{'may be':>8}"]
        for name, metric in curve["metrics"].items():
            fit = f"{metric['exponent']:>10.2f}{metric['last_exponent']:>8.2f}" if "exponent" in metric else ""
            may = f"{metric['must']:>8}" if "must" in metric else ""
            lines.append(f"{name:<26}{''.join(f'{value:>12,.4g}' for value in metric['values'])}{fit}{may}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when every point was measured, 1 when one broke or hung; no figure is judged."""
    args = _parse(argv)
    started, where = datetime.now(UTC), disk_folder()
    facts = dict(machine(where))
    chosen = [curve for curve in CURVES if not args.curves or curve.name in args.curves]
    failed: list[dict[str, str]] = []
    with broker(where) if args.target == "kafka" else nullcontext():
        found = {curve.name: _measure(curve, args, where, failed) for curve in chosen}
    curves = [growth(curve, found[curve.name]) for curve in chosen if found[curve.name]]
    print(table(curves))
    results = [
        {"scenario": f"growth-{name}-{size}", "metrics": {key: summary(some) for key, some in metrics.items()}}
        for name, values in found.items()
        for size, metrics in values.items()
    ]
    options = {key: value for key, value in vars(args).items() if key != "json"}
    whole = {"at": started.isoformat(timespec="seconds"), "machine": facts, "options": options, "results": results}
    path = args.json or ROOT / "bench" / "results" / f"growth-{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole |= {"growth": curves, "failed": failed, "goals": goals(curves)}
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)
    return 1 if failed else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench growth", description=__doc__)
    names = [curve.name for curve in CURVES]
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"{', '.join(names)}; without any, all of them")
    parser.add_argument("--quick", action="store_true", help="two small points a curve, to see that it works")
    parser.add_argument("--most", type=int, help="leave out the points beyond this size")
    parser.add_argument("--repeat", type=int, default=1, help="measurements of each point; 1 unless given")
    parser.add_argument("--target", choices=("sqlite", "kafka"), default="sqlite")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write; bench/results/ unless given")
    args = parser.parse_args(argv)
    unknown = [name for name in args.curves if name not in names]
    if unknown:
        parser.error(f"there is no curve {unknown[0]!r}; there are {', '.join(names)}")
    return args


def _measure(
    curve: Curve, args: argparse.Namespace, where: Path, failed: list[dict[str, str]]
) -> dict[int, dict[str, list[float]]]:
    """Its points round by round, so that a machine that drifts does not bend the curve."""
    values: dict[int, dict[str, list[float]]] = {}
    sizes = [size for size in (curve.quick_sizes if args.quick else curve.sizes) if size <= (args.most or size)]
    for _ in range(args.repeat):
        for size in sizes:
            found = _point(curve, size, args.target, where)
            if isinstance(found, str):
                failed.append({"scenario": f"growth-{curve.name}-{size}", "reason": found})
                print(f"{curve.name} at {size:,}: {found}", file=sys.stderr)
                continue
            for name, value in found.items():
                values.setdefault(size, {}).setdefault(name, []).append(value)
            print(f"{curve.name} at {size:,}", file=sys.stderr)
    return values


def _point(curve: Curve, size: int, target: str, where: Path) -> dict[str, float] | str:
    """Measure in a process of its own; what went wrong where it did."""
    folder = Path(tempfile.mkdtemp(prefix="streams-growth-", dir=where))
    url = broker_url() if target == "kafka" else f"sqlite:///{folder}/log.db"
    environment = {**os.environ, "STREAMS_BENCH_APP": f"growth-{uuid4().hex[:8]}"}
    command = [sys.executable, "-m", "bench.growth_courses", curve.name, str(size), url]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, timeout=curve.seconds_max, check=False
        )
    except subprocess.TimeoutExpired:
        return f"has not ended in {curve.seconds_max:.0f} s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode != 0:
        return f"ended with exit code {done.returncode}"
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured
