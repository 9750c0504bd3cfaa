"""What may have happened: workers that die around a task, and tasks that kill, hang or block their worker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streams.dev import Kafka
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import OpPhase, Phase
from tests.runtime.history import start
from tests.system.processes import Process, World, on_each_log, world

pytestmark = pytest.mark.slow


def run(folder: Path, scenario: Callable[[World], Awaitable[None]], kafka: Kafka | None = None) -> None:
    async def inside() -> None:
        async with world(folder, kafka) as w:
            await scenario(w)

    asyncio.run(inside())


async def crash_once(w: World, workflow: str, value: object, crash_at: str) -> Process:
    """Start a run, let the worker die at a point of its task, and give the run to another worker."""
    first = await w.worker(crash_at)
    await w.history.start(workflow, "run", value)
    assert await first.gone() == -signal.SIGKILL
    return await w.worker()


@on_each_log
def test_f26_an_outcome_that_a_look_up_finds_is_used(tmp_path: Path, broker: Kafka | None):
    async def scenario(w: World) -> None:
        second = await crash_once(w, "uncertain", "found", "task.returned/order")
        assert await w.history.result("run") == "made by attempt 1"
        assert w.attempts("run", "order") == [1]
        assert w.attempts("run", "find") == [2]
        await second.stop()
        await w.check()

    run(tmp_path, scenario, broker)


def test_f26_what_a_look_up_denies_is_done_again(tmp_path: Path):
    async def scenario(w: World) -> None:
        second = await crash_once(w, "uncertain", "not found", "task.returned/order")
        assert await w.history.result("run") == "returned by attempt 2"
        assert w.attempts("run", "order") == [1, 2]
        await second.stop()
        await w.check()

    run(tmp_path, scenario)


@on_each_log
def test_f26_what_no_look_up_can_tell_parks_for_a_person(tmp_path: Path, broker: Kafka | None):
    async def scenario(w: World) -> None:
        second = await crash_once(w, "uncertain", "unknown", "task.started/order")
        (parked,) = await w.history.seen("run", ev.OpParked)
        assert parked.reason.code == "OUTCOME_UNKNOWN"
        assert w.attempts("run", "order") == []  # it never began, and no guess was made
        await w.history.send("run", cmd.Complete(parked.op, b'"by hand"'))
        assert await w.history.result("run") == "by hand"
        await second.stop()
        await w.check()

    run(tmp_path, scenario, broker)


@pytest.mark.parametrize("point", ["task.started/once", "task.returned/once"])
def test_a_task_that_is_not_idempotent_parks_after_a_crash(tmp_path: Path, point: str):
    async def scenario(w: World) -> None:
        second = await crash_once(w, "only_once", None, point)
        (parked,) = await w.history.seen("run", ev.OpParked)
        assert parked.reason.code == "OUTCOME_UNKNOWN"
        assert len(w.attempts("run", "once")) == (1 if "returned" in point else 0)
        await w.history.send("run", cmd.Skip(parked.op))
        await w.history.ended("run")
        assert w.history.error("run").code == "SKIPPED"
        await second.stop()
        await w.check()

    run(tmp_path, scenario)


@pytest.mark.parametrize("park", [False, True])
def test_f12_a_task_that_kills_its_process_uses_up_its_retries(tmp_path: Path, park: bool):
    async def scenario(w: World) -> None:
        await w.history.send_all([("killer", start("killer", park)), ("innocent", start("steps", 1))])
        for _ in range(3):
            assert await (await w.worker()).gone() == 9
        last = await w.worker()
        if park:
            (parked,) = await w.history.seen("killer", ev.OpParked)
            assert parked.reason.code == "RETRIES_EXHAUSTED"
        else:
            await w.history.ended("killer")
            assert w.history.error("killer").code == "RETRIES_EXHAUSTED"
        await w.history.ended("innocent")
        assert w.attempts("killer", "deadly") == [1, 2, 3]
        assert await last.stop() == 0
        checked = await w.check()
        assert checked.runs["innocent"].phase is Phase.COMPLETED
        if park:
            assert [op.phase for op in checked.runs["killer"].ops.values()] == [OpPhase.PARKED]

    run(tmp_path, scenario)


@on_each_log
def test_f12_a_pure_task_that_kills_its_process_before_the_commit_uses_up_its_retries_too(
    tmp_path: Path, broker: Kafka | None
):
    """Whoever takes the partition over drives the run in the default mode, which counts."""

    async def scenario(w: World) -> None:
        first = await w.worker()
        await first.owns(4)
        await w.history.start("early_killer", "killer")
        assert await first.gone() == 9
        deaths = 1
        last = await w.worker()
        while not w.history.end("killer"):
            if last.process.returncode is not None:
                assert await last.gone() == 9
                deaths += 1
                assert deaths <= 4, "it dies again and again, and nobody counts"
                last = await w.worker()
            await asyncio.sleep(0.05)
            await w.history.read()
        assert w.history.error("killer").code == "RETRIES_EXHAUSTED"
        # The one before the commit was not counted, unless the commit came through in the same moment.
        assert w.attempts("killer", "deadly") in ([1, 1, 2, 3], [1, 2, 3])
        assert await last.stop() == 0
        await w.check()

    run(tmp_path, scenario, broker)


def test_f24_blocking_code_in_an_async_task_costs_no_ownership(tmp_path: Path):
    """Longer than the session; the heart beats in a thread of its own."""

    async def scenario(w: World) -> None:
        first, second = await w.worker(), await w.worker()
        await asyncio.gather(first.owns(2), second.owns(2))
        runs = [f"steps{n}" for n in range(20)]
        await w.history.send_all([("blocking", start("blocking", 2.5)), *((r, start("steps", 1)) for r in runs)])
        assert await w.history.result("blocking") == "blocked the loop"
        await w.history.ended(*runs)
        closed = [line for worker in (first, second) for line in worker.heard("partition") if line[2] == "closed"]
        handed_over = 2  # when the second worker came
        if len(closed) == handed_over:  # a machine under load may have missed heartbeats all the same
            assert w.attempts("blocking", "block") == [1]
        for worker in (first, second):
            assert await worker.stop() == 0
        await w.check()

    run(tmp_path, scenario)


def test_f24_a_call_that_holds_the_interpreter_lock_harms_no_run(tmp_path: Path):
    """It may cost the ownership, since no heartbeat gets through: then the next owner goes on."""

    async def scenario(w: World) -> None:
        first, second = await w.worker(), await w.worker()
        await asyncio.gather(first.owns(2), second.owns(2))
        runs = [f"steps{n}" for n in range(20)]
        await w.history.send_all([("gil", start("gil", 4_000_000)), *((r, start("steps", 1)) for r in runs)])
        await w.history.ended(*runs, "gil")
        for worker in (first, second):
            assert await worker.stop() == 0
        checked = await w.check()
        assert checked.runs["gil"].phase is Phase.COMPLETED

    run(tmp_path, scenario)
