"""A worker whose broker goes away, is full, or loses records: it says so once, keeps trying, and goes on."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streams.dev import Kafka, kill_kafka, start_kafka
from tests.system.streams_process import ROOT, Done, Streams, streams

APP = f"{ROOT}/examples/report.py:app"
HANG_SECONDS = 120.0
INPUT = '{"topic": "sales", "period": "2026-09"}'

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(400)]


@pytest.fixture
def name() -> str:
    return f"reports-{uuid4().hex[:8]}"


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def worker(kafka: Kafka, name: str, folder: Path) -> Streams:
    found = Streams(
        folder / "said", "worker", APP, "--app", name, "--log", kafka.url, REPORTS_DB=str(folder / "reports.db")
    )
    found.until("partitions 0-11")
    return found


def ask(kafka: Kafka, name: str, *words: str) -> Done:
    return streams(*words, "--app", name, "--log", kafka.url)


def is_served(kafka: Kafka, name: str, run_id: str) -> None:
    """A run gets as far as its question, and to its end."""
    assert ask(kafka, name, "start", "report", "--run-id", run_id, "--input", INPUT).code == 0
    until(lambda: '"waiting"' in ask(kafka, name, "show", run_id, "--json").out, f"the question of {run_id}")
    assert ask(kafka, name, "resume", run_id, "--value", '{"approved": false}').code == 0
    until(lambda: '"completed"' in ask(kafka, name, "show", run_id, "--json").out, f"the end of {run_id}")


def test_a_broker_that_goes_away_is_told_once_and_so_is_its_return(own_kafka: Kafka, name: str, tmp_path: Path) -> None:
    with worker(own_kafka, name, tmp_path) as working:
        kill_kafka(own_kafka)
        line = working.until("the log cannot be reached, trying again")
        assert "no broker of Kafka answers" in line
        time.sleep(12)  # the client says it again every few seconds
        start_kafka(own_kafka.folder, port=own_kafka.port, tied=True, seconds=110.0)
        working.until("the log answers again")
        is_served(own_kafka, name, "after")
        assert len(working.saying("cannot be reached")) == 1, working.lines
        assert not working.saying("Traceback")
        assert working.stop() == 0


def test_a_request_while_the_broker_is_away_gives_up_in_the_set_time(own_kafka: Kafka, name: str) -> None:
    kill_kafka(own_kafka)
    done = streams("runs", "--log", f"{own_kafka.url}?connect_timeout_ms=3000")
    assert done.code == 1
    assert "no broker of Kafka answers" in done.lines[-1]
    assert len(done.lines) == 2


def test_a_full_disk_at_the_broker_stops_nothing_for_good(own_kafka: Kafka, name: str, tmp_path: Path) -> None:
    with worker(own_kafka, name, tmp_path) as working:
        is_served(own_kafka, name, "before")
        # No file of the broker can grow any more: its log directory fails, and with the last one the broker ends.
        resource.prlimit(own_kafka.pid, resource.RLIMIT_FSIZE, (1, 1))
        refused = ask(own_kafka, name, "start", "report", "--run-id", "full", "--input", INPUT)
        assert refused.code == 1, refused
        assert "Traceback" not in "\n".join(refused.lines)
        until(lambda: not own_kafka.alive, "the end of the broker")
        working.until("the log cannot be reached, trying again")
        # With room again, everything that was accepted is there.
        start_kafka(own_kafka.folder, port=own_kafka.port, tied=True, seconds=110.0)
        working.until("the log answers again")
        assert '"completed"' in ask(own_kafka, name, "show", "before", "--json").out
        is_served(own_kafka, name, "full")
        assert len(working.saying("cannot be reached")) == 1, working.lines
        assert not working.saying("Traceback")
        assert working.stop() == 0


def test_a_partition_whose_next_command_was_deleted_is_refused_and_the_others_go_on(
    kafka: Kafka, name: str, tmp_path: Path
) -> None:
    commands = f"{name}.commands"
    with worker(kafka, name, tmp_path) as working:
        is_served(kafka, name, "before")
        # An open transaction holds its commands back from readers: so they can be deleted before anybody reads them.
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
        producer.init_transactions(60)
        producer.begin_transaction()
        lost = lost_partition(kafka, commands)
        for _ in range(3):
            producer.produce(commands, b"{}", b"lost", lost)
        assert producer.flush(60) == 0
        delete(kafka, commands, lost)
        producer.commit_transaction(60)
        line = working.until("refused")
        assert f"partition {lost}: the next offset of {commands}[{lost}] is outside the log" in line
        is_served(kafka, name, "before-2")
        assert len(working.saying("refused")) == 1
        assert not working.saying("Traceback")
        assert working.stop() == 0


def lost_partition(kafka: Kafka, commands: str) -> int:
    """A partition that none of the test's runs lies in: an empty one."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "looks"})
    ends = {n: consumer.get_watermark_offsets(TopicPartition(commands, n), 30) for n in range(12)}
    consumer.close()
    return next(number for number, (_, end) in reversed(ends.items()) if end == 0)


def delete(kafka: Kafka, topic: str, partition: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, partition, 2)]).values():
        future.result(60)


@pytest.mark.parametrize(
    ("setting", "wrong"), [("cleanup.policy", "compact"), ("message.timestamp.type", "CreateTime")]
)
def test_a_topic_with_wrong_settings_is_refused_with_one_line(
    kafka: Kafka, name: str, setting: str, wrong: str
) -> None:
    arguments = (APP, "--app", name, "--log", kafka.url)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topic = NewTopic(f"{name}.commands", 3, 1, config={setting: wrong})
    for future in admin.create_topics([topic]).values():
        future.result(60)
    done = streams("worker", *arguments)
    assert done.code == 2, done
    assert len(done.lines) == 1, done
    for word in (f"{name}.commands", setting, wrong):
        assert word in done.lines[0]


def test_a_request_to_an_app_without_topics_says_how_to_make_them(kafka: Kafka, name: str) -> None:
    done = ask(kafka, name, "start", "report", "--run-id", "r-1", "--input", INPUT)
    assert done.code == 2, done
    assert len(done.lines) == 1, done
    assert f"no app {name!r} has topics in {kafka.url}" in done.lines[0] or "streams topics create" in done.lines[0]
