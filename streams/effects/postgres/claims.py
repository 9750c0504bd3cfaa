"""Claims in PostgreSQL: known entries are read without a lock, so that only what changes is locked and written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import NamedTuple
from uuid import uuid4

from streams.effects import batch
from streams.effects.batch import keys_of
from streams.effects.port import Ask, Key, Verdict, Word
from streams.effects.postgres import statements
from streams.effects.postgres.server import Connection
from streams.effects.postgres.statements import Found
from streams.errors import LedgerUnavailable

__all__ = ["Call", "Claimed", "claim", "claim_within"]

ROUNDS_MAX = 10


class Call:
    """One call of `claim`, which knows its claims again after an answer was lost: nobody else has begun them."""

    def __init__(self, owner: str, lease_seconds: float) -> None:
        self._owner = owner
        self._lease_seconds = lease_seconds
        self._id = uuid4().hex
        self._numbers = count()

    def judged(self, found: Found, asks: Collection[Ask]) -> tuple[list[Verdict], batch.Changes]:
        """As `batch.judged`; what an earlier round of this call has claimed is granted again."""
        claims = batch.Claims(self._owner, self._lease_seconds, found.now, self._name)
        own = {key: entry for key, entry in found.entries.items() if entry.claim.startswith(self._id)}
        if not own:
            return batch.judged(found.entries, asks, claims)
        again: dict[int, Verdict] = {}
        for number, ask in enumerate(asks):
            entry = own.get(ask.key)
            if entry is not None and entry.request_hash == ask.request_hash:
                again[number] = Verdict(Word.LOOK_UP if entry.looks else Word.CARRY_OUT, own.pop(ask.key))
        rest = [ask for number, ask in enumerate(asks) if number not in again]
        verdicts, changes = batch.judged(found.entries, rest, claims)
        others = iter(verdicts)
        return [again[n] if n in again else next(others) for n in range(len(asks))], changes

    def _name(self) -> str:
        return f"{self._id}.{next(self._numbers)}"


class Claimed(NamedTuple):
    """What is claimed in a transaction: `changes` is still to be written, over the rows that were `inserted`."""

    verdicts: list[Verdict]
    changes: batch.Changes
    inserted: set[Key]
    begun: int


async def claim(connection: Connection, asks: Sequence[Ask], call: Call) -> list[Verdict]:
    """Claim, each key in a transaction that is over when this returns."""
    answers: dict[int, Verdict] = {}
    left = dict(enumerate(asks))
    for _ in range(ROUNDS_MAX):
        found = await statements.read(connection, keys_of(left.values()))
        verdicts, changes = call.judged(found, left.values())
        fresh = {key: entry for key, entry in changes.items() if key not in found.entries}
        missed = fresh.keys() - await statements.insert(connection, fresh)  # somebody else was first
        known = changes.keys() - fresh.keys()
        pairs = zip(left, verdicts, strict=True)
        answers |= {n: verdict for n, verdict in pairs if left[n].key not in known | missed}
        if known:
            answers |= await _claim_known(connection, {n: ask for n, ask in left.items() if ask.key in known}, call)
        left = {n: ask for n, ask in left.items() if n not in answers}
        if not left:
            return [answers[n] for n in range(len(asks))]
    raise LedgerUnavailable(_restless(next(iter(left.values())).key))


async def _claim_known(connection: Connection, asks: Mapping[int, Ask], call: Call) -> dict[int, Verdict]:
    """Answers to those of the asks whose entries are still there."""
    async with connection.transaction():
        found = await statements.lock(connection, keys_of(asks.values()), responses=True)
        verdicts, changes = call.judged(found, asks.values())
        await statements.write(connection, [entry for key, entry in changes.items() if key in found.entries])
    return {n: verdict for n, verdict in zip(asks, verdicts, strict=True) if asks[n].key in found.entries}


async def claim_within(connection: Connection, asks: Sequence[Ask], call: Call) -> Claimed:
    """Claim in the open transaction: rows are inserted or locked, so that others wait, and written at its end.

    Inserted before anything is locked, both in the order of the primary key: no two calls wait for each other.
    """
    found = await statements.read(connection, keys_of(asks))
    verdicts, changes = call.judged(found, asks)
    fresh = {key: entry for key, entry in changes.items() if key not in found.entries}
    inserted = await statements.insert(connection, fresh)
    held = changes.keys() - inserted
    if held:
        locked = await statements.lock(connection, held, responses=True)
        if gone := held - locked.entries.keys():
            raise LedgerUnavailable(_restless(next(iter(gone))))
        verdicts, changes = call.judged(found._replace(entries=found.entries | locked.entries, now=locked.now), asks)
    return Claimed(verdicts, changes, inserted, found.begun)


def _restless(key: Key) -> str:
    return f"the entry of {key.operation} {key.key!r} comes and goes while it is asked for: ask again"
