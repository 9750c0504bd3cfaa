"""What Kafka may have dropped, and records that are null or empty: nothing is lost silently, nothing comes back."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from streams.dev import start_kafka, stop_kafka
from streams.errors import LogDamaged, SendRefused, UsageError
from streams.kernel import bodies as ev
from streams.log.port import RECORD_BYTES_MAX, NewRecord, Record, TopicPartition, TopicSpec
from streams.runtime.topics import ensure_topics
from streams.wire.records import Lease, decode_dead_letter, decode_lease
from tests.kafka.topic_lab import Operator, running
from tests.runtime.checker import records_of
from tests.runtime.history import HANG_SECONDS, resume, signal, until
from tests.runtime.lab import PARTITIONS, Lab, Running

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

START = {"type": "start", "workflow": "simple", "input": "a"}
AGE = {"checkpoint_age_seconds": 1.0, "sweep_seconds": 0.3}


def refusals(worker: Running) -> dict[int, str]:
    return {told[1]: told[4] for told in worker.told.heard("partition") if told[2] == "refused"}


async def records(lab: Lab, topic: str, run_id: str) -> list[Record]:
    """The records of a run in a topic, as a reader sees them now."""
    found = await records_of(lab.log, TopicPartition(topic, lab.history.partition(run_id)))
    return [record for record in found if record.key == run_id.encode()]


async def lease(lab: Lab, run_id: str) -> Lease:
    """The newest lease of the partition of a run."""
    number = lab.history.partition(run_id)
    return decode_lease((await records_of(lab.log, TopicPartition(lab.topics.leases, number)))[-1].value or b"")


async def until_lease(lab: Lab, run_id: str, fits: Callable[[Lease], bool]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not fits(await lease(lab, run_id)):
        assert time.monotonic() < deadline, await lease(lab, run_id)
        await asyncio.sleep(0.1)


# ---- null and empty -------------------------------------------------------------------------------------------------


@running
async def test_f15_commands_that_are_null_or_empty_are_set_aside(lab: Lab, operator: Operator):
    await lab.worker()
    where = {"partition": lab.history.partition("r")}
    commands = lab.topics.commands
    await operator.produce(commands, "r", None, **where)
    await operator.produce(commands, "r", b"", **where)
    await operator.produce(commands, None, START, **where)
    await operator.produce(commands, "r", START, **where)
    assert await lab.history.result("r") == "A"
    found = await records_of(lab.log, TopicPartition(lab.topics.dead_letters, where["partition"]))
    letters = [decode_dead_letter(record.value or b"") for record in found]
    assert [(letter.key, letter.value) for letter in letters] == [(b"r", None), (b"r", b""), (None, letters[2].value)]
    assert [letter.offset for letter in letters] == [0, 1, 2]


@running
async def test_f15_headers_of_any_kind_are_no_reason_to_refuse_a_command(lab: Lab, operator: Operator):
    await lab.worker()
    kinds = {
        "null": [("a", None)],
        "empty": [("a", b"")],
        "twice": [("a", b"1"), ("a", b"2"), ("a", None)],
        "no-text": [("a", b"\xff\xfe\x00")],
        "ours-null": [("content-type", None), ("streams-schema", None)],
        "ours-wrong": [("content-type", b"\xff"), ("content-type", b"text/plain")],
        "no-name": [("", b"x")],
    }
    for run_id, headers in kinds.items():
        where = lab.history.partition(run_id)
        await operator.produce(lab.topics.commands, run_id, START, partition=where, headers=headers)
    await lab.history.ended(*kinds)
    assert {await lab.history.result(run_id) for run_id in kinds} == {"A"}


@running
async def test_f15_a_header_name_that_is_not_utf_8_stops_nobody(lab: Lab, operator: Operator):
    """Clients in C and Go write such names; the Python client cannot, and fails at reading one."""
    await lab.worker()
    runs = [f"{kind}{number}" for number in range(12) for kind in ("plain", "odd")]  # a warm interpreter differs
    for run_id in runs:
        where = lab.history.partition(run_id)
        if run_id.startswith("odd"):
            await asyncio.to_thread(produce_in_c, operator.servers, lab.topics.commands, where, run_id, b"\xff\xfe")
        else:
            await operator.produce(lab.topics.commands, run_id, START, partition=where)
    await lab.history.ended(*runs)
    assert {await lab.history.result(run_id) for run_id in runs} == {"A"}


def produce_in_c(servers: str, topic: str, partition: int, key: str, header: bytes) -> None:
    """Produce `START` through the C library that comes with the Python client."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    rd = ctypes.CDLL(str(next(folder.glob("librdkafka-*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(rd, name).restype = ctypes.c_void_p
    conf, text = ctypes.c_void_p(rd.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    assert rd.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), text, 512) == 0, text.value
    client = ctypes.c_void_p(rd.rd_kafka_new(0, conf, text, ctypes.c_size_t(512)))
    headers = ctypes.c_void_p(rd.rd_kafka_headers_new(ctypes.c_size_t(1)))
    assert rd.rd_kafka_header_add(headers, header, ctypes.c_ssize_t(len(header)), b"x", ctypes.c_ssize_t(1)) == 0
    value, size = json.dumps(START).encode(), ctypes.c_size_t
    topic_, partition_, value_, key_, copy_, headers_, end = 1, 3, 4, 5, 7, 10, 0  # rd_kafka_vtype_t
    arguments = [topic_, topic.encode(), partition_, partition, copy_, 2, value_, value, size(len(value))]
    arguments += [key_, key.encode(), size(len(key)), headers_, headers, end]
    assert rd.rd_kafka_producev(client, *arguments) == 0
    assert rd.rd_kafka_flush(client, 30_000) == 0
    rd.rd_kafka_destroy(client)


