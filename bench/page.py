"""`docs/benchmarks.md`, written from the JSON of a run: machine, tables, goals, and why some are not met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.goals import reasons
from bench.plot import draw
from bench.report import figure, is_met, verdict

__all__ = ["PAGE", "page", "write_page"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
_HEAD = """# Benchmarks

Written by `python -m bench`; do not edit it. `make bench` measures everything again and writes this page and its plot
(about ten minutes on a quiet machine with two cores), `make bench-quick` only proves that every scenario works, `make
bench-peers` measures other engines at the same job, and `python -m bench report FILE...` renders the page again from
the JSON of earlier runs, which lies in `bench/results/`.
"""
_JOB = """
A run is an order of three durable steps of about 210 bytes of JSON each, in sequence, each step's result durable before
the next begins. Rounds are interleaved: each scenario once, then all of them again; figures are medians, with the
lowest and highest of the rounds behind them. On Kafka the worker, the broker and the feeder that starts the runs are
processes of their own on the same cores. The raw loop is the bare client in a transactional consume-produce loop with
the worker's settings and the records of a real run, and its best batch counts.
"""
_SIZES = """
Bytes to Kafka are the growth of the topics on the broker's disk while runs are measured, with the headers of batches
and the markers of transactions; `transactions_bytes_per_run` are Kafka's own topics of groups and transactions.
"""
Row = Sequence[str]
_ENGINES = (
    ("saturated-{}", "streams on sqlite"),
    ("kafka-{}", "streams on Kafka"),
)
_IN_FLIGHT = ("16", "200", "2000")
_TITLES = {
    "alone": "one run alone",
    "approval": "approval: from the answer to the end",
    "fan-out": "fan-out of 100 steps",
}


def page(whole: Mapping[str, Any], plot: str = "") -> str:
    """All of it as Markdown. `plot` is the name of the picture beside it."""
    metrics = {entry["scenario"]: entry["metrics"] for entry in whole["results"]}
    parts = [_HEAD, *_machine(whole), *_failed(whole), "## Goals\n", *_goals(whole["goals"])]
    if plot:
        parts += [f"![runs a second by engine, and what a run costs as things grow]({plot})\n"]
    parts += ["## Saturated", _JOB, *_saturated(metrics), *_floors(metrics)]
    parts += ["## Latency\n", *_latency(metrics), "## Processes, memory and bytes on Kafka", *_processes(metrics)]
    peers = {name: found for name, found in metrics.items() if name.startswith("peer-")}
    parts += ["## Other engines\n", *_peers(peers)] if peers else []
    parts += ["## Growth\n", *_growth(whole["growth"])] if whole.get("growth") else []
    parts += ["## Everything that was measured\n", *_everything(whole["results"])]
    return "\n".join(parts)


def write_page(whole: Mapping[str, Any], path: Path) -> None:
    """The page and its plot, side by side."""
    picture = path.with_suffix(".svg")
    draw(whole, picture)
    path.write_text(page(whole, picture.name), encoding="utf-8")


def _rows(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    """A table; numbers to the right, names to the left."""
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def _machine(whole: Mapping[str, Any]) -> Iterator[str]:
    facts, options = whole["machine"], whole["options"]
    yield "## The run\n"
    rows = [("measured", whole["at"]), *((name.replace("_", " "), str(value)) for name, value in facts.items())]
    rows += [
        ("rounds", str(options["repeat"])),
        ("sizes", "small, to see that it works" if options["quick"] else "full"),
    ]
    yield from _rows(("", "value"), rows)
    if facts["load_before"] > facts["cores"] / 2:
        yield (
            f"The machine did other work meanwhile: its load was {facts['load_before']} on {facts['cores']} cores "
            "before the run began. So rates and times by the wall clock are worse than on a quiet one; CPU times, "
            "bytes and ratios within a round suffer less.\n"
        )


def _failed(whole: Mapping[str, Any]) -> Iterator[str]:
    if whole["failed"]:
        yield "Not everything ended:\n"
        yield from (f"- `{entry['scenario']}`: {entry['reason']}" for entry in whole["failed"])
        yield ""


def _goals(judged: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    why = reasons()
    rows = []
    for goal in judged:
        value = "" if goal["value"] is None else figure(goal["value"])
        reason = why.get(goal["name"], "") if is_met(goal) is False else ""
        said = f"**{verdict(goal)}**" if is_met(goal) else verdict(goal)
        rows.append((f"`{goal['name']}`", value, f"{goal['goal']:,.10g}", goal["unit"], said, reason))
    yield "| goal | figure | aim | unit | verdict | why not |"
    yield "|---|---:|---:|---|---|---|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def _cell(metrics: Mapping[str, Any], name: str) -> str:
    value = metrics.get(name)
    if value is None:
        return ""
    several = len(value["values"]) > 1
    return figure(value["median"]) + (f" ({figure(value['min'])}–{figure(value['max'])})" if several else "")


def _ratio(metrics: Mapping[str, Any], name: str) -> str:
    value = metrics.get(name, {}).get("ratio")
    return "" if value is None else f"{value:.3g}"


def _saturated(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for pattern, engine in _ENGINES:
        for count in _IN_FLIGHT:
            found = metrics.get(pattern.format(count), {})
            cells = [_cell(found, name) for name in ("runs_per_s", "cpu_us_per_run", "p50_ms", "p99_ms")]
            rows.append((engine, f"{int(count):,}", *cells, _ratio(found, "runs_per_s")))
    head = ("engine", "in flight", "runs/s", "worker's CPU, µs a run", "p50, ms", "p99, ms", "to the floor")
    yield from _rows(head, rows)


def _floors(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield "The floors, in runs/s by the number of runs in one commit, and the time of a bare commit:\n"
    names = {"floor": "bare SQLite", "postgres-floor": "bare PostgreSQL", "kafka-floor": "raw loop on Kafka"}
    rows = []
    for step, name in names.items():
        found = metrics.get(step, {})
        batches = [metric for metric in found if metric.startswith("batch_") and metric.endswith("_runs_per_s")]
        said = "; ".join(f"{int(metric.split('_')[1]):,}: {_cell(found, metric)}" for metric in batches)
        if found:
            rows.append((name, said, _cell(found, "p50_ms")))
    yield from _rows(("floor", "batches", "bare commit, p50 ms"), rows)


def _latency(metrics: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for step, title in {**_TITLES, "pipelined": "one run alone, pipelined"}.items():
        for prefix, engine in (("", "sqlite"), ("kafka-", "Kafka")):
            found = metrics.get(prefix + step)
            if found:
                cells = (_cell(found, "p50_ms"), _cell(found, "p99_ms"), _ratio(found, "p50_ms"))
                rows.append((f"{title}, {engine}", *cells))
    yield from _rows(("", "p50, ms", "p99, ms", "to bare commits"), rows)


def _processes(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield _SIZES
    names = {
        "runs/s": "runs_per_s",
        "worker CPU, µs a run": "cpu_us_per_run",
        "broker CPU": "broker_cpu_us_per_run",
        "feeder CPU": "feeder_cpu_us_per_run",
        "worker, MB": "worker_mb",
        "broker, MB": "broker_mb",
        "feeder, MB": "feeder_mb",
        "bytes to Kafka a run": "kafka_bytes_per_run",
    }
    fed = {name: found for name, found in metrics.items() if "kafka_bytes_per_run" in found}
    rows = [(f"`{step}`", *(_cell(found, name) for name in names.values())) for step, found in fed.items()]
    yield from _rows(("scenario", *names), rows)


def _peers(peers: Mapping[str, Any]) -> Iterator[str]:
    names = {"runs/s": "runs_per_s", "CPU, µs a run": "cpu_us_per_run"}
    names |= {"alone p50, ms": "alone_p50_ms", "alone p99, ms": "alone_p99_ms", "approval p50, ms": "approval_p50_ms"}
    rows = [
        (step.removeprefix("peer-"), *(_cell(found, name) for name in names.values())) for step, found in peers.items()
    ]
    yield from _rows(("engine", *names), rows)


def _growth(curves: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "The power of the size that each cost goes with, over all sizes and over the last two:\n"
    rows = []
    for curve in curves:
        sizes = f"{curve['sizes'][0]:,} to {curve['sizes'][-1]:,}"
        for name, metric in curve["metrics"].items():
            fit = [f"{metric[key]:.2f}" if key in metric else "" for key in ("exponent", "last_exponent")]
            rows.append((f"{curve['axis']}, {sizes}", f"`{name}`", " → ".join(map(figure, metric["values"])), *fit))
    yield from _rows(("against", "metric", "by size", "power", "last"), rows)


def _everything(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for entry in found:
        for name, value in entry["metrics"].items():
            ratio = _ratio(entry["metrics"], name)
            rows.append(
                (
                    f"`{entry['scenario']}`",
                    f"`{name}`",
                    *(figure(value[key]) for key in ("median", "min", "max")),
                    ratio,
                )
            )
    yield "| scenario | metric | median | min | max | to floor |"
    yield "|---|---|---:|---:|---:|---:|"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
