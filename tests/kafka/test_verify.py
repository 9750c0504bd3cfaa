"""`streams verify` and `streams export` on a real broker: beside live workers, after retention, after tampering."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import pytest

from streams.kernel import bodies as ev
from streams.log.port import NewRecord, TopicPartition
from streams.ops.verify import Report, verify
from streams.wire.records import decode_checkpoint, decode_effect, encode_checkpoint, encode_effect
from tests.kafka.lab import Hung, read_places
from tests.kafka.topic_lab import Operator, running
from tests.runtime.history import resume
from tests.runtime.lab import PARTITIONS, Lab

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


async def right(lab: Lab, **options: Any) -> Report:
    report = await verify(lab.log, lab.app.name, **options)
    assert report.divergences == ()
    return report


async def fill(lab: Lab, count: int = 30, **settings: Any) -> None:
    """Runs that end, and runs that were answered by a second owner."""
    first = await lab.worker(checkpoint_bytes_min=300, **settings)
    for n in range(count):
        await lab.history.start("simple", f"s{n}", "a")
        await lab.history.start("asks", f"a{n}", "b")
    await lab.history.ended(*(f"s{n}" for n in range(count)))
    for n in range(count):
        await lab.history.seen(f"a{n}", ev.OpScheduled, 2)
    await first.stop()
    second = await lab.worker(checkpoint_bytes_min=300, **settings)
    for n in range(0, count, 2):
        await lab.history.send(f"a{n}", resume("yes"))
    await lab.history.ended(*(f"a{n}" for n in range(0, count, 2)))
    await second.stop()


@running
async def test_a_log_is_right_in_one_pass_and_in_many(lab: Lab, operator: Operator):
    await fill(lab)
    whole = await right(lab)
    assert (whole.runs, whole.effects, whole.commands) == (60, 45, 75)
    assert whole.leases >= 4 * PARTITIONS
    some = await right(lab, memory_bytes_max=10_000)
    assert some.passes > PARTITIONS
    assert some._replace(seconds=0, passes=0) == whole._replace(seconds=0, passes=0)


@running
async def test_it_runs_beside_workers_that_go_on_writing(lab: Lab, operator: Operator):
    await lab.worker(checkpoint_bytes_min=300, sweep_seconds=0.2, checkpoint_age_seconds=0.3, owns=0)
    await lab.worker(checkpoint_bytes_min=300, sweep_seconds=0.2, checkpoint_age_seconds=0.3, owns=0)

    async def write() -> None:
        for n in range(60):
            await lab.history.start("simple", f"s{n}", "a")
            await lab.history.start("asks", f"a{n}", "b")
            if n % 10 == 9:
                await lab.history.ended(f"s{n}")

    writing = asyncio.create_task(write())
    events = looks = 0
    while not writing.done() or looks < 3:
        report = await right(lab)
        assert report.events >= events
        events, looks = report.events, looks + 1
    await writing
    assert events > 100


@running
async def test_what_was_aborted_is_no_part_of_the_log_and_what_is_pending_is_waited_for(lab: Lab, operator: Operator):
    await fill(lab, 4)
    before = await right(lab)
    partition = lab.history.partition("s0")
    junk = [
        NewRecord(topic, partition, b"s0", b"junk")
        for topic in (lab.topics.events, lab.topics.checkpoints, lab.topics.effect("parcels"))
    ]
    pending = await asyncio.to_thread(Hung, operator.servers, junk)
    looking = asyncio.create_task(verify(lab.log, lab.app.name))
    await asyncio.sleep(1.0)
    assert not looking.done()
    await asyncio.to_thread(pending.abort)
    after = await looking
    assert after._replace(seconds=0) == before._replace(seconds=0)


@running
async def test_what_retention_has_deleted_is_counted_and_not_missed(lab: Lab, operator: Operator):
    await fill(lab)
    lab.unchecked = True
    whole = await right(lab)
    mails = lab.topics.effect("parcels")
    for partition in range(PARTITIONS):
        found = await read_places(lab.log, [TopicPartition(t, partition) for t in (mails, lab.topics.events)])
        effects, events = found.values()
        await operator.delete_records(mails, partition, effects[len(effects) // 2].offset)
        await operator.delete_records(lab.topics.events, partition, events[len(events) // 3].offset)
        await operator.delete_records(lab.topics.commands, partition, 5)
    report = await right(lab)
    gone = report.not_compared
    assert gone.runs > 0
    assert gone.commands > 0
    assert 0 < report.effects < whole.effects
    assert (await right(lab, memory_bytes_max=5_000))._replace(seconds=0, passes=0) == report._replace(
        seconds=0, passes=0
    )
    for partition in range(PARTITIONS):  # everything is gone but the checkpoints
        for topic in (mails, lab.topics.events, lab.topics.commands):
            await operator.delete_records(topic, partition, -1)
    report = await right(lab)
    assert (report.runs, report.events, report.effects) == (0, 0, 0)
    assert report.not_compared.checkpoints > 0


@running
async def test_tampering_is_found_through_the_command_line(lab: Lab, operator: Operator):
    await fill(lab, 4)
    lab.unchecked = True
    partition = lab.history.partition("s1")
    places = [TopicPartition(t, partition) for t in (lab.topics.checkpoints, lab.topics.effect("parcels"))]
    found = await read_places(lab.log, places)
    state = next(decode_checkpoint(r.value or b"") for r in found[places[0]] if r.key == b"s1")
    message = next(decode_effect(r.value or b"") for r in found[places[1]] if r.key == b"s1")
    await operator.produce(*_at(places[0]), encode_checkpoint(state._replace(result=b"1")), partition=partition)
    await operator.produce(*_at(places[1]), encode_effect(message), partition=partition)
    other = lab.history.partition("a0")
    place = TopicPartition(lab.topics.effect("parcels"), other)
    orphan = encode_effect(message._replace(effect_id="a0@0/77", run_id="a0"))
    await operator.produce(place.topic, b"a0", orphan, partition=other)
    report = await verify(lab.log, lab.app.name)
    kinds = {d.run_id: (d.kind, d.more) for d in report.divergences}
    assert kinds == {"s1": ("checkpoint.differs", 1), "a0": ("effect.orphan", 0)}
    arguments = ["verify", "--log", operator.kafka.url, "--app", lab.app.name, "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 1, err
    assert {d["run_id"] for d in json.loads(out)["divergences"]} == {"s1", "a0"}
    assert err == b""


def _at(place: TopicPartition) -> tuple[str, bytes]:
    return place.topic, b"s1"


@running
async def test_export_reads_what_the_broker_holds(lab: Lab, operator: Operator):
    await fill(lab, 4)
    lab.unchecked = True
    events = await read_places(lab.log, [TopicPartition(lab.topics.events, n) for n in range(PARTITIONS)])
    arguments = ["export", "--log", operator.kafka.url, "--app", lab.app.name, "--format", "rows"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["partition"], row["log_offset"]) for row in rows] == [
        (record.partition, record.offset) for records in events.values() for record in records
    ]
