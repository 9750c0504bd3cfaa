"""The subscriber as a process: it says what it serves, ends when it is told to, and an operator's word goes through."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streams.dev import Kafka
from streams.log.sqlite import open_sqlite
from streams.wire.topics import topics_of
from tests.system.streams_process import HANG_SECONDS, Done, Streams, streams

APP = """
import asyncio
import time
from pathlib import Path
from streams import App, Context, EffectContext, Fail, RequestFailed

app = App("desk")
letters = app.effect("letters", str, reply=str)
mails = app.effect("mails", str)


@app.workflow(version=1)
async def write(ctx: Context, text: str) -> str:
    try:
        return await ctx.request(letters, text, idempotency_key=f"letter/{ctx.run_id}")
    except RequestFailed as failed:
        return f"{failed.kind} {failed.code}: {failed.message}"


@app.subscriber(letters)
def send(ctx: EffectContext, text: str) -> str:
    Path("sending").touch()
    if text == "lose it":
        raise RuntimeError("the line is dead")
    if text == "refuse":
        raise Fail("NO_PAPER", "there is none")
    time.sleep(float(text))
    return f"sent {text}"


@app.subscriber(mails)
async def mail(ctx: EffectContext, text: str) -> None: ...
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Desk:
    """A folder with the app, its log and its ledger."""

    def __init__(self, folder: Path, log: str, ledger: str) -> None:
        self.folder = folder
        self.app = f"desk-{uuid4().hex[:8]}"  # other tests share the broker
        self.environment = {"STREAMS_LOG": log, "STREAMS_LEDGER": ledger, "STREAMS_APP": self.app}
        self.target = f"{folder / 'desk.py'}:app"
        code = APP.replace('Path("sending")', f"Path({str(folder / 'sending')!r})")
        (folder / "desk.py").write_text(code.replace('App("desk")', f"App({self.app!r})"))

    def run(self, *arguments: str) -> Done:
        return streams(*arguments, cwd=self.folder, **self.environment)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.code == 0, done.lines
        return json.loads(done.out)

    def worker(self) -> Streams:
        return Streams(self.folder / "worker.log", "worker", self.target, **self.environment)

    def subscriber(self, *arguments: str, name: str = "subscriber", **environment: str) -> Streams:
        line = ("subscribe", self.target, *arguments)
        return Streams(self.folder / f"{name}.log", *line, **self.environment, **environment)

    def start(self, run_id: str, text: str) -> None:
        done = self.run("start", "write", "--run-id", run_id, "--input", json.dumps(text))
        assert done.code == 0, done.lines

    def result(self, run_id: str) -> Any:
        return self.json("result", run_id)["result"]

    def sending(self) -> None:
        """Wait until the handler is at it."""
        deadline = time.monotonic() + HANG_SECONDS
        while not (self.folder / "sending").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    log = f"sqlite:///{tmp_path / 'log.db'}?session_timeout_ms=1000"
    return Desk(tmp_path, log, f"sqlite:///{tmp_path / 'ledger.db'}")


