"""Each step of acquiring, releasing and losing a partition (design 5) has a test here that fails without the step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streams.errors import InDoubt
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.log.kafka.producer import KafkaProducer
from streams.log.port import GroupSnapshot, NewRecord, Record, Span
from streams.runtime import owner as owner_module
from streams.runtime.partition import Partition
from streams.wire.records import Damaged, Lease, encode_checkpoint, encode_event, encode_lease
from tests.kafka.apps import app, gate
from tests.kafka.lab import PARTITIONS, KafkaLab, Running, foreign, hang, kafka_case, leave_open
from tests.runtime.history import resume, start, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gate.clear()


def message(running: Running) -> str:
    return str(running.told.heard("message"))


async def waiting_run(lab: KafkaLab, partition: int) -> str:
    """A run that waits for an answer."""
    run_id = lab.runs_of(partition)[0]
    await lab.history.start("asks", run_id)
    await lab.history.seen(run_id, ev.OpScheduled)
    return run_id


async def die_with(lab: KafkaLab, running: Running, records: Sequence[NewRecord], offsets: dict[int, int]) -> Any:
    """End a worker in the middle of a transaction that has these records and offsets; return its dead producer."""
    worker = running.worker
    producer: Any = worker.producer
    async with worker.turn_lock:
        await hang(producer, worker.member.snapshot(), records, offsets)
        dead = leave_open(producer)
    await running.kill()
    return producer, dead


async def waits_before_its_claim(lab: KafkaLab, running: Running, partition: int) -> None:
    """It says so after a second, and goes on waiting."""
    text = f"partition {partition} waits for what its last owner left open: its lease names no producer"
    await until(lambda: text in message(running))
    await asyncio.sleep(0.3)
    assert partition not in running.owned
    written = await lab.leases(partition, "read_uncommitted")
    assert all(lease.owner != "w2" for lease in written), "the claim was written before the ends were visible"


# -- acquire, step by step ---------------------------------------------------------------------------------------------


@kafka_case(app)
async def test_f02_step_1_offsets_that_are_pending_keep_the_next_owner_from_its_claim(lab: KafkaLab):
    """Only an effect and the offset are pending: no end that step 3 looks at tells of the open transaction."""
    first = await lab.worker()
    run_id = await waiting_run(lab, 2)
    applied = first.worker.owner.partitions[2].applied
    effect = NewRecord(lab.topics.effect("parcels"), 2, run_id.encode(), b"zombie")
    dead, lane = await die_with(lab, first, [effect], {2: applied})
    second = await lab.worker()
    assert f"ending the open transaction of {dead.id}" in message(second)
    with pytest.raises(Exception, match=r"(?i)fence|epoch|aborted"):
        await lane.run(dead._transactor._client.commit_transaction)
    assert await lab.records(lab.topics.effect("parcels"), 2) == []
    await lab.history.send(run_id, resume("yes"))
    assert await lab.history.result(run_id) == "yes"


@kafka_case(app)
async def test_f02_steps_2_and_3_wait_for_events_whose_markers_are_late(lab: KafkaLab):
    first = await lab.worker()
    await first.stop()
    (run_id,) = lab.runs_of(1)
    offset = await lab.history.start("asks", run_id)
    body = ev.CommandRejected("start", "LATE", "was applied by the last owner")
    event = Event(run_id, f"{run_id}@{offset}", None, 1, None, offset, 1, body)
    pending = await foreign(lab, [NewRecord(lab.topics.events, 1, run_id.encode(), encode_event(event))])
    second = await lab.worker(owns=PARTITIONS - 1)
    await waits_before_its_claim(lab, second, 1)
    await asyncio.to_thread(pending.commit)
    await second.owns(PARTITIONS)
    assert second.worker.owner.partitions[1].applied == offset + 1
    later = await waiting_run_like(lab, 1)
    assert [type(e.body) for e in lab.history.events[run_id]] == [ev.CommandRejected], "the command was applied twice"
    await lab.history.send(later, resume("yes"))
    assert await lab.history.result(later) == "yes"


async def waiting_run_like(lab: KafkaLab, partition: int) -> str:
    run_id = lab.runs_of(partition, prefix="later")[0]
    await lab.history.start("asks", run_id)
    await lab.history.seen(run_id, ev.OpScheduled)
    return run_id


@kafka_case(app)
async def test_f02_steps_2_and_3_wait_for_checkpoints_whose_markers_are_late(lab: KafkaLab):
    first = await lab.worker()
    run_id = await waiting_run(lab, 1)
    await first.stop()
    data = encode_checkpoint(Damaged(run_id, 0, "written by the last owner"))
    pending = await foreign(lab, [NewRecord(lab.topics.checkpoints, 1, run_id.encode(), data)])
    second = await lab.worker(owns=PARTITIONS - 1)
    await waits_before_its_claim(lab, second, 1)
    await asyncio.to_thread(pending.commit)
    await second.owns(PARTITIONS)
    assert second.told.heard("run_blocked", run_id, "RUN_DAMAGED")
    lab.unchecked = True  # the damage is made up


@kafka_case(app)
async def test_f02_steps_2_to_4_wait_for_a_lease_whose_marker_is_late(lab: KafkaLab):
    first = await lab.worker()
    await waiting_run(lab, 1)
    await first.stop()
    last = (await lab.leases(1))[-1]
    lease = encode_lease(last._replace(epoch=40, owner="late", transactional_ids=(), released=False))
    pending = await foreign(lab, [NewRecord(lab.topics.leases, 1, b"1", lease)])
    second = await lab.worker(owns=PARTITIONS - 1)
    await waits_before_its_claim(lab, second, 1)
    await asyncio.to_thread(pending.commit)
    await second.owns(PARTITIONS)
    assert second.worker.owner.partitions[1].epoch == 41


@kafka_case(app)
async def test_f02_a_worker_that_died_in_its_claim_is_found_although_its_lease_is_not_visible(lab: KafkaLab):
    first = await lab.worker()
    run_id = await waiting_run(lab, 2)
    await first.stop()
    middle = await lab.worker()
    last = (await lab.leases(2))[-1]
    claim = last._replace(epoch=last.epoch + 1, owner="w2", transactional_ids=(middle.worker.producer.id,))
    # As it was before the claim: the visible lease names another producer.
    await lab.log.append(
        [NewRecord(lab.topics.leases, 2, b"2", encode_lease(last._replace(transactional_ids=("elsewhere",))))]
    )
    record = NewRecord(lab.topics.leases, 2, b"2", encode_lease(claim))
    dead, _ = await die_with(lab, middle, [record], {2: last.applied})
    began = time.monotonic()
    last_worker = await lab.worker()
    assert f"ending the open transaction of elsewhere, {dead.id}" in message(last_worker)
    assert time.monotonic() - began < 60
    await lab.history.send(run_id, resume("yes"))
    assert await lab.history.result(run_id) == "yes"
    lab.unchecked = True  # a lease was made up


@kafka_case(app)
async def test_step_5_a_claim_tells_of_the_new_owner_and_carries_over_how_far_the_last_one_came(lab: KafkaLab):
    first = await lab.worker(address="rack-7:9000")
    ended = lab.runs_of(0, prefix="ended")[0]
    await lab.history.start("steps", ended, 1)
    await lab.history.ended(ended)
    await first.stop()
    second = await lab.worker()
    leases = await lab.leases(0)
    assert [(lease.epoch, lease.owner, lease.released) for lease in leases] == [
        (1, "w1", False),
        (1, "w1", True),
        (2, "w2", False),
    ]
    _, released, claimed = leases
    assert (released.address, claimed.address) == ("rack-7:9000", claimed.host)
    assert claimed.transactional_ids == (second.worker.producer.id,)
    assert released.applied == 1
    assert released.tail > 0
    assert (claimed.applied, claimed.tail, claimed.topic_id) == (released.applied, released.tail, released.topic_id)
    run_id = await waiting_run(lab, 0)
    await second.kill()
    await lab.worker()
    await lab.history.send(run_id, resume("yes"))
    assert await lab.history.result(run_id) == "yes"
    assert {e.epoch for e in lab.history.events[run_id]} == {2, 3}


@kafka_case(app)
async def test_step_5_comes_before_step_6_and_both_before_any_command(lab: KafkaLab, monkeypatch: pytest.MonkeyPatch):
    first = await lab.worker()
    await waiting_run(lab, 3)
    await first.stop()
    names = [name for partition in range(PARTITIONS) for name in lab.runs_of(partition, 3, "early")]
    await lab.history.send_all([(name, start("steps", 1)) for name in names])
    claimed: dict[int, Lease] = {}
    restore = owner_module.restore

    async def watched(log: Any, topics: Any, partition: Partition, tail: int, ends: dict[str, Span]) -> Any:
        # The marker of an acknowledged commit may be late, so the claim is looked for among what is written.
        claimed[partition.number] = (await lab.leases(partition.number, "read_uncommitted"))[-1]
        assert claimed[partition.number].epoch == partition.epoch
        assert claimed[partition.number].owner == "w2"
        await asyncio.sleep(0.5)
        return await restore(log, topics, partition, tail, ends)

    monkeypatch.setattr(owner_module, "restore", watched)
    second = await lab.worker(owns=0)
    await until(lambda: hasattr(second.worker, "member"))
    poll = second.worker.member.poll
    early: list[Record] = []

    async def seen(records_max: int, timeout: float) -> Any:
        batch = await poll(records_max, timeout)
        partitions = second.worker.owner.partitions
        early.extend(r for r in batch.records if r.partition in partitions and not partitions[r.partition].running)
        return batch

    second.worker.member.poll = seen  # type: ignore[method-assign]
    await lab.history.ended(*names)
    assert set(claimed) == set(range(PARTITIONS))
    assert early == [], "commands came before their partition was restored"


@kafka_case(app)
async def test_step_6_leases_that_were_lost_are_claimed_above_what_the_events_show(lab: KafkaLab):
    for _ in range(3):
        await (await lab.worker()).stop()
    running = await lab.worker()
    run_id = await waiting_run(lab, 1)
    await lab.history.send(run_id, resume("yes"))
    assert await lab.history.result(run_id) == "yes"
    await running.stop()
    last = lab.history.events[run_id][-1].epoch
    assert last == 4
    await lab.check()
    await lab.log.append([NewRecord(lab.topics.leases, 1, b"1", None)])
    second = await lab.worker()
    assert second.worker.owner.partitions[1].epoch == last + 1
    assert "its leases were lost" in message(second)
    other = await waiting_run_like(lab, 1)
    assert {event.epoch for event in lab.history.events[other]} == {last + 1}
    lab.unchecked = True  # the checker would miss the leases


@kafka_case(app)
async def test_step_7_what_was_under_way_is_waited_for_or_tried_again(lab: KafkaLab):
    first = await lab.worker()
    held, asks, sleeps = (lab.runs_of(n)[0] for n in (0, 1, 2))
    await lab.history.send_all([(held, start("waits")), (asks, start("asks")), (sleeps, start("sleeps", 2.0))])
    for run_id in (held, asks, sleeps):
        await lab.history.seen(run_id, ev.OpScheduled)
    await until(lambda: gate.begun)
    await first.kill()
    second = await lab.worker()
    gate.open.set()
    await lab.history.send(asks, resume("yes"))
    assert await lab.history.result(held) == second.worker.owner.partitions[0].epoch == 2
    assert await lab.history.result(asks) == "yes"
    assert await lab.history.result(sleeps) == "slept"
    assert gate.begun == [(held, 1, 1), (held, 2, 2)]


# -- F01: ends that are no record --------------------------------------------------------------------------------------


@kafka_case(app)
async def test_f01_partitions_that_end_with_aborted_records_are_restored(lab: KafkaLab):
    first = await lab.worker()
    run_id = await waiting_run(lab, 2)
    await first.stop()
    records = [
        NewRecord(name, partition, b"r", b"aborted")
        for name in (lab.topics.events, lab.topics.checkpoints, lab.topics.leases)
        for partition in range(PARTITIONS)
        for _ in range(500)
    ]
    aborted = await foreign(lab, records)
    await asyncio.to_thread(aborted.abort)
    await lab.worker()
    await lab.history.send(run_id, resume("yes"))
    assert await lab.history.result(run_id) == "yes"


# -- F02: the dead, and the slow ---------------------------------------------------------------------------------------


@kafka_case(app)
async def test_f02_what_an_owner_left_open_before_its_commit_is_ended_and_its_command_applied_once(lab: KafkaLab):
    first = await lab.worker()
    run_id = await waiting_run(lab, 2)
    taken: list[Any] = []

    async def never_ends(snapshot: GroupSnapshot, turn: Any) -> Any:
        taken.append(turn)
        await hang(first.worker.producer, snapshot, turn.records, turn.offsets())
        leave_open(first.worker.producer)
        taken.append(None)
        await asyncio.sleep(3600)

    first.worker.commit = never_ends  # type: ignore[method-assign]
    await lab.history.send(run_id, resume("yes"))
    await until(lambda: len(taken) == 2)
    dead = first.worker.producer.id
    await first.kill()
    second = await lab.worker()
    assert f"ending the open transaction of {dead}" in message(second)
    assert await lab.history.result(run_id) == "yes"


@kafka_case(app)
async def test_f02_a_claim_of_its_own_that_a_worker_left_in_doubt_is_ended_by_itself(
    lab: KafkaLab, monkeypatch: pytest.MonkeyPatch
):
    """All other partitions are quiet, so no turn looks after the producer before the broker ends it."""
    commit, ids = KafkaProducer.commit, []

    async def doubtful(
        self: KafkaProducer, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        ids.append(self.id)
        if len(ids) == PARTITIONS:
            await hang(self, snapshot, records, offsets)
            leave_open(self)
            raise InDoubt("planned")
        return await commit(self, snapshot, records, offsets)

    monkeypatch.setattr(KafkaProducer, "commit", doubtful)
    running = await lab.worker(sweep_seconds=600.0)
    assert f"ending the open transaction of {ids[0]}" in message(running)
    assert running.worker.producer.id != ids[0]
    run_id = await waiting_run(lab, 2)
    await lab.history.send(run_id, resume("yes"))
    assert await lab.history.result(run_id) == "yes"


@kafka_case(app)
async def test_f02_a_commit_that_was_acknowledged_is_never_missing_from_what_the_next_owner_restores(lab: KafkaLab):
    """Markers appear up to 80 ms after the acknowledgement, so a hand-over at once is tried over and over."""
    names = [lab.runs_of(n, 10, "many") for n in range(PARTITIONS)]
    running = await lab.worker()
    for turn in range(8):
        acknowledged: list[Any] = []
        commit = running.worker.commit

        async def counted(snapshot: GroupSnapshot, turn: Any, commit: Any = commit, seen: Any = acknowledged) -> Any:
            offsets = await commit(snapshot, turn)
            seen.append({p: turn.applied[p] for p in turn.applied})
            return offsets

        running.worker.commit = counted  # type: ignore[method-assign]
        await lab.history.send_all([(names[n][turn], start("asks")) for n in range(PARTITIONS)])
        await until(lambda found=acknowledged: {p for applied in found for p in applied} == set(range(PARTITIONS)))
        await running.kill()
        running = await lab.worker()
        for number, partition in running.worker.owner.partitions.items():
            assert names[number][turn] in partition.runs, f"partition {number} was restored without its last commit"
    await lab.history.send_all([(name, resume("yes")) for of in names for name in of[:8]])
    await lab.history.ended(*(name for of in names for name in of[:8]))
