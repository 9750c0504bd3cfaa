"""The broker that the Kafka measurements share: started for them, and gone with them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streams.dev import start_kafka, stop_kafka

__all__ = ["broker", "broker_cpu_seconds", "broker_url"]

_URL, _PID = "STREAMS_BENCH_KAFKA", "STREAMS_BENCH_KAFKA_PID"


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
