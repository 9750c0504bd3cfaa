"""Partitions that are given up, lost, or move all the time (design 5, F05), with real workers on the broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.kernel import bodies as ev
from streams.log.port import GroupSnapshot
from streams.runtime.partition import Partition
from tests.kafka.apps import app, gate
from tests.kafka.lab import PARTITIONS, KafkaLab, Running, configure, kafka_case, refusals
from tests.runtime.history import resume, start, until

pytestmark = pytest.mark.timeout(240)

STORM_SECONDS = float(os.environ.get("STREAMS_STORM_SECONDS", "30"))
INTERVAL_SECONDS = 5.0


once = App("once")
boxes = once.effect("boxes", str)


@once.task(idempotent=False)
async def pack(ctx: TaskContext, size: int) -> str:
    gate.begun.append((ctx.run_id, ctx.fencing_token.epoch, ctx.fencing_token.attempt))
    await gate.open.wait()
    return secrets.token_hex(size)


@once.workflow(version=1)
async def packs(ctx: Context, size: int) -> int:
    box = await ctx.run(pack, size)
    ctx.emit(boxes, box)
    return len(box)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gate.clear()


def message(running: Running) -> str:
    return str(running.told.heard("message"))


async def held_runs(lab: KafkaLab) -> list[str]:
    """A run in each partition whose task is held at the gate."""
    names = [lab.runs_of(number)[0] for number in range(PARTITIONS)]
    await lab.history.send_all([(name, start("waits")) for name in names])
    await until(lambda: len(gate.begun) == PARTITIONS)
    return names


# -- release -----------------------------------------------------------------------------------------------------------


@kafka_case(app)
async def test_f05_what_is_finished_is_committed_by_the_owner_that_gives_its_partitions_up(lab: KafkaLab):
    """(b) and (c): the results wait for a turn when the group takes two of four partitions back."""
    first = await lab.worker()
    names = await held_runs(lab)
    incarnations = {number: p.incarnation for number, p in first.worker.owner.partitions.items()}
    async with first.worker.turn_lock:
        second = await lab.worker(owns=0)
        await until(lambda: first.worker.turn_lock._waiters, "the call that takes partitions back")
        gate.open.set()
        await until(lambda: len(first.worker.inbox) == PARTITIONS)
    await second.owns(2)
    for name in names:
        assert await lab.history.result(name) == 1
        (completed,) = [e for e in lab.history.events[name] if isinstance(e.body, ev.OpCompleted)]
        assert completed.epoch == 1, "the result was not committed before the hand-over"
    assert gate.begun == [(name, 1, 1) for name in sorted(names, key=[b[0] for b in gate.begun].index)]
    assert gate.stopped == []
    for number in second.owned:
        claimed, released, taken = (await lab.leases(number))[-3:]
        assert (released.owner, released.epoch, released.released) == ("w1", 1, True)
        assert released.transactional_ids == ()
        assert (claimed.owner, taken.owner, taken.epoch) == ("w1", "w2", 2)
    for number in first.owned:
        partition = first.worker.owner.partitions[number]
        assert (partition.incarnation, partition.epoch) == (incarnations[number], 1)
    assert "without a release record" not in message(first)


@kafka_case(app)
async def test_f05_a_step_that_outlives_the_drain_is_handed_back_and_never_marked_done(lab: KafkaLab):
    """(c) and (d): tasks of the partitions that leave are stopped, those of the others run on."""
    first = await lab.worker()
    names = await held_runs(lab)
    second = await lab.worker(owns=2)
    moved = [name for name in names if lab.history.partition(name) in second.owned]
    kept = [name for name in names if name not in moved]
    await until(lambda: len(gate.begun) == PARTITIONS + 2)
    assert sorted(gate.stopped) == sorted(moved)
    gate.open.set()
    for name in names:
        assert await lab.history.result(name) == (2 if name in moved else 1)
    for name in moved:
        (returned,) = lab.history.bodies(name, ev.AttemptReturned)
        assert returned.attempt == 1
    for name in kept:
        assert not lab.history.bodies(name, ev.AttemptReturned)
    assert {b for b in gate.begun if b[0] in kept} == {(name, 1, 1) for name in kept}
    del first


@kafka_case(app)
async def test_f05_a_turn_in_flight_is_settled_before_its_partition_leaves(lab: KafkaLab):
    """The group refuses it, because its snapshot is older than the rebalance; the release commits what it brought."""
    first = await lab.worker()
    names = await held_runs(lab)
    commit, waiting = first.worker.producer.commit, asyncio.Event()

    async def slow(*arguments: Any) -> list[int]:
        if not waiting.is_set():
            waiting.set()
            await until(lambda: first.worker.turn_lock._waiters, "the call that takes partitions back")
        return await commit(*arguments)

    first.worker.producer.commit = slow  # type: ignore[method-assign]
    async with first.worker.turn_lock:
        gate.open.set()
        await until(lambda: len(first.worker.inbox) == PARTITIONS)
    await waiting.wait()
    second = await lab.worker(owns=2)
    for name in names:
        assert await lab.history.result(name) == 1
    assert len(first.told.heard("redo")) == 1, "the turn was not refused, so this test proves nothing"
    assert {number: p.epoch for number, p in second.worker.owner.partitions.items()} == dict.fromkeys(second.owned, 2)


@kafka_case(app)
async def test_f05_a_release_with_the_snapshot_of_the_last_poll_is_refused_by_the_group(lab: KafkaLab):
    """Why the callback takes a fresh one: without it no release is ever written."""
    first = await lab.worker()
    stale = first.worker.member.snapshot()
    revoked = first.worker.owner.revoked

    async def with_the_old_one(snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        assert snapshot.token != stale.token, "the callback was handed the snapshot of the last poll"
        await revoked(stale, partitions)

    first.worker.owner.revoked = with_the_old_one  # type: ignore[method-assign]
    second = await lab.worker(owns=2)
    assert "without a release record" in message(first)
    for number in second.owned:
        before, taken = (await lab.leases(number))[-2:]
        assert (before.owner, before.released, taken.owner) == ("w1", False, "w2")
    await first.owns(2)


@kafka_case(app)
@pytest.mark.parametrize("done", [False, True])
async def test_f05_a_commit_that_hangs_does_not_keep_partitions_longer_than_the_drain(lab: KafkaLab, done: bool):
    """Before it has done anything, or when only its answer is missing: then the start counts, and never begins here."""
    first = await lab.worker(drain_seconds=0.5)
    names = [lab.runs_of(number)[0] for number in range(PARTITIONS)]
    commit, waiting, go = first.worker.producer.commit, asyncio.Event(), asyncio.Event()

    async def hangs(*arguments: Any) -> list[int]:
        offsets = await commit(*arguments) if done else []
        waiting.set()
        await go.wait()
        return offsets or await commit(*arguments)

    first.worker.producer.commit = hangs  # type: ignore[method-assign]
    async with first.worker.turn_lock:
        await lab.history.send_all([(name, start("waits")) for name in names])
        await until(lambda: len(first.worker.inbox) == PARTITIONS)
    await waiting.wait()
    second = await lab.worker(owns=2)
    assert not go.is_set()
    assert "a commit is still under way" in message(first)
    moved = [name for name in names if lab.history.partition(name) in second.owned]
    await until(lambda: len(gate.begun) == 2)
    go.set()
    await until(lambda: len(gate.begun) == PARTITIONS)
    gate.open.set()
    for name in names:
        assert await lab.history.result(name) == (2 if name in moved else 1)
    begun = [(name, 2, 2 if done else 1) if name in moved else (name, 1, 1) for name in names]
    assert sorted(gate.begun) == sorted(begun)


@kafka_case(once)
async def test_f13_what_the_broker_refuses_in_a_release_takes_no_other_outcome_with_it(lab: KafkaLab):
    """The tasks are not idempotent: an outcome that is not committed by the owner would park its run."""
    first = await lab.worker(stop_seconds=0.1)
    names = [name for number in range(PARTITIONS) for name in lab.runs_of(number, 2)]
    big = names[3]
    await lab.history.send_all([(name, start("packs", 20_000 if name == big else 10)) for name in names])
    await until(lambda: len(gate.begun) == len(names))
    await configure(lab, lab.topics.effect("boxes"), {"max.message.bytes": "30000"})
    async with first.worker.turn_lock:
        gate.open.set()
        await until(lambda: len(first.worker.inbox) == len(names))
        first.worker.stop()
        await until(lambda: len(first.worker.turn_lock._waiters or ()) == 2, "the release, beside the next turn")
    await first.task
    assert "without a release record" not in message(first)
    await configure(lab, lab.topics.effect("boxes"), {"max.message.bytes": str(1024 * 1024)})
    await lab.worker()
    for name in names:
        if name != big:
            assert await lab.history.result(name) == 20
    error = lab.history.blocked(big)
    assert error is not None
    assert error.code == "VALUE_TOO_LARGE"
    assert len(gate.begun) == len(names)


@kafka_case(app)
async def test_f03_a_release_that_was_cut_off_and_still_commits_holds_up_no_turn(
    lab: KafkaLab, monkeypatch: pytest.MonkeyPatch
):
    """The client's thread stays in the end of its transaction, for as long as the client tries that."""
    monkeypatch.setattr("streams.runtime.commits.CUT_OFF_SECONDS", 0.2)
    first = await lab.worker(drain_seconds=0.5)
    names = [lab.runs_of(number)[0] for number in range(PARTITIONS)]
    await lab.history.send_all([(name, start("asks")) for name in names])
    for name in names:
        await lab.history.seen(name, ev.OpScheduled)
    transactor: Any = first.worker.producer._transactor
    end, go = transactor._end, threading.Event()

    def late() -> None:
        go.wait()
        end()

    transactor._end = late
    try:
        await lab.worker(owns=2)
        assert "without a release record" in message(first)
        await lab.history.send_all([(name, resume("yes")) for name in names])
        await lab.history.ended(*names)
        assert f"going on without having closed the producer {transactor.id}" in message(first)
    finally:
        go.set()


