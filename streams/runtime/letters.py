"""Dead letters of damaged runs as commands again: which have waited, and how they go back, in order and once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from streams.errors import WireError
from streams.kernel.commands import Unsupported
from streams.log.port import Log, NewRecord, TopicPartition
from streams.runtime.restore import read_range
from streams.wire.headers import SENT_BACK, headers_of, read_headers
from streams.wire.records import CommandUnreadable, DeadLetter, decode_command, decode_dead_letter, encode_command
from streams.wire.topics import Topics

__all__ = ["Waiting", "waiting_commands"]


class Waiting(NamedTuple):
    """Commands to write again, in the order in which they came, and offsets of those that were kept only in part."""

    records: list[NewRecord]
    cut: list[int]


async def waiting_commands(
    log: Log, topics: Topics, partition: int, topic_id: str, runs: Mapping[bytes, range]
) -> Waiting:
    """What was set aside because these runs were damaged, and was not sent back since.

    `runs` gives for the key of each run the offsets of commands that can be meant for this life of it.
    """
    span = await log.span(topics.dead_letters, partition)
    letters: dict[tuple[bytes, int], DeadLetter] = {}
    async for record in read_range(log, TopicPartition(topics.dead_letters, partition), span.start, span.end):
        if record.key not in runs:
            continue
        letter = _letter(record.value)
        if letter is not None and letter.topic == topics.commands and letter.offset in runs[record.key or b""]:
            letters[record.key or b"", letter.offset] = letter
    known = await _sent_back(log, topics, partition, letters.keys())
    waiting = [letter for place, letter in letters.items() if place not in known]
    waiting.sort(key=lambda letter: letter.offset)
    records = [_record(topics, partition, topic_id, letter) for letter in waiting if not letter.cut]
    return Waiting(records, [letter.offset for letter in waiting if letter.cut])


def _letter(value: bytes | None) -> DeadLetter | None:
    """The letter, if it is of a damaged run; what cannot be read is none."""
    try:
        letter = decode_dead_letter(value or b"")
    except WireError:
        return None
    return letter if letter.code == "RUN_DAMAGED" else None


async def _sent_back(
    log: Log, topics: Topics, partition: int, places: Collection[tuple[bytes, int]]
) -> set[tuple[bytes, int]]:
    """Those among the commands already: who wrote them there may have died before it could tell."""
    if not places:
        return set()
    span = await log.span(topics.commands, partition)
    start = max(span.start, min(offset for _, offset in places))
    found: set[tuple[bytes, int]] = set()
    async for record in read_range(log, TopicPartition(topics.commands, partition), start, span.end):
        if record.headers and record.key is not None:
            first = read_headers(record.headers).get(SENT_BACK, "")
            if first.isdigit():
                found.add((record.key, int(first)))
    return found


def _record(topics: Topics, partition: int, topic_id: str, letter: DeadLetter) -> NewRecord:
    """The same command. Its id goes with it, also where its first place in the log stood in for one."""
    value, headers = letter.value, letter.headers
    default_id = f"{topic_id}/{partition}/{letter.offset}"
    try:
        command = decode_command(letter.key, letter.value, default_id=default_id, offset=letter.offset)
        if command.command_id == default_id and not isinstance(command.request, Unsupported):
            value = encode_command(command.request, command_id=default_id, operator=command.operator)
            headers = headers_of("command", value)
    except CommandUnreadable:
        pass  # it was read when it came; whoever takes it now says what is wrong with it
    mark = (SENT_BACK, str(letter.offset).encode())
    return NewRecord(topics.commands, partition, letter.key, value, (*headers, mark))