@pytest.fixture(
    params=["embedded", pytest.param("servers", marks=[pytest.mark.kafka, pytest.mark.postgres])],
)
def each_desk(request: pytest.FixtureRequest, tmp_path: Path, desk: Desk) -> Desk:
    """On the embedded pair, and on Kafka with PostgreSQL."""
    if request.param == "embedded":
        return desk
    return Desk(tmp_path, request.getfixturevalue("kafka").url, request.getfixturevalue("database"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_subscriber_finishes_what_runs_and_ends_with_0(number: int, desk: Desk) -> None:
    with desk.worker() as worker, desk.subscriber() as subscriber:
        worker.until("owns")
        subscriber.until("letters: partitions 0-11")
        desk.start("l-1", "0.7")
        desk.sending()
        subscriber.process.send_signal(number)
        assert subscriber.gone() == 0
        first, *_ = subscriber.lines
        log, ledger = desk.environment["STREAMS_LOG"], desk.environment["STREAMS_LEDGER"]
        assert first == f"subscriber of app {desk.app} on {log}, ledger {ledger}: letters, mails · Ctrl-C stops it"
        assert subscriber.saying("stopping: handlers that run may finish; once more stops at once")
        assert desk.result("l-1") == "sent 0.7"


def test_a_second_signal_stops_a_subscriber_at_once_and_the_next_one_asks_a_person(desk: Desk) -> None:
    with desk.worker() as worker:
        worker.until("owns")
        with desk.subscriber("--lease", "1") as subscriber:
            desk.start("l-1", "250")
            desk.sending()
            subscriber.process.terminate()
            subscriber.until("stopping")
            subscriber.process.terminate()
            assert subscriber.gone() == 128 + signal.SIGTERM
        with desk.subscriber("--lease", "1", name="second") as second:
            assert "streams ledger resolve" in second.until("SUBSCRIBER_LOST")
            (entry,) = [json.loads(line) for line in desk.run("ledger", "list", "--json").out.splitlines()]
            assert (entry["status"], entry["error"]["code"]) == ("parked", "OUTCOME_UNKNOWN")
            assert "SUBSCRIBER_LOST" in entry["error"]["message"]


def test_a_subscriber_serves_only_what_it_is_told_to_and_says_so_in_json(desk: Desk) -> None:
    with desk.worker() as worker, desk.subscriber("--only", "letters", "--strict", "--json") as subscriber:
        worker.until("owns")
        subscriber.until('"kind": "owns"')
        desk.start("l-1", "0")
        assert desk.result("l-1") == "sent 0"
        desk.start("l-2", "refuse")
        assert desk.result("l-2") == "terminal NO_PAPER: there is none"
        subscriber.until('"kind": "dead"')
        assert subscriber.stop() == 0
        told = [json.loads(line) for line in subscriber.lines if line.startswith("{")]
        assert told[0] == {
            "kind": "subscriber",
            "app": desk.app,
            "log": desk.environment["STREAMS_LOG"],
            "ledger": desk.environment["STREAMS_LEDGER"],
            "effects": ["letters"],
            "pid": subscriber.process.pid,
        }
        assert {line["effect"] for line in told[1:]} == {"letters"}


def parked(desk: Desk, run_id: str, subscriber: Streams) -> None:
    desk.start(run_id, "lose it")
    subscriber.until(f"letters of {run_id}")
    found = desk.json("diagnose", run_id)
    (effect,) = found["effects"]
    assert (effect["ledger"]["status"], effect["attempt"]) == ("parked", 1)
    assert f"streams ledger resolve letter/{run_id} --effect letters --not-done" in effect["advice"]


def test_a_persons_word_on_the_ledger_goes_through_to_the_run(each_desk: Desk) -> None:
    desk = each_desk
    with desk.worker() as worker, desk.subscriber("--only", "letters") as subscriber:
        worker.until("owns")
        key = ("--effect", "letters")
        parked(desk, "l-1", subscriber)
        assert desk.json("ledger", "resolve", "letter/l-1", *key, "--done", '"by hand"')["taken"] is True
        assert desk.result("l-1") == "by hand"
        parked(desk, "l-2", subscriber)
        done = desk.run("ledger", "resolve", "letter/l-2", *key, "--give-up", "nobody reads it")
        assert (done.code, done.out) == (
            0,
            "letters letter/l-2 is failed; the reply is in the log, and the run has it\n",
        )
        assert desk.result("l-2") == "terminal GIVEN_UP: nobody reads it"
        parked(desk, "l-3", subscriber)
        assert desk.json("ledger", "resolve", "letter/l-3", *key, "--not-done")["sent_to"]
        subscriber.until("letters of l-3", times=2)  # carried out again, and lost again
        entry = desk.json("ledger", "show", "letter/l-3", *key)
        assert (entry["status"], entry["deliveries"]) == ("parked", 1)
        wrong = desk.run("ledger", "resolve", "letter/l-3", *key, "--done", "7")
        assert wrong.code == 0
        assert "the run did not take the reply: REPLY_INVALID" in "\n".join(wrong.lines)
        verified = desk.run("verify")
        assert verified.code == 0, verified


def test_a_given_up_effect_is_sent_back_and_the_subscriber_carries_it_out(each_desk: Desk) -> None:
    desk = each_desk
    with desk.worker() as worker, desk.subscriber("--only", "letters") as subscriber:
        worker.until("owns")
        desk.start("l-1", "refuse")
        assert desk.result("l-1").startswith("terminal NO_PAPER")
        subscriber.until("NO_PAPER")
        back = desk.run("dead-letters", "send-back", "--effect", "letters", "--all")
        assert (back.code, "1 sent back" in back.out) == (0, True), back
        subscriber.until("NO_PAPER", times=2)
        again = desk.run("dead-letters", "send-back", "--effect", "letters", "--all")
        # The first letter would open nothing any more; the second, of the try in vain, does.
        assert (again.code, "1 sent back, 0 were before, 1 refused" in again.out) == (1, True), again
        assert desk.json("ledger", "show", "letter/l-1", "--effect", "letters")["deliveries"] == 1
        assert desk.run("verify").code == 0


def test_a_diagnosis_of_effects_stands_without_its_ledger(desk: Desk) -> None:
    with desk.worker() as worker:
        worker.until("owns")
        desk.start("l-1", "0")
        away = "postgresql://streams@127.0.0.1:1/streams?connect_timeout=2"
        for url, why in ((away, "cannot be asked"), ("sqlite:///none.db", "there is no ledger at sqlite:///none.db")):
            found = desk.json("diagnose", "l-1", "--ledger", url)
            assert why in found["ledger_error"]
            (effect,) = found["effects"]
            assert (effect["message"]["state"], effect["message"]["begun"]) == ("pending", False)
            assert effect["advice"] == ["streams subscribe MODULE:APP --only letters"]
            text = desk.run("diagnose", "l-1", "--ledger", url)
            assert text.code == 0
            assert why in text.out
            assert "pending" in text.out


def test_a_strict_subscriber_ends_where_its_offset_is_gone_from_the_log(desk: Desk) -> None:
    """It is an error and never a silent reset: what was deleted was not carried out."""
    with desk.worker() as worker, desk.subscriber("--only", "letters") as subscriber:
        worker.until("owns")
        desk.start("l-1", "0")
        assert desk.result("l-1") == "sent 0"
        subscriber.until("letters: partitions")
        assert subscriber.stop() == 0
    asyncio.run(move_offsets(desk))
    with desk.subscriber("--only", "letters", "--strict", name="strict") as strict:
        assert strict.gone() == 1
        assert strict.saying("refused")


async def move_offsets(desk: Desk) -> None:
    """Let the group stand far behind the end of the log, as after a topic that was made anew."""
    log = await open_sqlite(desk.environment["STREAMS_LOG"])
    topics = topics_of(desk.app)
    await log.rewind_group(topics.subscribers("letters"), topics.effect("letters"), dict.fromkeys(range(12), 999))
    await log.close()


@pytest.mark.kafka
def test_a_file_as_ledger_of_subscribers_on_kafka_is_warned_of(kafka: Kafka, tmp_path: Path) -> None:
    desk = Desk(tmp_path, kafka.url, f"sqlite:///{tmp_path / 'ledger.db'}")
    with desk.subscriber("--only", "letters") as subscriber:
        subscriber.until("this ledger is a file of this machine")
        subscriber.until("letters: partitions 0-11")
        assert subscriber.stop() == 0