# -- loss --------------------------------------------------------------------------------------------------------------


class Ice:
    """Stops a worker's polls, as a process does that is frozen; its turns go on, which is worse than a freeze."""

    def __init__(self, running: Running) -> None:
        self.thawed = asyncio.Event()
        self.polls = 0
        member = running.worker.member
        poll = member.poll

        async def frozen(*arguments: Any) -> Any:
            self.polls += 1
            await self.thawed.wait()
            return await poll(*arguments)

        member.poll = frozen  # type: ignore[method-assign]


@kafka_case(app, "&session.timeout.ms=3000&max.poll.interval.ms=3000")
async def test_f05_a_frozen_worker_publishes_nothing_and_its_late_outcomes_are_dropped(lab: KafkaLab):
    """(a), and F26: the outcome of the older epoch arrives last."""
    first = await lab.worker()
    held = await held_runs(lab)
    timers = lab.runs_of(1, 2, "timer")
    await lab.history.send_all([(name, start("sleeps", 6.0)) for name in timers])
    for name in timers:
        await lab.history.seen(name, ev.OpScheduled)
    ice = Ice(first)
    second = await lab.worker()
    await until(lambda: len(gate.begun) == 2 * PARTITIONS)
    ends = {n: await lab.log.span(lab.topics.events, n, "read_uncommitted") for n in range(PARTITIONS)}
    done: list[Any] = []
    producer: Any = first.worker.producer
    commit = producer.commit

    async def counted(*arguments: Any) -> Any:
        done.append(await commit(*arguments))
        return done[-1]

    producer.commit = counted
    for name in timers:  # both workers have armed the timers, and the first one writes for nothing else
        assert await lab.history.result(name) == "slept"
        assert len(lab.history.bodies(name, ev.TimerFired)) == 1
    await until(lambda: first.told.heard("redo"), "the commit of the frozen worker that is refused")
    losing: list[str] = []
    lost = first.worker.owner.lost
    tried = first.worker.commit

    async def watched(partitions: Mapping[int, int]) -> None:
        losing.append("begin")
        await lost(partitions)
        losing.append("end")

    async def trying(*arguments: Any) -> Any:
        if losing == ["begin"] and not first.worker.turn_lock._waiters:
            losing.append("commit")
        return await tried(*arguments)

    first.worker.owner.lost = watched  # type: ignore[method-assign]
    first.worker.commit = trying  # type: ignore[method-assign]
    assert done == []
    ice.thawed.set()
    await until(lambda: losing[-1:] == ["end"])
    assert losing == ["begin", "end"], "something was written for partitions that are lost"
    await until(lambda: sorted(gate.stopped) == sorted(held), "the end of the tasks of lost partitions")
    assert done == []
    gate.open.set()
    for name in held:
        assert await lab.history.result(name) == 2
        assert len(lab.history.bodies(name, ev.OpCompleted)) == 1
    await first.owns(2)
    assert second.worker.producer.id.endswith("/1"), "the live worker was fenced"
    del ends


