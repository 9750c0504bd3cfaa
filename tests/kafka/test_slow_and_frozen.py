"""Workers on Kafka that are frozen, slow or blocked: user code costs no ownership, and a zombie writes nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streams.dev import Kafka
from streams.kernel import commands as cmd
from streams.kernel.run import Phase
from tests.runtime.history import start, until
from tests.system.processes import Process, World, members, world

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def run(folder: Path, kafka: Kafka, scenario: Callable[[World], Awaitable[None]], *, url: str = "") -> None:
    async def inside() -> None:
        async with world(folder, kafka, url=url) as w:
            await scenario(w)

    asyncio.run(inside())


def steps(first: int, count: int) -> list[str]:
    return [f"steps{number}" for number in range(first, first + count)]


async def send(w: World, runs: list[str]) -> None:
    await w.history.send_all([(run_id, start("steps", 1)) for run_id in runs])


@pytest.mark.parametrize("point", ["outside a commit", "commit.fenced"])
def test_f24_a_frozen_worker_publishes_nothing_after_it_and_rejoins_by_itself(tmp_path: Path, kafka: Kafka, point: str):
    """Outside a commit with the default session of 6 s, in the middle of one with a short session."""
    anywhere = point == "outside a commit"

    async def scenario(w: World) -> None:
        frozen = await w.worker(stop_seconds=0.0, freeze_at="" if anywhere else f"{point}:12")
        await w.history.start("patient", "patient", 300.0)
        await send(w, steps(0, 20))
        await until(lambda: w.attempts("patient", "slow") == [1])
        if anywhere:
            frozen.signal(signal.SIGSTOP)
        await until(lambda: frozen.frozen, "a frozen process")
        other = await w.worker(stop_seconds=0.0)
        await other.owns(4)
        await w.history.ended(*steps(0, 20))
        said = len(frozen.said)
        frozen.signal(signal.SIGCONT)
        await until(lambda: len(frozen.owned) == 2, "its own half again")
        assert {line[1] for line in frozen.said[said:] if line[0] == "partition" and line[2] == "closed"} == {
            0,
            1,
            2,
            3,
        }
        await send(w, steps(20, 20))
        await w.history.ended(*steps(20, 20))
        assert await other.stop() == 0
        await frozen.owns(4)
        assert await frozen.stop() == 0
        checked = await w.check()
        assert {checked.runs[run_id].phase for run_id in steps(0, 40)} == {Phase.COMPLETED}
        assert len(checked.effects) == 80
        # The zombie's attempt was stopped when it woke: its run is somebody else's.
        assert w.attempts("patient", "slow")[:2] == [1, 2]
        assert w.attempts("patient", "slow was stopped")[0] == 1

    run(tmp_path, kafka, scenario, url=members(kafka, 6000) if anywhere else "")


def ending(worker: Process) -> list[list]:
    return [line for line in worker.heard("message") if "open transaction" in line[1]]


@pytest.mark.parametrize("point", ["commit.fenced", "commit.ended"])
def test_f02_the_next_owner_ends_what_a_dead_worker_left_open_and_says_so(tmp_path: Path, kafka: Kafka, point: str):
    """Without that the transaction would hang for ten seconds and more. One that was committed needs no such help."""

    async def scenario(w: World) -> None:
        runs = steps(0, 20)
        first = await w.worker(f"{point}:12")
        await send(w, runs)
        assert await first.gone() == -signal.SIGKILL
        second = await w.worker()
        await second.owns(4)
        assert ending(second) or point == "commit.ended"
        await w.history.ended(*runs)
        assert await second.stop() == 0
        checked = await w.check()
        assert {checked.runs[run_id].phase for run_id in runs} == {Phase.COMPLETED}

    run(tmp_path, kafka, scenario)


def test_f02_a_worker_that_is_only_slow_is_not_fenced(tmp_path: Path, kafka: Kafka):
    async def scenario(w: World) -> None:
        runs = steps(0, 40)
        slow = await w.worker(freeze_at="commit.fenced:12")
        await send(w, runs)
        await until(lambda: slow.frozen, "a frozen process")
        other = await w.worker()
        await asyncio.sleep(1.5)  # it has its share only when the slow one answers
        assert other.owned == set()
        slow.signal(signal.SIGCONT)
        await asyncio.gather(slow.owns(2), other.owns(2))
        await w.history.ended(*runs)
        for worker in (slow, other):
            assert not [line for line in worker.heard("redo") if "fenced" in line[1].lower()]
            assert await worker.stop() == 0
        checked = await w.check()
        assert {checked.runs[run_id].phase for run_id in runs} == {Phase.COMPLETED}

    run(tmp_path, kafka, scenario, url=members(kafka, 8000))


def lost(worker: Process, after: int = 0) -> list[list]:
    return [line for line in worker.said[after:] if line[0] == "partition" and line[2] == "closed"]


def test_f24_a_task_longer_than_the_poll_interval_costs_nothing(tmp_path: Path, kafka: Kafka):
    """In a thread, and on the loop as a well-behaved coroutine; other runs of the same partitions go on meanwhile."""

    async def scenario(w: World) -> None:
        worker = await w.worker()
        await worker.owns(4)
        long = [("blocking", start("blocking_thread", 9.0)), ("patient", start("patient", 9.0))]
        await w.history.send_all(long)
        await until(lambda: w.attempts("blocking", "block thread") and w.attempts("patient", "slow"))
        await send(w, steps(0, 20))
        await w.history.ended(*steps(0, 20))
        assert w.history.end("blocking") is None
        assert w.history.end("patient") is None
        assert await w.history.result("blocking") == "blocked a thread"
        assert await w.history.result("patient") == "slow"
        assert lost(worker) == []
        assert w.attempts("blocking", "block thread") == w.attempts("patient", "slow") == [1]
        assert await worker.stop() == 0
        await w.check()

    run(tmp_path, kafka, scenario, url=members(kafka, max_poll_interval_ms=4000))


def test_f24_blocking_code_longer_than_the_session_costs_no_ownership(tmp_path: Path, kafka: Kafka):
    """The client's own threads send the heartbeats, and they need neither the loop nor the interpreter."""

    async def scenario(w: World) -> None:
        first, second = await w.worker(), await w.worker()
        await asyncio.gather(first.owns(2), second.owns(2))
        handed_over = len(lost(first)) + len(lost(second))
        await w.history.send_all([("loop", start("blocking", 4.0)), ("interpreter", start("gil", 15_000_000))])
        await send(w, steps(0, 20))
        await w.history.ended(*steps(0, 20), "loop", "interpreter")
        assert len(lost(first)) + len(lost(second)) == handed_over
        assert w.attempts("loop", "block") == w.attempts("interpreter", "gil") == [1]
        for worker in (first, second):
            assert await worker.stop() == 0
        await w.check()

    run(tmp_path, kafka, scenario)


def test_f24_blocking_code_longer_than_the_poll_interval_is_evicted_and_rejoins(tmp_path: Path, kafka: Kafka):
    async def scenario(w: World) -> None:
        first, second = await w.worker(), await w.worker()
        await asyncio.gather(first.owns(2), second.owns(2))
        await w.history.start("blocking", "blocking", 7.0)
        await until(lambda: w.attempts("blocking", "block") == [1])
        await send(w, steps(0, 20))
        await w.history.ended(*steps(0, 20))
        # Who blocks loses what it has; the run goes on with the other one, which then blocks too, and so on.
        await until(lambda: len(w.attempts("blocking", "block")) > 1, "the attempt of the other worker")
        await w.history.send("blocking", cmd.Cancel(force=True))
        await w.history.ended("blocking")
        await asyncio.gather(first.owns(2), second.owns(2))
        await send(w, steps(20, 20))
        await w.history.ended(*steps(20, 20))
        for worker in (first, second):
            assert await worker.stop() == 0
        checked = await w.check()
        assert {checked.runs[run_id].phase for run_id in steps(0, 40)} == {Phase.COMPLETED}

    run(tmp_path, kafka, scenario, url=members(kafka, max_poll_interval_ms=3000))
