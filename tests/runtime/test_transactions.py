"""Commits that fail, or of which nobody knows: every command is applied once, every effect is published once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from streams import App, Context, Retry, TaskContext
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import Phase
from streams.log.port import NewRecord
from tests.runtime.checker import Checked
from tests.runtime.faults import KINDS, Faults, chance, nth
from tests.runtime.history import resume, signal, start
from tests.runtime.lab import PARTITIONS, Lab, case

app = App("commits")
parcels = app.effect("parcels", str)
news = app.signal("news", int)
seen: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


@app.task(retry=Retry(max_attempts=20, initial=0.01, max_delay=0.02))
async def work(ctx: TaskContext, number: int) -> int:
    seen.append((ctx.idempotency_key, ctx.attempt))
    await asyncio.sleep(0.002)
    return number + 1


@app.workflow(version=1)
async def busy(ctx: Context, number: int) -> int:
    for _ in range(3):
        number = await ctx.run(work, number)
        ctx.emit(parcels, f"{ctx.run_id}/{number}")
    heard = await ctx.receive(news)
    await ctx.sleep(0.01)
    a, b = await ctx.all(ctx.run(work, number), ctx.run(work, heard))
    return a + b


RUNS = [f"r{n}" for n in range(30)]


async def all_well(lab: Lab) -> Checked:
    """Bring all runs to their end and prove the log right."""
    for n, run_id in enumerate(RUNS):
        await lab.history.send_all([(run_id, start("busy", n)), (run_id, signal("news", n))])
    for n, run_id in enumerate(RUNS):
        assert await lab.history.result(run_id) == (n + 4) + (n + 1)
    for running in lab.running:
        if not running.task.done():
            await running.stop()
    checked = await lab.check()
    assert len(checked.effects) == 3 * len(RUNS)
    for key, attempt in seen:
        run_id, op = key.split("@")[0], key.rpartition("/")[2]
        assert (op, attempt) in checked.starts(run_id)
    return checked


@case(app)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [(6,), (6, 7, 8), (1, 2, 9)], ids=["once", "thrice", "while acquiring"])
async def test_f04_a_commit_that_fails_or_is_in_doubt_applies_everything_once(
    lab: Lab, kind: str, numbers: tuple[int, ...]
):
    faults = Faults(nth(kind, *numbers))
    await lab.worker(faults=faults)
    await all_well(lab)
    assert len(faults.struck) == len(numbers)


@case(app)
@pytest.mark.parametrize("seed", range(4))
async def test_f04_any_faults_in_any_order(lab: Lab, seed: int):
    faults = Faults(chance(seed, 0.3, 60))
    await lab.worker(faults=faults)
    await all_well(lab)
    assert faults.struck


@case(app)
@pytest.mark.parametrize("seed", range(2))
async def test_f04_two_workers_with_faults_share_the_partitions(lab: Lab, seed: int):
    faults = Faults(chance(seed, 0.2, 60))
    first = await lab.worker(faults=faults)
    second = await lab.worker(faults=faults, owns=0)
    running = asyncio.create_task(all_well_while(lab, first, second))
    await running


async def all_well_while(lab: Lab, first: Any, second: Any) -> None:
    async def come_and_go() -> None:
        await second.owns(2)
        await first.stop()
        await second.owns(4)

    await asyncio.gather(come_and_go(), all_well_later(lab))


async def all_well_later(lab: Lab) -> None:
    for n, run_id in enumerate(RUNS):
        await lab.history.send_all([(run_id, start("busy", n)), (run_id, signal("news", n))])
        await asyncio.sleep(0.005)
    for n, run_id in enumerate(RUNS):
        assert await lab.history.result(run_id) == (n + 4) + (n + 1)


@case(app)
@pytest.mark.parametrize("kind", [*KINDS[:3], "fenced"])
async def test_a_release_that_is_not_committed_loses_nothing(lab: Lab, kind: str):
    struck: list[bool] = []

    def plan(number: int, records: Sequence[NewRecord]) -> str | None:
        if stopping and not struck:
            struck.append(True)
            return kind
        return None

    stopping: list[bool] = []
    running = await lab.worker(faults=Faults(plan), stop_seconds=0.0)
    await lab.history.send_all([(run_id, start("busy", n)) for n, run_id in enumerate(RUNS)])
    await lab.history.seen("r0", ev.OpCompleted)
    stopping.append(True)
    await running.stop()
    assert struck
    await lab.worker()
    await lab.history.send_all([(run_id, signal("news", n)) for n, run_id in enumerate(RUNS)])
    for n, run_id in enumerate(RUNS):
        assert await lab.history.result(run_id) == (n + 4) + (n + 1)


# -- records that are refused ----------------------------------------------------------------------------------------


def refusing(run_id: str, *, blamed: bool) -> Faults:
    """Refuse whatever this run publishes as an effect."""

    def plan(number: int, records: Sequence[NewRecord]) -> int | None:
        for index, record in enumerate(records):
            if record.topic.endswith(".effects.parcels") and record.key == run_id.encode():
                return index if blamed else -1
        return None

    return Faults(plan)


@case(app)
@pytest.mark.parametrize("blamed", [True, False])
async def test_f03_a_record_that_is_refused_blocks_its_run_and_no_other(lab: Lab, blamed: bool):
    faults = refusing("r7", blamed=blamed)
    running = await lab.worker(faults=faults)
    await lab.history.send_all(
        [(run_id, start("busy", n)) for n, run_id in enumerate(RUNS)]
        + [(run_id, signal("news", n)) for n, run_id in enumerate(RUNS)]
    )
    (blocked,) = await lab.history.seen("r7", ev.RunBlocked)
    assert blocked.error.code == "VALUE_TOO_LARGE"
    others = [run_id for run_id in RUNS if run_id != "r7"]
    await lab.history.ended(*others)
    assert lab.history.end("r7") is None
    assert all(lab.history.bodies(run_id, ev.RunBlocked) == [] for run_id in others)
    checked = await lab.check()
    assert {message.run_id for message in checked.effects} == set(others)
    # After the cause is gone an operator lets it go on.
    faults.plan = lambda *_: None
    await lab.history.send("r7", cmd.Retry())
    assert await lab.history.result("r7") == (7 + 4) + (7 + 1)
    assert len(faults.struck) < 40
    await running.stop()


@case(app)
async def test_f03_a_run_that_cannot_even_be_blocked_stops_the_worker_and_loses_nothing(lab: Lab):
    """Not with this log's limits; but if it were so, going on would lose a command."""

    def plan(number: int, records: Sequence[NewRecord]) -> int | None:
        return next((i for i, r in enumerate(records) if r.key == b"r7"), None)

    faults = Faults(plan)
    running = await lab.worker(faults=faults)
    await lab.history.start("busy", "r7", 7)
    with pytest.raises(Exception, match="refused"):
        await running.task
    running.killed = True
    await lab.worker()
    await lab.history.send("r7", signal("news", 7))
    assert await lab.history.result("r7") == (7 + 4) + (7 + 1)


