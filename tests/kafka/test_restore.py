"""Taking over many runs: restores that are cut off or outlive the poll interval, and how soon runs move again."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from streams import App, Context
from streams.dev import Kafka
from streams.kernel.evolve import evolve
from streams.kernel.run import Phase, Run
from streams.log.port import NewRecord
from streams.wire.partitioner import partition_of
from streams.wire.records import encode_checkpoint
from tests.kafka.follower_lab import lab
from tests.runtime.history import resume, start, until
from tests.runtime.history import signal as news
from tests.runtime.lab import PARTITIONS
from tests.system.processes import Process, World, members, world

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RUNS = 100_000


async def waiting_run(w: World) -> Run:
    """The state of a run that waits for an answer."""
    worker = await w.worker()
    await w.history.start("asker", "model", 1)
    await w.history.until(lambda h: len(h.events.get("model", [])) >= 2, "the question")
    assert await worker.stop() == 0
    await w.history.read()
    events = [event for event in w.history.events["model"] if event.seq is not None]
    run = Run("model", events[0].identity)
    for event in events:
        run = evolve(run, event)
    return run


async def write_checkpoints(w: World, model: Run, count: int) -> None:
    topic, records = w.history.topics.checkpoints, []
    for number in range(count):
        run_id = f"asker{number}"
        key = run_id.encode()
        value = encode_checkpoint(model._replace(run_id=run_id, identity=f"{run_id}@0"))
        records.append(NewRecord(topic, partition_of(key, PARTITIONS), key, value))
    for at in range(0, count, 20_000):
        await w.log.append(records[at : at + 20_000])


def restored(worker: Process) -> dict[int, int]:
    """The partitions that are running, with their count of runs."""
    found: dict[int, int] = {}
    for _, number, state, _, detail in worker.heard("partition"):
        found.pop(number, None)
        if state == "running":
            found[number] = int(detail.partition(" ")[0])
    return found


def cut_off(worker: Process) -> set[int]:
    """The partitions that were given up while they were being restored."""
    last: dict[int, str] = {}
    found = set()
    for _, number, state, *_ in worker.heard("partition"):
        if state == "closed" and last.get(number) == "restoring":
            found.add(number)
        last[number] = state
    return found


def test_100_000_checkpoints_are_restored_once_although_a_worker_joins_meanwhile(tmp_path: Path, kafka: Kafka):
    async def scenario() -> None:
        async with world(tmp_path, kafka) as w:
            await write_checkpoints(w, await waiting_run(w), RUNS)
            began = time.monotonic()
            first = await w.worker()
            await until(lambda: first.heard("partition"), "the restore")
            second = await w.worker()
            await asyncio.gather(first.owns(2), second.owns(2))
            print(f"{RUNS} checkpoints on two workers after {time.monotonic() - began:.1f} s")  # noqa: T201
            assert cut_off(first), "the second worker came too late to cut off a restore"
            counts = restored(first) | restored(second)
            assert set(restored(first)) & set(restored(second)) == set()
            assert sum(counts.values()) == RUNS + 1
            sample = [f"asker{number}" for number in range(0, RUNS, RUNS // 100)]
            await w.history.send_all([(run_id, resume(10, "first")) for run_id in sample])
            await w.history.until(lambda h: all(len(h.events.get(run_id, [])) >= 4 for run_id in sample))
            for run_id in sample:
                seqs = [event.seq for event in w.history.events[run_id] if event.seq is not None]
                assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "two owners of one run"
            for worker in (first, second):
                assert await worker.stop() == 0

    asyncio.run(scenario())


def test_after_kill_9_every_run_of_the_dead_worker_moves_again(tmp_path: Path, kafka: Kafka):
    """With the default session of 6 s; how long it takes is printed, and no more than a hang fails."""
    runs = [f"listener{number}" for number in range(400)]

    async def scenario() -> None:
        async with world(tmp_path, kafka, url=members(kafka, 6000)) as w:
            dying, other = await w.worker(), await w.worker()
            await asyncio.gather(dying.owns(2), other.owns(2))
            await w.history.send_all([(run_id, start("listener", 2)) for run_id in runs])
            await w.history.send_all([(run_id, news("news", 1)) for run_id in runs])
            await w.history.until(lambda h: all(len(h.events.get(run_id, [])) >= 4 for run_id in runs))
            began = time.monotonic()
            dying.signal(signal.SIGKILL)
            await w.history.send_all([(run_id, news("news", 2)) for run_id in runs])
            await w.history.ended(*runs)
            print(f"{len(runs)} runs move again {time.monotonic() - began:.1f} s after kill -9")  # noqa: T201
            assert await other.stop() == 0
            checked = await w.check()
            assert {checked.runs[run_id].phase for run_id in runs} == {Phase.COMPLETED}

    asyncio.run(scenario())


class Slow:
    """A reader that waits before each read."""

    def __init__(self, reader: Any, seconds: float) -> None:
        self._reader, self._seconds = reader, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def read(self, records_max: int, timeout: float) -> Any:
        await asyncio.sleep(self._seconds)
        return await self._reader.read(records_max, timeout)


def test_f24_a_restore_longer_than_the_poll_interval_costs_no_ownership(kafka: Kafka, tmp_path: Path):
    """Polling goes on meanwhile, and so do the runs of partitions that are restored already."""
    app = App(f"slow-{tmp_path.name}-{time.monotonic_ns():x}")
    go = app.signal("go", int)

    @app.workflow(version=1)
    async def waiter(ctx: Context, number: int) -> int:
        return await ctx.receive(go)

    async def scenario() -> None:
        async with lab(app, members(kafka, max_poll_interval_ms=3000)) as found:
            history = found.history
            runs = [f"run{number}" for number in range(40)]
            slow = [run_id for run_id in runs if history.partition(run_id) == 0]
            fast = [run_id for run_id in runs if history.partition(run_id) != 0]
            first = await found.worker()
            await history.send_all([(run_id, start("waiter", 1)) for run_id in runs])
            await history.until(lambda h: all(len(h.events.get(run_id, [])) >= 2 for run_id in runs))
            await first.stop()

            second = await found.worker(owns=0)
            reader = second.log.reader
            second.log.reader = lambda places, *more: (
                Slow(reader(places, *more), 6.0)
                if any(place.topic == found.topics.events and place.partition == 0 for place in places)
                else reader(places, *more)
            )
            await second.owns(3)
            await history.send_all([(run_id, news("go", 7)) for run_id in runs])
            await history.ended(*fast)
            assert second.owned == {1, 2, 3}
            assert all(history.end(run_id) is None for run_id in slow)
            await second.owns(4)
            await history.ended(*slow)
            assert not second.told.heard("redo")
            closed = [what for what in second.told.heard("partition") if what[2] == "closed"]
            assert closed == [], "polling stood still, and the group took the worker for dead"
            await second.stop()
            await found.check()

    asyncio.run(scenario())
