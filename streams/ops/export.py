"""The events of a log as plain objects: histories as `history --json` prints them, or flat rows for SQL."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Literal, NamedTuple

from streams.client.reading import StoredEvent, batches
from streams.errors import UsageError, WireError
from streams.kernel.bodies import CommandRejected, Failure
from streams.kernel.events import Event
from streams.log.port import Log, Record, Span
from streams.ops.payload import plain_body
from streams.ops.texts import iso_ms
from streams.ops.timeline import history_line
from streams.wire.events import decode_event
from streams.wire.partitioner import partition_of
from streams.wire.topics import Topics
from streams.wire.values import ValueCodec

__all__ = ["COLUMNS", "Chosen", "Form", "export"]

Form = Literal["jsonl", "rows"]
Progress = Callable[[int, int], None]

COLUMNS: dict[str, str] = {
    "event_id": "VARCHAR",
    "run_id": "VARCHAR",
    "identity": "VARCHAR",
    "seq": "BIGINT",
    "type": "VARCHAR",
    "op": "VARCHAR",
    "epoch": "BIGINT",
    "at_utc": "TIMESTAMPTZ",
    "at_us": "BIGINT",
    "cause": "BIGINT",
    "command_offset": "BIGINT",
    "partition": "INTEGER",
    "log_offset": "BIGINT",
    "appended_at": "TIMESTAMPTZ",
    "workflow": "VARCHAR",
    "version": "BIGINT",
    "code": "VARCHAR",
    "kind": "VARCHAR",
    "name": "VARCHAR",
    "attempt": "BIGINT",
    "owner": "VARCHAR",
    "error_class": "VARCHAR",
    "error_code": "VARCHAR",
    "error_message": "VARCHAR",
    "payload": "VARCHAR",
    "damage": "VARCHAR",
    "raw": "VARCHAR",
}
"""The columns of a row and their types in SQL; none is a word of SQL. Stable: new ones are added at the end."""


class Chosen(NamedTuple):
    """Which events: of these runs (all without any), of these partitions, from `since` up to `until` (microseconds)."""

    runs: frozenset[bytes] = frozenset()
    partitions: Collection[int] | None = None
    since: int | None = None
    until: int | None = None

    def has(self, at: int) -> bool:
        """Whether the time is within the bounds."""
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)


async def export(
    log: Log,
    topics: Topics,
    form: Form,
    chosen: Chosen,
    codec: ValueCodec,
    *,
    seen: set[bytes] | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """The events up to the ends of this moment, partition by partition in the order of the log.

    A record that is no event comes as an object too: `damage` says why, and `raw` holds its bytes in base64. `seen`
    takes the keys that were met, whatever the bounds of time. Raises `UsageError` for a partition that is not there.
    """
    spans = {number: await log.span(topics.events, number) for number in await _numbers(log, topics, chosen)}
    total, before = sum(span.end - span.start for span in spans.values()), 0
    for number, span in spans.items():

        def told(done: int, _: int, base: int = before) -> None:
            if progress is not None:
                progress(base + done, total)

        async for records in _records(log, topics, number, span, told):
            for record in records:
                if chosen.runs and record.key not in chosen.runs:
                    continue
                if seen is not None and chosen.runs:
                    seen.add(record.key or b"")
                found = _object(record, form, chosen, codec)
                if found is not None:
                    yield found
        before += span.end - span.start


async def _numbers(log: Log, topics: Topics, chosen: Chosen) -> list[int]:
    info = (await log.describe_topics([topics.events])).get(topics.events)
    if info is None:
        raise UsageError(f"app {topics.app!r} has no topic {topics.events} in {log.url}")
    numbers = set(range(info.partitions))
    if chosen.partitions is not None:
        if wrong := sorted(set(chosen.partitions) - numbers):
            raise UsageError(f"there is no partition {wrong[0]}; the app has {info.partitions}, from 0 on")
        numbers &= set(chosen.partitions)
    if chosen.runs:
        numbers &= {partition_of(key, info.partitions) for key in chosen.runs}
    return sorted(numbers)


async def _records(log: Log, topics: Topics, number: int, span: Span, told: Progress) -> AsyncIterator[list[Record]]:
    async for records in batches(log, topics.events, number, span.start, span.end, progress=told):
        yield records


def _object(record: Record, form: Form, chosen: Chosen, codec: ValueCodec) -> dict[str, Any] | None:
    try:
        event = decode_event(record.value or b"")
    except WireError as error:
        return _damaged(record, form, str(error)) if chosen.has(record.timestamp * 1_000) else None
    if not chosen.has(event.at):
        return None
    line = history_line(StoredEvent(event, record.offset, record.timestamp), codec)
    return line if form == "jsonl" else _row(record, event, line, codec)


def _row(record: Record, event: Event, line: dict[str, Any], codec: ValueCodec) -> dict[str, Any]:
    body = event.body
    error = getattr(body, "error", None) or getattr(body, "reason", None)
    failure = error if isinstance(error, Failure) else None
    row = dict.fromkeys(COLUMNS)
    row |= {name: line[name] for name in ("event_id", "run_id", "seq", "type", "op", "epoch", "cause")}
    row |= {
        "at_utc": None if line["at"] == f"{event.at} µs" else line["at"],  # beyond the calendar
        "identity": event.identity,
        "at_us": event.at,
        "command_offset": event.offset,
        "partition": record.partition,
        "log_offset": record.offset,
        "appended_at": line["appended_at"],
        "code": event.code,
        "payload": json.dumps(plain_body(body, codec), ensure_ascii=False, default=str),
    }
    for name in ("workflow", "version", "kind", "attempt", "owner"):
        row[name] = getattr(body, name, None)
    row["name"] = getattr(body, "name", None) or getattr(body, "effect", None)
    if failure is not None:
        row |= {"error_class": failure.kind, "error_code": failure.code, "error_message": failure.message}
    elif isinstance(body, CommandRejected):
        row |= {"error_code": body.code, "error_message": body.message}
    return row


def _damaged(record: Record, form: Form, reason: str) -> dict[str, Any]:
    """What is known of a record that is no event. Nothing of it is dropped in silence."""
    run_id = (record.key or b"").decode("utf-8", "backslashreplace")
    raw = None if record.value is None else base64.b64encode(record.value).decode()
    common = {
        "run_id": run_id,
        "log_offset": record.offset,
        "appended_at": iso_ms(record.timestamp),
        "damage": reason,
        "raw": raw,
    }
    if form == "rows":
        return dict.fromkeys(COLUMNS) | common | {"partition": record.partition}
    names = ("event_id", "run_id", "seq", "type", "op", "epoch", "at", "cause", "offset", "payload")
    return dict.fromkeys(names) | common