@running
async def test_f15_a_deleted_run_stays_deleted_after_compaction(lab: Lab, operator: Operator):
    topic = lab.topics.checkpoints
    settings = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.001", "delete_retention_ms": "4000"}
    await operator.alter(topic, **settings)
    first = await lab.worker(early_input_seconds=2.0, **AGE)
    await lab.history.send("ghost", signal("news", "early"))
    await lab.history.seen("ghost", ev.RunExpired)
    values = [record.value for record in await records(lab, topic, "ghost")]
    assert values[-1] is None, "the deletion is no real null"
    assert len(values) > 1, "there was no checkpoint to delete"
    # Only what lies before the active segment is compacted: other runs of the partition push it on.
    others = [f"r{n}" for n in range(400) if lab.history.partition(f"r{n}") == lab.history.partition("ghost")]
    done: list[str] = []
    while await records(lab, topic, "ghost"):
        done.append(others.pop())
        await lab.history.start("simple", done[-1], "a")
        await lab.history.ended(done[-1])
        await asyncio.sleep(0.5)
    await first.stop()
    second = await lab.worker(**AGE)
    held = second.worker.owner.partitions[lab.history.partition("ghost")].runs
    assert set(held) == set(done)
    await lab.history.start("simple", "ghost", "again")
    await lab.history.until(lambda history: history.end("ghost") is not None)
    assert await lab.history.result("ghost") == "AGAIN"


@running
async def test_f15_an_older_copy_without_its_deletion_brings_no_run_back(lab: Lab, operator: Operator):
    """As where the null has been removed already and an older segment still holds the checkpoint."""
    # The second sweep ends it, and the third would move the tail past its end.
    first = await lab.worker(early_input_seconds=4.0, checkpoint_age_seconds=3.5, sweep_seconds=3.0)
    await lab.history.send("ghost", signal("news", "early"))
    await lab.history.seen("ghost", ev.RunExpired)
    await first.kill()
    copy = (await records(lab, lab.topics.checkpoints, "ghost"))[0].value
    assert copy is not None
    lab.divergent.add("ghost")
    await operator.produce(
        lab.topics.checkpoints, "ghost", copy, partition=lab.history.partition("ghost"), partitioner="murmur2"
    )
    events = await records(lab, lab.topics.events, "ghost")
    assert (await lease(lab, "ghost")).tail <= events[-1].offset, "the tail is past the end of the run: no test"
    second = await lab.worker()
    assert "ghost" not in second.worker.owner.partitions[lab.history.partition("ghost")].runs


@running
async def test_f15_an_empty_checkpoint_is_an_error_and_no_deletion(lab: Lab, operator: Operator):
    first = await lab.worker()
    await lab.history.start("naps", "r", 0.0)
    await lab.history.start("simple", "other", "a")
    await lab.history.ended("r", "other")
    await first.stop()
    await operator.produce(lab.topics.checkpoints, "r", b"", partition=lab.history.partition("r"))
    lab.damaged.add("r")
    second = await lab.worker()
    await until(lambda: second.told.heard("run_blocked", "r"), "the damage")
    assert second.told.heard("run_blocked") == [
        ("run_blocked", "r", "RUN_DAMAGED", second.told.heard("run_blocked")[0][3])
    ]
    assert "cannot be read" in second.told.heard("run_blocked")[0][3]


