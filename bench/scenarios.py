"""The scenarios: what is done to a target, and what is measured at it. Each begins and ends by itself."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bench.effects_courses import effects_calls, effects_many, effects_rows
from bench.floor import floor
from bench.jobs import FAN, STEPS, Job, turn_times
from bench.kafka_courses import fed, restore_checkpoints, take_over
from bench.kafka_floor import kafka_floor
from bench.measure import Meter, percentile, resident_mb
from bench.peer import measure_peer
from bench.postgres_floor import postgres_floor
from bench.process_courses import restart, scaled
from bench.rebuild_courses import rebuild_log
from bench.simulated import simulated
from bench.target import TARGETS, Target, url_of
from bench.verify_courses import verify_log

__all__ = ["COURSES", "Task", "run_course", "saturate"]

Metrics = dict[str, float]
WARM_UP = 200
SLOW_EVERY = 100


class Task(NamedTuple):
    """One measurement. `runs` is its size: runs, or commits of the floor, or turns of the loop."""

    course: str
    target: str
    folder: Path
    runs: int
    in_flight: int = 1
    processes: int = 1


async def run_course(task: Task) -> Metrics:
    """Measure once, in this process."""
    return await COURSES[task.course](task)


@asynccontextmanager
async def _running(task: Task) -> AsyncIterator[Target]:
    target = TARGETS[task.target]()
    await target.start(task.folder)
    try:
        yield target
    finally:
        await target.stop()


async def _floor(task: Task) -> Metrics:
    return floor(task.folder, task.runs)


async def _saturated(task: Task) -> Metrics:
    async with _running(task) as target:
        await saturate(target, "warm", min(WARM_UP, task.runs), task.in_flight)
        meter = Meter()
        times = await saturate(target, "run", task.runs, task.in_flight)
        return {**meter.per_run(task.runs), **_spread(times), **target.facts()}


async def _fill(task: Task) -> Metrics:
    """Runs to be looked at by the next course; the process that has run them is not measured."""
    async with _running(task) as target:
        await saturate(target, "fill", task.runs, task.in_flight)
    return {}


async def saturate(
    target: Target,
    prefix: str,
    runs: int,
    in_flight: int,
    also: Callable[[int], None] | None = None,
    job: Job = Job.ORDER,
) -> list[float]:
    """Keep `in_flight` runs under way until `runs` are done; the seconds of each from its start to its result.

    `also` is called with the number of each that begins.
    """

    def ids() -> Iterator[str]:
        for number in range(runs):
            if also is not None:
                also(number)
            yield f"{prefix}-{number}"

    times: list[float] = []
    shared = ids()
    await asyncio.gather(*(_one_after_another(target, job, shared, times) for _ in range(in_flight)))
    return times


async def _one_after_another(target: Target, job: Job, ids: Iterator[str], times: list[float]) -> None:
    for run_id in ids:
        began = time.perf_counter()
        await target.submit(job, run_id)
        result = await target.result(run_id)
        times.append(time.perf_counter() - began)
        if len(result) != STEPS or result["ship"]["order_id"] != run_id:
            raise AssertionError(f"the result of {run_id} is another one's: {result}")


async def _alone(task: Task, job: Job = Job.ORDER) -> Metrics:
    async with _running(task) as target:
        await saturate(target, "warm", min(WARM_UP, task.runs), 10, job=job)
        meter = Meter()
        times = await saturate(target, "run", task.runs, 1, job=job)
        return {**_spread(times), "cpu_us_per_run": meter.per_run(task.runs)["cpu_us_per_run"]}


async def _approval(task: Task) -> Metrics:
    async with _running(task) as target:
        ids = [f"ask-{number}" for number in range(task.runs)]
        for run_id in ids:
            await target.submit(Job.APPROVAL, run_id)
        await target.settled(len(ids))
        times = []
        for run_id in ids:
            began = time.perf_counter()
            await target.answer(run_id)
            await target.result(run_id)
            times.append(time.perf_counter() - began)
        return _spread(times)


async def _waiting(task: Task) -> Metrics:
    """100,000 runs that wait, in the worker that has taken their starts."""
    async with _running(task) as target:
        before = resident_mb()
        meter = Meter()
        await target.submit_many(Job.WAITING, (f"wait-{number}" for number in range(task.runs)))
        await target.settled(task.runs)
        return {**meter.per_run(task.runs), **_at_rest("filled", before, task.runs)}


async def _restore(task: Task) -> Metrics:
    """A fresh worker on what `waiting` has left in the folder."""
    before = resident_mb()
    began = time.perf_counter()
    async with _running(task) as target:
        seconds = time.perf_counter() - began
        await asyncio.wait_for(target.settled(task.runs), 10)
        return {"restore_s": seconds, "restored_per_s": task.runs / seconds, **_at_rest("restored", before, task.runs)}


def _at_rest(name: str, before: float, runs: int) -> Metrics:
    gc.collect()
    now = resident_mb()
    return {f"{name}_mb": now, f"{name}_delta_mb": now - before, f"{name}_bytes_per_run": (now - before) * 1e6 / runs}


async def _fan_out(task: Task) -> Metrics:
    async with _running(task) as target:
        await _in_turn(target, Job.FAN_OUT, "warm", 3)
        times = await _in_turn(target, Job.FAN_OUT, "run", task.runs)
        return {**_spread(times), "tasks_per_s": FAN * len(times) / sum(times)}


async def _loop(task: Task) -> Metrics:
    async with _running(task) as target:
        await _turns(target, "warm", min(20, task.runs))
        turn_times.clear()
        seconds = await _turns(target, "run", task.runs)
        gaps = [after - before for before, after in pairwise(turn_times)]
        tenth = max(1, len(gaps) // 10)
        return {
            "turns_per_s": task.runs / seconds,
            "first_tenth_p50_ms": percentile(gaps[:tenth], 0.5) * 1e3,
            "last_tenth_p50_ms": percentile(gaps[-tenth:], 0.5) * 1e3,
        }


async def _turns(target: Target, prefix: str, turns: int) -> float:
    """The seconds that a loop of so many turns takes, where each ends with a question that is answered at once."""
    run_id = f"loop-{prefix}"
    began = time.perf_counter()
    answering = asyncio.create_task(target.answer_each(run_id, turns))
    await target.submit(Job.LOOP, run_id, turns)
    await target.result(run_id)
    await answering
    return time.perf_counter() - began


async def _in_turn(target: Target, job: Job, prefix: str, runs: int) -> list[float]:
    times = []
    for number in range(runs):
        began = time.perf_counter()
        await target.submit(job, f"{job}-{prefix}-{number}")
        await target.result(f"{job}-{prefix}-{number}")
        times.append(time.perf_counter() - began)
    return times


async def _mixed(task: Task) -> Metrics:
    """The same load without and with one slow run in a hundred beside it; twice each, so that drift meets both."""
    async with _running(task) as target:
        await saturate(target, "warm", min(WARM_UP, task.runs), task.in_flight)
        times: dict[str, list[float]] = {"plain": [], "fast": []}
        seconds = dict.fromkeys(times, 0.0)
        for half in range(2):
            for kind in times:
                began = time.perf_counter()
                slow = _Slow(target, half) if kind == "fast" else None
                times[kind] += await saturate(target, f"{kind}-{half}", task.runs // 2, task.in_flight, slow)
                seconds[kind] += time.perf_counter() - began
                await asyncio.gather(*(slow.running if slow else ()))
    rates = {kind: len(some) / seconds[kind] for kind, some in times.items()}
    spreads = {f"{kind}_{name}": value for kind, some in times.items() for name, value in _spread(some).items()}
    return {
        **{f"{kind}_runs_per_s": rate for kind, rate in rates.items()},
        **spreads,
        "fast_to_plain_rate": rates["fast"] / rates["plain"],
        "fast_to_plain_p99": spreads["fast_p99_ms"] / spreads["plain_p99_ms"],
    }


class _Slow:
    """Begins a slow run with each hundredth of the others."""

    def __init__(self, target: Target, half: int) -> None:
        self._target = target
        self._half = half
        self.running: list[asyncio.Task[None]] = []

    def __call__(self, number: int) -> None:
        if number % SLOW_EVERY == 0:
            self.running.append(asyncio.create_task(self._run(f"slow-{self._half}-{number}")))

    async def _run(self, run_id: str) -> None:
        await self._target.submit(Job.SLOW, run_id)
        await self._target.result(run_id)


async def _rows(task: Task, ledger: str) -> Metrics:
    return await effects_rows(url_of(task.target, task.folder), task.folder, task.runs, ledger)


async def _many(task: Task, ledger: str) -> Metrics:
    return await effects_many(url_of(task.target, task.folder), task.folder, task.runs, ledger)


async def _calls(task: Task, ledger: str) -> Metrics:
    return await effects_calls(url_of(task.target, task.folder), task.folder, task.runs, task.in_flight, ledger)


def _spread(times: list[float]) -> Metrics:
    return {"p50_ms": percentile(times, 0.5) * 1e3, "p99_ms": percentile(times, 0.99) * 1e3}


COURSES: Mapping[str, Callable[[Task], Awaitable[Metrics]]] = {
    "floor": _floor,
    "saturated": _saturated,
    "alone": _alone,
    "alone-pure": lambda task: _alone(task, Job.PURE),
    "approval": _approval,
    "fan-out": _fan_out,
    "fill": _fill,
    "verify": lambda task: verify_log(url_of(task.target, task.folder)),
    "rebuild": lambda task: rebuild_log(url_of(task.target, task.folder)),
    "loop": _loop,
    "mixed": _mixed,
    "waiting": _waiting,
    "restore": _restore,
    "kafka-floor": lambda task: kafka_floor(task.runs),
    "fed": lambda task: fed(task.folder, task.runs, task.in_flight),
    "scaled": lambda task: scaled(task.runs, task.in_flight, task.processes),
    "restart": lambda task: restart(task.runs),
    "restore-checkpoints": lambda task: restore_checkpoints(task.runs),
    "take-over": lambda task: take_over(task.runs),
    "effects-rows": lambda task: _rows(task, "sqlite"),
    "effects-rows-postgres": lambda task: _rows(task, "postgresql"),
    "effects-many": lambda task: _many(task, "sqlite"),
    "effects-many-postgres": lambda task: _many(task, "postgresql"),
    "effects-calls": lambda task: _calls(task, "sqlite"),
    "effects-calls-postgres": lambda task: _calls(task, "postgresql"),
    "postgres-floor": lambda task: postgres_floor(task.runs),
    "peer": lambda task: asyncio.to_thread(measure_peer, task.target, task.folder, task.runs, task.in_flight),
    "simulated": lambda task: simulated(task.runs),
}
