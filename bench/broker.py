"""The broker and the PostgreSQL that measurements share: started for them, and gone with them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from bench.processes import cpu_seconds, memory_mb
from streams.dev import kill_kafka, start_kafka, start_postgres, stop_postgres

__all__ = [
    "broker",
    "broker_cpu_seconds",
    "broker_mb",
    "broker_url",
    "fresh_database",
    "postgres",
    "postgres_url",
    "topic_bytes",
]

_URL, _PID = "STREAMS_BENCH_KAFKA", "STREAMS_BENCH_KAFKA_PID"
_FOLDER = "STREAMS_BENCH_KAFKA_FOLDER"
_POSTGRES = "STREAMS_BENCH_POSTGRES"
_OWN_TOPICS = ("__consumer_offsets", "__transaction_state")


@contextmanager
def broker(where: Path) -> Iterator[None]:
    """Run a broker; the processes of the measurements find it through the environment."""
    folder = Path(tempfile.mkdtemp(prefix="streams-bench-kafka-", dir=where))
    try:
        kafka = start_kafka(folder, tied=True)
        os.environ[_URL], os.environ[_PID], os.environ[_FOLDER] = kafka.url, str(kafka.pid), str(folder)
        try:
            yield
        finally:
            kill_kafka(kafka)  # nobody wants its data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def broker_url() -> str:
    """Where the broker of this measurement is."""
    return os.environ[_URL]


def broker_cpu_seconds() -> float:
    """CPU time that the broker has used, all threads."""
    return cpu_seconds(int(os.environ[_PID]))


def broker_mb() -> float:
    """Memory of the broker now."""
    return memory_mb(int(os.environ[_PID]))


def topic_bytes(app: str) -> dict[str, int]:
    """How large an app's topics are on the broker's disk, by the last word of their names.

    That is batches as they were sent, with markers of transactions. Under the empty word: what transactions and groups
    leave in Kafka's own topics.
    """
    found: dict[str, int] = {"": 0}
    for file in (Path(os.environ[_FOLDER]) / "data").glob("*/*.log"):
        topic = file.parent.name.rpartition("-")[0]
        word = topic.rpartition(".")[2] if topic.startswith(f"{app}.") else ""
        if word or topic in _OWN_TOPICS:
            found[word] = found.get(word, 0) + file.stat().st_size
    return found


@contextmanager
def postgres(where: Path) -> Iterator[None]:
    """Run a PostgreSQL, the same way."""
    folder = Path(tempfile.mkdtemp(prefix="streams-bench-postgres-", dir=where))
    try:
        server = start_postgres(folder, tied=True)
        os.environ[_POSTGRES] = server.url
        try:
            yield
        finally:
            stop_postgres(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def postgres_url() -> str:
    """Where its database is."""
    return os.environ[_POSTGRES]


def fresh_database(name: str) -> str:
    """Make another, empty database on the same server; its address."""
    place = urlsplit(postgres_url())
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return place._replace(path=f"/{name}").geturl()