# ---- offsets that are gone ------------------------------------------------------------------------------------------


@running
async def test_f21_group_offsets_that_were_wiped_change_no_run(lab: Lab, operator: Operator):
    first = await lab.worker()
    await lab.history.start("asks", "r", "a")
    await lab.history.start("simple", "s", "a")
    await lab.history.ended("s")
    await lab.history.seen("r", ev.OpScheduled, 2)
    await first.stop()
    topics = lab.topics
    await lab.log.rewind_group(topics.group, topics.commands, dict.fromkeys(range(PARTITIONS)))
    second = await lab.worker()
    await lab.history.send("r", resume("b"))
    assert await lab.history.result("r") == "A b"
    await until(lambda: sum(count for _, _, count in second.told.heard("skipped")) == 2, "two skipped commands")


@running
async def test_f21_events_that_are_gone_beyond_the_tail_refuse_their_partition_alone(lab: Lab, operator: Operator):
    first = await lab.worker()
    await lab.history.start("asks", "r", "a")
    number = lab.history.partition("r")
    other = next(f"o{n}" for n in range(99) if lab.history.partition(f"o{n}") != number)
    await lab.history.start("asks", other, "a")
    await lab.history.seen("r", ev.OpScheduled, 2)
    await lab.history.seen(other, ev.OpScheduled, 2)
    await first.stop()
    tail = (await lease(lab, "r")).tail
    end = (await lab.log.span(lab.topics.events, number)).end
    await operator.delete_records(lab.topics.events, number, tail + 1)
    second = await lab.worker(owns=PARTITIONS - 1, retry_refused_seconds=0.5)
    await until(lambda: number in refusals(second), "a refusal")
    assert (
        f"the events from offset {tail} on are needed, and the log holds {tail + 1} to {end}"
        in refusals(second)[number]
    )
    await lab.history.send(other, resume("b"))
    assert await lab.history.result(other) == "A b"
    assert (await lab.log.span(lab.topics.events, number)).end == end, "something was written there"
    lab.unchecked = True


@running
async def test_f21_commands_that_went_before_a_worker_came_are_told_of(lab: Lab, operator: Operator):
    first = await lab.worker()
    await lab.history.start("asks", "r", "a")
    await lab.history.seen("r", ev.OpScheduled, 2)
    await first.stop()
    number = lab.history.partition("r")
    lost = await lab.history.send("r", resume("lost"))
    await operator.delete_records(lab.topics.commands, number, lost + 1)
    second = await lab.worker()
    line = f"partition {number}: commands from offset {lost} to {lost} were deleted before a worker took them"
    assert [text for _, text in second.told.heard("message") if text.startswith(line)]
    await lab.history.send("r", resume("b"))
    assert await lab.history.result("r") == "A b"
    lab.unchecked = True


@pytest.mark.parametrize("crash", [False, True])
def test_f21_a_run_that_sleeps_longer_than_events_are_kept_goes_on(kafka, crash: bool):
    running(lambda lab, operator: _sleeps(lab, operator, crash=crash))(kafka)


async def _sleeps(lab: Lab, operator: Operator, *, crash: bool) -> None:
    first = await lab.worker(**AGE)
    await lab.history.start("asks", "r", "a")
    await lab.history.seen("r", ev.OpScheduled, 2)
    number = lab.history.partition("r")
    end = (await lab.log.span(lab.topics.events, number)).end
    if crash:
        await until_lease(lab, "r", lambda found: found.tail == end)
        await first.kill()
    else:
        await until_lease(lab, "r", lambda found: found.tail > 0)
        await first.stop()
    await operator.delete_records(lab.topics.events, number, -1)
    assert await lab.log.span(lab.topics.events, number) == (end, end)
    await lab.worker()
    await lab.history.send("r", resume("b"))
    assert await lab.history.result("r") == "A b"
    lab.unchecked = True


