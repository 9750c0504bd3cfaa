"""Topics on the real broker: created right, refused where they would lose data, looked at again while workers run."""

from __future__ import annotations

import asyncio
import shlex
import subprocess

import pytest

from streams.cli import entry
from streams.dev import Kafka, kafka_classpath
from streams.dev.packages import java
from streams.errors import UsageError
from streams.log.kafka import open_kafka
from streams.log.port import TopicPartition, TopicSpec
from streams.runtime.topics import check_topics, ensure_topics
from streams.wire.topics import topics_of
from tests.kafka.topic_lab import Operator, kafka_lab, running, shop
from tests.runtime.checker import records_of
from tests.runtime.history import until
from tests.runtime.lab import PARTITIONS, Lab, Running

pytestmark = pytest.mark.kafka

AGE = {"checkpoint_age_seconds": 1.0, "sweep_seconds": 0.3}


def refused(worker: Running) -> dict[int, str]:
    """Refused partitions with the last reason."""
    return {number: reason for _, number, _, _, reason in worker.told.heard("partition") if _is_refusal(worker, number)}


def _is_refusal(worker: Running, number: int) -> bool:
    states = [told[2] for told in worker.told.heard("partition", number)]
    return bool(states) and "refused" in states


@running
async def test_every_topic_is_created_with_its_settings(lab: Lab, operator: Operator):
    found = await lab.log.describe_topics(list(lab.topics.settings()))
    for name, config in lab.topics.settings().items():
        assert config.items() <= found[name].config.items()
        assert found[name].partitions == PARTITIONS
    checkup = await check_topics(lab.log, lab.topics)
    assert checkup.faults == []
    assert [line.split(" and ")[0] for line in checkup.warnings] == ["all 8 topics: replication.factor is 1"]


def test_more_replicas_than_brokers_are_refused_in_one_line(kafka: Kafka):
    async def scenario() -> None:
        log = await open_kafka(f"{kafka.url}?replication_factor=3")
        try:
            with pytest.raises(UsageError, match=r"topic .* cannot be created: .*[Rr]eplication.factor"):
                await ensure_topics(log, topics_of(shop().name), 1)
        finally:
            await log.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cleanup.policy": "delete"}, "cleanup.policy is 'delete' and must be 'compact', or data is lost"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy is 'compact,delete' and must be 'compact'"),
        (None, "cleanup.policy is 'delete' and must be 'compact', or data is lost"),
    ],
    ids=["delete", "compact and delete", "as a broker creates it"],
)
def test_f21_a_worker_does_not_start_on_checkpoints_that_are_deleted(kafka: Kafka, config, words):
    async def scenario() -> None:
        async with kafka_lab(kafka, topics=False) as lab:
            topic = lab.topics.checkpoints
            wanted = {} if config is None else lab.topics.settings()[topic] | config
            await lab.log.create_topics([TopicSpec(topic, PARTITIONS, wanted)])
            worker = await lab.worker(owns=0)
            with pytest.raises(UsageError) as error:
                await worker.task
            assert f"topic {topic}: {words}" in str(error.value)
            assert worker.told.heard("partition") == []
            cannot_start(lab, worker)

    asyncio.run(scenario())


