"""The ledger of the simulation, watched: what an entry may become is said here once more, without the real rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streams.clock import Clock
from streams.effects.memory import MemoryLedger
from streams.effects.port import Ask, Entry, Settlement, Status, Verdict, Word

__all__ = ["WatchedLedger"]


class WatchedLedger(MemoryLedger):
    """`violated` is told of each claim and outcome that must not be."""

    def __init__(self, clock: Clock, violated: Callable[[str], None]) -> None:
        super().__init__(clock)
        self._violated = violated

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        """What may have happened is looked up, and what is claimed is nobody else's."""
        before = {ask.key: self._entries.get(ask.key) for ask in asks}
        verdicts = await super().claim(asks, owner, lease_seconds)
        for ask, verdict in zip(asks, verdicts, strict=True):
            known = before[ask.key]
            if known is not None and verdict.word in (Word.CARRY_OUT, Word.LOOK_UP):
                self._check_granted(ask, known, verdict)
            before[ask.key] = verdict.entry
        return verdicts

    def _check_granted(self, ask: Ask, known: Entry, verdict: Verdict) -> None:
        what = f"{ask.key.operation} {ask.key.key}"
        if verdict.word is Word.CARRY_OUT and known.status is not Status.FAILED:
            self._violated(f"{what} was {known.status}, and may be carried out again without a look-up")
        if known.status is Status.CLAIMED and (known.lease_until or 0) > verdict.entry.updated_at:
            self._violated(f"{what} was claimed by {known.owner}, and is given to {verdict.entry.owner}")
        if known.status is Status.DONE or known.request_hash != ask.request_hash:
            self._violated(f"{what} was {known.status}, and is claimed once more by {ask.effect_id}")

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Only whoever holds the claim may say what came of it."""
        before = {one.key: self._entries.get(one.key) for one in settlements}
        held = await super().settle(settlements)
        for settlement, ours in zip(settlements, held, strict=True):
            known = before[settlement.key]
            if ours and (known is None or known.claim != settlement.claim or known.status is not Status.CLAIMED):
                name = f"{settlement.key.operation} {settlement.key.key}"
                self._violated(f"{name} was settled as {settlement.status} by a claim that it does not have")
        return held
