"""The judge of these tests: it reads topics, ledger, rows and the provider, and knows nothing of the subscribers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from streams.cli.ledgers import open_ledger
from streams.effects.port import Entry, Key, Ledger, Query, Status
from streams.errors import LogUnavailable, WireError
from streams.kernel.commands import Reply
from streams.log.port import Log, Record, TopicPartition
from streams.wire.commands import CommandUnreadable, decode_command
from streams.wire.records import DeadLetter, EffectMessage, decode_dead_letter, decode_effect
from streams.wire.topics import Topics
from tests.effects.real.till import TABLE
from tests.runtime.checker import records_of
from tests.runtime.history import HANG_SECONDS

__all__ = ["Books", "Letter", "sql"]

NO_ENTRY = {"EFFECT_UNREADABLE", "VALUE_UNREADABLE"}
"""What such a letter is about has no entry of its own in the ledger."""


class Letter(NamedTuple):
    """A dead letter of a subscriber; `message` is None where it is no message of ours."""

    letter: DeadLetter
    message: EffectMessage | None

    @property
    def code(self) -> str:
        return self.letter.code


def sql(url: str, statement: str, *values: Any) -> list[Any]:
    """One statement in the database of the ledger."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(statement.replace("?", "%s"), values)
        return found.fetchall() if found.description else []


def try_effect(record: Record) -> EffectMessage | None:
    try:
        return decode_effect(record.value or b"")
    except WireError:
        return None


