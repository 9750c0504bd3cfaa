"""Back-pressure and fairness: what a flood of one run does to others, counted in places and turns, never in seconds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.clock import SystemClock
from streams.kernel import bodies as ev
from streams.kernel.commands import Cancel
from streams.kernel.inputs import Due
from streams.log.port import Record
from streams.runtime.fair import FairQueue
from streams.runtime.inbox import Inbox
from streams.runtime.inputs import Arrived, Happened
from streams.runtime.partition import Partition, PartitionState
from streams.runtime.timers import Timers
from tests.runtime.history import signal, start
from tests.runtime.lab import Lab, case, until

app = App("fair")
seen: list[tuple[str, int]] = []
gates: dict[str, asyncio.Event] = {}


@pytest.fixture(autouse=True)
def afresh() -> None:
    seen.clear()
    gates.clear()


@app.task(timeout=600)
async def gated(ctx: TaskContext, number: int) -> int:
    seen.append((ctx.run_id, number))
    await gates.setdefault(ctx.run_id, asyncio.Event()).wait()
    return number


@app.workflow(version=1)
async def wide(ctx: Context, count: int) -> int:
    return sum(await ctx.all([ctx.run(gated, number) for number in range(count)]))


add = app.signal("add", int)


@app.workflow(version=1)
async def listens(ctx: Context, count: int) -> int:
    total = 0
    for _ in range(count):
        total += await ctx.receive(add)
    return total


# ---- The queue ------------------------------------------------------------------------------------------------------


def test_each_run_has_its_turn():
    queue, partition = FairQueue(), Partition(0, 1)
    for number in range(10_000):
        queue.put(partition, "big", str(number))
    queue.put(partition, "small", "a")
    queue.put(partition, "other", "b")
    assert len(queue) == 10_002
    taken = [queue.take() for _ in range(5)]
    assert [(one.run_id, one.op) for one in taken if one] == [
        ("big", "0"), ("small", "a"), ("other", "b"), ("big", "1"), ("big", "2"),
    ]  # fmt: skip
    assert len(queue) == 9_997
    assert queue.take(lambda run: run[1] == "small") is None
    assert len(queue) == 9_997


def test_what_an_earlier_assignment_left_is_not_served_twice():
    queue, before, now = FairQueue(), Partition(0, 1), Partition(0, 2)
    queue.put(before, "r", "1")
    queue.put(before, "r", "2")
    queue.put(now, "r", "1")
    assert len(queue) == 1
    found = queue.take()
    assert found is not None
    assert (found.partition, found.op, queue.take(), len(queue)) == (now, "1", None, 0)
    queue.put(now, "r", "3")
    queue.put(Partition(1, 1), "s", "4")
    queue.drop({0})
    left = queue.take()
    assert left is not None
    assert (left.run_id, left.op, queue.take(), len(queue)) == ("s", "4", None, 0)


# ---- Slots ----------------------------------------------------------------------------------------------------------


@case(app, "memory")
async def test_ten_thousand_queued_tasks_hold_up_one_by_a_single_place(lab: Lab):
    await lab.worker(loop_slots=1)
    await lab.history.start("wide", "big", 1_000)
    await lab.history.seen("big", ev.OpScheduled, 1_000)
    await lab.history.start("wide", "small", 1)
    await lab.history.seen("small", ev.OpScheduled, 1)
    assert seen == [("big", 0)], "the only slot is taken"
    gates["big"].set()
    gates.setdefault("small", asyncio.Event()).set()
    assert await lab.history.result("small") == 0
    assert seen.index(("small", 0)) <= 3, "behind at most those that had a slot promised, and one of each run"


@case(app, "memory")
async def test_one_run_never_has_all_slots(lab: Lab):
    """Its tasks may take hours, and a slot in sixteen is for those that hold few."""
    running = await lab.worker(loop_slots=64)
    await lab.history.start("wide", "big", 200)
    await until(lambda: len(seen) == 60, "the slots that it may have")
    await lab.history.start("wide", "small", 2)
    await until(lambda: sum(run == "small" for run, _ in seen) == 2, "the other one's tasks")
    assert sum(run == "big" for run, _ in seen) == 60
    gates["small"].set()
    assert await lab.history.result("small") == 1
    gates["big"].set()
    assert await lab.history.result("big") == sum(range(200))
    await until(lambda: running.worker.dispatcher.slots()["loop"] == 60, "all slots to be free")
    assert running.worker.dispatcher.queued == 0
    assert not running.worker.dispatcher._promised_to


# ---- Commands -------------------------------------------------------------------------------------------------------


def polls(running: Any) -> list[tuple[int, int]]:
    """How many records each poll wanted and got from now on."""
    member, poll, found = running.worker.member, running.worker.member.poll, []

    async def counted(records_max: int, timeout: float) -> Any:
        batch = await poll(records_max, timeout)
        found.append((records_max, len(batch.records)))
        return batch

    member.poll = counted
    return found


@case(app, "memory")
async def test_while_tasks_pile_up_commands_come_slowly_and_a_cancel_still_comes(lab: Lab):
    running = await lab.worker(loop_slots=2, queued_max=5, backlog_inputs=3, backlog_seconds=0.01)
    await lab.history.start("wide", "big", 20)
    await until(lambda: running.worker.dispatcher.queued > 5, "a pile of tasks")
    found = polls(running)
    await until(lambda: found, "the poll before to be over")
    names = (f"r{number}" for number in range(1_000))
    beside = [name for name in names if lab.history.partition(name) == lab.history.partition("big")][:20]
    await lab.history.send_all([(name, start("wide", 1)) for name in beside])
    # Behind them all, and none of the tasks would ever end by itself.
    await lab.history.send("big", Cancel(force=True))
    await lab.history.ended("big")
    assert max(got for _, got in found) == 3, "no more than this at once"
    assert sum(got for _, got in found) == 21
    gates["big"].set()
    for name in beside:
        gates.setdefault(name, asyncio.Event()).set()
    for name in beside:
        assert await lab.history.result(name) == 0
    full = running.worker.engine.settings.turn_inputs_max
    await until(lambda: found[-1][0] == full, "full polls again")


@case(app, "memory")
async def test_a_flood_of_signals_to_one_run_lets_others_have_their_turns(lab: Lab):
    """What lies behind the flood in its partition waits for it: that is the order of the log. Nothing else does."""
    running = await lab.worker(turn_inputs_max=50, inbox_max=100)
    await lab.history.start("listens", "flooded", 1_000)
    await lab.history.start("wide", "beside", 3)
    await until(lambda: len(seen) == 3)
    await lab.history.send_all([("flooded", signal("add", 1)) for _ in range(1_000)])
    await until(lambda: len(running.worker.inbox) > 50, "a full inbox")
    before = len(running.told.heard("turn"))
    gates["beside"].set()
    assert await lab.history.result("beside") == 3
    assert len(running.told.heard("turn")) - before <= 20, "what may wait before it is bounded by the inbox"
    assert await lab.history.result("flooded") == 1_000


def test_the_bytes_of_what_waits_are_known():
    inbox, partition = Inbox(), Partition(0, 1)
    for state in (PartitionState.RESTORING, PartitionState.RUNNING):
        partition.move(state)
    commands = [Arrived(partition, Record("c", 0, n, 0, b"r", b"x" * n)) for n in (1, 20, 300)]
    inbox.put(commands)
    inbox.put([Happened(partition, "r", Due("1"))])
    assert (len(inbox), inbox.bytes) == (4, 321)
    taken = inbox.take(2, {0: 1})
    assert inbox.bytes == 300
    inbox.put_back(taken.items)
    assert inbox.bytes == 321
    assert len(inbox.take(9, {0: 1}, {(0, "r")}).items) == 0
    assert inbox.bytes == 321, "held, and still waiting"
    inbox.release()
    assert len(inbox.take(1, {}).dropped) == 1
    assert inbox.bytes == 320
    assert len(inbox.take_of({0})) == 3
    assert inbox.bytes == 0


@case(app, "memory")
async def test_large_commands_stop_the_poll_by_their_bytes(lab: Lab):
    running = await lab.worker(inbox_bytes_max=50_000)
    found = polls(running)
    await until(lambda: found)
    async with running.worker.turn_lock:
        await lab.history.send_all([("big", signal("add", "x" * 60_000))])
        await until(lambda: running.worker.inbox.bytes > 50_000)
        await lab.history.send_all([("big", signal("add", 1)), ("big", start("listens", 1))])
        await until(lambda: found[-1][0] == 0, "a poll that only answers the group")
        assert len(running.worker.inbox) == 1
    await lab.history.until(lambda h: h.bodies("big", ev.RunStarted), "the commands behind it")


# ---- Timers ---------------------------------------------------------------------------------------------------------


def test_timers_that_are_due_wait_where_they_are_while_there_is_no_room():
    fired: list[str] = []

    async def within() -> None:
        partition = Partition(0, 1)
        timers = Timers(SystemClock(), lambda _, run_id, __: fired.append(run_id), lambda: len(fired) < limit[0])
        for number in range(1_000):
            timers.add(0, partition, str(number), "1")
        await until(lambda: len(fired) >= 10)
        await asyncio.sleep(0.05)
        assert len(fired) == 10
        limit[0] = 10_000
        await until(lambda: len(fired) == 1_000)
        timers.close()

    limit = [10]
    asyncio.run(within())
    assert fired == [str(number) for number in range(1_000)]
