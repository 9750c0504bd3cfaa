"""Repair of a damaged run: a correcting event mends it, what waited comes back in order and once, and history stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.client import Client
from streams.kernel import bodies as ev
from streams.kernel.run import REPAIRED
from streams.log.port import TopicPartition
from streams.ops.repair import RepairPlan, plan_repair
from streams.wire.headers import SENT_BACK
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal, until
from tests.runtime.lab import Lab, Running, case
from tests.runtime.test_bad_records import DAMAGES, damage, of_partition

app = App("mend")
news = app.signal("news", int)
letters = app.effect("letters", str)
done: list[str] = []


@app.task
async def add(ctx: TaskContext, number: int) -> int:
    done.append(f"add {ctx.run_id}")
    return number + 1


@app.task(idempotent=False)
async def pay(ctx: TaskContext, number: int) -> int:
    done.append(f"pay {ctx.run_id} {ctx.attempt}")
    if number < 0:
        await asyncio.sleep(3600)
    return number


@app.workflow(version=1)
async def asking(ctx: Context, number: int) -> list[Any]:
    number = await ctx.run(add, number)
    answer = await ctx.interrupt(f"{number}?", answer=str)
    got = [await ctx.receive(news) for _ in range(2)]
    return [answer, *got]


@app.workflow(version=1)
async def paying(ctx: Context, number: int) -> int:
    return await ctx.run(pay, number)


@app.workflow(version=1)
async def sending(ctx: Context, number: int) -> str:
    await ctx.interrupt("first?", answer=str)
    ctx.emit(letters, f"letter {number}", idempotency_key=f"letter/{ctx.run_id}")
    return await ctx.interrupt("second?", answer=str)


@asynccontextmanager
async def client_of(lab: Lab) -> AsyncIterator[Client]:
    client = Client(lab.log, lab.app)
    try:
        yield client
    finally:
        await client.close()


async def mend(lab: Lab, run_id: str, *, parked: bool = False, **how: Any) -> RepairPlan:
    """Plan a repair and have it done."""
    async with client_of(lab) as client:
        plan = await plan_repair(client, run_id, **how)
        sent = await client.repair(run_id, plan.request("a test", parked=parked), operator="ada")
        assert await client.accepted(sent, timeout=60)
    return plan


async def waiting_run(lab: Lab, workflow: str = "asking", number: int = 1) -> str:
    """A run that waits at its first question, and a worker that has stopped."""
    (bad,) = of_partition(1, 1)
    running = await lab.worker()
    await lab.history.start(workflow, bad, number)
    await lab.history.until(lambda h: any(b.kind == "interrupt" for b in h.bodies(bad, ev.OpScheduled)))
    await running.stop()
    await lab.history.read()
    lab.damaged.add(bad)
    return bad


async def found_damaged(lab: Lab, run_id: str, **settings: Any) -> Running:
    running = await lab.worker(**settings)
    assert running.told.heard("run_blocked", run_id, "RUN_DAMAGED")
    return running


async def view_of(lab: Lab, run_id: str) -> Any:
    async with client_of(lab) as client:
        return await client.get(run_id)


def hot(running: Running, run_id: str) -> Any:
    return running.worker.owner.partitions[1].runs[run_id]


@case(app)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_f06_a_damaged_run_is_repaired_and_what_waited_comes_back_in_order_and_once(lab: Lab, kind: str):
    bad = await waiting_run(lab)
    await damage(lab, bad, kind)
    running = await found_damaged(lab, bad)
    waited: list[Any] = [signal("news", 1), resume("yes"), signal("news", 2), signal("news", 3)]
    offsets = await lab.history.send_all([(bad, request) for request in waited])
    await until(lambda: len(running.told.heard("dead_letter")) == 4)
    plan = await mend(lab, bad)
    assert plan.waiting == 4
    assert plan.risks == []
    assert len(plan.lost) == 1
    assert await lab.history.result(bad) == ["yes", 1, 2]
    commands = await records_of(lab.log, TopicPartition(lab.topics.commands, 1))
    back = [int(value) for r in commands for name, value in r.headers if name == SENT_BACK]
    assert back == offsets
    # The history is as it was, and the repair stands behind it; it names who did it, and why.
    (repaired,) = lab.history.bodies(bad, ev.RunRepaired)
    assert (repaired.operator, repaired.reason) == ("ada", "a test")
    await running.stop()
    again = await lab.worker()
    assert again.told.heard("run_blocked") == []
    assert again.told.heard("dead_letter") == []
    assert hot(again, bad).run.phase == "completed"
    assert hot(again, bad).run.seen[-3:] != ()


@case(app)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_f06_a_fold_of_the_whole_log_comes_to_the_repaired_state(lab: Lab, kind: str):
    bad = await waiting_run(lab)
    await damage(lab, bad, kind)
    running = await found_damaged(lab, bad)
    await mend(lab, bad, parked=True)
    await lab.history.until(lambda h: (blocked := h.blocked(bad)) and blocked.code == REPAIRED)
    await until(lambda: hot(running, bad).run.blocked.code == REPAIRED)
    live = hot(running, bad).run
    await running.stop()
    # From the checkpoint and the tail, and, with neither checkpoints nor leases, from the first event on.
    again = await lab.worker()
    assert hot(again, bad).run == live
    await again.stop()
    assert (await view_of(lab, bad)).run == live
    for topic in (lab.topics.checkpoints, lab.topics.leases):
        await send_nulls(lab, topic)
    last = await lab.worker()
    assert hot(last, bad).run == live
    assert hot(last, bad).damaged is None
    lab.unchecked = True


async def send_nulls(lab: Lab, topic: str) -> None:
    for number in range(4):
        for key in {record.key for record in await records_of(lab.log, TopicPartition(topic, number))}:
            await send_raw(lab.log, topic, number, key, None)
    await lab.log.compact(topic)
