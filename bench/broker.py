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

from streams.dev import start_kafka, start_postgres, stop_kafka, stop_postgres

__all__ = ["broker", "broker_cpu_seconds", "broker_url", "fresh_database", "postgres", "postgres_url"]

_URL, _PID = "STREAMS_BENCH_KAFKA", "STREAMS_BENCH_KAFKA_PID"
_POSTGRES = "STREAMS_BENCH_POSTGRES"


@contextmanager
def broker(where: Path) -> Iterator[None]:
    """Run a broker; the processes of the measurements find it through the environment."""
    folder = Path(tempfile.mkdtemp(prefix="streams-bench-kafka-", dir=where))
    try:
        kafka = start_kafka(folder, tied=True)
        os.environ[_URL], os.environ[_PID] = kafka.url, str(kafka.pid)
        yield
        stop_kafka(kafka)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def broker_url() -> str:
    """Where the broker of this measurement is."""
    return os.environ[_URL]


def broker_cpu_seconds() -> float:
    """CPU time that the broker has used, all threads. Needs /proc."""
    fields = Path(f"/proc/{os.environ[_PID]}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def postgres(where: Path) -> Iterator[None]:
    """Run a PostgreSQL, the same way."""
    folder = Path(tempfile.mkdtemp(prefix="streams-bench-postgres-", dir=where))
    try:
        server = start_postgres(folder, tied=True)
        os.environ[_POSTGRES] = server.url
        yield
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
