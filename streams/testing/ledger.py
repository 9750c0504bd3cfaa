"""The ledger as one process of virtual time sees it: every call takes time, may be refused, and may lose its answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeVar

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

__all__ = ["GatedLedger", "LedgerGate", "When"]

T = TypeVar("T")
When = Literal["before", "after"]


class LedgerGate(Protocol):
    """What stands between a process and the ledger."""

    async def ledger(self, name: str, when: When) -> None:
        """A call is on its way, or its answer back. It may delay, raise, freeze the process, or never return."""

    def serve(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do the work of a call where no process can interrupt it: in the database."""

    async def while_alive(self, body: Coroutine[Any, Any, T]) -> T:
        """Run code of the process inside a call. Raises once the process is dead, as a connection breaks off."""


class GatedLedger:
    """See `streams.effects.port.Ledger`. What raises after a call has done its work is a lost answer."""

    def __init__(self, inner: Ledger, gate: LedgerGate) -> None:
        self.url = inner.url
        self._inner = inner
        self._gate = gate

    async def _asked(self, name: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._gate.ledger(name, "before")
        work = self._gate.serve(call())
        answer = await asyncio.shield(work)
        await self._gate.ledger(name, "after")
        return answer

    async def migrate(self) -> None:
        await self._asked("migrate", self._inner.migrate)

    async def check(self) -> None:
        await self._asked("check", self._inner.check)

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        return await self._asked("claim", lambda: self._inner.claim(asks, owner, lease_seconds))

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> list[bool]:
        return await self._asked("extend", lambda: self._inner.extend(claims, lease_seconds))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._asked("settle", lambda: self._inner.settle(settlements))

    async def note_published(self, outcomes: Sequence[Outcome]) -> None:
        await self._asked("note published", lambda: self._inner.note_published(outcomes))

    async def transact(self, asks: Sequence[Ask], owner: str, body: Body) -> list[Verdict]:
        """The body is code of the process, so it is killed and frozen with it; its keys stay locked meanwhile."""
        gate = self._gate

        async def inside(connection: Any, verdicts: Sequence[Verdict]) -> Iterable[Settlement]:
            async def work() -> Iterable[Settlement]:
                given = body(connection, verdicts)
                return await given if inspect.isawaitable(given) else given

            return await gate.while_alive(work())

        await gate.ledger("transact", "before")
        transaction = gate.serve(self._inner.transact(asks, owner, inside))
        try:
            answer = await transaction
        except asyncio.CancelledError:
            transaction.cancel()
            raise
        await gate.ledger("transact", "after")
        return answer

    async def look(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        return await self._asked("look", lambda: self._inner.look(keys))

    async def entries(self, query: Query) -> list[Entry]:
        return await self._asked("entries", lambda: self._inner.entries(query))

    async def resolve(self, key: Key, resolution: Resolution) -> Entry:
        return await self._asked("resolve", lambda: self._inner.resolve(key, resolution))

    async def clean(self, app: str, operation: str, older_than_seconds: float, limit: int = 10_000) -> int:
        return await self._asked("clean", lambda: self._inner.clean(app, operation, older_than_seconds, limit))

    async def now_us(self) -> int:
        return await self._asked("now", self._inner.now_us)

    async def close(self) -> None:
        """A process that ends takes nothing of the ledger with it: others use it too."""
