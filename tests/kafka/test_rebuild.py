"""On the real broker: checkpoints made anew after their topic was deleted, killed and run again, and one repair."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from streams import App, Context, TaskContext
from streams.client import Client
from streams.errors import Refused, UsageError
from streams.kernel import bodies as ev
from streams.ops.rebuild import RebuildReport, rebuild
from streams.ops.repair import plan_repair
from streams.ops.verify import verify
from streams.runtime.topics import check_topics
from streams.wire.headers import SENT_BACK
from tests.kafka.lab import PARTITIONS, SETTINGS, KafkaLab, kafka_case
from tests.runtime.history import resume, send_raw, start, until

app = App("anew")
parcels = app.effect("parcels", int)
ROOT = Path(__file__).resolve().parents[2]


@app.task
async def add(ctx: TaskContext, number: int) -> int:
    return number + 1


@app.workflow(version=1)
async def quick(ctx: Context, number: int) -> int:
    number = await ctx.run(add, number)
    ctx.emit(parcels, number)
    return number


@app.workflow(version=1)
async def asking(ctx: Context, number: int) -> str:
    number = await ctx.run(add, number)
    ctx.emit(parcels, number)
    return await ctx.interrupt(f"{number}?", answer=str)


@app.workflow(version=1)
async def silent(ctx: Context, number: int) -> str:
    return await ctx.interrupt(f"{number}?", answer=str)


async def some_runs(lab: KafkaLab) -> list[str]:
    """Ended and waiting ones in each partition, and a worker that has stopped; the waiting ones are returned."""
    ended = [name for number in range(PARTITIONS) for name in lab.runs_of(number, 3, "e")]
    waiting = [name for number in range(PARTITIONS) for name in lab.runs_of(number, 3, "w")]
    running = await lab.worker(sweep_seconds=0.2, checkpoint_age_seconds=0.0)
    await lab.history.send_all([*((n, start("quick", 1)) for n in ended), *((n, start("asking", 2)) for n in waiting)])
    await lab.history.ended(*ended)
    for name in waiting:
        await lab.history.seen(name, ev.OpScheduled, 2)
    parts = running.worker.owner.partitions.values()
    await until(lambda: all(hot.first_offset is None for part in parts for hot in part.runs.values()), "the sweep")
    await running.stop()
    return waiting


async def checkpoints(lab: KafkaLab) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for number in range(PARTITIONS):
        for record in await lab.records(lab.topics.checkpoints, number):
            assert record.value is not None
            found[record.key or b""] = record.value
    return found


async def delete(lab: KafkaLab, topic: str) -> None:
    await asyncio.wrap_future(lab.log._admin._client.delete_topics([topic])[topic])
    deadline = asyncio.get_running_loop().time() + 60
    while topic in await lab.log.list_topics():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)


async def again(lab: KafkaLab, **how: Any) -> RebuildReport:
    log = await lab.open_log()
    try:
        return await rebuild(log, lab.app.name, **how)
    finally:
        await log.close()


async def go_on(lab: KafkaLab, names: list[str]) -> None:
    running = await lab.worker()
    await lab.history.send_all([(name, resume(name)) for name in names])
    for name in names:
        assert await lab.history.result(name) == name
    await running.stop()
    report = await verify(lab.log, lab.app.name)
    assert report.good, report.divergences


@kafka_case(app)
async def test_f21_a_topic_of_checkpoints_that_was_deleted_is_made_anew(lab: KafkaLab):
    names = await some_runs(lab)
    old = await checkpoints(lab)
    await delete(lab, lab.topics.checkpoints)
    (missing, gone) = (await check_topics(lab.log, lab.topics)).faults
    assert "does not exist" in missing
    assert f"streams rebuild --app {lab.app.name}" in gone
    with pytest.raises(UsageError, match="streams rebuild"):  # a worker makes no empty topic of it
        await (await lab.worker(owns=0)).task
    lab.running.pop()
    report = await again(lab)
    assert report.good
    assert report.total("missing") == report.total("runs") == 6 * PARTITIONS
    assert await checkpoints(lab) == old
    assert (await check_topics(lab.log, lab.topics)).faults == []
    await go_on(lab, names)


@kafka_case(app)
async def test_f21_one_that_was_created_again_with_a_policy_that_deletes_is_mended_first(lab: KafkaLab):
    names = await some_runs(lab)
    old = await checkpoints(lab)
    name = lab.topics.checkpoints
    await delete(lab, name)
    wrong = NewTopic(
        name, PARTITIONS, 1, config={"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    )
    await asyncio.wrap_future(lab.log._admin._client.create_topics([wrong])[name])
    with pytest.raises(UsageError, match=r"cleanup\.policy is 'delete' and must be 'compact'"):
        await again(lab)
    await delete(lab, name)
    assert (await again(lab)).good
    assert await checkpoints(lab) == old
    await go_on(lab, names)


@pytest.mark.slow
@kafka_case(app)
async def test_f21_a_rebuild_is_refused_beside_a_worker_and_waits_for_the_session_of_a_dead_one(lab: KafkaLab):
    (name,) = lab.runs_of(1)
    running = await lab.worker()
    with pytest.raises(Refused) as refused:
        await again(lab, members_seconds=0.5)
    assert refused.value.code == "WORKERS_RUNNING"
    assert running.worker.engine.owner in refused.value.message
    await lab.history.start("asking", name, 1)
    await lab.history.seen(name, ev.OpScheduled, 2)
    await running.kill()
    assert (await again(lab, members_seconds=60.0)).good
    await go_on(lab, [name])


POINTS = ["acquire.claimed:2", "commit.produced:2", "commit.flushed:3", "commit.fenced:4", "commit.ended:5"]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@kafka_case(app)
async def test_f21_a_rebuild_that_was_killed_is_simply_run_again(lab: KafkaLab, point: str):
    names = await some_runs(lab)
    old = await checkpoints(lab)
    await delete(lab, lab.topics.checkpoints)
    command = [sys.executable, "-m", "streams", "rebuild", "--app", lab.app.name, "--log", lab.log.url + SETTINGS]
    environment = {**os.environ, "STREAMS_CRASH_AT": point, "PYTHONPATH": str(ROOT)}
    killed = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed
    assert (await check_topics(lab.log, lab.topics)).faults != []
    environment.pop("STREAMS_CRASH_AT")
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done
    assert f"{6 * PARTITIONS} runs folded" in done.stdout
    assert await checkpoints(lab) == old
    await go_on(lab, names)


@kafka_case(app)
async def test_f06_a_damaged_run_is_repaired_and_what_waited_comes_back_once(lab: KafkaLab):
    (bad,) = lab.runs_of(1)
    running = await lab.worker()
    await lab.history.start("silent", bad, 1)
    await lab.history.seen(bad, ev.OpScheduled)
    await running.stop()
    lab.damaged.add(bad)
    await send_raw(lab.log, lab.topics.events, 1, bad.encode(), b"garbage")
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    offset = await lab.history.send(bad, resume("yes"))
    await until(lambda: running.told.heard("dead_letter"))
    client = Client(lab.log, lab.app)
    plan = await plan_repair(client, bad)
    assert (plan.waiting, plan.risks) == (1, [])
    sent = await client.repair(bad, plan.request("a test", parked=False), operator="ada")
    assert await client.accepted(sent, timeout=60)
    assert await client.result(bad, timeout=60) == "yes"
    await client.close()
    commands = await lab.records(lab.topics.commands, 1)
    assert [value for record in commands for name, value in record.headers if name == SENT_BACK] == [
        str(offset).encode()
    ]
    await running.kill()
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED") == []