@kafka_case(app, "&session.timeout.ms=3000&max.poll.interval.ms=3000")
async def test_f02_an_owner_that_was_only_slow_in_its_commit_is_fenced_and_finds_out(lab: KafkaLab):
    """Its offsets are sent and its transaction is not ended when the next owner takes over and settles it."""
    first = await lab.worker()
    names = [lab.runs_of(number)[0] for number in range(PARTITIONS)]
    await lab.history.send_all([(name, start("asks")) for name in names])
    for name in names:
        await lab.history.seen(name, ev.OpScheduled)
    transactor: Any = first.worker.producer._transactor
    end, slow, go = transactor._end, threading.Event(), threading.Event()

    def late() -> None:
        slow.set()
        go.wait()
        end()

    transactor._end = late
    await lab.history.send(names[2], resume("yes"))
    await until(slow.is_set)
    ice = Ice(first)
    second = await lab.worker()
    assert f"ending the open transaction of {transactor.id}" in message(second)
    go.set()
    ice.thawed.set()
    assert await lab.history.result(names[2]) == "yes"
    assert [e.epoch for e in lab.history.events[names[2]] if isinstance(e.body, ev.InterruptAnswered)] == [2]
    await first.owns(2)
    assert first.worker.producer.id != transactor.id
    await lab.history.send_all([(name, resume("yes")) for name in names if name != names[2]])
    await lab.history.ended(*names)