# -- redo ------------------------------------------------------------------------------------------------------------


@case(app, "memory")
async def test_a_redo_decides_again_from_committed_state_and_keeps_the_order(lab: Lab):
    faults = Faults(nth("aborted", *range(PARTITIONS + 1, PARTITIONS + 4)))
    await lab.worker(faults=faults)
    await lab.history.send_all(
        [("r", signal("news", 5)), ("r", start("busy", 1)), ("r", signal("news", 6)), ("r", start("busy", 2))]
    )
    assert await lab.history.result("r") == (1 + 4) + (5 + 1)
    kinds = [type(event.body) for event in lab.history.events["r"]]
    assert kinds[:2] == [ev.SignalReceived, ev.RunStarted]
    (rejected,) = lab.history.bodies("r", ev.CommandRejected)
    assert rejected.code == "INPUT_CONFLICT"
    assert (await lab.check()).runs["r"].phase is Phase.COMPLETED


@app.workflow(version=1)
async def waiting(ctx: Context, number: int) -> str:
    return await ctx.interrupt("?", answer=str)


@case(app)
async def test_skipped_commands_are_counted_once_although_the_turn_is_redone(lab: Lab):
    running = await lab.worker()
    await lab.history.send_all([(f"w{n}", start("waiting", n)) for n in range(10)])
    await lab.history.until(lambda h: all(h.bodies(f"w{n}", ev.OpScheduled) for n in range(10)))
    await running.stop()
    await lab.log.rewind_group(lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), 0))
    await lab.history.send_all([(f"w{n}", resume("x")) for n in range(10)])
    running = await lab.worker(faults=Faults(nth("aborted", *range(PARTITIONS + 1, PARTITIONS + 9))))
    await lab.history.ended(*(f"w{n}" for n in range(10)))
    await running.stop()  # what is told comes after what is committed
    assert sum(told[2] for told in running.told.heard("skipped")) == 10
