"""Commits of a worker on the broker: what is refused, what is fenced, what nobody knows, and what it does to others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from streams.errors import InDoubt
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.log.kafka.transaction import State
from streams.log.port import GroupSnapshot, NewRecord, TopicSpec
from streams.runtime.inputs import Arrived
from streams.wire.records import decode_effect
from tests.kafka.apps import app, gate
from tests.kafka.lab import PARTITIONS, KafkaLab, Running, configure, hang, kafka_case
from tests.runtime.history import resume, start, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gate.clear()


class Commits:
    """The transactions that a worker has tried, each with its records and offsets."""

    def __init__(self, running: Running) -> None:
        self.tried: list[tuple[list[NewRecord], dict[int, int]]] = []
        self.done = 0
        worker = running.worker
        commit = worker.commit

        async def watched(snapshot: GroupSnapshot, turn: Any) -> list[int]:
            self.tried.append((list(turn.records), turn.offsets()))
            offsets = await commit(snapshot, turn)
            self.done += 1
            return offsets

        worker.commit = watched  # type: ignore[method-assign]


async def in_one_turn(lab: KafkaLab, running: Running, requests: Sequence[tuple[str, cmd.Request]]) -> None:
    """Send commands and let one turn take them all."""
    worker = running.worker
    async with worker.turn_lock:
        await lab.history.send_all(list(requests))
        await until(lambda: sum(isinstance(item, Arrived) for item in worker.inbox) == len(requests))


async def limit(lab: KafkaLab, topic: str, size: int) -> None:
    """Let the broker take no batches over this size into a topic."""
    await configure(lab, topic, {"max.message.bytes": str(size)})


def redos(running: Running) -> list[str]:
    return [told[1] for told in running.told.heard("redo")]


# -- group commit, and the fence ---------------------------------------------------------------------------------------


@kafka_case(app)
async def test_one_transaction_takes_what_has_arrived_for_all_partitions(lab: KafkaLab):
    running = await lab.worker()
    names = [name for partition in range(PARTITIONS) for name in lab.runs_of(partition, 5)]
    commits = Commits(running)
    await in_one_turn(lab, running, [(name, start("asks")) for name in names])
    for name in names:
        await lab.history.seen(name, ev.OpScheduled)
    assert len(commits.tried) == 1
    records, offsets = commits.tried[0]
    assert {record.key for record in records} == {name.encode() for name in names}
    assert offsets == {number: p.applied for number, p in running.worker.owner.partitions.items()}
    assert await lab.log.group_offsets(lab.topics.group, lab.topics.commands) == offsets


@kafka_case(app)
async def test_a_turn_that_only_writes_for_a_timer_sends_the_offset_of_its_partition(lab: KafkaLab):
    running = await lab.worker()
    (run_id,) = lab.runs_of(3)
    await lab.history.start("sleeps", run_id, 0.5)
    await lab.history.seen(run_id, ev.OpScheduled)
    commits = Commits(running)
    assert await lab.history.result(run_id) == "slept"
    assert [offsets for _, offsets in commits.tried] == [{3: running.worker.owner.partitions[3].applied}]


@kafka_case(app)
async def test_f26_an_attempt_begins_only_when_its_start_is_committed(lab: KafkaLab):
    """The owner dies between the decision and the commit, with everything in an open transaction."""
    first = await lab.worker()
    (run_id,) = lab.runs_of(1)
    left: list[Any] = []

    async def dies(snapshot: GroupSnapshot, turn: Any) -> list[int]:
        assert turn.starts
        await hang(first.worker.producer, snapshot, turn.records, turn.offsets())
        left.append(turn)
        await asyncio.sleep(3600)
        return []

    first.worker.commit = dies  # type: ignore[method-assign]
    await lab.history.start("waits", run_id)
    await until(lambda: left)
    await asyncio.sleep(0.3)
    assert gate.begun == []
    assert run_id not in lab.history.events
    await first.kill()
    await lab.worker()
    gate.open.set()
    assert await lab.history.result(run_id) == 2
    assert gate.begun == [(run_id, 2, 1)]


@kafka_case(app)
async def test_f26_effects_and_tasks_carry_the_fencing_token_of_who_wrote_them(lab: KafkaLab):
    first = await lab.worker()
    early, late = lab.runs_of(2, 2)
    await lab.history.start("steps", early, 1)
    await lab.history.ended(early)
    await lab.history.start("waits", late)
    await until(lambda: gate.begun)
    await first.kill()
    await lab.worker()
    gate.open.set()
    assert await lab.history.result(late) == 2
    assert gate.begun == [(late, 1, 1), (late, 2, 2)]
    later = lab.runs_of(2, 3)[2]
    await lab.history.start("steps", later, 1)
    await lab.history.ended(later)
    messages = [decode_effect(r.value or b"") for r in await lab.records(lab.topics.effect("parcels"), 2)]
    assert [(message.run_id, message.epoch) for message in messages] == [(early, 1)] * 3 + [(later, 2)] * 3


# -- F03: records that cannot be sent ----------------------------------------------------------------------------------


@kafka_case(app)
async def test_f03_an_effect_that_only_the_broker_refuses_blocks_its_run_and_no_neighbour(lab: KafkaLab):
    running = await lab.worker()
    await limit(lab, lab.topics.effect("parcels"), 20_000)
    names = lab.runs_of(1, 16)
    poison = names[7]
    requests = [(name, start("writes", 30_000 if name == poison else 10)) for name in names]
    gate.open.clear()
    await in_one_turn(lab, running, requests)
    (blocked,) = await lab.history.seen(poison, ev.RunBlocked)
    assert blocked.error.code == "VALUE_TOO_LARGE"
    others = [name for name in names if name != poison]
    await lab.history.until(lambda h: all(len(h.bodies(name, ev.OpScheduled)) == 2 for name in others))
    assert len(redos(running)) <= math.log2(16) + 2, redos(running)
    assert not any(lab.history.bodies(name, ev.RunBlocked) for name in others)
    for effect in ("parcels", "letters"):
        written = [decode_effect(r.value or b"").run_id for r in await lab.records(lab.topics.effect(effect), 1)]
        assert sorted(written) == sorted(others), "an effect is missing, doubled, or of the blocked run"
    await limit(lab, lab.topics.effect("parcels"), 100_000)
    await lab.history.send(poison, cmd.Retry())
    await lab.history.send_all([(name, resume("yes")) for name in names])
    await lab.history.ended(*names)


@kafka_case(app)
async def test_f03_a_checkpoint_that_only_the_broker_refuses_blocks_its_run_and_no_neighbour(lab: KafkaLab):
    running = await lab.worker()
    await limit(lab, lab.topics.checkpoints, 6_000)
    large, *others = lab.runs_of(2, 6)
    await in_one_turn(lab, running, [(large, start("keeps", 9_000)), *((name, start("asks")) for name in others)])
    (blocked,) = await lab.history.seen(large, ev.RunBlocked)
    assert blocked.error.code == "VALUE_TOO_LARGE"
    await lab.history.send_all([(name, resume("yes")) for name in others])
    await lab.history.ended(*others)
    # As long as it cannot be written, asking again blocks again and nothing else.
    await lab.history.send(large, cmd.Retry())
    await lab.history.seen(large, ev.RunBlocked, 2)
    await running.stop()
    await limit(lab, lab.topics.checkpoints, 1_048_576)  # with less, no worker would start
    running = await lab.worker()
    assert large in running.worker.owner.partitions[2].runs
    await lab.history.send(large, cmd.Retry())
    await lab.history.send(large, resume("yes"))
    assert await lab.history.result(large) == "yes"


@kafka_case(app, "&queue.buffering.max.messages=100")
async def test_f03_a_turn_larger_than_the_queue_of_the_client_is_committed_as_a_whole(lab: KafkaLab):
    running = await lab.worker()
    names = [name for partition in range(PARTITIONS) for name in lab.runs_of(partition, 60)]
    commits = Commits(running)
    await in_one_turn(lab, running, [(name, start("asks")) for name in names])
    await lab.history.until(lambda h: all(h.bodies(name, ev.OpScheduled) for name in names))
    assert len(commits.tried) == 1
    assert len(commits.tried[0][0]) > 4 * 100


@kafka_case(app)
async def test_f16_an_effect_whose_topic_is_deleted_blocks_the_runs_that_need_it_and_no_other(lab: KafkaLab):
    running = await lab.worker()
    name = lab.topics.effect("parcels")
    info = (await lab.log.describe_topics([name]))[name]
    await asyncio.wrap_future(lab.log._admin._client.delete_topics([name])[name])
    needy = lab.runs_of(1, 4)
    others = lab.runs_of(1, 3, "other")
    requests = [(run_id, start("writes", 10)) for run_id in needy] + [(run_id, start("asks")) for run_id in others]
    await in_one_turn(lab, running, requests)
    await lab.history.send_all([(run_id, resume("yes")) for run_id in others])
    await lab.history.ended(*others)
    for run_id in needy:
        (blocked, *_) = await lab.history.seen(run_id, ev.RunBlocked)
        assert blocked.error.code == "TOPIC_MISSING"
        assert name in blocked.error.message
    assert not running.task.done()
    assert len(redos(running)) <= 4
    kept = {key: info.config[key] for key in ("cleanup.policy", "retention.ms", "message.timestamp.type")}
    await lab.log.create_topics([TopicSpec(name, PARTITIONS, kept)])
    await lab.history.send_all([(run_id, cmd.Retry()) for run_id in needy])
    await lab.history.send_all([(run_id, resume("yes")) for run_id in needy])
    await lab.history.ended(*needy)


# -- outcomes of the end -----------------------------------------------------------------------------------------------


def in_doubt(running: Running, *, done: bool) -> None:
    """Let the answer to the next end of a transaction be lost, with the transaction committed or still open."""
    transactor: Any = running.worker.producer._transactor
    end = transactor._end

    def lost() -> None:
        if done:
            end()
        transactor._move(State.IN_DOUBT)
        transactor._client, kept = None, transactor._client
        running.kept = kept  # type: ignore[attr-defined] - freed, it would abort
        raise InDoubt("the answer was lost")

    transactor._end = lost


@kafka_case(app)
@pytest.mark.parametrize("done", [True, False])
async def test_f04_a_commit_in_doubt_is_found_out_from_the_log_under_a_new_producer(lab: KafkaLab, done: bool):
    running = await lab.worker()
    old = running.worker.producer.id
    names = [lab.runs_of(n)[0] for n in range(PARTITIONS)]
    for name in names:
        await lab.history.start("asks", name)
        await lab.history.seen(name, ev.OpScheduled)
    in_doubt(running, done=done)
    await lab.history.send(names[1], resume("yes"))
    assert await lab.history.result(names[1]) == "yes"
    # The log shows the result before the worker has found out whether it was committed.
    await until(lambda: running.worker.producer.id != old and len(running.owned) == PARTITIONS)
    for number in range(PARTITIONS):
        leases = await lab.leases(number)
        assert leases[-1].transactional_ids == (running.worker.producer.id,)
        assert leases[-1].epoch == leases[0].epoch + 1
    # `steps` writes effects: each once.
    await lab.history.send_all([(f"{name}-more", start("steps", 1)) for name in names])
    await lab.history.ended(*(f"{name}-more" for name in names))


@kafka_case(app)
async def test_a_claim_in_doubt_makes_the_other_partitions_be_claimed_again_under_the_new_producer(lab: KafkaLab):
    running = await lab.worker()
    in_doubt(running, done=True)
    owner = running.worker.owner
    async with running.worker.turn_lock:
        await owner.again({3: running.worker.member.snapshot().owned[3]})
    await until(lambda: running.told.heard("redo"))
    await until(lambda: len(running.owned) == PARTITIONS and owner.partitions[0].epoch == 2)
    for number in range(PARTITIONS):
        assert (await lab.leases(number))[-1].transactional_ids == (running.worker.producer.id,)


@kafka_case(app)
async def test_f22_a_worker_whose_producer_was_replaced_goes_on_under_a_new_id(lab: KafkaLab):
    running = await lab.worker()
    old = running.worker.producer.id
    names = [lab.runs_of(n)[0] for n in range(PARTITIONS)]
    thief = await lab.log.producer(old)
    await lab.history.send_all([(name, start("steps", 1)) for name in names])
    await lab.history.ended(*names)
    assert running.worker.producer.id != old
    assert any("fenced" in redo.lower() for redo in redos(running))
    assert len(redos(running)) <= 3
    await thief.close()
