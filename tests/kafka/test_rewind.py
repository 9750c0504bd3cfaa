"""The group moved on the real broker, by our own log and as an operator of Kafka does it."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from streams.dev.packages import java, tools_classpath
from streams.errors import LogUnavailable
from tests.kafka.lab import PARTITIONS, KafkaLab, kafka_case
from tests.runtime.history import until
from tests.runtime.rewinding import HOW, Known, app, fresh, known_log, move, nothing_has_changed, rewind, skipped

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    fresh()


@kafka_case(app)
@pytest.mark.parametrize("how", list(HOW))
async def test_f21_a_group_that_is_moved_back_repeats_nothing(lab: KafkaLab, how: str):
    known = await known_log(lab)
    again = await move(lab, known, how)
    assert again >= 2
    await nothing_has_changed(lab, known, again)


# -- as kafka-consumer-groups.sh does it -----------------------------------------------------------------------------


class Operator:
    """Kafka's own admin client, and nothing of ours."""

    def __init__(self, lab: KafkaLab) -> None:
        self.group, self.topic = lab.topics.group, lab.topics.commands
        self._admin = AdminClient({"bootstrap.servers": lab.log._clients.settings.servers})

    def set(self, offsets: dict[int, int]) -> None:
        places = [Place(self.topic, n, offset) for n, offset in offsets.items()]
        (future,) = self._admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.group, places)]
        ).values()
        for place in future.result(30).topic_partitions:
            if place.error is not None:
                raise KafkaException(place.error)

    def look_up(self, spec: OffsetSpec) -> dict[int, int]:
        wanted = {Place(self.topic, n): spec for n in range(PARTITIONS)}
        return {place.partition: f.result(30).offset for place, f in self._admin.list_offsets(wanted).items()}

    def to_earliest(self, _: Known) -> dict[int, int]:
        return self._moved(self.look_up(OffsetSpec.earliest()))

    def to_datetime(self, known: Known) -> dict[int, int]:
        times = sorted(record.timestamp for record in known.commands)
        found = self.look_up(OffsetSpec.for_timestamp(times[len(times) // 2]))
        return self._moved({n: known.applied[n] if at < 0 else at for n, at in found.items()})

    def delete(self, _: Known) -> dict[int, int]:
        (future,) = self._admin.delete_consumer_groups([self.group]).values()
        future.result(30)
        return dict.fromkeys(range(PARTITIONS), 0)

    def _moved(self, offsets: dict[int, int]) -> dict[int, int]:
        self.set(offsets)
        return offsets


async def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
    """The broker may need a moment to see that the last member has left."""
    for _ in range(300):
        try:
            return await asyncio.to_thread(call, *arguments)
        except KafkaException as error:
            if error.args[0].code() not in {KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID}:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("the group never became empty")


@kafka_case(app)
@pytest.mark.parametrize("how", ["to_earliest", "to_datetime", "delete"])
async def test_f21_what_an_operator_of_kafka_does_to_the_group_repeats_nothing(lab: KafkaLab, how: str):
    known = await known_log(lab)
    starts = await patiently(getattr(Operator(lab), how), known)
    again = sum(record.offset >= starts[record.partition] for record in known.commands)
    assert again >= 2
    await nothing_has_changed(lab, known, again)


def consumer_groups(lab: KafkaLab, *words: str) -> str:
    """Run kafka-consumer-groups.sh; give what it prints."""
    command = [java(), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", tools_classpath(), TOOL]
    where = ["--bootstrap-server", lab.log._clients.settings.servers, "--group", lab.topics.group]
    done = subprocess.run([*command, *where, *words], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@kafka_case(app)
async def test_f21_what_kafkas_own_script_does_to_the_group_repeats_nothing(lab: KafkaLab):
    running = await lab.worker()
    topic = lab.topics.commands
    reset = ("--reset-offsets", "--topic", topic, "--to-earliest", "--execute")
    refused = await asyncio.to_thread(consumer_groups, lab, *reset)
    assert "inactive" in refused, refused  # it has members
    await running.stop()
    known = await known_log(lab)
    times = sorted(record.timestamp for record in known.commands)
    moment = datetime.fromtimestamp(times[len(times) // 2] / 1_000, UTC).isoformat(timespec="milliseconds")[:23]
    for words in (
        reset,
        ("--reset-offsets", "--topic", topic, "--to-datetime", moment, "--execute"),
        ("--delete-offsets", "--topic", topic),
    ):
        told = await until_inactive(lab, words)
        offsets = await lab.log.group_offsets(lab.topics.group, topic)
        assert offsets != known.applied, told
        again = sum(record.offset >= offsets.get(record.partition, 0) for record in known.commands)
        running = await lab.worker(stop_seconds=0.2)
        await until(lambda running=running, again=again: skipped(running) == again, f"{again} skipped commands")
        await running.stop()
        assert await lab.log.group_offsets(lab.topics.group, topic) == known.applied
    await nothing_has_changed(lab, known, 0)


async def until_inactive(lab: KafkaLab, words: tuple[str, ...]) -> str:
    """The broker may need a moment to see that the last member has left."""
    for _ in range(30):
        told = await asyncio.to_thread(consumer_groups, lab, *words)
        if not {"inactive", "GroupNotEmptyException", "GroupSubscribedToTopicException"} & set(
            re.findall(r"\w+", told)
        ):
            return told
    raise AssertionError(told)


@kafka_case(app)
async def test_f21_a_group_that_is_moved_ahead_passes_over_nothing(lab: KafkaLab):
    known = await known_log(lab)
    missed = [f"missed{n}" for n in range(12)]
    for run_id in missed:
        await lab.history.start("ships", run_id, "done")
    operator = Operator(lab)
    await patiently(operator.set, operator.look_up(OffsetSpec.latest()))
    running = await lab.worker(stop_seconds=0.2)
    assert "was moved ahead" in str(running.told.heard("message"))
    await lab.history.ended(*missed)
    assert skipped(running) == 0
    assert {run_id for run_id in (await lab.check()).runs if "missed" not in run_id} == set(known.runs)


@kafka_case(app)
async def test_a_group_with_members_is_not_moved(lab: KafkaLab):
    running = await lab.worker()
    await lab.history.start("ships", "r", "done")
    assert await lab.history.result("r") == "DONE"
    before = await lab.log.group_offsets(lab.topics.group, lab.topics.commands)
    for offset in (0, None):
        with pytest.raises(LogUnavailable, match=r"group \S+\.workers has members.*stop them first"):
            await lab.log.rewind_group(lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), offset))
    assert await lab.log.group_offsets(lab.topics.group, lab.topics.commands) == before
    await lab.history.start("ships", "later", "done")
    assert await lab.history.result("later") == "DONE"
    assert skipped(running) == 0


@kafka_case(app)
async def test_f21_a_group_that_is_moved_back_again_and_again_repeats_nothing(lab: KafkaLab):
    known = await known_log(lab)
    for _ in range(2):
        again = len(known.commands)
        await rewind(lab.log, lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), 0))
        running = await lab.worker(stop_seconds=0.2)
        await until(lambda running=running, again=again: skipped(running) == again)
        await running.stop()
    assert await lab.log.group_offsets(lab.topics.group, lab.topics.commands) == known.applied
    await nothing_has_changed(lab, known, 0)
