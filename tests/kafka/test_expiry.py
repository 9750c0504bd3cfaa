"""Runs that ended long ago, and requests that come twice, on the real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.client import Client
from streams.clock import SystemClock
from streams.errors import InputConflict, ResultExpired, UnknownRun
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import Run, is_stub, is_terminal
from streams.log.port import NewRecord
from streams.wire.records import decode_effect
from tests.kafka.lab import PARTITIONS, KafkaLab, Running, configure, kafka_case
from tests.runtime.history import resume, signal, start, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

app = App("old")
parcels = app.effect("parcels", str)
news = app.signal("news", int)
calls: list[str] = []
DAY_US = 86_400_000_000
STUB, NOTHING = 7.5, 37.5
"""Days after the end."""
SWEEPS: dict[str, Any] = {"sweep_seconds": 0.2}


class Clock(SystemClock):
    """The machine's clocks, with wall time moved ahead."""

    days = 0.0

    def now_us(self) -> int:
        return super().now_us() + int(self.days * DAY_US)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


@app.task
async def work(ctx: TaskContext, what: str) -> str:
    calls.append(ctx.idempotency_key)
    return what.upper()


@app.workflow(version=1)
async def ships(ctx: Context, what: str) -> str:
    found = await ctx.run(work, what)
    ctx.emit(parcels, found)
    if what == "twice":
        ctx.emit(parcels, found, idempotency_key="one key")
        ctx.emit(parcels, found, idempotency_key="one key")
    if what == "ask":
        await ctx.interrupt("?")
    return found


@app.workflow(version=1)
async def echo(ctx: Context, what: str) -> str:
    return what


@app.workflow(version=1)
async def hears(ctx: Context, _: None) -> int:
    return await ctx.receive(news) + await ctx.receive(news)


def in_memory(running: Running, lab: KafkaLab, run_id: str) -> Run | None:
    partition = running.worker.owner.partitions.get(lab.history.partition(run_id))
    hot = None if partition is None else partition.runs.get(run_id)
    return None if hot is None else hot.run


def has_ended(running: Running, lab: KafkaLab, run_id: str) -> bool:
    run = in_memory(running, lab, run_id)
    return run is not None and is_terminal(run)


async def as_stubs(running: Running, lab: KafkaLab, *run_ids: str) -> None:
    def all_are() -> bool:
        runs = [in_memory(running, lab, run_id) for run_id in run_ids]
        return all(run is not None and is_stub(run) for run in runs)

    await until(all_are, "stubs")


async def as_nothing(running: Running, lab: KafkaLab, *run_ids: str) -> None:
    await until(lambda: all(in_memory(running, lab, run_id) is None for run_id in run_ids), "nothing left")


async def again(running: Running, lab: KafkaLab, clock: Clock, **settings: Any) -> Running:
    """Another worker, which knows only what the log says."""
    await running.kill()
    return await lab.worker(clock=clock, **settings)


async def checkpoints(lab: KafkaLab, run_id: str) -> list[bytes | None]:
    records = await lab.records(lab.topics.checkpoints, lab.history.partition(run_id))
    return [record.value for record in records if record.key == run_id.encode()]


async def codes(lab: KafkaLab, run_id: str, *requests: Any) -> list[str]:
    """What each of these commands is turned down with."""
    answers = [
        await lab.history.answered(offset, run_id)
        for offset in await lab.history.send_all([(run_id, request) for request in requests])
    ]
    assert all(isinstance(answer, ev.CommandRejected) for answer in answers), answers
    return [answer.code for answer in answers]


LATE = (signal("news", 1), resume("x"), cmd.Cancel(), cmd.Cancel(force=True), cmd.Retry(), cmd.Complete("1", b"1"))


