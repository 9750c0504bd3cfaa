"""Partitions that come and go, that are refused, and whose last owner left something open."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streams import App, Context, Retry, TaskContext
from streams.errors import LogDamaged, LogUnavailable, SendRefused, UsageError
from streams.kernel import bodies as ev
from streams.log.memory.hooks import End, Hooks
from streams.log.port import GroupSnapshot, NewRecord, TopicPartition, TopicSpec
from streams.log.sqlite import SqliteLog
from streams.log.sqlite.rows import PID_SHIFT
from streams.runtime.inputs import Sweep
from streams.runtime.partition import Partition, PartitionState
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import PartitionRefused, Worker
from streams.wire.records import Lease, decode_lease, encode_lease
from streams.wire.topics import topics_of
from tests.runtime.checker import records_of
from tests.runtime.faults import Faults, nth
from tests.runtime.history import resume, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, Running, case

app = App("owners")
parcels = app.effect("parcels", int)
news = app.signal("news", int)
paid: list[str] = []
till: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    paid.clear()
    till[:] = [asyncio.Event()]


@app.task
async def work(ctx: TaskContext, number: int) -> int:
    await asyncio.sleep(0.001)
    return number + 1


@app.workflow(version=1)
async def steps(ctx: Context, number: int) -> int:
    for _ in range(4):
        number = await ctx.run(work, number)
        ctx.emit(parcels, number)
    return number


@app.workflow(version=1)
async def asks(ctx: Context, number: int) -> str:
    return await ctx.interrupt("?", answer=str)


@app.workflow(version=1)
async def asks_twice(ctx: Context, _: None) -> list[str]:
    return [await ctx.interrupt("?", answer=str), await ctx.interrupt("??", answer=str)]


@app.task(retry=Retry(max_attempts=3, initial=0.4, max_delay=0.4))
async def fails_first(ctx: TaskContext) -> int:
    if ctx.attempt == 1:
        raise RuntimeError("once")
    return ctx.attempt


@app.workflow(version=1)
async def fails_once(ctx: Context, _: None) -> int:
    return await ctx.run(fails_first)


@app.task(idempotent=False)
async def pay(ctx: TaskContext) -> None:
    paid.append(ctx.run_id)
    await till[0].wait()


@app.workflow(version=1)
async def pays(ctx: Context, number: int) -> int:
    await ctx.run(pay)
    ctx.emit(parcels, number)
    return number


@case(app)
@pytest.mark.parametrize("seed", range(3))
async def test_f05_workers_that_come_and_go_all_the_time(lab: Lab, seed: int):
    dice = random.Random(seed)
    runs = [f"r{n}" for n in range(150)]

    async def feed() -> None:
        for at in range(0, len(runs), 5):
            await lab.history.send_all([(run_id, start("steps", 1)) for run_id in runs[at : at + 5]])
            await asyncio.sleep(0.01)

    feeding = asyncio.create_task(feed())
    here: list[Running] = []
    for _ in range(14):
        if len(here) < 3 and (not here or dice.random() < 0.6):
            here.append(await lab.worker(owns=0))
        else:
            leaving = here.pop(dice.randrange(len(here)))
            await (leaving.stop() if dice.random() < 0.7 else leaving.kill())
        await asyncio.sleep(dice.random() * 0.06)  # often before an acquisition is done
    here.append(await lab.worker(owns=0))
    await feeding
    await lab.history.ended(*runs)
    for running in here:
        assert not running.task.done()
    assert len((await lab.check()).effects) == 4 * len(runs)


@case(app)
async def test_f24_polling_goes_on_while_a_commit_hangs(lab: Lab):
    def plan(number: int, records: Sequence[NewRecord]) -> str | None:
        return "slow" if number == PARTITIONS + 2 else None

    faults = Faults(plan)
    running = await lab.worker(faults=faults)
    poll = running.worker.member.poll
    polls: list[bool] = []

    async def counted(*arguments: Any) -> Any:
        polls.append(running.worker.turn_lock.locked())
        return await poll(*arguments)

    running.worker.member.poll = counted  # type: ignore[method-assign]
    await lab.history.send_all([(f"r{n}", start("steps", 1)) for n in range(20)])
    await lab.history.ended(*(f"r{n}" for n in range(20)))
    assert faults.struck == ["slow"]
    assert polls.count(True) > 2


class Forgetful(Hooks):
    """The answer to a commit does not arrive, and the transaction stays open."""

    def __init__(self) -> None:
        self.armed = False

    def end(self, producer: str) -> End:
        if self.armed:
            self.armed = False
            return "in_doubt_open"
        return "commit"


@case(app, "memory")
async def test_f02_what_a_dead_owner_left_open_is_ended_in_its_name(lab: Lab):
    hooks = lab.log._store.hooks = Forgetful()
    first = await lab.worker()
    await lab.history.start("asks", "r", 1)
    await lab.history.seen("r", ev.OpScheduled)

    async def nothing() -> None:
        if first.worker._distrusted:
            await asyncio.sleep(60)

    first.worker.trust_producer = nothing  # type: ignore[method-assign] - it dies before it can mend anything
    hooks.armed = True
    await lab.history.send("r", resume("lost with its owner"))
    await until(lambda: first.told.heard("redo"))
    await first.kill()
    second = await lab.worker()
    assert "ending the open transaction" in str(second.told.heard("message"))
    assert await lab.history.result("r") == "lost with its owner"


class OpenClaim(Hooks):
    """The answer to the claim of the last partition does not arrive, and its transaction stays open."""

    def __init__(self) -> None:
        self.ends = 0

    def end(self, producer: str) -> End:
        self.ends += 1
        return "in_doubt_open" if self.ends == PARTITIONS else "commit"


@case(app, "memory")
async def test_f02_a_claim_of_its_own_that_a_worker_left_open_is_ended_by_itself(lab: Lab):
    """All other partitions are quiet, so no turn looks after the producer."""
    hooks = lab.log._store.hooks = OpenClaim()
    running = await lab.worker(sweep_seconds=600.0)
    assert hooks.ends > PARTITIONS
    assert "ending the open transaction of owners/w1/1" in str(running.told.heard("message"))
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5


@case(app, "memory")
async def test_f03_a_producer_that_does_not_close_holds_up_no_turn(lab: Lab):
    running = await lab.worker(faults=Faults(nth("in doubt, not done", PARTITIONS + 1)))

    async def never() -> None:
        await asyncio.sleep(3600)

    running.worker.producer.close = never  # type: ignore[method-assign]
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5
    assert "going on without having closed the producer owners/w1/1" in str(running.told.heard("message"))


@case(app)
@pytest.mark.parametrize("named", [True, False])
async def test_f03_a_record_that_is_refused_in_a_release_blocks_its_run_and_no_other(lab: Lab, named: bool):
    """What is finished would be unknown to the next owner, which parks it: the task is not idempotent."""
    first = await lab.worker(stop_seconds=0.1)
    names = [f"r{number}" for number in range(8)]
    await lab.history.send_all([(name, start("pays", number)) for number, name in enumerate(names)])
    await until(lambda: sorted(paid) == names)
    commit = first.worker.producer.commit
    poison = f"{lab.topics.effect('parcels')}", names[3].encode()

    async def refusing(snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]) -> list[int]:
        for index, record in enumerate(records):
            if (record.topic, record.key) == poison:
                raise SendRefused("too large for its topic", index if named else None)
        return await commit(snapshot, records, offsets)

    first.worker.producer.commit = refusing  # type: ignore[method-assign]
    async with first.worker.turn_lock:
        till[0].set()
        await until(lambda: len(first.worker.inbox) == len(names))
        first.worker.stop()
        await until(lambda: len(first.worker.turn_lock._waiters or ()) == 2, "the release, beside the next turn")
    await first.task
    assert first.told.heard("run_blocked", names[3])
    assert "without a release record" not in str(first.told.heard("message"))
    for number in range(PARTITIONS):
        assert (await lease_of(lab, number)).released
    await lab.worker()
    for number, name in enumerate(names):
        if number != 3:
            assert await lab.history.result(name) == number
    assert lab.history.blocked(names[3]) is not None
    assert lab.history.bodies(names[3], ev.OpParked) == []
    assert sorted(paid) == names


class Late(Hooks):
    """Markers that follow an acknowledged commit after a while, in each partition after another one."""

    def marker_delay(self, topic: str, partition: int) -> float:
        return 0.2 + 0.1 * partition if topic.endswith((".events", ".checkpoints")) else 0.1


@case(app, "memory")
async def test_f02_a_commit_whose_markers_are_late_is_restored_all_the_same(lab: Lab):
    lab.log._store.hooks = Late()
    first = await lab.worker()
    names = [next(f"r{n}" for n in range(100) if lab.history.partition(f"r{n}") == p) for p in range(PARTITIONS)]
    for turn in range(3):
        runs = [f"{name}/{turn}" for name in names]
        await lab.history.send_all([(run_id, start("asks", 1)) for run_id in runs])
        held = first.worker.owner.partitions
        await until(lambda: all(run_id in held[lab.history.partition(run_id)].runs for run_id in runs))  # noqa: B023
        await first.kill()
        first = await lab.worker()
        for run_id in runs:
            assert run_id in first.worker.owner.partitions[lab.history.partition(run_id)].runs


async def lease_of(lab: Lab, partition: int) -> Lease:
    records = await records_of(lab.log, TopicPartition(lab.topics.leases, partition))
    return decode_lease(records[-1].value or b"")


@case(app)
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"topic_id": "another"}, "created again"),
        ({"applied": 10_000}, "lost records"),
        ({"tail": 10_000}, "are needed"),
    ],
    ids=str,
)
async def test_f21_a_partition_whose_log_contradicts_its_lease_is_refused(lab: Lab, change: Any, word: str):
    running = await lab.worker()
    await lab.history.send_all([(f"r{n}", start("steps", 1)) for n in range(20)])
    await lab.history.ended(*(f"r{n}" for n in range(20)))
    await running.stop()
    good = await lease_of(lab, 2)
    bad = encode_lease(good._replace(**change))
    await lab.log.append([NewRecord(lab.topics.leases, 2, b"2", bad)])
    running = await lab.worker(owns=3, retry_refused_seconds=0.05)
    await until(lambda: running.told.heard("partition", 2, "refused"))
    assert word in running.told.heard("partition", 2, "refused")[0][4]
    waits = next(f"w{n}" for n in range(100) if lab.history.partition(f"w{n}") == 2)
    goes_on = next(f"w{n}" for n in range(100) if lab.history.partition(f"w{n}") != 2)
    await lab.history.send_all([(waits, start("steps", 1)), (goes_on, start("steps", 1))])
    await lab.history.ended(goes_on)
    assert lab.history.end(waits) is None
    # Once it is mended, it is taken up by itself.
    await lab.log.append([NewRecord(lab.topics.leases, 2, b"2", encode_lease(good._replace(epoch=good.epoch + 50)))])
    await running.owns(4)
    await lab.history.ended(waits)
    lab.unchecked = True


async def cut_commands(lab: Lab, partition: int, end: int) -> None:
    """Lose the last commands of a partition, as a restored backup does."""
    if isinstance(lab.log, SqliteLog):
        pid = await lab.log._core.pid(lab.topics.commands, partition)

        def cut(connection: sqlite3.Connection) -> None:
            first = pid << PID_SHIFT
            connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (first + end, first + (1 << PID_SHIFT)))
            connection.execute("UPDATE partitions SET next = ? WHERE pid = ?", (end, pid))

        await lab.log._core.writer.write(cut)
    else:
        kept = lab.log._store.partition(lab.topics.commands, partition)
        kept._entries, kept._end = kept._entries[:end], end


@case(app)
async def test_f21_a_partition_that_lost_commands_since_an_old_lease_is_refused_without_a_spin(lab: Lab):
    running = await lab.worker()
    names = [f"r{n}" for n in range(40)]
    await lab.history.send_all([(name, start("steps", 1)) for name in names])
    await lab.history.ended(*names)
    await running.kill()
    assert (await lease_of(lab, 2)).applied == 0
    await cut_commands(lab, 2, 1)
    running = await lab.worker(owns=3)
    await until(lambda: running.told.heard("partition", 2, "refused"))
    assert "lost records" in running.told.heard("partition", 2, "refused")[0][4]
    goes_on = next(f"w{n}" for n in range(100) if lab.history.partition(f"w{n}") != 2)
    await lab.history.start("steps", goes_on, 1)
    assert await lab.history.result(goes_on) == 5
    leases = (await lab.log.span(lab.topics.leases, 2)).end
    await asyncio.sleep(0.3)
    assert (await lab.log.span(lab.topics.leases, 2)).end == leases
    lab.unchecked = True


@case(app)
async def test_f21_commands_that_go_away_just_before_they_are_read_cause_no_spin(lab: Lab):
    running = await lab.worker(retry_refused_seconds=0.2)
    member, worker = running.worker.member, running.worker
    asked: list[int] = []
    resume_member = member.resume

    async def damaged(partition: int, offset: int) -> None:
        asked.append(partition)
        if len(asked) < 3:
            raise LogDamaged("the commands are gone")
        await resume_member(partition, offset)

    member.resume = damaged  # type: ignore[method-assign]
    await worker.owner.again({2: worker.member.snapshot().owned[2]})
    await asyncio.sleep(0.15)
    assert asked == [2]
    assert running.told.heard("partition", 2, "refused")[0][4] == "the commands are gone"
    await running.owns(4)
    assert asked == [2, 2, 2]
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5


@case(app, "memory")
async def test_f21_a_partition_that_begins_anew_waits_for_the_turn_under_way(lab: Lab):
    """Its ends, found beside a commit that writes for it, would be too early."""
    running = await lab.worker(retry_refused_seconds=0.05)
    member, worker = running.worker.member, running.worker
    resume_member = member.resume
    locked = asyncio.Event()

    async def damaged(partition: int, offset: int) -> None:
        if not locked.is_set():
            await worker.turn_lock.acquire()
            locked.set()
            raise LogDamaged("the commands are gone")
        await resume_member(partition, offset)

    member.resume = damaged  # type: ignore[method-assign]
    await worker.owner.again({2: worker.member.snapshot().owned[2]})
    await locked.wait()
    await asyncio.sleep(0.1)
    assert running.told.heard("partition", 2, "refused") == []
    worker.turn_lock.release()
    await until(lambda: running.told.heard("partition", 2, "refused"))
    await running.owns(4)
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5


@case(app, "memory")
async def test_commands_that_cannot_be_had_yet_are_told_of_once(lab: Lab):
    running = await lab.worker()
    member = running.worker.member
    resume_member = member.resume
    asked: list[int] = []

    async def away(partition: int, offset: int) -> None:
        asked.append(partition)
        if len(asked) < 4:
            raise LogUnavailable("no broker")
        await resume_member(partition, offset)

    member.resume = away  # type: ignore[method-assign]
    await running.worker.owner.again({2: member.snapshot().owned[2]})
    await until(lambda: len(asked) == 4)
    said = [told[1] for told in running.told.heard("message") if "waits for its commands" in told[1]]
    assert said == ["partition 2 waits for its commands: no broker"]
    await running.owns(4)


@case(app, "memory")
async def test_f21_a_poll_whose_next_command_is_gone_lets_all_partitions_look_again(lab: Lab):
    running = await lab.worker()
    member, gone = running.worker.member, ["the next command is gone"]
    poll = member.poll

    async def damaged(records_max: int, timeout: float) -> Any:
        if gone:
            raise LogDamaged(gone.pop())
        return await poll(records_max, timeout)

    member.poll = damaged  # type: ignore[method-assign]
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5
    assert running.told.heard("message", "the next command is gone")
    assert {partition.epoch for partition in running.worker.owner.partitions.values()} == {2}


@case(app, "memory")
async def test_a_mistake_during_an_acquisition_ends_the_worker(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    async def broken(*_: Any) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr("streams.runtime.owner.restore", broken)
    running = await lab.worker(owns=0)
    with pytest.raises(ValueError, match="a mistake"):
        await asyncio.wait_for(running.task, 5)
    running.killed = True  # its end was looked at


@case(app, "sqlite")
async def test_a_graceful_stop_is_bounded_while_another_process_holds_the_write_lock(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("streams.runtime.commits.CUT_OFF_SECONDS", 0.5)
    running = await lab.worker(stop_seconds=0.2, drain_seconds=0.3)
    holder = sqlite3.connect(lab.log._core.place.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        for partition in list(running.worker.owner.partitions.values()):
            running.worker.put(Sweep(partition))
        await until(running.worker.turn_lock.locked, "a turn that hangs in its commit")
        running.worker.stop()
        await asyncio.wait_for(running.task, 5)
        await asyncio.wait_for(running.log.close(), 3)
    finally:
        holder.close()
    assert "it took longer than" in str(running.told.heard("message"))
    assert len(asyncio.all_tasks()) <= 2
    await lab.worker()
    await lab.history.start("steps", "r", 1)
    assert await lab.history.result("r") == 5


@case(app, "sqlite")
async def test_partitions_given_up_while_the_write_lock_is_held_say_how_long_it_took(lab: Lab):
    running = await lab.worker(stop_seconds=0.2, drain_seconds=0.3)
    holder = sqlite3.connect(lab.log._core.place.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        running.worker.stop()
        await asyncio.wait_for(running.task, 5)
    finally:
        holder.close()
    assert "ending without having left the group: it took longer than 1.3 s" in str(running.told.heard("message"))


@case(app, "memory")
async def test_f21_a_strict_worker_ends_when_a_partition_is_refused(lab: Lab):
    await lab.log.append([NewRecord(lab.topics.leases, 1, b"1", b"garbage")])
    log = await lab.open_log()
    worker = Worker(app, log, strict=True)
    with pytest.raises(PartitionRefused, match="cannot be read"):
        await worker.run()
    await log.close()
    lab.unchecked = True


# -- turns in which several things meet --------------------------------------------------------------------------------


@case(app)
async def test_a_sweep_and_a_later_input_of_the_same_run_in_one_turn_lose_no_event(lab: Lab):
    settings: dict[str, Any] = {
        "checkpoint_bytes_min": 1_000_000,
        "checkpoint_age_seconds": 0.0,
        "sweep_seconds": 600.0,
    }
    running = await lab.worker(**settings)
    await lab.history.start("asks_twice", "r", None)
    await lab.history.seen("r", ev.OpScheduled)
    partition = running.worker.owner.partitions[lab.history.partition("r")]
    partition.runs["r"].first_at = 0  # it has gone long without a checkpoint
    async with running.worker.turn_lock:
        running.worker.put(Sweep(partition))
        await lab.history.send("r", resume("one"))
        await until(lambda: len(running.worker.inbox) == 2)
    await lab.history.seen("r", ev.OpScheduled, 2)
    await running.stop()
    await lab.check()
    await lab.worker()
    await lab.history.send("r", resume("two"))
    assert await lab.history.result("r") == ["one", "two"]


@case(app, "memory")
async def test_f12_an_attempt_that_is_only_due_when_a_partition_leaves_is_not_started_there(lab: Lab):
    first = await lab.worker()
    run_id = next(f"r{n}" for n in range(100) if lab.history.partition(f"r{n}") == PARTITIONS - 1)
    await lab.history.start("fails_once", run_id, None)
    await lab.history.seen(run_id, ev.AttemptFailed)
    async with first.worker.turn_lock:
        await lab.worker(owns=0)
        await until(lambda: first.worker.turn_lock._waiters, "the call that takes the partition back")
        await until(lambda: first.worker.inbox, "the time of the next attempt")
    assert await lab.history.result(run_id) == 2
    assert len(lab.history.bodies(run_id, ev.AttemptStarted)) == 1


@case(app, "memory")
async def test_inputs_of_a_partition_that_is_not_in_the_snapshot_are_dropped(lab: Lab):
    running = await lab.worker()
    worker = running.worker
    async with worker.turn_lock:
        snapshot = worker.member.snapshot()
        for partition in worker.owner.partitions.values():
            worker.put(Sweep(partition))
        owned = {0: snapshot.owned[0], 1: snapshot.owned[1] + 1}
        items, dropped = worker.inbox.take(100, owned)
    assert [item.partition.number for item in items] == [0]
    assert len(dropped) == PARTITIONS - 1


async def a_run_that_expires(lab: Lab, waits: str, early: str) -> Running:
    """Its first event lies below the tail, which a waiting run holds where it is; the rest above."""
    running = await lab.worker(sweep_seconds=0.05, early_input_seconds=0.5, checkpoint_bytes_min=1_000_000)
    await lab.history.send(early, signal("news", 1))
    await lab.history.seen(early, ev.SignalReceived, 1)
    await lab.history.start("asks", waits, 1)
    await lab.history.seen(waits, ev.OpScheduled)
    await lab.history.send(early, signal("news", 2))
    await lab.history.seen(early, ev.RunExpired)
    return running


@case(app)
async def test_f09_what_is_left_of_an_expired_run_is_no_damage(lab: Lab):
    waits, early = [f"r{n}" for n in range(100) if lab.history.partition(f"r{n}") == 1][:2]
    running = await a_run_that_expires(lab, waits, early)
    for _ in range(2):
        await running.stop()
        running = await lab.worker()
        assert running.told.heard("run_blocked") == []
    await lab.history.start("steps", early, 1)
    assert await lab.history.result(early) == 5


@case(app)
async def test_f09_the_end_of_an_expired_run_does_not_end_a_later_one_of_its_name(lab: Lab):
    waits, early = [f"r{n}" for n in range(100) if lab.history.partition(f"r{n}") == 1][:2]
    running = await a_run_that_expires(lab, waits, early)
    await running.stop()
    running = await lab.worker(checkpoint_bytes_min=1)
    await lab.history.start("asks", early, 1)
    await lab.history.seen(early, ev.OpScheduled)
    await running.kill()
    await lab.worker()
    await lab.history.send_all([(early, resume("yes")), (waits, resume("yes"))])
    assert await lab.history.result(early) == "yes"
    assert await lab.history.result(waits) == "yes"


# -- topics ----------------------------------------------------------------------------------------------------------

TOPICS = topics_of("fresh", ("parcels",))


@case(app)
@pytest.mark.parametrize(
    ("topic", "partitions", "config", "word"),
    [
        (TOPICS.commands, 3, {}, "same partition count"),
        (TOPICS.events, 4, {"cleanup.policy": "compact"}, "cleanup.policy"),
        (TOPICS.checkpoints, 4, {"cleanup.policy": "delete"}, "cleanup.policy"),
        (TOPICS.checkpoints, 4, {"cleanup.policy": "compact,delete"}, "cleanup.policy"),
        (TOPICS.commands, 4, {"message.timestamp.type": "CreateTime"}, "message.timestamp.type"),
        (TOPICS.checkpoints, 4, {"segment.bytes": "1073741824"}, "segment.bytes"),
        (TOPICS.events, 4, {"retention.ms": "3600000"}, "retention.ms"),
        (TOPICS.partials, 4, {"max.message.bytes": "500000"}, "max.message.bytes"),
    ],
)
async def test_f21_topics_that_would_lose_data_are_refused(
    lab: Lab, topic: str, partitions: int, config: dict[str, str], word: str
):
    settings = TOPICS.settings()
    specs = [TopicSpec(name, 4, found) for name, found in settings.items() if name != topic]
    await lab.log.create_topics([*specs, TopicSpec(topic, partitions, settings[topic] | config)])
    with pytest.raises(UsageError, match=word):
        await ensure_topics(lab.log, TOPICS, 4)


@case(app)
async def test_f16_the_topic_of_a_new_effect_gets_the_count_of_the_others(lab: Lab):
    await ensure_topics(lab.log, topics_of("fresh"), 7)
    found = await ensure_topics(lab.log, TOPICS, 12)
    assert {info.partitions for info in found.values()} == {7}


def test_a_partition_takes_no_way_that_is_not_drawn() -> None:
    partition = Partition(0, 1)
    with pytest.raises(AssertionError, match="cannot go from created to running"):
        partition.move(PartitionState.RUNNING)
