"""Transactional handlers: many messages in one transaction, the bad one set apart, order kept, all of it or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams import App, EffectContext, Fail, Retry, TryAgain
from streams.effects.memory import MemoryLedger
from streams.effects.port import Key, Status
from streams.errors import LedgerError, LedgerUnavailable, UsageError
from tests.effects.lab import Lab, virtual
from tests.effects.test_flow import runs_of


def bank(*, plain: bool = False, **options: Any) -> Any:
    def make() -> App:
        app = App("bank")
        app.calls = []
        app.does = lambda ctx, number: number
        bookings = app.effect("bookings", int, reply=int)

        def work(ctx: EffectContext, number: int) -> Any:
            app.calls.append(number)
            ctx.connection[ctx.effect_id] = ctx.connection.get(ctx.effect_id, 0) + 1
            return app.does(ctx, number)

        async def book(ctx: EffectContext, number: int) -> int:
            await asyncio.sleep(0)
            done = work(ctx, number)
            return await done if asyncio.iscoroutine(done) else done

        def book_plainly(ctx: EffectContext, number: int) -> int:
            return work(ctx, number)

        chosen = {"transactional": True, "retry": Retry(max_attempts=3, initial=1), **options}
        app.subscriber(bookings, **chosen)(book_plainly if plain else book)
        return app

    return make


class Counting(MemoryLedger):
    """Counts its transactions, and fails where it is told to."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.sizes: list[int] = []
        self.fails: Any = lambda asks: None

    async def transact(self, asks: Any, owner: str, body: Any) -> Any:
        self.sizes.append(len(asks))
        entries, tables = dict(self._entries), dict(self.tables)
        found = await super().transact(asks, owner, body)
        try:
            self.fails(asks)
        except BaseException:
            self._entries, self.tables = entries, tables
            raise
        return found


async def fill(lab: Lab, count: int, **options: Any) -> list[str]:
    ids = []
    for number in range(count):
        sent = await lab.send("bookings", number, run=f"r{number % 50}", **options)
        ids.append(sent.effect_id)
    return ids


@pytest.mark.parametrize("plain", [False, True])
def test_all_that_is_there_is_one_transaction(plain: bool) -> None:
    @virtual(bank(plain=plain))
    async def scenario(lab: Lab) -> None:
        lab.ledger = Counting(lab.clock)
        ids = await fill(lab, 300, attempt=1)
        lab.subscriber()
        await lab.finished("bookings")
        assert lab.ledger.tables == dict.fromkeys(ids, 1)
        assert len(lab.ledger.sizes) < 10
        assert max(lab.ledger.sizes) > 100
        assert len(await lab.replies()) == 300
        for run in range(50):
            of_run = [number for number in lab.app.calls if number % 50 == run]
            assert of_run == sorted(of_run)

    scenario()


@virtual(bank(plain=True, timeout=20))
async def test_a_plain_handler_that_takes_too_long_is_told_of_for_nobody_can_stop_it(lab: Lab) -> None:
    class Slow(MemoryLedger):
        async def transact(self, *args: Any) -> Any:
            await asyncio.sleep(50)  # in a thread of its own, as sqlite's
            return await super().transact(*args)

    lab.ledger = Slow(lab.clock)
    await fill(lab, 1)
    running = lab.subscriber()
    await lab.finished("bookings")
    assert len(running.told.messages("has taken longer than 20 s. Its handler is a plain function")) == 1
    assert (len(lab.app.calls), len(lab.ledger.tables)) == (1, 1)


@virtual(bank(batch=7))
async def test_a_batch_is_no_larger_than_asked_for(lab: Lab) -> None:
    lab.ledger = Counting(lab.clock)
    ids = await fill(lab, 100)
    lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == dict.fromkeys(ids, 1)
    assert max(lab.ledger.sizes) == 7


HOWS = ["raises", "raises a base exception", "cancels", "fails", "result", "again"]


@pytest.mark.parametrize(
    ("plain", "how"),
    [(False, "hangs"), *((plain, how) for plain in (False, True) for how in HOWS)],  # nothing ends a plain function
)
def test_a_bad_one_is_set_apart_and_the_others_are_carried_out(how: str, plain: bool) -> None:
    def does(ctx: EffectContext, number: int) -> Any:
        if number != 33:
            return number
        if how == "again" and ctx.delivery == 3:
            return number
        if how == "result":
            return object()
        if how == "hangs":
            return asyncio.sleep(1_000)
        kinds = {
            "raises": ValueError("bad"),
            "raises a base exception": SystemExit(3),
            "cancels": asyncio.CancelledError(),
            "fails": Fail("NO", "no"),
            "again": TryAgain("later"),
        }
        raise kinds[how]

    @virtual(bank(plain=plain, timeout=5))
    async def scenario(lab: Lab) -> None:
        lab.ledger = Counting(lab.clock)
        lab.app.does = does
        ids = await fill(lab, 100, attempt=1)
        lab.subscriber()
        await lab.finished("bookings")
        expected = dict.fromkeys(ids, 1)
        if how != "again":
            del expected[ids[33]]
        assert lab.ledger.tables == expected
        entry = await lab.entry("bookings", ids[33])
        letters = [letter.code for letter in await lab.letters("bookings")]
        if how == "again":
            assert (entry.status, entry.deliveries, letters) == (Status.DONE, 3, [])
        else:
            once = {"fails": "NO", "result": "VALUE_NOT_STORABLE"}
            code = once.get(how, "RETRIES_EXHAUSTED")
            assert (entry.status, entry.due, entry.error.code, letters) == (Status.FAILED, None, code, [code])
            assert entry.deliveries == (1 if how in once else 3)
        # What comes after it in its run waits for it: 83 is of the same run.
        last_bad = max(place for place, number in enumerate(lab.app.calls) if number == 33)
        done_83 = [place for place, number in enumerate(lab.app.calls) if number == 83]
        assert done_83[-1] > last_bad
        assert len(lab.ledger.sizes) < 40
        assert len(await lab.replies()) == 100

    scenario()


