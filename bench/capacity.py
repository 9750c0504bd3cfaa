"""`python -m bench capacity FILE...`: what a cluster for a rate of runs takes, computed from measured figures."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.floor import RECORD_BYTES, RECORDS_PER_RUN

__all__ = ["Inputs", "Plan", "Unmeasured", "inputs", "main", "planned", "text", "told"]

DAY = 86_400.0


class Source(NamedTuple):
    """Where an input stands in results; `scenario` ends in `-*` where the largest size counts."""

    scenario: str
    metric: str


SOURCES: Mapping[str, Source] = {
    "worker_cpu_us": Source("kafka-2000", "cpu_us_per_run"),
    "broker_cpu_us": Source("kafka-2000", "broker_cpu_us_per_run"),
    "run_bytes": Source("kafka-2000", "kafka_bytes_per_run"),
    "transaction_ms": Source("kafka-floor", "p50_ms"),
    "restored_per_s": Source("kafka-restore", "restored_per_s"),
    "waiting_bytes": Source("growth-waiting-runs-*", "bytes_per_waiting_run"),
    "past_bytes": Source("growth-past-runs-*", "bytes_per_past_run"),
}


INSTEAD: Mapping[str, float] = {"run_bytes": RECORDS_PER_RUN * RECORD_BYTES}
"""Where results are of a version that did not measure it: the records of a run as the floor writes them."""
BEGIN, END = "<!-- computed: python -m bench capacity -->", "<!-- end -->"


class Inputs(NamedTuple):
    """What was measured, on one broker that copies nothing."""

    worker_cpu_us: float
    broker_cpu_us: float
    run_bytes: float
    transaction_ms: float
    restored_per_s: float
    waiting_bytes: float
    past_bytes: float


class Wishes(NamedTuple):
    """What is chosen, not measured."""

    runs_per_s: float
    kept_seconds: float = 3_600.0
    waiting_seconds: float = 3_600.0
    waiting_share: float = 0.1
    history_days: float = 7.0
    busy_share: float = 0.6
    replicas: int = 3
    broker_cores: int = 16
    broker_mb_per_s: float = 500.0
    partitions_per_worker: int = 4
    commits_per_s: float = 25.0


class Row(NamedTuple):
    """One figure with the sum that gives it."""

    name: str
    value: float
    unit: str
    sum: str


class Plan(NamedTuple):
    """What a rate takes."""

    wishes: Wishes
    rows: tuple[Row, ...]

    def value(self, name: str) -> float:
        return next(row.value for row in self.rows if row.name == name)


class Unmeasured(Exception):
    """A figure that the sums need stands in none of the files."""


def inputs(files: Sequence[Mapping[str, Any]]) -> Inputs:
    """Take them out of results: of several files the last one that has a figure counts."""
    found = {}
    for name, source in SOURCES.items():
        figures = [figure for whole in files if (figure := _figure(whole, source)) is not None]
        if not figures and name in INSTEAD:
            figures = [INSTEAD[name]]
        if not figures:
            command = "growth " + source.scenario.removeprefix("growth-").removesuffix("-*")
            command = command if source.scenario.startswith("growth") else source.scenario
            raise Unmeasured(f"no file has {source.metric} of {source.scenario}; `python -m bench {command}` gives it")
        found[name] = figures[-1]
    return Inputs(**found)


def _figure(whole: Mapping[str, Any], source: Source) -> float | None:
    stem = source.scenario.removesuffix("*")
    entries = [
        entry
        for entry in whole.get("results", ())
        if source.metric in entry["metrics"]
        and (entry["scenario"] == stem or (stem.endswith("-") and entry["scenario"].startswith(stem)))
    ]
    if not entries:
        return None
    last = max(entries, key=lambda entry: _size(entry["scenario"]))
    return float(last["metrics"][source.metric]["median"])


def _size(scenario: str) -> int:
    number = scenario.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


class _Sheet:
    """Rows in the making; a row may use those before it."""

    def __init__(self, measured: Inputs, wishes: Wishes) -> None:
        self.measured = measured
        self.wishes = wishes
        self.rows: list[Row] = []

    def add(self, name: str, value: float, unit: str, how: str) -> float:
        self.rows.append(Row(name, value, unit, how))
        return value


def planned(measured: Inputs, wishes: Wishes) -> Plan:
    """The arithmetic. Every row names what it is made of."""
    sheet = _Sheet(measured, wishes)
    workers = _workers(sheet)
    _brokers(sheet)
    _memory(sheet, workers)
    return Plan(wishes, tuple(sheet.rows))


def _workers(sheet: _Sheet) -> float:
    m, w = sheet.measured, sheet.wishes
    count = math.ceil(w.runs_per_s * m.worker_cpu_us / 1e6 / w.busy_share)
    how = f"rate x worker_cpu_us ({m.worker_cpu_us:,.0f}) / 1e6 / {w.busy_share}"
    workers = sheet.add("workers", count, "processes, a core each", how)
    how = f"workers x {w.partitions_per_worker}, so that the loss of one worker spreads"
    partitions = sheet.add("partitions", workers * w.partitions_per_worker, "of each topic", how)
    sheet.add("partition_share", w.runs_per_s / partitions, "runs/s of a partition", "rate / partitions")
    most = 1e3 / m.transaction_ms
    how = f"workers x {w.commits_per_s:g} transactions/s; 1000 / transaction_ms ({m.transaction_ms:.1f}) = {most:,.0f} "
    sheet.add("group_commits", workers * w.commits_per_s, "offset commits/s of one group", how + "is one worker's most")
    return workers


def _brokers(sheet: _Sheet) -> None:
    m, w = sheet.measured, sheet.wishes
    how = f"rate x broker_cpu_us ({m.broker_cpu_us:,.0f}) x {w.replicas} / 1e6 / {w.busy_share}; a follower as a leader"
    cores = sheet.add("broker_cores", w.runs_per_s * m.broker_cpu_us * w.replicas / 1e6 / w.busy_share, "cores", how)
    arriving = w.runs_per_s * m.run_bytes
    how = f"rate x run_bytes ({m.run_bytes:,.0f}) x {w.replicas} replicas"
    written = sheet.add("disk_writes", arriving * w.replicas / 1e6, "MB/s to all disks", how)
    by_cores, by_disks = math.ceil(cores / w.broker_cores), math.ceil(written / w.broker_mb_per_s)
    how = f"the most of {w.replicas}, {by_cores} for cores, {by_disks} for {w.broker_mb_per_s:,.0f} MB/s of disk each"
    sheet.add("brokers", max(w.replicas, by_cores, by_disks), f"of {w.broker_cores} cores", how)
    how = f"rate x run_bytes x (1 in + {w.replicas - 1} copies + 1 read) x 8"
    sheet.add("network", arriving * (w.replicas + 1) * 8 / 1e9, "Gbit/s between all machines", how)
    how = f"rate x run_bytes x {w.history_days:g} days x {w.replicas}"
    sheet.add("history", arriving * w.history_days * DAY * w.replicas / 1e12, "TB on all disks", how)


def _memory(sheet: _Sheet, workers: float) -> None:
    m, w = sheet.measured, sheet.wishes
    how = f"rate x result_kept_seconds ({w.kept_seconds:,.0f})"
    kept = sheet.add("kept_runs", w.runs_per_s * w.kept_seconds, "ended runs whose results are kept", how)
    how = f"rate x {w.waiting_share:.0%} of them x {w.waiting_seconds:,.0f} s"
    waiting = sheet.add("waiting_runs", w.runs_per_s * w.waiting_share * w.waiting_seconds, "runs that wait", how)
    total = (kept * m.past_bytes + waiting * m.waiting_bytes) / 1e9
    how = f"kept_runs x past_bytes ({m.past_bytes:,.0f}) + waiting_runs x waiting_bytes ({m.waiting_bytes:,.0f})"
    memory = sheet.add("memory", total, "GB in all workers, without a local store", how)
    sheet.add("memory_each", memory / workers, "GB in a worker, without a local store", "memory / workers")
    how = f"(kept_runs + waiting_runs) / workers / restored_per_s ({m.restored_per_s:,.0f})"
    sheet.add("restart", (kept + waiting) / workers / m.restored_per_s, "s, without a local store", how)


def text(plan: Plan) -> str:
    """A table in Markdown."""
    lines = [f"### {plan.wishes.runs_per_s:,.0f} runs/s", "", "| | computed | how |", "|---|---|---|"]
    lines += [f"| {row.name} | {_number(row.value)} {row.unit} | {row.sum} |" for row in plan.rows]
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def told(files: Sequence[Mapping[str, Any]], measured: Inputs, plans: Sequence[Plan]) -> str:
    """Where the inputs come from, the inputs by their names, and the tables."""
    lines = [_origin(whole) for whole in files]
    lines += ["", "| input | value | where |", "|---|---|---|"]
    for name, source in SOURCES.items():
        where = f"`{source.metric}` of `{source.scenario}`"
        if all(_figure(whole, source) is None for whole in files):
            where = f"not measured in these files ({where}): the records of a run as the floor writes them"
        lines.append(f"| {name} | {_number(getattr(measured, name))} | {where} |")
    return "\n\n".join(["\n".join(lines), *map(text, plans)])


def _origin(whole: Mapping[str, Any]) -> str:
    facts = whole.get("machine", {})
    return (
        f"- measured at {whole.get('at', 'an unknown time')}, {facts.get('cores', '?')} cores, "
        f"{facts.get('load_before', '?')} processes that wanted one before it began"
    )


def main(argv: list[str] | None = None) -> int:
    """Exit 0 with the tables, 1 where a figure is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench capacity", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of `python -m bench` and `growth`")
    parser.add_argument("--runs-per-s", type=float, action="append", help="10,000 and 1,000,000 unless given")
    parser.add_argument("--kept-seconds", type=float, default=Wishes(1).kept_seconds, help="result_kept_seconds")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write them between the marks of this document")
    args = parser.parse_args(argv)
    try:
        files = [json.loads(path.read_text("utf-8")) for path in args.files]
        measured = inputs(files)
    except Unmeasured as error:
        print(error, file=sys.stderr)
        return 1
    rates = args.runs_per_s or (10_000.0, 1_000_000.0)
    found = told(files, measured, [planned(measured, Wishes(rate, kept_seconds=args.kept_seconds)) for rate in rates])
    print(found)
    if args.into:
        before, _, rest = args.into.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        args.into.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{after}", encoding="utf-8")
    return 0
