"""Addresses and settings of a Kafka log: one clear line for what is wrong, and no secret in any of them."""

from __future__ import annotations

import asyncio

import pytest

from streams.errors import LogUnavailable, UsageError
from streams.log.kafka.settings import is_secret, parse_url


def parse(url: str, environment: dict[str, str] | None = None, **properties: str):
    return parse_url(url, properties, environment or {})


def test_an_address_has_brokers_and_settings():
    settings = parse("kafka://a:1,b,[::1]:9?linger.ms=3&security.protocol=SASL_SSL")
    assert settings.servers == "a:1,b:9092,[::1]:9"
    assert settings.client == {"linger.ms": "3", "security.protocol": "SASL_SSL"}
    assert settings.url == "kafka://a:1,b:9092,[::1]:9?linger.ms=3&security.protocol=SASL_SSL"


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka:a:1", "kafka://a:b", "kafka://a:1,,b", "kafka:///path", "kafka://a b"]
)
def test_what_is_no_address_is_told(url: str):
    with pytest.raises(UsageError, match="kafka://HOST:PORT"):
        parse(url)


def test_bytes_of_the_command_line_that_are_no_text_are_told():
    with pytest.raises(UsageError, match="bytes that are no UTF-8"):
        parse("kafka://a?client.rack=\udcb2")


def test_a_properties_file_that_is_no_text_is_told(tmp_path):
    file = tmp_path / "p"
    file.write_bytes(b"linger.ms=\xff")
    for path in (str(file), "a\0b"):
        with pytest.raises(UsageError, match="its path or content is no text"):
            parse("kafka://a:1", properties=path)


def test_a_password_is_never_printed():
    settings = parse("kafka://a:1?sasl.username=me&sasl.password=hunter2&ssl.key.password=hunter3")
    assert "hunter" not in settings.url
    assert settings.url == "kafka://a:1?sasl.username=me"
    assert settings.client["sasl.password"] == "hunter2"
    with pytest.raises(UsageError) as refused:
        parse("kafka://me:hunter2@a:1")
    assert "hunter2" not in str(refused.value)
    assert "sasl.password" in str(refused.value)


@pytest.mark.parametrize("name", "sasl.password ssl.key.pem ssl.key.password sasl.oauthbearer.client.secret".split())
def test_secrets_are_known_by_name(name: str):
    assert is_secret(name)


def test_the_environment_and_a_file_give_settings_and_the_url_wins(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("# ours\n\nsasl.username = file\nsasl.password=a=b\nlinger.ms=1\n")
    environment = {
        "STREAMS_KAFKA_PROPERTIES": str(file),
        "STREAMS_KAFKA_SASL_USERNAME": "environment",
        "STREAMS_KAFKA_CONNECT_TIMEOUT_MS": "5",
        "OTHER": "x",
    }
    settings = parse("kafka://a:1?linger.ms=2", environment)
    assert settings.client == {"sasl.username": "environment", "sasl.password": "a=b", "linger.ms": "2"}
    assert settings.connect_seconds == 0.005


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("acks=1", "'acks' is set by streams"),
        ("transactional.id=x", "'transactional.id' is set by streams"),
        ("connect_timeout_ms=soon", "connect_timeout_ms must be a whole number"),
        ("properties=/no/such/file", "/no/such/file cannot be read"),
        # F13: limits of the client that differ from those of topics would fail records that others can write.
        ("batch.size=2000000", "batch.size must be a whole number from 1 to 900000, not '2000000'"),
        ("message.max.bytes=500000", "message.max.bytes must be a whole number of at least 1000000, not '500000'"),
    ],
)
def test_wrong_settings_are_named(settings: str, line: str):
    with pytest.raises(UsageError, match=line):
        parse(f"kafka://a:1?{settings}")


def test_a_line_that_is_no_property_is_told(tmp_path):
    file = tmp_path / "p"
    file.write_text("linger.ms=1\nnonsense\n")
    with pytest.raises(UsageError, match="line 2"):
        parse("kafka://a:1", properties=str(file))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("linger.msec=1", 'No such configuration property: "linger.msec"'),
        ("socket.timeout.ms=soon", "socket.timeout.ms"),
        ("security.protocol=hunter2", "security.protocol"),
    ],
)
def test_the_client_is_asked_about_the_rest(settings: str, line: str):
    from streams.log.kafka import open_kafka

    with pytest.raises(UsageError, match=line):
        asyncio.run(open_kafka(f"kafka://127.0.0.1:1?{settings}"))


def test_a_broker_that_is_not_there_is_waited_for_and_then_told():
    from streams.log.kafka import open_kafka

    said: list[str] = []
    with pytest.raises(LogUnavailable, match=r"no broker of Kafka answers at 127\.0\.0\.1:1 after"):
        asyncio.run(open_kafka("kafka://127.0.0.1:1?connect_timeout_ms=2500", on_stall=said.append))
    assert len(said) == 1
    assert "waiting for Kafka at 127.0.0.1:1" in said[0]
