"""Runs beyond memory: they leave it, come back for input and for times, and a restart reads only what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streams import App, Context
from streams.clock import SystemClock
from streams.kernel import bodies as ev
from streams.store import Change, Mark, Store
from streams.store.memory import MemoryStore
from streams.store.rocks import open_rocks
from tests.runtime.history import signal, until
from tests.runtime.lab import PARTITIONS, Lab, Running, case

app = App("paging")
go = app.signal("go", str)
HOUR = 3_600_000_000
RUNS = [f"r{n}" for n in range(24)]


class Clock(SystemClock):
    def __init__(self, ahead: int) -> None:
        self.ahead = ahead

    def now_us(self) -> int:
        return super().now_us() + self.ahead


@app.workflow(version=1)
async def waits(ctx: Context, name: str) -> str:
    first = await ctx.receive(go)
    return f"{name}{first}{await ctx.receive(go)}"


@app.workflow(version=1)
async def sleeps(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    told: list[str] = []
    made: Store = MemoryStore() if request.param == "memory" else open_rocks(tmp_path / "state", "paging", told.append)
    yield made
    made.close()
    assert told == []


def in_memory(running: Running) -> int:
    return sum(len(partition.runs) for partition in running.worker.owner.partitions.values())


async def begin(lab: Lab, store: Store, workflow: str = "waits", argument: Any = "x", **settings: Any) -> Running:
    """All runs wait, and hardly any is in memory."""
    running = await lab.worker(store=store, **({"hot_runs_max": 2} | settings))
    for run_id in RUNS:
        await lab.history.start(workflow, run_id, argument)
    await lab.history.until(lambda h: all(h.bodies(run_id, ev.OpScheduled) for run_id in RUNS))
    await lab.history.start("sleeps", "last", 0.0)  # its turns let the others leave
    await lab.history.ended("last")
    await until(lambda: in_memory(running) <= 4, "the runs to leave memory")
    return running


async def answer(lab: Lab, text: str) -> None:
    for run_id in RUNS:
        await lab.history.send(run_id, signal("go", text))


@case(app)
async def test_runs_beyond_memory_take_their_input_as_if_they_had_never_left(lab: Lab, store: Store):
    running = await begin(lab, store)
    await answer(lab, "a")
    await lab.history.until(lambda h: all(h.bodies(run_id, ev.SignalTaken) for run_id in RUNS))
    await answer(lab, "b")
    await lab.history.ended(*RUNS)
    assert {lab.history.bodies(run_id, ev.RunCompleted)[0].result for run_id in RUNS} == {b'"xab"'}
    assert running.worker.pager is not None
    assert running.worker.pager.paged > len(RUNS) // 2


@case(app)
async def test_a_restart_with_the_store_goes_on_and_reads_what_it_lacks(lab: Lab, store: Store):
    running = await begin(lab, store)
    await running.kill()
    again = await lab.worker(store=store, hot_runs_max=2)
    assert in_memory(again) < len(RUNS), "all runs were loaded"
    await answer(lab, "a")
    await lab.history.until(lambda h: all(h.bodies(run_id, ev.SignalTaken) for run_id in RUNS))
    await again.stop()
    other = await lab.worker()  # without a store, and so the mirror falls behind
    await answer(lab, "b")
    await lab.history.ended(*RUNS[:12])
    await other.stop()
    await lab.worker(store=store, hot_runs_max=2)
    await lab.history.ended(*RUNS)


@case(app)
async def test_a_store_that_is_empty_or_of_another_log_costs_a_restore(lab: Lab, store: Store):
    running = await begin(lab, store)
    await running.kill()
    for number in range(PARTITIONS):
        mirror = store.partition(number)
        found = mirror.mark()
        assert found is not None
        # A run that was never there, with a mark that is of no use.
        marks = [Mark("others", 1, found.at), found._replace(offset=10**6), found._replace(at=1)]
        mirror.write([Change(b"ghost", b"?", 0, 0)], marks[number] if number < len(marks) else found)
        if number >= len(marks):
            mirror.wipe()
    again = await lab.worker(store=store, hot_runs_max=2)
    assert len([what for what in again.told.heard("message") if "thrown away" in what[1]]) == 3
    assert all(store.partition(number).get(b"ghost") is None for number in range(PARTITIONS))
    await answer(lab, "a")
    await answer(lab, "b")
    await lab.history.ended(*RUNS)


@case(app)
async def test_times_of_runs_beyond_memory_come(lab: Lab, store: Store):
    running = await begin(lab, store, "sleeps", 15.0)
    assert in_memory(running) <= 4
    await lab.history.ended(*RUNS)
    assert {len(lab.history.bodies(run_id, ev.TimerFired)) for run_id in RUNS} == {1}


@case(app)
async def test_times_that_came_while_nobody_was_there_come_at_once(lab: Lab, store: Store):
    running = await begin(lab, store, "sleeps", 600.0)
    await running.kill()
    await lab.worker(store=store, hot_runs_max=2, clock=Clock(HOUR))
    await lab.history.ended(*RUNS)
    assert {len(lab.history.bodies(run_id, ev.TimerFired)) for run_id in RUNS} == {1}


@case(app)
async def test_runs_beyond_memory_expire_and_do_not_come_back(lab: Lab, store: Store):
    running = await begin(
        lab, store, sweep_seconds=0.2, result_kept_seconds=0.5, stub_kept_seconds=0.0, checkpoint_age_seconds=0.1
    )
    await answer(lab, "a")
    await answer(lab, "b")
    await lab.history.ended(*RUNS)
    running.worker.engine.stub_seconds = 0.0  # the topic of this log would keep them for longer
    await lab.history.until(lambda h: all(h.bodies(run_id, ev.RunExpired) for run_id in RUNS))
    await running.kill()
    await lab.worker(store=store, hot_runs_max=2)
    assert all(store.partition(number).keys(99) == [] for number in range(PARTITIONS))
    await lab.history.start("waits", RUNS[0], "y")
    await lab.history.send(RUNS[0], signal("go", "c"))
    await lab.history.send(RUNS[0], signal("go", "d"))
    await lab.history.until(lambda h: any(b.result == b'"ycd"' for b in h.bodies(RUNS[0], ev.RunCompleted)))


@case(app)
async def test_a_checkpoint_that_cannot_be_read_is_found_when_its_run_is_asked_for(lab: Lab, store: Store):
    running = await begin(lab, store)
    partition = running.worker.owner.partitions[lab.history.partition(RUNS[0])]
    cold = next(run_id for run_id in RUNS if run_id not in partition.runs and store_of(lab, store, run_id) is not None)
    number = lab.history.partition(cold)
    mirror = store.partition(number)
    value, mark = mirror.get(cold.encode()), mirror.mark()
    assert value is not None
    assert mark is not None
    mirror.write([Change(cold.encode(), value[:60])], mark)
    await lab.history.send(cold, signal("go", "a"))
    await until(lambda: bool(running.told.heard("run_blocked", cold)), "the damage")
    assert "local store" in running.told.heard("run_blocked", cold)[0][3]
    lab.unchecked = True
    await asyncio.sleep(0)


def store_of(lab: Lab, store: Store, run_id: str) -> bytes | None:
    return store.partition(lab.history.partition(run_id)).get(run_id.encode())