@kafka_case(app)
async def test_f09_a_finished_run_becomes_a_stub_then_nothing_and_its_name_is_free(lab: KafkaLab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await lab.history.start("ships", "r", "x")
    await until(lambda: has_ended(running, lab, "r"))
    clock.days = STUB
    await as_stubs(running, lab, "r")
    for _ in range(2):
        assert await codes(lab, "r", *LATE, *LATE) == ["RUN_TERMINAL"] * 12
        assert await codes(lab, "r", start("ships", "x"), start("ships", "y")) == ["DUPLICATE", "INPUT_CONFLICT"]
        running = await again(running, lab, clock, **SWEEPS)
        await as_stubs(running, lab, "r")
    async with Client(lab.log, app) as client:
        with pytest.raises(ResultExpired, match="not kept any more"):
            await client.result("r", timeout=60)
    assert len((await lab.check()).effects) == 1
    clock.days = NOTHING
    await lab.history.seen("r", ev.RunExpired)
    await as_nothing(running, lab, "r")
    assert (await checkpoints(lab, "r"))[-1] is None
    running = await again(running, lab, clock, **SWEEPS)
    assert in_memory(running, lab, "r") is None
    assert await codes(lab, "r", resume("x"), cmd.Retry()) == ["UNKNOWN_RUN"] * 2
    async with Client(lab.log, app) as client:
        with pytest.raises(UnknownRun):
            await client.result("r", timeout=60)
        sent = await client.start(ships, "x", run_id="r")
        assert await client.accepted(sent, timeout=60)
        assert await client.result("r", timeout=60) == "X"
    effects = (await lab.check()).effects
    assert len({effect.effect_id for effect in effects}) == len({effect.idempotency_key for effect in effects}) == 2
    assert len(set(calls)) == 2
    await running.stop()


@kafka_case(app)
async def test_f15_neither_a_lost_lease_nor_compaction_brings_an_expired_run_back(lab: KafkaLab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    gone, later = lab.runs_of(1, 2)
    for run_id in (gone, later):
        await lab.history.start("ships", run_id, "x")
        await until(lambda run_id=run_id: has_ended(running, lab, run_id))
    clock.days = NOTHING
    await as_nothing(running, lab, gone, later)
    await lab.history.start("ships", later, "ask")
    await lab.history.until(lambda h: len(h.bodies(later, ev.OpScheduled)) == 3)
    await running.stop()
    await compact(lab, gone)
    assert await checkpoints(lab, gone) == []
    for lost in (False, True):
        if lost:
            await lab.log.append([NewRecord(lab.topics.leases, n, str(n).encode(), None) for n in range(PARTITIONS)])
            lab.unchecked = True
        running = await lab.worker(clock=clock, sweep_seconds=600.0)
        assert lost is ("leases were lost" in str(running.told.heard("message")))
        assert in_memory(running, lab, gone) is None
        run = in_memory(running, lab, later)
        assert run is not None
        assert not is_terminal(run)
        assert running.told.heard("run_blocked") == []
        await running.stop()
    running = await lab.worker(clock=clock)
    await lab.history.send(later, resume("x"))
    await lab.history.until(lambda h: len(h.bodies(later, ev.RunCompleted)) == 2)
    effects = [decode_effect(r.value or b"").effect_id for r in await lab.records(lab.topics.effect("parcels"), 1)]
    assert len(effects) == len(set(effects)) == len(calls) == 3


async def compact(lab: KafkaLab, run_id: str) -> None:
    """Let the broker compact at once, tombstones too, and wait until nothing of the run is left."""
    partition = lab.history.partition(run_id)
    usual = (await lab.log.describe_topics([lab.topics.checkpoints]))[lab.topics.checkpoints].config
    eager = {
        "segment.ms": "100",
        "delete.retention.ms": "100",
        "min.cleanable.dirty.ratio": "0.0",
        "max.compaction.lag.ms": "100",
    }
    await configure(lab, lab.topics.checkpoints, eager)
    try:
        await until_compacted(lab, partition, run_id)
    finally:
        # With the others, no worker would start.
        await configure(lab, lab.topics.checkpoints, {name: usual[name] for name in eager})


async def until_compacted(lab: KafkaLab, partition: int, run_id: str) -> None:
    for _ in range(300):
        # A segment is rolled by the next record only; this one is a null for a run that never was.
        await lab.log.append([NewRecord(lab.topics.checkpoints, partition, b"nobody", None)])
        if not await checkpoints(lab, run_id):
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the broker did not compact")


@kafka_case(app)
async def test_many_runs_that_are_due_at_once_take_many_small_transactions(lab: KafkaLab):
    clock = Clock()
    running = await lab.worker(clock=clock, sweep_records_max=50, **SWEEPS)
    runs = [f"r{n}" for n in range(1_000)]
    await lab.history.send_all([(run_id, start("echo", "x")) for run_id in runs])
    await until(lambda: all(has_ended(running, lab, run_id) for run_id in runs), "all to end")
    await until(lambda: not running.worker.turn_lock.locked())
    for days, done in ((STUB, as_stubs), (NOTHING, as_nothing)):
        await asyncio.sleep(0.3)
        running.told.told.clear()
        clock.days = days
        await done(running, lab, *runs)
        turns = [records for _, _, records, _ in running.told.heard("turn")]
        assert max(turns) <= 2 * 50 + PARTITIONS
        assert len(turns) >= 1_000 // 50
    running = await again(running, lab, clock)
    assert all(in_memory(running, lab, run_id) is None for run_id in runs)
    assert (await lab.check()).runs == {}


# -- what comes twice ------------------------------------------------------------------------------------------------


@kafka_case(app)
async def test_f18_a_run_that_is_started_twice_is_one_run_until_it_is_forgotten(lab: KafkaLab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await lab.history.send_all(
        [("other", start("echo", "x")), ("r", start("ships", "ask")), ("r", start("ships", "ask"))]
    )
    await lab.history.seen("r", ev.OpScheduled, 2)
    one_batch = lab.history.bodies("r", ev.CommandRejected)
    assert [body.code for body in one_batch] == ["DUPLICATE"]
    again_ = (start("ships", "ask"), start("ships", "another"), start("echo", "ask"))
    expected = ["DUPLICATE", "INPUT_CONFLICT", "INPUT_CONFLICT"]
    assert await codes(lab, "r", *again_) == expected  # in another batch
    running = await again(running, lab, clock, **SWEEPS)
    assert await codes(lab, "r", *again_) == expected  # after a crash
    await lab.history.send("r", resume("x"))
    await until(lambda: has_ended(running, lab, "r"))
    assert await codes(lab, "r", *again_) == expected  # after its end
    clock.days = STUB
    await as_stubs(running, lab, "r")
    assert await codes(lab, "r", *again_) == expected  # when its result has expired
    assert len(calls) == len((await lab.check()).effects) == 1
    clock.days = NOTHING
    await as_nothing(running, lab, "r")
    await lab.history.send_all([("r", start("ships", "x")), ("r", start("ships", "x"))])
    await until(lambda: has_ended(running, lab, "r"), "the next run of the name")
    checked = await lab.check()
    started = [event.identity for event in checked.events["r"] if isinstance(event.body, ev.RunStarted)]
    assert len(started) == len(set(started)) == 2
    assert len({effect.effect_id for effect in checked.effects}) == len(checked.effects) == 2


@kafka_case(app)
async def test_f18_a_client_that_asks_again_after_a_lost_answer_gets_the_same_one(lab: KafkaLab):
    await lab.worker()
    async with Client(lab.log, app) as client:
        for expected in (True, False, False):
            sent = await client.start(ships, "x", run_id="r", command_id="one id")
            assert await client.accepted(sent, timeout=60) is expected
            assert await client.result("r", timeout=60) == "X"
        with pytest.raises(InputConflict):
            await client.accepted(await client.start(ships, "y", run_id="r"), timeout=60)
    assert len(calls) == 1


@kafka_case(app)
async def test_f18_the_same_command_id_twice_counts_once(lab: KafkaLab):
    running = await lab.worker()
    await lab.history.start("hears", "r")
    await lab.history.send_all([("r", signal("news", 1)), ("r", signal("news", 1))], "one id")
    await lab.history.seen("r", ev.CommandRejected)
    running = await again(running, lab, Clock())
    await lab.history.send("r", signal("news", 1), "one id")
    await lab.history.seen("r", ev.CommandRejected, 2)
    await lab.history.send("r", signal("news", 2), "another id")
    assert await lab.history.result("r") == 3
    offset = await lab.history.send("r", signal("news", 2), "another id")
    assert [(await lab.history.answered(offset, "r")).code] == ["DUPLICATE"]
    assert {body.code for body in lab.history.bodies("r", ev.CommandRejected)} == {"DUPLICATE"}
    await running.stop()


@kafka_case(app)
async def test_f18_effects_of_one_batch_have_ids_of_their_own_also_under_one_business_key(lab: KafkaLab):
    await lab.worker()
    await lab.history.send_all([("r", start("ships", "twice")), ("r", start("ships", "twice"))])
    assert await lab.history.result("r") == "TWICE"
    effects = (await lab.check()).effects
    assert len({effect.effect_id for effect in effects}) == len(effects) == 3
    assert [effect.idempotency_key for effect in effects].count("one key") == 2
