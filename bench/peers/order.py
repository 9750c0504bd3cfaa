"""The job that every peer does, and the figures that its script prints: one line of JSON.

Scripts in this folder run with the python of the peers' own virtual environment, and import nothing of `streams`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Arguments", "Load", "Meter", "arguments", "charge", "reserve", "right", "ship", "tell"]

_NOTE = "x" * 120


def _result(step: str, order_id: str) -> dict[str, Any]:
    """About 210 bytes of JSON, the same as in `bench/jobs.py`."""
    return {"step": step, "order_id": order_id, "status": "ok", "amount": 1999, "note": _NOTE}


def reserve(order_id: str) -> dict[str, Any]:
    """The first step."""
    return _result("reserve", order_id)


def charge(order_id: str) -> dict[str, Any]:
    """The second step."""
    return _result("charge", order_id)


def ship(order_id: str) -> dict[str, Any]:
    """The third step."""
    return _result("ship", order_id)


def right(result: Any, order_id: str) -> None:
    """Raise unless this is the result of this run."""
    for step in ("reserve", "charge", "ship"):
        if result[step] != _result(step, order_id):
            raise AssertionError(f"the result of {order_id} is not its own: {result}")


class Arguments(NamedTuple):
    """What bench asks of a script. A size of 0 leaves that measurement out."""

    store: str
    folder: Path
    postgres: str
    kafka: str
    runs: int
    in_flight: int
    alone: int
    approvals: int


def arguments(description: str, stores: Sequence[str]) -> Arguments:
    """Read them from the command line. From here on SIGTERM ends the script as Ctrl-C does, its servers with it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--store", choices=stores, default=stores[0])
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder on a disk")
    parser.add_argument("--postgres", default="", help="the address of a PostgreSQL database")
    parser.add_argument("--kafka", default="", help="the address of a Kafka cluster")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--alone", type=int, default=100)
    parser.add_argument("--approvals", type=int, default=50)
    return Arguments(**vars(parser.parse_args()))


class Meter:
    """Wall and CPU time from its making on, and memory, of this process and of the servers named by process ids."""

    def __init__(self, servers: Iterable[int] = ()) -> None:
        self._servers = tuple(servers)
        self._wall, self._cpu = time.perf_counter(), self._cpu_seconds()

    def _cpu_seconds(self) -> float:
        return time.process_time() + sum(_cpu_of(pid) for pid in self._servers)

    def per_run(self, runs: int) -> dict[str, float]:
        """The rate and the CPU time of `runs` runs, and the most memory that the processes have had, added up."""
        wall, cpu = time.perf_counter() - self._wall, self._cpu_seconds() - self._cpu
        peak = sum(_peak_mb(pid) for pid in (os.getpid(), *self._servers))
        return {"runs_per_s": runs / wall, "cpu_us_per_run": cpu / runs * 1e6, "peak_mb": peak}


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process, all threads. Needs /proc; elsewhere 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> float:
    """In MB of 1,000,000 bytes. Needs /proc; elsewhere 0."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), 0.0)


class Load:
    """The seconds of each run, by what was measured."""

    def __init__(self) -> None:
        self.saturated: list[float] = []
        self.alone: list[float] = []
        self.approval: list[float] = []

    def figures(self) -> dict[str, float]:
        """Medians and 99th percentiles in ms."""
        found = {}
        for prefix, times in (("", self.saturated), ("alone_", self.alone), ("approval_", self.approval)):
            if times:
                found[f"{prefix}p50_ms"] = _percentile(times, 0.5) * 1e3
                found[f"{prefix}p99_ms"] = _percentile(times, 0.99) * 1e3
        return found


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def tell(*figures: dict[str, float]) -> None:
    """Print them, as the only line on standard output."""
    print(json.dumps({name: value for some in figures for name, value in some.items()}), flush=True)
