"""Addresses and settings that lead nowhere: one clear line, in the set time, and the exit code that fits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.dev import Kafka, start_kafka, stop_kafka
from streams.dev.process import free_port
from tests.system.old_broker import old_broker
from tests.system.streams_process import ROOT, Done, Streams, streams

APP = f"{ROOT}/examples/report.py:app"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def work(url: str, **more: str) -> Done:
    return streams("worker", APP, "--log", url, **more)


def gave_up(done: Done, *words: str) -> None:
    """It said that it waits, once, and then why it waits no more."""
    assert done.code == 1, done
    assert done.out == ""
    waiting, end = done.lines
    assert waiting.startswith("waiting for Kafka at ")
    assert end.startswith("streams: no broker of Kafka answers at ")
    for word in (*words, "streams dev up"):
        assert word in end


def refused(done: Done, *words: str) -> None:
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done
    for word in words:
        assert word in done.lines[0]


def test_nobody_listens() -> None:
    gave_up(work(f"kafka://127.0.0.1:{free_port()}?connect_timeout_ms=3000"), "Connection refused", "after 3 s")


def test_the_time_can_be_set_by_the_environment() -> None:
    done = work(f"kafka://127.0.0.1:{free_port()}", STREAMS_KAFKA_CONNECT_TIMEOUT_MS="2500")
    gave_up(done, "Connection refused")


def test_a_host_that_is_unknown() -> None:
    gave_up(work("kafka://no-such-host.invalid:9092?connect_timeout_ms=3000"), "no-such-host.invalid", "resolve")


@pytest.mark.kafka
def test_a_broker_that_comes_while_it_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with Streams(tmp_path / "said", "worker", APP, "--log", f"kafka://127.0.0.1:{port}") as worker:
        worker.until("waiting for Kafka at ")
        broker = start_kafka(tmp_path / "kafka", port=port, tied=True, seconds=110.0)
        try:
            worker.until("partitions 0-11")
            assert len(worker.saying("waiting for Kafka")) == 1
            assert worker.stop() == 0
        finally:
            stop_kafka(broker)


@pytest.fixture
def web_server() -> Iterator[int]:
    """Answers like a web server that is asked nonsense."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(1000)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_something_else_listens(web_server: int) -> None:
    done = work(f"kafka://127.0.0.1:{web_server}?connect_timeout_ms=3000")
    gave_up(done, "what answers there does not speak Kafka")


def test_somebody_listens_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = work(f"kafka://127.0.0.1:{server.getsockname()[1]}?connect_timeout_ms=3000")
    gave_up(done, "nothing that speaks Kafka answers there")


@pytest.mark.parametrize("verb", [("worker", APP), ("topics", "create", APP), ("topics", "check", APP)])
def test_a_broker_that_is_too_old(verb: tuple[str, ...]) -> None:
    with old_broker() as port:
        done = streams(*verb, "--log", f"kafka://127.0.0.1:{port}")
    assert done.code == 2, done
    assert len(done.lines) == 1, done
    assert "streams needs brokers of version 2.8 or later" in done.lines[0]


@pytest.mark.kafka
def test_a_client_that_speaks_tls_to_a_plain_listener(kafka: Kafka) -> None:
    done = work(f"{kafka.url}?security.protocol=SASL_SSL&sasl.mechanisms=PLAIN&sasl.username=a&sasl.password=b&{SHORT}")
    gave_up(done, "SSL handshake failed", "PLAINTEXT broker listener?")


SHORT = "connect_timeout_ms=3000"


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("sesion.timeout.ms=6000", 'No such configuration property: "sesion.timeout.ms"'),
        ("session.timeout.ms=soon", 'Invalid value for configuration property "session.timeout.ms"'),
        ("isolation.level=read_uncommitted", "'isolation.level' is set by streams"),
        ("connect_timeout_ms=soon", "connect_timeout_ms must be a whole number"),
        ("sasl.pasword=open-sesame", 'No such configuration property: "sasl.pasword"'),
    ],
)
def test_a_setting_with_a_typo(kafka: Kafka, query: str, line: str) -> None:
    done = work(f"{kafka.url}?{query}")
    refused(done, line)
    assert "open-sesame" not in done.lines[0]


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("security.protocol", "line 2 of client.properties is no name=value"),
        ("sasl.pasword=open-sesame", 'No such configuration property: "sasl.pasword"'),
        ("security.protocol=SASL_SLS", 'Invalid value "SASL_SLS" for configuration property "security.protocol"'),
        (None, "the properties file client.properties cannot be read: No such file"),
    ],
)
def test_a_properties_file_with_a_typo(kafka: Kafka, text: str | None, line: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "client.properties").write_text(f"# how to connect\n{text}\n")
    given = streams("worker", APP, "--log", f"{kafka.url}?properties=client.properties", cwd=tmp_path)
    found = streams("worker", APP, "--log", kafka.url, cwd=tmp_path, STREAMS_KAFKA_PROPERTIES="client.properties")
    for done in (given, found):
        refused(done, line)
        assert "open-sesame" not in done.lines[0]


@pytest.mark.parametrize("verb", [("runs",), ("show", "r-1"), ("topics", "check", APP), ("worker", APP)])
@pytest.mark.parametrize(
    "url",
    [
        "kafka://ann:open-sesame@127.0.0.1:9092",
        "kafka:127.0.0.1?sasl.password=open-sesame",
        "kafaka://127.0.0.1?sasl.password=open-sesame",
        "postgresql://ann:open-sesame@127.0.0.1/log",
        "memory://?token=open-sesame",
        "sqlite:///nowhere/at/all.db?password=open-sesame",
    ],
)
def test_an_address_that_is_refused_is_not_printed_with_its_secrets(verb: tuple[str, ...], url: str) -> None:
    done = streams(*verb, "--log", url)
    assert done.code == 2, done
    assert len(done.lines) == 1, done
    assert "open-sesame" not in done.out + done.lines[0]
