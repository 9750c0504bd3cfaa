"""The topics of an app's effects: which there are, what lies in them, and which messages were sent there again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import AsyncIterator
from typing import NamedTuple

from streams.client.reading import Progress, scan
from streams.errors import WireError
from streams.log.port import Headers, Log, Record
from streams.wire.headers import SENT_BACK, read_headers
from streams.wire.records import EffectMessage, decode_effect
from streams.wire.topics import Topics

__all__ = ["Marks", "Stored", "effect_names", "marked", "marks_of", "resolve_line", "stored_messages"]

Marks = Counter[tuple[bytes | None, str]]
"""Key and mark of the records that were sent back to a partition, with how often each was."""


class Stored(NamedTuple):
    """A message of the outbox and the record that it is in."""

    record: Record
    message: EffectMessage


async def effect_names(log: Log, app: str) -> list[str]:
    """The effects of the app that have topics in the log."""
    prefix = f"{app}.effects."
    names = [name.removeprefix(prefix) for name in await log.list_topics() if name.startswith(prefix)]
    return [name for name in names if not name.endswith(".dead")]


async def stored_messages(
    log: Log, topics: Topics, effect: str, partition: int, key: bytes, progress: Progress | None = None
) -> AsyncIterator[Stored]:
    """The messages of one run in the topic of an effect, in order. What cannot be read is none."""
    topic = topics.effect(effect)
    span = await log.span(topic, partition)
    async for record in scan(log, topic, partition, span.start, span.end, progress=progress):
        if record.key != key:
            continue
        try:
            message = decode_effect(record.value or b"")
        except WireError:
            continue  # its subscriber sets it aside, and `dead-letters` shows it
        yield Stored(record, message)


async def marks_of(log: Log, topic: str, partition: int) -> Marks:
    """What was sent back to this partition: who sent it there may have died before it could tell."""
    span = await log.span(topic, partition)
    found: Marks = Counter()
    async for record in scan(log, topic, partition, span.start, span.end):
        if record.headers and (mark := read_headers(record.headers).get(SENT_BACK)) is not None:
            found[record.key, mark] += 1
    return found


def resolve_line(effect: str, key: str) -> str:
    """The command by which a person says what became of an operation, less the word itself."""
    return f"streams ledger resolve {shlex.quote(key)} --effect {effect}"


def marked(headers: Headers, mark: str) -> Headers:
    """The headers of a record that is sent back: its own, and by what it is known."""
    return (*((name, value) for name, value in headers if name != SENT_BACK), (SENT_BACK, mark.encode()))
