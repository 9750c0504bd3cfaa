"""A ledger in the memory of one process, for tests and for the simulator: deterministic, by the clock it is given."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from itertools import count
from typing import Any

from streams.clock import Clock
from streams.effects import batch, rules
from streams.effects.port import Ask, Body, Claim, Entry, Key, Outcome, Query, Resolution, Settlement, Verdict

__all__ = ["MemoryLedger"]


class MemoryLedger:
    """May be shared by several owners of one event loop; it outlives them as a database does.

    `tables` is what transactional handlers write into: a body is given a copy, whose entries take its place when all
    went well. The copy is shallow, so a body replaces values and does not change them.
    """

    def __init__(self, clock: Clock) -> None:
        self.url = "memory:"
        self.tables: dict[Any, Any] = {}
        self._clock = clock
        self._entries: dict[Key, Entry] = {}
        self._names = count(1)
        self._writing = asyncio.Lock()

    async def migrate(self) -> None:
        """There are no tables to make."""

    async def check(self) -> None:
        """There are no tables to compare."""

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        async with self._writing:
            verdicts, changes = batch.judged(self._entries, asks, self._claims(owner, lease_seconds))
            self._entries |= changes
        return verdicts

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> list[bool]:
        async with self._writing:
            held, changes = batch.extended(self._entries, claims, lease_seconds, self._clock.now_us())
            self._entries |= changes
        return held

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        async with self._writing:
            held, changes = batch.settled(self._entries, settlements, self._clock.now_us())
            self._entries |= changes
        return held

    async def note_published(self, outcomes: Sequence[Outcome]) -> None:
        async with self._writing:
            self._entries |= batch.noted(self._entries, outcomes)

    async def transact(self, asks: Sequence[Ask], owner: str, body: Body) -> list[Verdict]:
        """As the port says. The body may be a plain function or a coroutine function; it is given a dict."""
        async with self._writing:
            verdicts, claimed = batch.judged(self._entries, asks, self._claims(owner, batch.INSTANT_SECONDS))
            tables = dict(self.tables)
            given = body(tables, verdicts)
            settlements = await given if inspect.isawaitable(given) else given
            changes = batch.concluded(verdicts, claimed, settlements, self._clock.now_us())
            self.tables.clear()
            self.tables |= tables
            self._entries |= changes
        return batch.with_entries(verdicts, changes)

    async def look(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        return {key: self._entries[key] for key in keys if key in self._entries}

    async def entries(self, query: Query) -> list[Entry]:
        found = sorted(key for key, entry in self._entries.items() if _fits(entry, query))
        return [self._entries[key] for key in found[: query.limit]]

    async def resolve(self, key: Key, resolution: Resolution) -> Entry:
        async with self._writing:
            self._entries[key] = rules.resolve(self._entries.get(key), resolution, self._clock.now_us())
            return self._entries[key]

    async def clean(self, app: str, operation: str, older_than_seconds: float, limit: int = 10_000) -> int:
        async with self._writing:
            until = self._clock.now_us() - round(older_than_seconds * 1_000_000)
            old = [key for key, entry in self._entries.items() if entry.updated_at <= until and rules.is_final(entry)]
            gone = [key for key in old if key[:2] == (app, operation)][:limit]
            for key in gone:
                del self._entries[key]
        return len(gone)

    async def now_us(self) -> int:
        return self._clock.now_us()

    async def close(self) -> None:
        """What is in it stays, for the owners that come later."""

    def _claims(self, owner: str, lease_seconds: float) -> batch.Claims:
        return batch.Claims(owner, lease_seconds, self._clock.now_us(), lambda: f"claim-{next(self._names)}")


def _fits(entry: Entry, query: Query) -> bool:
    return (
        query.app in (None, entry.key.app)
        and query.operation in (None, entry.key.operation)
        and query.run_id in (None, entry.run_id)
        and (not query.statuses or entry.status in query.statuses)
        and (query.after is None or entry.key > query.after)
    )