@running
async def test_f21_commands_that_were_created_again_are_not_taken_for_old_ones(lab: Lab, operator: Operator):
    first = await lab.worker()
    await lab.history.start("simple", "r", "a")
    await lab.history.ended("r")
    await first.stop()
    await operator.delete_topic(lab.topics.commands)
    settings = lab.topics.settings()[lab.topics.commands]
    await lab.log.create_topics([TopicSpec(lab.topics.commands, PARTITIONS, settings)])
    second = await lab.worker(owns=0, retry_refused_seconds=0.5)
    await until(lambda: set(refusals(second)) == set(range(PARTITIONS)), "refusals")
    assert "the commands topic was deleted and created again" in refusals(second)[0]
    lab.unchecked = True


@running
async def test_f21_commands_that_are_created_again_under_a_worker_are_not_taken_for_old_ones(
    lab: Lab, operator: Operator
):
    first = await lab.worker(sweep_seconds=0.3, retry_refused_seconds=0.5)
    runs = [f"r{number}" for number in range(8)]
    for run_id in runs:
        await lab.history.start("simple", run_id, "a")
    await lab.history.ended(*runs)
    settings = lab.topics.settings()[lab.topics.commands]
    await operator.delete_topic(lab.topics.commands)
    await lab.log.create_topics([TopicSpec(lab.topics.commands, PARTITIONS, settings)])
    log = await lab.open_log()  # its producer knows nothing of the old topic
    for number in range(PARTITIONS):
        await log.append([NewRecord(lab.topics.commands, number, b"x", b"{}")] * 20)
    await log.close()
    # An offset that the new topic does not have may be noticed first; the next try tells the cause.
    found = "the commands topic was deleted and created again"
    await until(
        lambda: first.task.done() or sum(found in reason for reason in refusals(first).values()) == PARTITIONS,
        "an end or refusals",
    )
    if first.task.done():
        # The client may notice first, by the topic's absence or by an offset that the new one does not have.
        with pytest.raises((UsageError, LogDamaged), match=lab.topics.commands):
            await first.task
        lab.running.remove(first)
    assert first.told.heard("dead_letter") == []
    assert first.told.heard("skipped") == []
    lab.unchecked = True


@running
async def test_f21_a_state_topic_that_is_gone_is_not_made_anew(lab: Lab, operator: Operator):
    first = await lab.worker()
    await lab.history.start("asks", "r", "a")
    await lab.history.seen("r", ev.OpScheduled, 2)
    await first.stop()
    for topic in (lab.topics.events, lab.topics.checkpoints):
        await operator.delete_topic(topic)
        with pytest.raises(UsageError, match=f"topic {topic} was deleted since the last owner"):
            await ensure_topics(lab.log, lab.topics, PARTITIONS)
        assert topic not in await lab.log.list_topics()
        await lab.log.create_topics([TopicSpec(topic, PARTITIONS, lab.topics.settings()[topic])])
        with pytest.raises(UsageError, match=f"topic {topic} was deleted and created again since the last owner"):
            await ensure_topics(lab.log, lab.topics, PARTITIONS)
    lab.unchecked = True


@running
async def test_f13_the_largest_record_fits_into_every_topic_and_a_larger_one_into_none(lab: Lab, operator: Operator):
    """Client, topics and streams agree on one limit."""
    for topic in lab.topics.settings():
        await lab.log.append([NewRecord(topic, 0, b"k", os.urandom(RECORD_BYTES_MAX - 1))])
        with pytest.raises(SendRefused, match=f"over the limit of {RECORD_BYTES_MAX}"):
            await lab.log.append([NewRecord(topic, 0, b"k", bytes(RECORD_BYTES_MAX))])
    lab.unchecked = True


def test_f13_a_broker_with_a_lower_limit_than_its_topics_stops_no_run(tmp_path):
    """Topics say their limit themselves, so that of the broker does not count; a lower one at a topic is refused."""
    kafka = start_kafka(tmp_path / "kafka", settings={"message.max.bytes": "100000"}, tied=True, seconds=110.0)

    async def scenario(lab: Lab, operator: Operator) -> None:
        worker = await lab.worker()
        text = os.urandom(100_000).hex()
        await lab.history.start("simple", "r", text)
        assert await lab.history.result("r") == text.upper()
        await worker.stop()
        await operator.alter(lab.topics.effect("parcels"), max_message_bytes="100000")
        with pytest.raises(UsageError, match=r"max\.message\.bytes is 100000 and must be at least 1000000"):
            await ensure_topics(lab.log, lab.topics, PARTITIONS)

    try:
        running(scenario)(kafka)
    finally:
        stop_kafka(kafka)
