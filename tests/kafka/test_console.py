"""Runs driven from outside Python: the page docs/other-languages.md with Apache's own tools, on a real broker."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streams.dev import Kafka
from streams.dev.packages import java, tools_classpath
from streams.wire.headers import headers_of
from streams.wire.partitioner import partition_of
from streams.wire.records import DeadLetter, decode_dead_letter, decode_effect
from tests import other_languages as page

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 90
EFFECTS = "desk.effects.letters"
ADDRESS = "127.0.0.1:9092"  # as the page has it
CLASSES = {
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}


class Desk:
    """The page's app with a worker process, and the page's commands on the test's broker."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.broker = kafka.bootstrap
        self.folder = folder
        self.environment = os.environ | {"PYTHONPATH": str(ROOT), "STREAMS_LOG": kafka.url, "STREAMS_APP": "desk"}
        self.classpath = tools_classpath()
        self.processes: list[subprocess.Popen[str]] = []
        for name in ("desk.py", "subscriber.py"):
            (folder / name).write_text(page.block(name), "utf-8")

    def run(self, *command: str, input_: str | None = None) -> str:
        done = subprocess.run(
            command,
            input=input_,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # Avro between the texts
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def streams(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "streams", *arguments)

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        output = (self.folder / f"{len(self.processes)}.log").open("w")
        with output:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return self.processes[-1]

    def tool(self, program: str, arguments: list[str], input_: str | None = None) -> str:
        """What one of Apache's tools prints; `arguments` are those of its shell script."""
        quiet = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        words = [self.broker if word == ADDRESS else word for word in arguments]
        return self.run(java(), *quiet, "-cp", self.classpath, CLASSES[program], *words, input_=input_)

    def produce(self, name: str) -> None:
        """Send a block of the page with the command that the page shows for it."""
        program = "kafka-console-producer.sh"
        *arguments, sign, file = page.command(program, f"< {name}")
        assert (sign, file) == ("<", name)
        self.tool(program, arguments, page.block(name))

    def consume(self, **instead: str) -> str:
        """The effects, with the page's command for them; `instead` replaces words of it."""
        program = "kafka-console-consumer.sh"
        return self.tool(program, [instead.get(word, word) for word in page.command(program)])

    def runs(self) -> dict[str, dict[str, Any]]:
        return {run["run_id"]: run for run in map(json.loads, self.streams("runs", "--json").splitlines())}

    def statuses(self) -> dict[str, str]:
        return {run: view["status"] + "!" * view["attention"] for run, view in self.runs().items()}

    def letters(self) -> list[DeadLetter]:
        return [decode_dead_letter(message.value()) for message in records(self.broker, "desk.dead-letters")]


def records(broker: str, topic: str) -> list[Message]:
    """All records of a topic, read_committed, with a client of our own."""
    conf = {"bootstrap.servers": broker, "group.id": "-", "enable.auto.commit": False, "enable.partition.eof": True}
    found: list[Message] = []
    consumer = Consumer(conf)
    try:
        left = set(consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + SECONDS_MAX
        while left:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
            else:
                found.append(message)
    finally:
        consumer.close()
    return found


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def desk(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The page up to its last command to a run; what came of it is for the tests to look at."""
    desk = Desk(kafka, tmp_path_factory.mktemp("desk"))
    desk.streams(*page.command("streams", "topics"))
    try:
        desk.spawn("-m", "streams", "worker", "desk.py:app")
        desk.produce("starts.txt")
        parked = dict.fromkeys(("p-1", "p-2", "p-3"), "waiting!")
        waiting = dict.fromkeys(("l-1", "l-2", "n-1"), "waiting") | parked
        until(lambda: desk.statuses() == waiting, desk.statuses)
        (desk.folder / "scale").write_text("250\n")
        desk.produce("answers.txt")
        ended = dict.fromkeys(waiting, "completed") | {"l-2": "cancelled"}
        until(lambda: desk.statuses() == ended, desk.statuses)
        desk.produce("asks.txt")
        asked = ended | dict.fromkeys(("s-1", "s-2", "s-3"), "waiting")
        until(lambda: desk.statuses() == asked, desk.statuses)
        desk.produce("replies.txt")
        until(lambda: desk.statuses() == asked | dict.fromkeys(("s-1", "s-2", "s-3"), "completed"), desk.statuses)
        yield desk
    finally:
        for process in desk.processes:
            process.kill()
            process.wait()


def test_commands_in_plain_json_did_what_they_say(desk: Desk):
    started = {key: json.loads(value) for key, value in page.lines("starts.txt")}
    assert {run: view["workflow"] for run, view in desk.runs().items() if run in started} == {
        run: command["workflow"] for run, command in started.items()
    }
    shown = json.loads(desk.streams("show", "l-1", "--json"))
    assert (shown["result"], shown["attributes"]) == (True, started["l-1"]["attributes"])
    refused = [line for line in desk.streams("history", "n-1", "--json").splitlines() if "command.rejected" in line]
    assert len(refused) == 1, "the repeated signal was refused once"
    assert "DUPLICATE" in refused[0]


def test_replies_in_plain_json_answer_requests(desk: Desk):
    messages = [decode_effect(message.value()) for message in records(desk.broker, "desk.effects.stamps")]
    sent = [json.loads(value) for _, value in page.lines("replies.txt")]
    fields = ("op", "effect_id", "attempt", "epoch")
    asked = {tuple(getattr(message, name) for name in fields) for message in messages}
    assert asked == {tuple(reply[name] for name in fields) for reply in sent if reply["attempt"] == 1}
    assert {message.run_id: json.loads(message.payload) for message in messages} == {
        "s-1": {"grams": 250},
        "s-2": {"grams": 90000},
        "s-3": {"grams": 20},
    }
    for run_id, *shown in page.results():
        assert desk.streams("result", run_id).splitlines() == shown
    assert json.loads(desk.streams("show", "s-3", "--json"))["result"] == "0.95"
    for run_id, codes in {"s-1": ["RUN_TERMINAL"], "s-3": ["STALE_REPLY", "REPLY_INVALID"]}.items():
        events = [json.loads(line) for line in desk.streams("history", run_id, "--json").splitlines()]
        refused = [event["payload"]["code"] for event in events if event["type"] == "command.rejected"]
        assert refused == codes
        late = [event["payload"]["value"] for event in events if event["type"] == "outcome.late"]
        assert late == [{"s-1": "9.99", "s-3": "0.95"}[run_id]]


def test_the_java_default_partitioner_puts_keys_where_the_engine_expects_them(desk: Desk):
    admin = AdminClient({"bootstrap.servers": desk.broker})
    admin.create_topics([NewTopic("desk-keys", 12, 1)])["desk-keys"].result(SECONDS_MAX)
    keys = [f"{word}{number}" for number in range(60) for word in ("o-", "straße", "日本", "x" * number)]
    *arguments, _, _ = page.command("kafka-console-producer.sh", "< starts.txt")
    arguments = ["desk-keys" if word == "desk.commands" else word for word in arguments]
    desk.tool("kafka-console-producer.sh", arguments, "".join(f"{key}|\n" for key in keys))
    found = {message.key(): message.partition() for message in records(desk.broker, "desk-keys")}
    assert found == {key.encode(): partition_of(key.encode(), 12) for key in keys}


def test_effects_are_read_by_the_console_consumer(desk: Desk):
    shown = page.output("kafka-console-consumer.sh")
    assert len(shown) == 5
    assert sorted(desk.consume().splitlines()) == sorted(shown)


def test_the_console_consumer_shows_what_the_effects_say(desk: Desk):
    text = desk.consume(**{"print.value=false": "print.value=true"})
    effects = [decode_effect(message.value()) for message in records(desk.broker, EFFECTS)]
    assert {effect.run_id: json.loads(effect.payload) for effect in effects} == {
        "l-1": {"text": "Kafka"},
        "n-1": {"to": "Ada", "text": "Good morning"},
        "p-1": {"grams": 300},
        "p-2": {"grams": None},
        "p-3": {"grams": 250},
    }
    assert all(effect.payload.decode() in text for effect in effects)


def test_an_aborted_transaction_does_not_show(desk: Desk):
    """As the engine leaves one behind when it is fenced in the middle: sent, answered by the broker, aborted."""
    producer = Producer({"bootstrap.servers": desk.broker, "transactional.id": "desk-ghost"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    for partition in range(12):
        producer.produce(EFFECTS, b"never", b"ghost", partition)
    assert producer.flush(SECONDS_MAX) == 0
    producer.abort_transaction(SECONDS_MAX)
    everything = {"5": "17"}
    uncommitted = desk.consume(**everything, read_committed="read_uncommitted").splitlines()
    assert sum(line.endswith("\tghost") for line in uncommitted) == 12, "only the isolation level hides them"
    assert sorted(desk.consume().splitlines()) == sorted(page.output("kafka-console-consumer.sh"))
    assert "ghost" not in {message.key().decode() for message in records(desk.broker, EFFECTS)}


def test_the_subscriber_of_the_page_does_each_piece_of_work_once(desk: Desk):
    def subscribe(group: str, begin: str) -> list[str]:
        shown = desk.folder / f"{len(desk.processes)}.log"
        process = desk.spawn("subscriber.py", desk.broker, group, str(ROOT / "schemas"))
        try:
            until(lambda: shown.read_text().count("\n") == 5, shown.read_text)
        finally:
            process.kill()
            process.wait()
        lines = shown.read_text("utf-8").splitlines()
        assert all(line.startswith(begin) for line in lines)
        return sorted(line.removeprefix(begin) for line in lines)

    expected = page.output("python")
    assert len(expected) == 5
    assert subscribe("desk-letters", "sent  ") == sorted(line.removeprefix("sent  ") for line in expected)
    assert subscribe("desk-letters-from-the-beginning", "known ")
    with closing(sqlite3.connect(desk.folder / "done.db")) as ledger:
        assert ledger.execute("SELECT count(*), count(DISTINCT key) FROM letters").fetchone() == (5, 5)


def test_what_is_no_command_is_dead_lettered_with_its_reason(desk: Desk):
    expected = set(page.lines("letters.txt"))
    desk.produce("bad.txt")

    def found() -> set[tuple[str, ...]]:
        return {("NULL" if a.key is None else a.key.decode(), a.code, a.reason) for a in desk.letters()}

    until(lambda: found() >= expected, found)
    sent = {
        (None if key == "NULL" else key, None if value == "NULL" else value) for key, value in page.lines("bad.txt")
    }
    kept = {(a.key and a.key.decode(), a.value and a.value.decode()) for a in desk.letters()}
    assert kept >= sent, "as they were"
    (message, *_) = records(desk.broker, "desk.dead-letters")
    assert dict(message.headers()) == dict(headers_of("dead_letter", message.value()))


def test_the_default_partitioner_of_librdkafka_is_refused_by_name(desk: Desk):
    """The commonest mistake from another language: the same key lands elsewhere, without an error at the producer."""
    start = json.dumps({"type": "start", "workflow": "letter", "input": "CRC"})
    run_id = "l-crc"
    assert crc32(run_id.encode()) % 12 != partition_of(run_id.encode(), 12)
    for partitioner in ("consistent_random", "murmur2_random"):
        producer = Producer({"bootstrap.servers": desk.broker, "acks": "all", "partitioner": partitioner})
        producer.produce("desk.commands", start, run_id)
        assert producer.flush(SECONDS_MAX) == 0
    until(lambda: run_id in desk.runs(), desk.runs)
    (stray,) = [letter for letter in desk.letters() if letter.code == "WRONG_PARTITION"]
    assert (stray.key, stray.value, stray.partition) == (run_id.encode(), start.encode(), crc32(run_id.encode()) % 12)
    assert "use the murmur2 partitioner with the run id as key" in stray.reason
