"""Users without the rights that they need, at a broker that asks: one line that names the right, and exit code 2."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.secured import Secured, secured
from tests.system.streams_process import ROOT, Done, streams

__all__ = ["secured"]

APP = f"{ROOT}/examples/report.py:app"
TOPICS = "CREATE DESCRIBE DESCRIBE_CONFIGS"

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.fixture
def name() -> str:
    """An app that nobody has any right to yet."""
    return f"reports-{uuid4().hex[:8]}"


def work(secured: Secured, name: str, **changes: str) -> Done:
    return streams("worker", APP, "--app", name, "--log", secured.url("tom", **changes))


def refused(done: Done, *words: str) -> None:
    assert done.code == 2, done
    assert len(done.lines) == 1, done
    assert done.lines[0].startswith("streams: ")
    for word in words:
        assert word in done.lines[0]
    assert "tom-may-little" not in done.out + done.lines[0]


def test_a_wrong_password_is_told_at_once_and_never_printed(secured: Secured, name: str) -> None:
    done = work(secured, name, password="open-sesame")
    refused(done, "does not let this client in", "Invalid username or password")
    assert "open-sesame" not in done.out + done.lines[0]


def test_no_right_on_topics(secured: Secured, name: str) -> None:
    refused(work(secured, name), "TOPIC_AUTHORIZATION_FAILED", "Describe, DescribeConfigs, Read and Write")


def test_no_right_to_create_topics(secured: Secured, name: str) -> None:
    secured.allow("tom", {("TOPIC", name): "DESCRIBE DESCRIBE_CONFIGS"})
    refused(work(secured, name), "cannot be created", "TOPIC_AUTHORIZATION_FAILED", "Create")


def test_no_right_on_transactional_ids(secured: Secured, name: str) -> None:
    secured.allow("tom", {("TOPIC", name): TOPICS})
    refused(work(secured, name), "Describe and Write on transactional ids that begin with `APP/`")


def test_no_right_on_the_group(secured: Secured, name: str) -> None:
    secured.allow("tom", {("TOPIC", name): f"{TOPICS} READ WRITE", ("TRANSACTIONAL_ID", name): "DESCRIBE WRITE"})
    refused(work(secured, name), "Read on the group APP.workers")


@pytest.mark.parametrize("missing", ["READ", "WRITE"])
def test_no_right_to_read_or_write(secured: Secured, name: str, missing: str) -> None:
    other = {"READ": "WRITE", "WRITE": "READ"}[missing]
    secured.allow(
        "tom",
        {
            ("TOPIC", name): f"{TOPICS} {other}",
            ("TRANSACTIONAL_ID", name): "DESCRIBE WRITE",
            ("GROUP", name): "READ",
        },
    )
    refused(work(secured, name), "TOPIC_AUTHORIZATION_FAILED", "Read and Write")


def test_a_request_without_the_right_to_write(secured: Secured) -> None:
    secured.allow("ann", {("TOPIC", "reports"): "READ DESCRIBE DESCRIBE_CONFIGS"})
    assert streams("topics", "create", APP, "--log", secured.kafka.url).code == 0
    url = secured.url("ann")
    done = streams("start", "report", "--app", "reports", "--run-id", "r-1", "--input", "{}", "--log", url)
    refused(done, "AUTHORIZATION_FAILED", "Write")


def test_a_request_of_one_who_may_write_only_elsewhere(secured: Secured) -> None:
    secured.allow("eve", {("TOPIC", "reports"): "READ DESCRIBE DESCRIBE_CONFIGS", ("TOPIC", "other"): "WRITE"})
    assert streams("topics", "create", APP, "--log", secured.kafka.url).code == 0
    url = secured.url("eve")
    done = streams("start", "report", "--app", "reports", "--run-id", "r-1", "--input", "{}", "--log", url)
    refused(done, "TOPIC_AUTHORIZATION_FAILED", "Write")
