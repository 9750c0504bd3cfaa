"""Commands from producers of other kinds: the same run id never starts on two partitions."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter

import pytest

from streams.dev.packages import java, tools_classpath
from streams.log.port import TopicPartition, TopicSpec
from streams.wire.partitioner import partition_of
from streams.wire.records import DeadLetter, decode_dead_letter
from tests.kafka.topic_lab import Operator, running
from tests.runtime.checker import records_of
from tests.runtime.history import start, until
from tests.runtime.lab import PARTITIONS, Lab

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
ALPHABETS = ["order-", "ключ/", "订单", "naïve ", "🚀", "e\u0301"]
KEYS = [
    *(f"{alphabet}{number}" for alphabet in ALPHABETS for number in range(25)),
    *("x" * size for size in range(1, 60)),
    *("長" * size for size in range(1, 60)),
]


async def java_produces(operator: Operator, topic: str, pairs: list[tuple[str, str]]) -> None:
    """Send keys and values with the producer that Apache ships, whose partitioner is left as it is."""
    command = [java(), "-cp", tools_classpath(), PRODUCER, "--bootstrap-server", operator.servers, "--topic", topic]
    command += ["--reader-property", "parse.key=true", "--reader-property", "key.separator=\t"]
    lines = "".join(f"{key}\t{value}\n" for key, value in pairs)

    def run() -> None:
        done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()

    await asyncio.to_thread(run)


def command(what: str) -> dict[str, str]:
    return {"type": "start", "workflow": "simple", "input": what}


async def letters(lab: Lab, count: int) -> list[DeadLetter]:
    """Wait for so many dead letters; return all."""
    found: list[DeadLetter] = []
    await until(lambda: sum(len(worker.told.heard("dead_letter")) for worker in lab.running) >= count, "dead letters")
    for number in range(PARTITIONS):
        for record in await records_of(lab.log, TopicPartition(lab.topics.dead_letters, number)):
            found.append(decode_dead_letter(record.value or b""))
            assert record.partition == found[-1].partition == number
    assert len(found) == count
    return found


async def places(lab: Lab) -> dict[str, set[int]]:
    """On which partitions each run has events of its own."""
    found: dict[str, set[int]] = {}
    await lab.history.read()
    for run_id, events in lab.history.events.items():
        if any(event.seq is not None for event in events):
            found[run_id] = set()
    for number in range(PARTITIONS):
        for record in await records_of(lab.log, TopicPartition(lab.topics.checkpoints, number)):
            found.setdefault((record.key or b"").decode(), set()).add(number)
    return found


@running
async def test_f16_every_key_lies_where_the_java_producer_puts_it(lab: Lab, operator: Operator):
    topic = f"{lab.app.name}.keys"
    await lab.log.create_topics([TopicSpec(topic, 12, {})])
    await java_produces(operator, topic, [(key, "x") for key in KEYS])
    found = {}
    for number in range(12):
        for record in await records_of(lab.log, TopicPartition(topic, number)):
            found[(record.key or b"").decode()] = number
    assert found == {key: partition_of(key.encode(), 12) for key in KEYS}
    assert set(found.values()) == set(range(12))


@running
async def test_f16_commands_of_the_java_producer_and_of_murmur2_in_librdkafka_are_taken(lab: Lab, operator: Operator):
    await lab.worker()
    runs = [f"{alphabet}{number}" for alphabet in ALPHABETS for number in range(4)]
    value = '{"type": "start", "workflow": "simple", "input": "a"}'
    await java_produces(operator, lab.topics.commands, [(f"java {run_id}", value) for run_id in runs])
    for run_id in runs:
        for partitioner in ("murmur2", "murmur2_random"):
            key = f"{partitioner} {run_id}"
            where, _ = await operator.produce(lab.topics.commands, key, command("a"), partitioner=partitioner)
            assert where == lab.history.partition(key)
    await lab.history.ended(*(f"{kind} {run_id}" for kind in ("java", "murmur2", "murmur2_random") for run_id in runs))
    assert await letters(lab, 0) == []


@running
async def test_f16_what_the_default_of_librdkafka_puts_elsewhere_is_set_aside_and_starts_no_second_run(
    lab: Lab, operator: Operator
):
    await lab.worker()
    runs = [f"{alphabet}{number}" for alphabet in ALPHABETS for number in range(5)]
    landed = {run_id: (await operator.produce(lab.topics.commands, run_id, command("a")))[0] for run_id in runs}
    right = {run_id for run_id, partition in landed.items() if partition == lab.history.partition(run_id)}
    wrong = set(runs) - right
    assert right
    assert wrong
    await lab.history.ended(*right)
    set_aside = await letters(lab, len(wrong))
    assert {letter.code for letter in set_aside} == {"WRONG_PARTITION"}
    assert {(letter.key or b"").decode(): letter.partition for letter in set_aside} == {r: landed[r] for r in wrong}
    assert all("use the murmur2 partitioner with the run id as key" in letter.reason for letter in set_aside)
    assert set(await places(lab)) == right
    # Sent again as it should be, each of them runs, once.
    for run_id in wrong:
        await lab.history.send(run_id, start("simple", "a"))
    await lab.history.ended(*runs)
    assert all(len(partitions) == 1 for partitions in (await places(lab)).values())


@running
async def test_f16_a_run_that_is_sent_to_every_partition_runs_on_one(lab: Lab, operator: Operator):
    worker = await lab.worker()
    for run_id in ("r", "订单"):
        for number in range(PARTITIONS):
            await operator.produce(lab.topics.commands, run_id, command("a"), partition=number)
    await lab.history.ended("r", "订单")
    set_aside = await letters(lab, 2 * (PARTITIONS - 1))
    assert {letter.code for letter in set_aside} == {"WRONG_PARTITION"}
    found = await places(lab)
    assert found == {run_id: {lab.history.partition(run_id)} for run_id in ("r", "订单")}
    # The next owner finds it so, too.
    await worker.stop()
    again = await lab.worker()
    assert [set(partition.runs) for _, partition in sorted(again.worker.owner.partitions.items())] == [
        {run_id for run_id in ("r", "订单") if number in found[run_id]} for number in range(PARTITIONS)
    ]


@running
async def test_f16_a_key_that_is_no_run_id_is_set_aside_wherever_it_lands(lab: Lab, operator: Operator):
    await lab.worker()
    keys = [None, b"", b"\xff\xfe", b"a\nb", b"x" * 201]
    for key in keys:
        await operator.produce(lab.topics.commands, key, command("a"))
    set_aside = await letters(lab, len(keys))
    assert Counter(letter.code for letter in set_aside) == {"KEY_INVALID": len(keys)}
    assert {letter.key for letter in set_aside} == set(keys)
    assert await places(lab) == {}
