"""One point of a growth curve, in a process of its own: `python -m bench.growth_courses CURVE SIZE URL`.

Processor time is what is compared: it tells the same on a machine that does other things as well.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from bench import growth_app as jobs
from bench.child import run_here
from bench.jobs import waiting_state
from bench.measure import Meter, peak_mb, resident_mb
from bench.streams_target import Watch
from streams.cli.logs import open_log
from streams.client import Client
from streams.runtime.collector import calm_collector
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker

__all__ = ["COURSES", "Point"]

MEASURED_RUNS = 2_000
IN_FLIGHT = 200
IDLE_SECONDS = 2.0
SETTLED_SECONDS = 0.05
STEPS_MEASURED = 4_000
"""Steps or turns behind one figure of a long history: more of them in fewer runs."""
TOGETHER = 4
"""Runs at once, the same at each point: a turn of the worker costs less where it serves more runs."""


class Point(NamedTuple):
    """One measurement: the size along the axis, and where the log is."""

    size: int
    url: str


class Bench(NamedTuple):
    """A worker and a client in this process."""

    worker: Worker
    client: Client

    async def orders(self, prefix: str, runs: int, *, in_flight: int = IN_FLIGHT) -> None:
        """Three-step runs, so many at once."""
        await self.each(jobs.order, ((f"{prefix}-{number}", "o-1") for number in range(runs)), in_flight)

    async def each(self, workflow: Any, inputs: Iterable[tuple[str, Any]], in_flight: int) -> None:
        """Start these runs and wait for their ends, so many at once."""
        left = iter(inputs)

        async def one_after_another() -> None:
            for run_id, given in left:
                await self.client.start(workflow, given, run_id=run_id)
                await self.client.result(run_id)

        await asyncio.gather(*(one_after_another() for _ in range(in_flight)))


class _Watch(Watch):
    """A blocked run never ends, and neither would the measurement that waits for it."""

    def run_blocked(self, run_id: str, code: str, message: str) -> None:
        super().run_blocked(run_id, code, message)
        os._exit(1)


@asynccontextmanager
async def _running(point: Point, settings: WorkerSettings | None = None) -> AsyncIterator[Bench]:
    settings = settings or WorkerSettings()
    log = await open_log(point.url)
    calm_collector()
    watch = _Watch()
    worker, client = Worker(jobs.app, log, observer=watch, settings=settings), Client(log, jobs.app)
    working = asyncio.create_task(worker.run())
    while len(watch.running) < settings.partitions:
        if working.done():
            working.result()
        await asyncio.sleep(0.005)
    try:
        yield Bench(worker, client)
    finally:
        await client.close()
        worker.stop()
        await working
        await log.close()


async def _measured(bench: Bench) -> dict[str, float]:
    """What a three-step run costs now."""
    await bench.orders("warm", IN_FLIGHT)
    meter = Meter()
    await bench.orders("run", MEASURED_RUNS)
    return meter.per_run(MEASURED_RUNS)


async def past_runs(point: Point) -> dict[str, float]:
    """After so many runs that have ended, whose results are kept."""
    async with _running(point) as bench:
        before = _resident()
        await bench.orders("past", point.size, in_flight=1_000)
        kept = (_resident() - before) * 1e6 / point.size
        return {**await _measured(bench), "bytes_per_past_run": max(1.0, kept), "resident_mb": _resident()}


async def waiting_runs(point: Point) -> dict[str, float]:
    """Beside so many runs that wait for a person, with 500 bytes each."""
    async with _running(point) as bench:
        before, meter = _resident(), Meter()
        items = ((f"wait-{number}", waiting_state(f"wait-{number}")) for number in range(point.size))
        async for _ in bench.client.start_many(jobs.waiting, items):
            pass
        await _quiet(bench)
        filled = meter.per_run(point.size)
        kept = (_resident() - before) * 1e6 / point.size
        return {
            **await _measured(bench),
            "bytes_per_waiting_run": max(1.0, kept),
            "cpu_us_per_waiting_run": filled["cpu_us_per_run"],
            "resident_mb": _resident(),
        }


async def _quiet(bench: Bench) -> None:
    """Until runs that were started last have been through, and nothing is left to do."""
    await bench.orders("last", IN_FLIGHT)
    while bench.worker.busy:  # noqa: ASYNC110 - the worker tells nobody when it has nothing to do
        await asyncio.sleep(SETTLED_SECONDS)


async def partitions(point: Point) -> dict[str, float]:
    """With so many partitions, all with this worker."""
    began = time.perf_counter()
    async with _running(point, WorkerSettings(partitions=point.size)) as bench:
        started = time.perf_counter() - began
        found = await _measured(bench)
        idle = time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        idle = (time.process_time() - idle) / IDLE_SECONDS
        return {**found, "start_s": started, "idle_cpu_ms_per_s": max(0.01, idle * 1e3), "resident_mb": _resident()}


async def state_size(point: Point) -> dict[str, float]:
    """Graph runs of ten turns that carry so many bytes of state, of which a turn changes a number."""
    turns, runs = 10, max(10, min(200, 20_000_000 // (point.size * 10)))
    half = point.size // 2
    given = {"last": turns, "half": half, "text": "x" * half}
    async with _running(point) as bench:
        await bench.each(jobs.carry, ((f"warm-{number}", given) for number in range(5)), 5)
        meter = Meter()
        await bench.each(jobs.carry, ((f"run-{number}", given) for number in range(runs)), 5)
        found = meter.per_run(runs)
        return {
            "cpu_us_per_turn": found["cpu_us_per_run"] / turns,
            "turns_per_s": found["runs_per_s"] * turns,
            "peak_mb": peak_mb(),
        }


async def steps(point: Point) -> dict[str, float]:
    """Coroutines with so many steps, one after another."""
    return await _history(point, jobs.many_steps, point.size, "step")


async def turns(point: Point) -> dict[str, float]:
    """Graph runs of so many turns, each with a new page of 1 KB."""
    return await _history(point, jobs.page_loop, {"last": point.size}, "turn")


async def _history(point: Point, workflow: Any, given: Any, unit: str) -> dict[str, float]:
    runs = max(TOGETHER, STEPS_MEASURED // point.size)
    async with _running(point) as bench:
        await bench.orders("warm", 50, in_flight=8)
        meter = Meter()
        await bench.each(workflow, ((f"run-{number}", given) for number in range(runs)), TOGETHER)
        found = meter.per_run(runs * point.size)
        return {
            f"cpu_us_per_{unit}": found["cpu_us_per_run"],
            f"{unit}s_per_s": found["runs_per_s"],
            "peak_mb": peak_mb(),
        }


def _resident() -> float:
    gc.collect()
    return resident_mb()


COURSES: Mapping[str, Callable[[Point], Awaitable[dict[str, float]]]] = {
    "past-runs": past_runs,
    "waiting-runs": waiting_runs,
    "partitions": partitions,
    "state-size": state_size,
    "steps": steps,
    "turns": turns,
}


async def _point(curve: str, point: Point) -> dict[str, float]:
    return await COURSES[curve](point)


if __name__ == "__main__":
    name, size, url = sys.argv[1:]
    print(json.dumps(run_here(_point(name, Point(int(size), url)))))
