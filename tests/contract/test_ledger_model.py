"""Random calls give the same answers and leave the same entries in memory and in a file, by the same clock."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streams.effects.memory import MemoryLedger
from streams.effects.port import Claim, Entry, Ledger, Outcome, Query, Resolution, Settlement, Status, Verdict, Word
from streams.effects.sqlite import open_sqlite_ledger
from streams.errors import Refused
from streams.kernel.bodies import Failure
from tests.contract.ledgers import HandClock, ask

NAMES = st.sampled_from(["a", "b", "ä"])
asks = st.lists(
    st.builds(
        ask,
        NAMES,
        st.sampled_from([b"content"] * 3 + [b"other"]),
        attempt=st.integers(0, 2),
        effect_id=st.sampled_from(["run/1/pay"] * 2 + ["run/2/pay"]),
        resent=st.sampled_from(["", "0@1"]),
    ),
    max_size=4,
)
ends = st.tuples(
    st.sampled_from([Status.DONE, Status.FAILED, Status.UNCERTAIN, Status.PARKED]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([None, b"", b"x"]),
    st.booleans(),
)
steps = st.one_of(
    st.tuples(st.just("claim"), asks),
    st.tuples(st.just("settle"), st.lists(st.tuples(st.integers(0, 9), ends), max_size=3)),
    st.tuples(st.just("extend"), st.lists(st.integers(0, 9), max_size=3)),
    st.tuples(st.just("note"), st.lists(st.tuples(NAMES, st.integers(0, 2)), max_size=3)),
    st.tuples(st.just("transact"), asks, st.lists(st.booleans(), min_size=4, max_size=4), st.booleans()),
    st.tuples(st.just("resolve"), NAMES, st.sampled_from([Status.DONE, Status.FAILED, Status.PARKED]), st.booleans()),
    st.tuples(st.just("clean"), st.sampled_from([0.0, 3.0]), st.integers(1, 2)),
    st.tuples(st.just("sleep"), st.sampled_from([0.5, 1.5, 5.0])),
)


class Side:
    """One of the two ledgers, and the claims that it has granted, in the order of the grants."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.granted: list[Claim] = []

    def plain(self, entry: Entry) -> Entry:
        """Names of claims are each ledger's own."""
        return entry._replace(claim="held" if entry.claim else "")

    def told(self, verdicts: list[Verdict]) -> list[Any]:
        self.granted += [
            Claim(v.entry.key, v.entry.claim) for v in verdicts if v.word in (Word.CARRY_OUT, Word.LOOK_UP)
        ]
        return [(v.word, self.plain(v.entry), v.until) for v in verdicts]

    def held(self, number: int) -> Claim | None:
        return self.granted[number % len(self.granted)] if self.granted else None

    async def do(self, kind: str, *values: Any) -> Any:
        """What the ledger says to a step."""
        return await getattr(self, f"_{kind}")(*values)

    async def _claim(self, wanted: list[Any]) -> Any:
        return self.told(await self.ledger.claim(wanted, "me", 1.0))

    async def _settle(self, chosen: list[Any]) -> Any:
        error = Failure("retryable", "X", "x")
        held = [(self.held(number), end) for number, end in chosen]
        return await self.ledger.settle(
            [
                Settlement(claim.key, claim.claim, status, response, error, due_in, returned)
                for claim, (status, due_in, response, returned) in held
                if claim is not None
            ]
        )

    async def _extend(self, chosen: list[int]) -> Any:
        return await self.ledger.extend([claim for n in chosen if (claim := self.held(n)) is not None], 2.0)

    async def _note(self, chosen: list[tuple[str, int]]) -> Any:
        outcomes = [Outcome(ask(name).key, "run/1/pay", 1, attempt, Status.DONE) for name, attempt in chosen]
        return await self.ledger.note_published(outcomes)

    async def _transact(self, wanted: list[Any], kept: list[bool], fails: bool) -> Any:
        def body(_: Any, verdicts: Any) -> Any:
            if fails:
                raise ArithmeticError
            pairs = zip(verdicts, kept, strict=False)
            mine = [v.entry for v, keep in pairs if keep and v.word in (Word.CARRY_OUT, Word.LOOK_UP)]
            return [Settlement(entry.key, entry.claim, Status.DONE, b"{}") for entry in mine]

        try:
            verdicts = await self.ledger.transact(wanted, "me", body)
        except ArithmeticError:
            return "rolled back"
        return [(v.word, self.plain(v.entry), v.until) for v in verdicts]

    async def _resolve(self, name: str, status: Status, again: bool) -> Any:
        try:
            entry = await self.ledger.resolve(ask(name).key, Resolution(status, b"r", None, again, "Ann"))
        except Refused as refused:
            return refused.code
        return self.plain(entry)

    async def _clean(self, age: float, limit: int) -> Any:
        return await self.ledger.clean("shop", "pay", age, limit=10) if limit > 1 else 0

    async def entries(self) -> list[Entry]:
        return [self.plain(entry) for entry in await self.ledger.entries(Query())]


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_a_file_and_a_memory_answer_alike(history) -> None:
    async def live(folder: str) -> None:
        clock = HandClock()
        file = await open_sqlite_ledger(f"sqlite:///{Path(folder) / 'ledger.db'}", clock=clock)
        await file.migrate()
        sides = [Side(MemoryLedger(clock)), Side(file)]
        try:
            for kind, *values in history:
                if kind == "sleep":
                    clock.us += round(values[0] * 1_000_000)
                else:
                    clock.us += 1
                    answers = [await side.do(kind, *values) for side in sides]
                    assert answers[0] == answers[1], kind
                found = [await side.entries() for side in sides]
                assert found[0] == found[1], kind
        finally:
            await file.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(folder))