@kafka_case(app)
async def test_inputs_of_another_incarnation_are_dropped(lab: KafkaLab):
    running = await lab.worker()
    worker = running.worker
    from streams.runtime.inputs import Sweep

    async with worker.turn_lock:
        old: Partition = worker.owner.partitions[1]
        worker.put(Sweep(old))
        worker.put(Sweep(worker.owner.partitions[2]))
        snapshot = worker.member.snapshot()
        came_back = snapshot._replace(owned={**snapshot.owned, 1: old.incarnation + 1})
        assert [item.partition.number for item in worker.inbox.take(100, came_back.owned).items] == [2]


# -- a storm -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * int(STORM_SECONDS))
@kafka_case(app)
async def test_f05_workers_that_join_and_leave_every_five_seconds_never_fence_each_other(lab: KafkaLab):
    """Under load, for 30 s or STREAMS_STORM_SECONDS; progress is asked for in each interval, not a speed."""
    names: list[str] = []
    over = asyncio.Event()

    async def feed() -> None:
        while not over.is_set():
            more = [f"s{len(names) + n}" for n in range(10)]
            names.extend(more)
            await lab.history.send_all([(name, start("steps", 1)) for name in more])
            await asyncio.sleep(0.1)

    async def follow() -> None:
        while not over.is_set():
            await lab.history.read()
            await asyncio.sleep(0.05)

    here = [await lab.worker()]
    loops = [asyncio.create_task(feed()), asyncio.create_task(follow())]
    began, ended = time.monotonic(), [0]
    plan = 0
    while time.monotonic() - began < STORM_SECONDS:
        if plan % 4 < 2:
            here.append(await lab.worker(owns=0))
        else:
            leaving = here.pop(0)
            await leaving.stop()
        plan += 1
        await asyncio.sleep(INTERVAL_SECONDS)
        ended.append(sum(lab.history.end(name) is not None for name in names))
    over.set()
    await asyncio.gather(*loops)
    await lab.history.ended(*names)
    progress = [later - earlier for earlier, later in itertools.pairwise(ended)]
    assert all(progress), f"no run ended in an interval: {progress}"
    for running in lab.running:
        assert refusals(running) == []
        assert "left open" not in message(running)
        assert "without" not in message(running)
    checked = await lab.check()
    assert len(checked.effects) == 3 * len(names)
