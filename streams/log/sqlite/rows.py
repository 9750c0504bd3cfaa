"""Records as rows: headers as bytes, ids from partition and offset, and reading a stretch of a partition."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from streams.errors import LogDamaged
from streams.log.port import Headers, NewRecord, Record, Span, TopicInfo, TopicPartition

__all__ = [
    "PID_SHIFT",
    "Fetched",
    "Topic",
    "Wanted",
    "Written",
    "fetch",
    "headers_in",
    "headers_out",
    "in_snapshot",
    "insert",
    "outside",
    "spans",
    "sum_of_ends",
]

T = TypeVar("T")

PID_SHIFT = 40
OFFSET_MASK = (1 << PID_SHIFT) - 1
ROWS_AT_ONCE = 128
FETCH_BYTES_MAX = 32 << 20
"""A read stops after this much, whatever its number of records, so that large values do not fill the memory."""

FRESH_RECORDS_MAX = 100
FRESH_BYTES_MAX = 1_000_000
"""A larger commit is not kept for those who wait for it in this process: they read it back, off the event loop."""

_LENGTHS = struct.Struct("<Ii")


class Topic(NamedTuple):
    """A topic and the ids of its partitions, in order. Topics never change, so it may be kept."""

    info: TopicInfo
    pids: Sequence[int]


class Wanted(NamedTuple):
    """Where to read on."""

    place: TopicPartition
    pid: int
    position: int


class Fetched(NamedTuple):
    """What a look at several partitions brought: records, the positions after them, and the ends by pid."""

    records: list[Record]
    positions: Mapping[TopicPartition, int]
    ends: Mapping[int, int]


class Written(NamedTuple):
    """Offsets of records, the ends of their partitions by pid, and what they are to readers, where they are few."""

    offsets: list[int]
    ends: Mapping[int, int]
    fresh: Mapping[int, list[Record]]


def headers_out(headers: Headers) -> bytes | None:
    """Headers as they are stored: name length, value length (-1: null), name, value; None for no headers."""
    if not headers:
        return None
    parts = []
    for name, value in headers:
        encoded = name.encode()
        parts += [_LENGTHS.pack(len(encoded), -1 if value is None else len(value)), encoded, value or b""]
    return b"".join(parts)


def headers_in(stored: bytes | None) -> Headers:
    """The inverse of `headers_out`."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while stored is not None and at < len(stored):
        name_bytes, value_bytes = _LENGTHS.unpack_from(stored, at)
        at += _LENGTHS.size
        name = stored[at : at + name_bytes].decode()
        at += name_bytes
        headers.append((name, None if value_bytes < 0 else stored[at : at + value_bytes]))
        at += max(0, value_bytes)
    return tuple(headers)


def in_snapshot(connection: sqlite3.Connection, look: Callable[[sqlite3.Connection], T]) -> T:
    """Run several queries on one state of the file."""
    connection.execute("BEGIN")
    try:
        return look(connection)
    finally:
        connection.execute("ROLLBACK")


def spans(connection: sqlite3.Connection, pids: Iterable[int]) -> dict[int, Span]:
    """The ends of partitions."""
    listed = ",".join(map(str, sorted(pids)))  # one text, and so one prepared statement, for one set
    rows = connection.execute(f"SELECT pid, start, next FROM partitions WHERE pid IN ({listed})")  # noqa: S608 - integers
    return {pid: Span(start, end) for pid, start, end in rows}


def sum_of_ends(connection: sqlite3.Connection, pids: Iterable[int]) -> int:
    """The ends of partitions, added up."""
    listed = ",".join(map(str, sorted(pids)))
    (total,) = connection.execute(f"SELECT sum(next) FROM partitions WHERE pid IN ({listed})").fetchone()  # noqa: S608 - integers
    return int(total or 0)


def insert(
    connection: sqlite3.Connection, records: Sequence[NewRecord], topics: Mapping[str, Topic], now_ms: int
) -> Written:
    """Write records at the ends of their partitions."""
    if not records:
        return Written([], {}, {})
    places = {(topic, partition) for topic, partition, *_ in records}
    pids = {(topic, partition): topics[topic].pids[partition] for topic, partition in places}
    ends = spans(connection, pids.values())
    following = {place: (pid << PID_SHIFT) + ends[pid].end for place, pid in pids.items()}
    rows = []
    fresh: dict[int, list[Record]] = {}
    few = len(records) <= FRESH_RECORDS_MAX and sum(len(record.value or b"") for record in records) <= FRESH_BYTES_MAX
    for topic, partition, key, value, headers in records:
        place = (topic, partition)
        row_id = following[place]
        following[place] = row_id + 1
        rows.append((row_id, now_ms, key, value, headers_out(headers) if headers else None))
        if few:
            record = Record(topic, partition, row_id & OFFSET_MASK, now_ms, key, value, headers)
            fresh.setdefault(row_id >> PID_SHIFT, []).append(record)
    connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
    moved = {row_id >> PID_SHIFT: row_id & OFFSET_MASK for row_id in following.values()}
    connection.executemany("UPDATE partitions SET next = ? WHERE pid = ?", [(end, pid) for pid, end in moved.items()])
    return Written([row[0] & OFFSET_MASK for row in rows], moved, fresh)


def fetch(connection: sqlite3.Connection, wanted: Sequence[Wanted], records_max: int) -> Fetched:
    """Records of several partitions, in offset order each, up to the ends at the beginning of the look."""
    found_spans = spans(connection, [w.pid for w in wanted])
    records: list[Record] = []
    positions: dict[TopicPartition, int] = {}
    bytes_left = FETCH_BYTES_MAX
    for w in wanted:
        place, pid, position = w
        start, end = found_spans[pid]
        if not start <= position <= end:
            raise outside(place, position, found_spans[pid])
        if position < end and len(records) < records_max and bytes_left > 0:
            found, complete, size = _stretch(connection, w, end, records_max - len(records), bytes_left)
            bytes_left -= size
            records += found
            # Complete means that nothing more stands before the end, so holes at the end are passed too.
            positions[place] = end if complete else found[-1].offset + 1
    return Fetched(records, positions, {pid: span.end for pid, span in found_spans.items()})


def outside(place: TopicPartition, position: int, span: Span) -> LogDamaged:
    """The error for a position that the partition does not have."""
    return LogDamaged(
        f"offset {position} is outside {place.topic}[{place.partition}], which reaches from {span.start} to "
        f"{span.end}: records were lost or the topic was created again",
        place.partition,
    )


def _stretch(
    connection: sqlite3.Connection, wanted: Wanted, end: int, records_max: int, bytes_max: int
) -> tuple[list[Record], bool, int]:
    (topic, partition), pid, position = wanted
    first = pid << PID_SHIFT
    rows = connection.execute(
        "SELECT id, timestamp, key, value, headers FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
        (first + position, first + end, records_max),
    )
    found: list[Record] = []
    size = 0
    while size < bytes_max:
        some = rows.fetchmany(ROWS_AT_ONCE)
        found += [
            Record(topic, partition, row_id - first, at, key, value, headers_in(headers) if headers else ())
            for row_id, at, key, value, headers in some
        ]
        size += sum(len(row[3]) for row in some if row[3])
        if len(some) < ROWS_AT_ONCE:
            return found, len(found) < records_max, size
    return found, False, size
