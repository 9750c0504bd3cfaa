"""What happened to a run, in order: entries for people, and one plain object an event for machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from streams.client import StoredEvent
from streams.kernel.events import event_id
from streams.ops.payload import plain_body
from streams.ops.tell import Level, Teller
from streams.ops.texts import iso, iso_ms, span
from streams.wire.values import ValueCodec

__all__ = ["Entry", "history_line", "history_lines", "timeline"]


class Entry(NamedTuple):
    """One line of a timeline. `time` is ISO 8601 in UTC, `delta` how long after the entry before it, in words.

    `level`: "good" and "bad" for outcomes, "warn" for what may need a person, "ask" for a question, "dim" for
    bookkeeping, "info" for the rest. `op` names the op that it is about, empty for the run.
    """

    time: str
    delta: str
    delta_us: int
    level: Level
    op: str
    text: str
    stored: StoredEvent


def timeline(history: Iterable[StoredEvent], codec: ValueCodec) -> list[Entry]:
    """The history as entries: who owned the run when, attempts, waits and how long they took, answers, effects."""
    teller = Teller(codec)
    entries: list[Entry] = []
    before: int | None = None
    for stored in history:
        event = stored.event
        told = teller.tell(event)
        delta = 0 if before is None else event.at - before
        before = event.at
        passed = f"+{span(delta)}" if delta > 0 else ""
        op = getattr(event.body, "op", None) or ""
        entries.append(Entry(iso(event.at), passed, delta, told.level, op, told.text, stored))
    return entries


def history_line(stored: StoredEvent, codec: ValueCodec) -> dict[str, Any]:
    """One event as `history --json` prints it. `offset` is that of the command; `log_offset` is the event's own."""
    event = stored.event
    payload = plain_body(event.body, codec)
    op = payload.pop("op", None)
    return {
        "event_id": event_id(event),
        "run_id": event.run_id,
        "seq": event.seq,
        "type": event.type,
        "op": op,
        "epoch": event.epoch,
        "at": iso(event.at),
        "cause": event.cause,
        "offset": event.offset,
        "payload": payload,
        "log_offset": stored.offset,
        "appended_at": iso_ms(stored.timestamp),
    }


def history_lines(history: Iterable[StoredEvent], codec: ValueCodec) -> Iterator[dict[str, Any]]:
    """All events, one object each."""
    return (history_line(stored, codec) for stored in history)
