"""The ledger as one process of the simulation sees it: every call takes time, may be refused, and may lose its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Literal, Protocol, TypeVar

from streams.effects.port import (
    Ask,
    Body,
    Claim,
    Entry,
    Key,
    Ledger,
    Outcome,
    Query,
    Resolution,
    Settlement,
    Verdict,
)

__all__ = ["LedgerGate", "SimLedger", "When"]

T = TypeVar("T")
When = Literal["before", "after"]


class LedgerGate(Protocol):
    """What stands between a process and the ledger. It may delay, raise, freeze the process, or never return."""

    async def ledger(self, name: str, when: When) -> None:
        """A call is on its way to the ledger, or its answer back."""


class SimLedger:
    """See `streams.effects.port.Ledger`. What raises after a call has done its work is a lost answer."""

    def __init__(self, inner: Ledger, gate: LedgerGate) -> None:
        self.url = inner.url
        self._inner = inner
        self._gate = gate

    async def _asked(self, name: str, call: Awaitable[T]) -> T:
        try:
            await self._gate.ledger(name, "before")
        except BaseException:
            getattr(call, "close", lambda: None)()
            raise
        answer = await call
        await self._gate.ledger(name, "after")
        return answer

    async def migrate(self) -> None:
        await self._asked("migrate", self._inner.migrate())

    async def check(self) -> None:
        await self._asked("check", self._inner.check())

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        return await self._asked("claim", self._inner.claim(asks, owner, lease_seconds))

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> list[bool]:
        return await self._asked("extend", self._inner.extend(claims, lease_seconds))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._asked("settle", self._inner.settle(settlements))

    async def note_published(self, outcomes: Sequence[Outcome]) -> None:
        await self._asked("note published", self._inner.note_published(outcomes))

    async def transact(self, asks: Sequence[Ask], owner: str, body: Body) -> list[Verdict]:
        return await self._asked("transact", self._inner.transact(asks, owner, body))

    async def look(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        return await self._asked("look", self._inner.look(keys))

    async def entries(self, query: Query) -> list[Entry]:
        return await self._asked("entries", self._inner.entries(query))

    async def resolve(self, key: Key, resolution: Resolution) -> Entry:
        return await self._asked("resolve", self._inner.resolve(key, resolution))

    async def clean(self, app: str, operation: str, older_than_seconds: float, limit: int = 10_000) -> int:
        return await self._asked("clean", self._inner.clean(app, operation, older_than_seconds, limit))

    async def now_us(self) -> int:
        return await self._asked("now", self._inner.now_us())

    async def close(self) -> None:
        """A process that ends takes nothing of the ledger with it: others use it too."""
