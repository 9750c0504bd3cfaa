"""The floor: what SQLite itself takes for the records of runs, with the log's settings and nothing around it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from bench.measure import percentile
from streams.log.sqlite.lane import CACHE_KIB, WAL_PAGES_BEFORE_CHECKPOINT

__all__ = ["BATCHES", "RECORDS_PER_RUN", "floor"]

RECORDS_PER_RUN = 10
"""A command, eight events and a checkpoint: what the log of a three-step run holds."""
RECORD_BYTES = 300
BATCHES = (100, 1_000)
"""Runs in one commit, where commits are shared."""


def floor(folder: Path, commits: int) -> dict[str, float]:
    """Commits of one run each, then of many runs each; about the same number of commits is timed in every case."""
    with closing(_connect(folder)) as connection:
        _grow_once(connection)
        single = _commit(connection, RECORDS_PER_RUN, commits)
        found = {"commits_per_s": len(single) / sum(single), "p50_ms": percentile(single, 0.5) * 1e3}
        for runs in BATCHES:
            times = _commit(connection, RECORDS_PER_RUN * runs, max(3, commits * 5 // runs))
            found[f"batch_{runs}_runs_per_s"] = len(times) * runs / sum(times)
    return found


def _connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES_BEFORE_CHECKPOINT}")
    connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    connection.execute(
        "CREATE TABLE records (id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, key BLOB, value BLOB, headers BLOB)"
    )
    return connection


def _grow_once(connection: sqlite3.Connection) -> None:
    """Let the write-ahead log reach its size: a flush that makes a file longer waits for the file system's journal."""
    pages_bytes = WAL_PAGES_BEFORE_CHECKPOINT * 4096
    _commit(connection, pages_bytes // RECORD_BYTES, 1)
    connection.execute("PRAGMA wal_checkpoint(RESTART)")


def _commit(connection: sqlite3.Connection, records: int, commits: int) -> list[float]:
    """The seconds that each commit took, from BEGIN to the flush."""
    (first,) = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM records").fetchone()
    key, value = b"run-1234", b"x" * RECORD_BYTES
    times = []
    for number in range(commits):
        start = first + number * records
        rows = [(id_, 1_700_000_000_000, key, value, None) for id_ in range(start, start + records)]
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        times.append(time.perf_counter() - began)
    return times