@pytest.mark.slow
def test_the_commands_that_are_told_mend_what_is_wrong(kafka: Kafka, capsys, monkeypatch):
    app = shop()
    monkeypatch.setattr("streams.cli.topics.load_app", lambda _: app)
    monkeypatch.setenv("STREAMS_LOG", kafka.url)
    operator, topics = Operator(kafka), topics_of(app.name, app.effects)

    async def spoil() -> None:
        await operator.alter(topics.checkpoints, cleanup_policy="compact,delete", segment_bytes="1073741824")
        await operator.alter(topics.events, retention_ms="60000")

    assert entry.main(["topics", "create", "x:app", "--partitions", "2"]) == 0
    asyncio.run(spoil())
    capsys.readouterr()
    assert entry.main(["topics", "check", "x:app"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in told if line.startswith("✗")] == [
        f"✗ topic {topics.events}",
        f"✗ topic {topics.checkpoints}",
        f"✗ topic {topics.checkpoints}",
    ]
    commands = [line for line in told if line.startswith("  kafka-configs.sh ")]
    assert len(commands) == 2
    for command in commands:
        arguments = shlex.split(command)[1:]
        program = [java(), "-cp", kafka_classpath(), "kafka.admin.ConfigCommand", *arguments]
        subprocess.run(program, check=True, capture_output=True, timeout=120)
    assert entry.main(["topics", "check", "x:app"]) == 0
    assert "✓ all topics are as they must be" in capsys.readouterr().out


@pytest.mark.slow
@running
async def test_f21_a_policy_that_is_changed_under_a_worker_is_told_at_each_sweep(lab: Lab, operator: Operator):
    worker = await lab.worker(**AGE)
    await operator.alter(lab.topics.checkpoints, cleanup_policy="delete")
    line = f"changed while this worker runs: topic {lab.topics.checkpoints}: cleanup.policy is 'delete'"
    await until(lambda: sum(text.startswith(line) for _, text in worker.told.heard("message")) >= 2, line)
    await operator.alter(lab.topics.checkpoints, cleanup_policy="compact")
    await operator.alter(lab.topics.commands, unclean_leader_election_enable="true")
    risk = f"topic {lab.topics.commands}: unclean.leader.election.enable is 'true'"
    await until(lambda: any(text.startswith(risk) for _, text in worker.told.heard("message")), risk)
    await lab.history.start("simple", "r", "a")
    assert await lab.history.result("r") == "A"


# ---- partition counts -----------------------------------------------------------------------------------------------


def cannot_start(lab: Lab, worker: Running) -> None:
    assert worker.task.done()
    lab.running.remove(worker)


@running
async def test_f16_a_count_that_was_raised_for_one_topic_is_refused(lab: Lab, operator: Operator):
    await operator.raise_counts(PARTITIONS + 1, lab.topics.effect("parcels"))
    worker = await lab.worker(owns=0)
    with pytest.raises(UsageError) as error:
        await worker.task
    cannot_start(lab, worker)
    text = f"topic {lab.topics.effect('parcels')} has 5 partitions and the others have 4: all topics of an app need"
    assert str(error.value).startswith(text)
    lab.unchecked = True


@pytest.mark.slow
@running
async def test_f16_a_count_that_was_raised_for_all_topics_is_refused(lab: Lab, operator: Operator):
    worker = await lab.worker()
    await lab.history.start("asks", "r", "a")
    await lab.history.until(lambda history: "r" in history.events)
    await worker.stop()
    await operator.raise_counts(2 * PARTITIONS, *lab.topics.settings())
    lab.divergent.add("r")  # it lies where it would not belong with the new count
    again = await lab.worker(owns=0)
    with pytest.raises(UsageError, match=r"runs spread over 4 partitions, and topic .* has 8 now"):
        await again.task
    cannot_start(lab, again)


@pytest.mark.slow
@running
async def test_f16_partitions_that_come_under_a_running_worker_are_refused_and_strays_are_set_aside(
    lab: Lab, operator: Operator
):
    worker = await lab.worker()
    await operator.raise_counts(2 * PARTITIONS, *lab.topics.settings())
    await until(lambda: set(refused(worker)) == {4, 5, 6, 7}, "the new partitions")
    assert worker.owned == {0, 1, 2, 3}
    assert "the count was raised since" in refused(worker)[7]
    # A producer that knows the new count: half of the runs are served as before, the others reach nobody.
    landed = {}
    for number in range(16):
        value = {"type": "start", "workflow": "simple", "input": f"n{number}"}
        landed[f"r{number}"], _ = await operator.produce(
            lab.topics.commands, f"r{number}", value, partitioner="murmur2"
        )
    served = [run_id for run_id, partition in landed.items() if partition < PARTITIONS]
    assert 0 < len(served) < 16
    await lab.history.ended(*served)
    await lab.history.read()
    assert set(lab.history.events) == set(served)
    await worker.stop()


@pytest.mark.slow
@running
async def test_f16_runs_on_other_partitions_than_their_keys_say_are_refused_without_any_lease(
    lab: Lab, operator: Operator
):
    """As after copying the topics into ones with another count."""
    worker = await lab.worker()
    await lab.history.start("asks", "r", "a")
    await lab.history.until(lambda history: "r" in history.events)
    await worker.stop()
    number = lab.history.partition("r")
    other = (number + 1) % PARTITIONS
    events = await records_of(lab.log, TopicPartition(lab.topics.events, number))
    for record in events:
        await operator.produce(lab.topics.events, record.key, record.value, partition=other)
    strange = await lab.worker(owns=PARTITIONS - 1)
    await until(lambda: refused(strange).get(other), "the partition with a copy")
    assert f"run 'r' lies here and belongs to partition {number} of 4" in refused(strange)[other]
    lab.unchecked = True
