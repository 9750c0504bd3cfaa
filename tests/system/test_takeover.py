"""Workers that are frozen, stopped, joined and killed while runs are under way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streams.dev import Kafka
from streams.kernel import bodies as ev
from streams.kernel.run import Phase
from streams.log.sqlite.patience import lock_holder
from tests.runtime.history import start, until
from tests.system.processes import Process, World, on_each_log, world

pytestmark = pytest.mark.slow


def run(folder: Path, scenario: Callable[[World], Awaitable[None]], kafka: Kafka | None = None) -> None:
    async def inside() -> None:
        async with world(folder, kafka) as w:
            await scenario(w)

    asyncio.run(inside())


async def freeze(process: Process, w: World) -> None:
    """Freeze a worker outside a commit: inside one it would hold the lock of the file, and the others wait for it."""
    while True:
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)
        if lock_holder(f"{w.folder}/log.db") != process.pid:
            return
        process.signal(signal.SIGCONT)
        await asyncio.sleep(0.05)


def test_f24_a_frozen_worker_publishes_nothing_after_it_and_rejoins_by_itself(tmp_path: Path):
    async def scenario(w: World) -> None:
        frozen = await w.worker(stop_seconds=0.0)
        await frozen.owns(4)
        await w.history.send_all([(f"steps{n}", start("steps", n)) for n in range(20)])
        await w.history.start("patient", "patient", 300.0)
        await until(lambda: w.attempts("patient", "slow") == [1])
        await freeze(frozen, w)
        other = await w.worker(stop_seconds=0.0)
        await other.owns(4)
        await w.history.ended(*(f"steps{n}" for n in range(20)))
        said = len(frozen.said)
        frozen.signal(signal.SIGCONT)
        await until(lambda: len(frozen.owned) == 2, "its own half again")
        assert any(line[2] == "closed" for line in frozen.said[said:] if line[0] == "partition")
        assert await other.stop() == 0
        await frozen.owns(4)
        assert await frozen.stop() == 0
        checked = await w.check()
        assert all(checked.runs[f"steps{n}"].phase is Phase.COMPLETED for n in range(20))
        # The zombie's attempt was stopped when it woke: its run is somebody else's.
        assert w.attempts("patient", "slow")[:2] == [1, 2]
        assert w.attempts("patient", "slow was stopped")[0] == 1

    run(tmp_path, scenario)


@on_each_log
def test_f05_a_graceful_stop_lets_a_task_finish_within_its_bound(tmp_path: Path, broker: Kafka | None):
    async def scenario(w: World) -> None:
        first = await w.worker()
        await first.owns(4)
        await w.history.start("patient", "patient", 0.7)
        await until(lambda: w.attempts("patient", "slow") == [1])
        assert await first.stop() == 0
        await w.history.read()
        assert w.history.bodies("patient", ev.OpCompleted)
        assert w.attempts("patient", "slow is done") == [1]
        checked = await w.check()
        assert all(leases[-1].released for leases in checked.leases.values())

    run(tmp_path, scenario, broker)


@on_each_log
def test_f12_many_graceful_deploys_during_one_slow_task_use_up_no_attempt(tmp_path: Path, broker: Kafka | None):
    deploys = 3 if broker else 20

    async def scenario(w: World) -> None:
        worker = await w.worker(stop_seconds=0.0)
        await worker.owns(4)
        await w.history.start("patient", "patient", 30.0)
        for deploy in range(1, deploys + 1):
            await until(lambda deploy=deploy: len(w.attempts("patient", "slow")) == deploy, f"attempt {deploy}")
            following = await w.worker(stop_seconds=0.0)
            assert await worker.stop() == 0
            worker = following
        returned = await w.history.seen("patient", ev.AttemptReturned, deploys)
        assert [body.attempt for body in returned] == list(range(1, deploys + 1))
        assert w.history.bodies("patient", ev.AttemptFailed) == []
        await worker.owns(4)
        assert await worker.stop() == 0
        checked = await w.check()
        (op,) = checked.runs["patient"].ops.values()
        assert op.spent <= 1
        assert op.maybe

    run(tmp_path, scenario, broker)


@on_each_log
def test_after_a_graceful_stop_the_next_worker_starts_at_once(tmp_path: Path, broker: Kafka | None):
    async def scenario(w: World) -> None:
        first = await w.worker()
        await first.owns(4)
        second = await w.worker()
        await second.owns(2)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await first.stop() == 0
        await second.owns(4)
        # Far below what waiting for a silent owner takes; generous, because a machine may be slow.
        assert loop.time() - began < 10
        assert await second.stop() == 0

    run(tmp_path, scenario, broker)


@on_each_log
def test_f05_workers_that_join_and_leave_lose_and_double_nothing(tmp_path: Path, broker: Kafka | None):
    runs = [f"steps{n}" for n in range(300)]

    async def feed(w: World) -> None:
        for at in range(0, 300, 10):
            await w.history.send_all([(run_id, start("steps", 1)) for run_id in runs[at : at + 10]])
            await asyncio.sleep(0.05)

    async def scenario(w: World) -> None:
        a, b = await w.worker(), await w.worker()
        feeding = asyncio.create_task(feed(w))
        await asyncio.gather(a.owns(2), b.owns(2))
        c = await w.worker()
        await until(lambda: {len(x.owned) for x in (a, b, c)} == {1, 2}, "shares of three")
        assert await a.stop() == 0
        await asyncio.gather(b.owns(2), c.owns(2))
        b.signal(signal.SIGKILL)
        await c.owns(4)
        await feeding
        await w.history.ended(*runs)
        assert await c.stop() == 0
        checked = await w.check()
        assert all(checked.runs[run_id].phase is Phase.COMPLETED for run_id in runs)
        assert len(checked.effects) == 600

    run(tmp_path, scenario, broker)


POINTS = [
    "commit.before:4",
    "task.returned:3",
    "acquire.claimed:2",
    "commit.after:5",
    "turn.adopted:2",
    "task.started:4",
]


def test_a_chain_of_workers_that_all_die_brings_every_run_to_its_end(tmp_path: Path):
    runs = [f"sleeper{n}" for n in range(10)] + [f"fan{n}" for n in range(5)] + [f"steps{n}" for n in range(10)]

    async def scenario(w: World) -> None:
        values = {"sleeper": 0.1, "fan": 6, "steps": 3}
        await w.history.send_all([(r, start(r.rstrip("0123456789"), values[r.rstrip("0123456789")])) for r in runs])
        for point in POINTS:
            assert await (await w.worker(point)).gone() == -signal.SIGKILL
        last = await w.worker()
        await w.history.ended(*runs)
        assert await last.stop() == 0
        checked = await w.check()
        assert all(checked.runs[run_id].phase is Phase.COMPLETED for run_id in runs)
        assert len(checked.effects) == 10 + 5 + 20

    run(tmp_path, scenario)
