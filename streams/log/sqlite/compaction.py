"""Compaction of one partition: only the last record of a key stays."""

from __future__ import annotations

import sqlite3

from streams.log.sqlite.rows import PID_SHIFT

__all__ = ["compact_partition"]


def compact_partition(connection: sqlite3.Connection, pid: int, tombstones_before: int) -> None:
    """Delete superseded records, and tombstones appended before a time; offsets and the end stay as they are."""
    first, last = pid << PID_SHIFT, (pid + 1) << PID_SHIFT
    # With a lone max(), sqlite takes the other columns from the row of the maximum: the last record of each key.
    connection.execute(
        "DELETE FROM records WHERE id >= :first AND id < :last AND id NOT IN ("
        "SELECT id FROM (SELECT max(id) AS id, value IS NULL AS deleted, timestamp FROM records "
        "WHERE id >= :first AND id < :last GROUP BY key) WHERE NOT deleted OR timestamp >= :before)",
        {"first": first, "last": last, "before": tombstones_before},
    )
