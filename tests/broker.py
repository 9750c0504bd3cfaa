"""The one broker of a test run: started when the first test asks for it, and gone with the run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.dev import Kafka, read_kafka, start_kafka, stop_kafka

# Many groups come and go on one small broker: what waits for its clock would make every test slow.
SETTINGS = {"group.min.session.timeout.ms": "1000", "log.cleaner.backoff.ms": "500"}


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A running broker, shared by all tests of the run: they keep to names of their own and never stop it."""
    folder = Path(tempfile.mkdtemp(prefix="streams-kafka-"))
    try:
        broker = start_kafka(folder, settings=SETTINGS, tied=True, seconds=110.0)
        yield broker
        stop_kafka(broker)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Kafka]:
    """A broker that a test may kill and start again, with `start_kafka(kafka.folder, port=kafka.port)`."""
    broker = start_kafka(tmp_path / "kafka", settings=SETTINGS, tied=True, seconds=110.0)
    yield broker
    stop_kafka(read_kafka(broker.folder) or broker)