@virtual(bank())
async def test_where_the_commit_fails_the_bad_one_is_found_by_halving(lab: Lab) -> None:
    lab.ledger = Counting(lab.clock)

    def fails(asks: Any) -> None:
        entry = lab.ledger._entries.get(bad)
        if bad in {ask.key for ask in asks} and entry is not None and entry.status is Status.DONE:
            raise LedgerError("a deferred constraint does not hold")

    ids = await fill(lab, 64, attempt=1)
    bad = Key(lab.app.name, "bookings", ids[40])
    lab.ledger.fails = fails
    lab.subscriber()
    await lab.finished("bookings")
    assert set(lab.ledger.tables) == set(ids) - {ids[40]}
    entry = await lab.entry("bookings", ids[40])
    assert (entry.status, entry.due, entry.deliveries) == (Status.FAILED, None, 3)
    assert "deferred constraint" in entry.error.message
    assert len(lab.ledger.sizes) < 30


@virtual(bank())
async def test_a_commit_whose_answer_is_lost_is_known_and_not_repeated(lab: Lab) -> None:
    class Lossy(Counting):
        lost = 2

        async def transact(self, asks: Any, owner: str, body: Any) -> Any:
            found = await super().transact(asks, owner, body)
            if self.lost:
                self.lost -= 1
                raise LedgerUnavailable("the connection was cut")
            return found

    lab.ledger = Lossy(lab.clock)
    ids = await fill(lab, 50, attempt=1)
    running = lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == dict.fromkeys(ids, 1)
    assert sorted(lab.app.calls) == list(range(50))
    assert len(await lab.replies()) == 50
    assert len(running.told.heard("ledger_away")) == len(running.told.heard("ledger_back")) >= 1


@virtual(bank())
async def test_an_unreadable_payload_in_a_batch_is_set_apart(lab: Lab) -> None:
    ids = await fill(lab, 20, attempt=1)
    sent = await lab.send("bookings", "no number", run="r1", attempt=1)
    lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == dict.fromkeys(ids, 1)
    (letter,) = await lab.letters("bookings")
    assert (letter.code, letter.offset) == ("VALUE_UNREADABLE", sent.offset)
    assert [reply.error[1] for reply in await lab.replies() if reply.error] == ["VALUE_UNREADABLE"]


@virtual(bank())
async def test_f18_the_same_message_twice_in_one_batch_is_carried_out_once(lab: Lab) -> None:
    for _ in range(2):
        for run in runs_of(0, 3):
            await lab.send("bookings", 1, run=run, effect_id=f"{run}@0/bookings.1", attempt=1)
    lab.subscriber()
    await lab.finished("bookings")
    assert len(lab.app.calls) == 3
    assert set(lab.ledger.tables.values()) == {1}
    assert len(await lab.replies()) == 3


@virtual(bank())
async def test_f17_a_rewind_over_what_transactions_have_done_repeats_nothing(lab: Lab) -> None:
    ids = await fill(lab, 200, attempt=1)
    running = lab.subscriber()
    await lab.finished("bookings")
    await running.stop()
    replies = len(await lab.replies())
    await lab.rewind("bookings")
    again = lab.subscriber()
    await lab.finished("bookings")
    await again.stop()
    assert lab.ledger.tables == dict.fromkeys(ids, 1)
    assert len(lab.app.calls) == 200
    assert len(await lab.replies()) == replies == 200


@pytest.mark.parametrize(
    ("plain", "url", "words"),
    [(True, "postgresql://h/d", "async def book_plainly"), (False, "sqlite:///x.db", "`def book(")],
)
def test_a_handler_that_cannot_use_the_connection_is_refused_at_the_start(plain: bool, url: str, words: str) -> None:
    @virtual(bank(plain=plain))
    async def scenario(lab: Lab) -> None:
        lab.ledger.url = url
        running = lab.subscriber()
        running.expected = True
        with pytest.raises(UsageError) as caught:
            await running.task
        assert words in str(caught.value)

    scenario()
