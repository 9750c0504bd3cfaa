"""The dead letters of an app: those of its commands and those of its subscribers, and how they go back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from streams.client.reading import Progress, scan
from streams.effects.port import Entry, Key, Ledger, Status
from streams.effects.rules import is_given_up, opens
from streams.errors import Refused, WireError
from streams.kernel.commands import Unsupported
from streams.log.port import Log, NewRecord, Record
from streams.ops.outbox import Marks, marked, marks_of, resolve_line
from streams.ops.texts import iso_ms
from streams.wire.headers import headers_of
from streams.wire.partitioner import partition_of
from streams.wire.records import (
    CommandUnreadable,
    DeadLetter,
    EffectMessage,
    decode_command,
    decode_dead_letter,
    decode_effect,
    encode_command,
)
from streams.wire.topics import Topics
from streams.wire.values import ValueCodec

__all__ = ["Letter", "Post", "SentBack", "Which"]

_BATCH = 500


class Which(NamedTuple):
    """Which letters are meant: all, those of a run, or the one at (partition, offset)."""

    run_id: str | None = None
    at: tuple[int, int] | None = None


class Letter(NamedTuple):
    """A record of a topic of dead letters. `effect` is empty where it is a command.

    `letter` is None for a record that is no dead letter, with `flaw` saying why. `times` counts how often it went back.
    """

    effect: str
    record: Record
    letter: DeadLetter | None
    flaw: str
    message: EffectMessage | None
    times: int

    @property
    def place(self) -> str:
        """PARTITION@OFFSET in its topic."""
        return f"{self.record.partition}@{self.record.offset}"

    @property
    def run_id(self) -> str | None:
        """The run, as far as it can be told."""
        if self.message is not None:
            return self.message.run_id
        key = self.record.key if self.letter is None else self.letter.key
        return None if key is None else key.decode("utf-8", "backslashreplace")

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        letter, message = self.letter, self.message
        return {
            "effect": self.effect or None,
            "topic": self.record.topic,
            "partition": self.record.partition,
            "offset": self.record.offset,
            "at": iso_ms(self.record.timestamp),
            "run_id": self.run_id,
            "code": "LETTER_UNREADABLE" if letter is None else letter.code,
            "reason": self.flaw if letter is None else letter.reason,
            "from": None if letter is None else f"{letter.topic}[{letter.partition}]@{letter.offset}",
            "cut": letter is not None and letter.cut,
            "sent_back": self.times,
            "effect_id": None if message is None else message.effect_id,
            "idempotency_key": None if message is None else message.idempotency_key,
            "attempt": None if message is None else message.attempt,
        }

    def content(self, codec: ValueCodec) -> dict[str, Any]:
        """What was set aside, for reading: the payload of an effect, the value of a command as text."""
        letter = self.letter
        if letter is None:
            return {"value": _text(self.record.value), "headers": {}}
        headers = {name: _text(value) for name, value in letter.headers}
        if self.message is not None:
            return {"payload": codec.to_plain(self.message.payload), "headers": headers}
        return {"value": _text(letter.value), "headers": headers}


class SentBack(NamedTuple):
    """What became of a letter: sent back to `place`, known to have been before, or refused with a reason."""

    letter: Letter
    place: str = ""
    refused: str = ""

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        outcome = "refused" if self.refused else "sent" if self.place else "sent before"
        reason, place = self.refused or None, self.place or None
        return {**self.letter.plain(), "outcome": outcome, "sent_to": place, "refused": reason}


class Post:
    """The dead letters of an app's commands, or with `effect` those of that effect's subscriber."""

    def __init__(self, log: Log, topics: Topics, effect: str = "", ledger: Ledger | None = None) -> None:
        """With a `ledger`, what waits for a person there is not sent back past that person."""
        self.topic = topics.effect_dead(effect) if effect else topics.dead_letters
        self._log, self._topics, self._effect, self._ledger = log, topics, effect, ledger
        self._target = topics.effect(effect) if effect else topics.commands
        self._marks: dict[int, Marks] = {}
        self._count = 0
        self._topic_id = ""

    async def partitions(self) -> int:
        """How many partitions the topic has. Raises `Refused` where it does not exist."""
        if not self._count:
            found = await self._log.describe_topics([self.topic, self._target])
            for name in (self.topic, self._target):
                if name not in found:
                    raise Refused("NO_SUCH_TOPIC", f"there is no topic {name} in {self._log.url}")
            self._count, self._topic_id = found[self._target].partitions, found[self._target].id
        return self._count

    async def letters(self, which: Which, progress: Progress | None = None) -> AsyncIterator[Letter]:
        """The letters, partition by partition, in order."""
        count = await self.partitions()
        for partition in range(count) if which.at is None else [which.at[0]]:
            if partition >= count:
                return
            span = await self._log.span(self.topic, partition)
            start, end = span
            if which.at is not None:
                start, end = max(start, which.at[1]), min(end, which.at[1] + 1)
            async for record in scan(self._log, self.topic, partition, start, end, progress=progress):
                letter = await self._letter(record)
                if which.run_id is None or letter.run_id == which.run_id:
                    yield letter

    async def _letter(self, record: Record) -> Letter:
        try:
            found = decode_dead_letter(record.value or b"")
        except WireError as error:
            return Letter(self._effect, record, None, str(error), None, 0)
        message = None
        if self._effect:
            with suppress(WireError):  # for that it was set aside
                message = decode_effect(found.value or b"")
        letter = Letter(self._effect, record, found, "", message, 0)
        marks = await self._marks_of(self._partition(letter))
        return letter._replace(times=marks[found.key, self._mark(letter)])

    async def _marks_of(self, partition: int) -> Marks:
        if partition not in self._marks:
            self._marks[partition] = await marks_of(self._log, self._target, partition)
        return self._marks[partition]

    def _partition(self, letter: Letter) -> int:
        """Where it belongs: an effect lies with its run; a command may have come on a partition that is not its own."""
        assert letter.letter is not None
        key = letter.letter.key
        return letter.record.partition if self._effect or not key else partition_of(key, self._count)

    def _mark(self, letter: Letter) -> str:
        """By what a letter that went back is known.

        For a command its first offset, as for those that go back when a run is repaired. For an effect the letter's own
        place, which tells one giving up from the next.
        """
        found = letter.letter
        assert found is not None
        if self._effect:
            return letter.place
        here = found.partition == self._partition(letter)
        return str(found.offset) if here else f"{found.partition}@{found.offset}"

    async def send_back(
        self, which: Which, *, again: bool = False, told: Callable[[SentBack], None] = lambda _: None
    ) -> dict[str, int]:
        """Write them into the topic that they came from, with a header that says so; count what became of them.

        One that went back before is not sent again, unless `again`.
        """
        counts = {"sent": 0, "sent before": 0, "refused": 0}
        batch: list[Letter] = []
        async for letter in self.letters(which):
            batch.append(letter)
            if len(batch) >= _BATCH:
                await self._send(batch, counts, told, again=again)
                batch = []
        await self._send(batch, counts, told, again=again)
        return counts

    async def _send(
        self, batch: list[Letter], counts: dict[str, int], told: Callable[[SentBack], None], *, again: bool
    ) -> None:
        entries = await self._entries(batch)
        records: list[NewRecord] = []
        sent: list[Letter] = []
        for letter in batch:
            if refused := _flaw(letter, self._target) or _in_vain(letter, entries):
                told(SentBack(letter, refused=refused))
                counts["refused"] += 1
            elif letter.times and not again:
                told(SentBack(letter))
                counts["sent before"] += 1
            else:
                records.append(await self._record(letter))
                sent.append(letter)
        offsets = await self._log.append(records) if records else []
        for letter, record, offset in zip(sent, records, offsets, strict=True):
            told(SentBack(letter, f"{record.topic}[{record.partition}]@{offset}"))
            counts["sent"] += 1

    async def _entries(self, batch: list[Letter]) -> Mapping[str, Entry]:
        """What the ledger knows, by idempotency key."""
        if self._ledger is None:
            return {}
        keys = {_key(self._topics.app, letter) for letter in batch if letter.message is not None}
        return {key.key: entry for key, entry in (await self._ledger.look(sorted(keys))).items()}

    async def _record(self, letter: Letter) -> NewRecord:
        found = letter.letter
        assert found is not None
        partition, mark = self._partition(letter), self._mark(letter)
        (await self._marks_of(partition))[found.key, mark] += 1
        value, headers = found.value, found.headers
        if not self._effect:
            value, headers = self._with_its_id(found)
        return NewRecord(self._target, partition, found.key, value, marked(headers, mark))

    def _with_its_id(self, letter: DeadLetter) -> tuple[bytes | None, Any]:
        """A command without an id goes by its first place in the log, also from another one: so it counts once."""
        default_id = f"{self._topic_id}/{letter.partition}/{letter.offset}"
        try:
            command = decode_command(letter.key, letter.value, default_id=default_id, offset=letter.offset)
        except CommandUnreadable:
            return letter.value, letter.headers  # a newer worker may know it
        if command.command_id != default_id or isinstance(command.request, Unsupported):
            return letter.value, letter.headers
        value = encode_command(command.request, command_id=default_id, operator=command.operator)
        return value, headers_of("command", value)


def _key(app: str, letter: Letter) -> Key:
    assert letter.message is not None
    return Key(app, letter.effect, letter.message.idempotency_key)


def _in_vain(letter: Letter, entries: Mapping[str, Entry]) -> str:
    """Why the ledger would not have it tried again; empty where it would, or where it has the answer."""
    entry = None if letter.message is None else entries.get(letter.message.idempotency_key)
    if entry is None:
        return ""
    if entry.status is Status.PARKED:
        return (
            "whether it was carried out is for a person to find out, and until then it stays parked: "
            + resolve_line(entry.key.operation, entry.key.key)
        )
    if is_given_up(entry) and not opens(entry, letter.place):
        return (
            "it was tried again for this letter, or for a later one, and given up once more: that has a letter of its "
            "own, which opens it again"
        )
    return ""


def _flaw(letter: Letter, target: str) -> str:
    """Why it cannot go back; empty where it can."""
    found = letter.letter
    if found is None:
        return f"it is no dead letter: {letter.flaw}"
    if found.cut:
        return (
            "it was too large to be kept whole, and a part of it is another message: send the original again from "
            "where it came from, or do its work by hand"
        )
    if found.topic != target:
        return f"it came from {found.topic}, which is not {target}: copy it there yourself if that is right"
    if found.code == "RUN_DAMAGED":
        run = letter.run_id
        return f"it goes back by itself, in its order, when its run is repaired: streams rebuild {run} --reason TEXT"
    return ""


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