class Books:
    """What the log, the ledger and the tables say of an app's effects."""

    def __init__(self, log: Log, topics: Topics, ledger_url: str, partitions: int, folder: Path) -> None:
        self.log = log
        self.topics = topics
        self.url = ledger_url
        self.folder = folder
        self._partitions = range(partitions)
        self._ledger: Ledger | None = None

    async def open(self) -> None:
        """Open the ledger, and make the table of the transactional handlers beside it."""
        self._ledger = await open_ledger(self.url)
        await self._ledger.migrate()
        await asyncio.to_thread(sql, self.url, TABLE)

    async def close(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.close()

    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _records(self, topic: str) -> list[Record]:
        found = [await records_of(self.log, TopicPartition(topic, number)) for number in self._partitions]
        return [record for records in found for record in records]

    async def messages(self, effect: str) -> list[EffectMessage]:
        """The readable messages of an effect's topic."""
        found = map(try_effect, await self._records(self.topics.effect(effect)))
        return [message for message in found if message is not None]

    async def letters(self, effect: str) -> list[Letter]:
        """The dead letters of an effect's subscriber."""
        found = []
        for record in await self._records(self.topics.effect_dead(effect)):
            letter = decode_dead_letter(record.value or b"")
            original = Record(letter.topic, letter.partition, letter.offset, 0, letter.key, letter.value)
            found.append(Letter(letter, try_effect(original)))
        return found

    async def replies(self) -> dict[tuple[str, int, int], list[Reply]]:
        """All replies, by effect id, epoch and attempt."""
        found: dict[tuple[str, int, int], list[Reply]] = {}
        for record in await self._records(self.topics.commands):
            try:
                request = decode_command(record.key, record.value, default_id="", offset=record.offset).request
            except CommandUnreadable:
                continue  # of a foreign producer
            if isinstance(request, Reply):
                found.setdefault((request.effect_id, request.epoch, request.attempt), []).append(request)
        return found

    async def entries(self, effect: str) -> dict[str, Entry]:
        """What the ledger knows of an effect, by idempotency key."""
        ledger, found = self.ledger(), {}
        after: Key | None = None
        while page := await ledger.entries(Query(self.topics.app, effect, after=after, limit=1_000)):
            found.update((entry.key.key, entry) for entry in page)
            after = page[-1].key
        return found

    async def entry(self, effect: str, key: str) -> Entry | None:
        where = Key(self.topics.app, effect, key)
        return (await self.ledger().look([where])).get(where)

    def rows(self) -> Counter[str]:
        """How often each key was written by a transactional handler."""
        return Counter(key for (key,) in sql(self.url, "SELECT key FROM written"))

    async def age(self, by_us: int) -> None:
        """Let all that the ledger knows have happened so much earlier."""
        names = [name for name in Entry._fields if name.endswith("_at")]
        changes = ", ".join(f"{name} = {name} - ?" for name in names)
        await asyncio.to_thread(sql, self.url, f"UPDATE streams_ledger SET {changes}", *[by_us] * len(names))

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def pending(self, effect: str) -> int:
        """How many records lie at or behind the group's offsets."""
        topic = self.topics.effect(effect)
        at = await self._offsets(effect)
        places = [(TopicPartition(topic, number), at.get(number, 0)) for number in self._partitions]
        return sum([len(await records_of(self.log, place, start)) for place, start in places])

    async def _offsets(self, effect: str) -> dict[int, int]:
        """The group's; a broker that has just begun, and still loads its groups, is asked again."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HANG_SECONDS
        while True:
            try:
                return await self.log.group_offsets(self.topics.subscribers(effect), self.topics.effect(effect))
            except LogUnavailable:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def finished(self, *effects: str, seconds: float = HANG_SECONDS) -> None:
        """Wait until the group's offsets have passed all that is in the topics."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        for effect in effects:
            while left := await self.pending(effect):
                assert loop.time() < deadline, f"{left} messages of {effect} are left\n{await self._story(effect)}"
                await asyncio.sleep(0.05)

    async def replied(self, count: int) -> None:
        """Wait for so many requests to have a reply."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HANG_SECONDS
        while len(found := await self.replies()) < count:
            assert loop.time() < deadline, f"{len(found)} of {count} replies"
            await asyncio.sleep(0.05)

    async def becomes(self, effect: str, key: str, *statuses: Status) -> Entry:
        """Wait until the ledger says so of a key."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HANG_SECONDS
        while True:
            found = await self.entry(effect, key)
            if found is not None and found.status in statuses:
                return found
            assert loop.time() < deadline, f"{effect} {key} did not become {statuses}: {found}"
            await asyncio.sleep(0.02)

    async def _story(self, effect: str) -> str:
        entries = (await self.entries(effect)).values()
        return "\n".join(str(entry)[:600] for entry in entries if entry.status is not Status.DONE)[:6_000]

    # -- judging -----------------------------------------------------------------------------------------------------

    async def check(self, *effects: str, transactional: tuple[str, ...] = ("rows", "odd_rows", "packs")) -> None:
        """Every message has its entry, every outcome its one reply or its dead letter, every row its entry."""
        replies, rows = await self.replies(), self.rows()
        for effect in effects:
            entries = await self.entries(effect)
            messages = await self.messages(effect)
            letters = await self.letters(effect)
            self._check_entries(effect, entries, messages, letters)
            self._check_letters(effect, entries, letters)
            for message in messages:
                if message.attempt:
                    self._check_reply(entries.get(message.idempotency_key), message, replies, letters)
            if effect in transactional:
                done = {key: 1 for key, entry in entries.items() if entry.status is Status.DONE}
                written = {key: count for key, count in rows.items() if key in entries}
                assert written == done, f"rows of {effect}: {Counter(written) - Counter(done)} too many or missing"

    def _check_entries(
        self, effect: str, entries: dict[str, Entry], messages: list[EffectMessage], letters: list[Letter]
    ) -> None:
        unread = {(x.message.effect_id, x.message.attempt) for x in letters if x.message and x.code in NO_ENTRY}
        for message in messages:
            if (message.effect_id, message.attempt) not in unread:
                assert message.idempotency_key in entries, f"{effect}: nothing is known of {message}"
        known = {message.idempotency_key for message in messages}
        assert set(entries) <= known, f"{effect}: entries without a message: {set(entries) - known}"

    def _check_letters(self, effect: str, entries: dict[str, Entry], letters: list[Letter]) -> None:
        told = {x.message.idempotency_key for x in letters if x.message is not None and x.code != "KEY_CONFLICT"}
        for key, entry in entries.items():
            given_up = entry.status is Status.FAILED and entry.due is None
            if given_up or entry.status is Status.PARKED:
                assert key in told, f"{effect} {key} is {entry.status} and has no dead letter"
        for one in letters:
            assert one.code, f"a dead letter without a code: {one}"
            assert one.letter.reason, f"a dead letter without a reason: {one}"
            if one.message is None or one.code in NO_ENTRY:
                continue
            entry = entries[one.message.idempotency_key]
            if one.code == "KEY_CONFLICT":
                assert entry.conflicts, f"a conflict that the ledger does not know: {entry}"
            elif entry.status is Status.DONE:
                assert entry.operator or entry.resent, f"done, and a dead letter says {one.code}: {entry}"

    def _check_reply(
        self,
        entry: Entry | None,
        message: EffectMessage,
        replies: dict[tuple[str, int, int], list[Reply]],
        letters: list[Letter],
    ) -> None:
        found = replies.get((message.effect_id, message.epoch, message.attempt), [])
        assert len(set(found)) <= 1, f"replies that differ: {found}"
        if entry is None:
            assert [reply for reply in found if reply.error], f"no error reply to what nobody could read: {message}"
            return
        own = (entry.effect_id, entry.epoch, entry.attempt) == (message.effect_id, message.epoch, message.attempt)
        if own and entry.status is Status.DONE:
            assert found, f"no reply to {message}"
            assert (found[0].value, found[0].error) == (entry.response, None)
        elif own and entry.status is Status.FAILED and entry.due is None:
            assert found, f"no error reply to {message}"
            assert found[0].error is not None
            assert entry.error is not None
            assert found[0].error[1] == entry.error.code
        elif own:
            assert not found, f"a reply, and the ledger says {entry}"
