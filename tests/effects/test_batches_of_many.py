"""Transactional handlers that take many: one call for a batch, its bad message found by halving or by its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from streams import App, BatchContext, EffectContext, Fail, Retry, TryAgain
from streams.effects.port import Key, Status
from streams.errors import LedgerError, UsageError
from tests.effects.lab import Lab, virtual
from tests.effects.test_batches import Counting, fill
from tests.effects.test_flow import runs_of

Ends = Callable[[BatchContext, Sequence[int]], Any]


def tenfold(ctx: BatchContext, numbers: Sequence[int]) -> list[int]:
    return [10 * number for number in numbers]


def bank(*, plain: bool = False, ends: Ends = tenfold, reply: Any = int, **options: Any) -> Callable[[], App]:
    """`ends` says how a call ends, when it has written everything."""

    def make() -> App:
        app: Any = App("bank")
        app.calls = []
        bookings = app.effect("bookings", int, reply=reply)

        def work(ctx: BatchContext, numbers: Sequence[int]) -> Any:
            app.calls.append((list(numbers), ctx.resources))
            for delivery, number in zip(ctx.deliveries, numbers, strict=True):
                assert isinstance(delivery, EffectContext)
                assert delivery.effect_id.startswith(delivery.run_id)
                ctx.connection[delivery.effect_id] = (*ctx.connection.get(delivery.effect_id, ()), number)
            return ends(ctx, numbers)

        async def book(ctx: BatchContext, numbers: Sequence[int]) -> Any:
            await asyncio.sleep(0)
            done = work(ctx, numbers)
            return await done if asyncio.iscoroutine(done) else done

        chosen = {"transactional": True, "many": True, "retry": Retry(max_attempts=3, initial=1), **options}
        app.subscriber(bookings, **chosen)(work if plain else book)
        return app

    return make


def written(ids: Sequence[str]) -> dict[str, tuple[int]]:
    return {effect_id: (number,) for number, effect_id in enumerate(ids)}


async def answers(lab: Lab) -> dict[str, Any]:
    """What each request was told: the value of its reply, or the code of its error."""
    found = {
        reply.effect_id: reply.error[1] if reply.error else int(reply.value or b"0") for reply in await lab.replies()
    }
    assert len(found) == len(await lab.replies())
    return found


@pytest.mark.parametrize("plain", [False, True])
def test_a_handler_of_many_is_called_once_a_batch_with_all_in_order(plain: bool) -> None:
    @virtual(bank(plain=plain))
    async def scenario(lab: Lab) -> None:
        ids = await fill(lab, 300, attempt=1)
        lab.subscriber()
        await lab.finished("bookings")
        assert lab.ledger.tables == written(ids)
        assert len(lab.app.calls) < 10
        assert await answers(lab) == {effect_id: 10 * number for number, effect_id in enumerate(ids)}
        flat = [number for numbers, _ in lab.app.calls for number in numbers]
        for run in range(50):
            of_run = [number for number in flat if number % 50 == run]
            assert of_run == sorted(of_run)

    scenario()


@virtual(bank(batch=7))
async def test_a_call_is_given_no_more_than_a_batch(lab: Lab) -> None:
    ids = await fill(lab, 100)
    lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == written(ids)
    assert max(len(numbers) for numbers, _ in lab.app.calls) == 7


HOWS = {
    "raises": ("RETRIES_EXHAUSTED", 3),
    "raises a base exception": ("RETRIES_EXHAUSTED", 3),
    "cancels": ("RETRIES_EXHAUSTED", 3),
    "hangs": ("RETRIES_EXHAUSTED", 3),
    "fails": ("NO", 1),
    "again": ("", 3),
    "too few": ("REPLY_INVALID", 1),
    "none": ("REPLY_INVALID", 1),
    "a text": ("REPLY_INVALID", 1),
    "not storable": ("VALUE_NOT_STORABLE", 1),
    "another type": ("REPLY_INVALID", 1),
}
BY_ITS_PLACE = {"not storable", "another type"}


def badly(how: str) -> Ends:
    """Ends a call so where the message 33 is in it."""

    def ends(ctx: BatchContext, numbers: Sequence[int]) -> Any:
        if 33 not in numbers or (how == "again" and ctx.deliveries[numbers.index(33)].delivery == 3):
            return tenfold(ctx, numbers)
        if how == "hangs":
            return asyncio.sleep(1_000)
        kinds = {
            "raises": ValueError("bad"),
            "raises a base exception": SystemExit(3),
            "cancels": asyncio.CancelledError(),
            "fails": Fail("NO", "no"),
            "again": TryAgain("later"),
        }
        if how in kinds:
            raise kinds[how]
        odd = {"not storable": object(), "another type": "330"}
        if how in odd:
            return [odd[how] if number == 33 else 10 * number for number in numbers]
        return {
            "too few": [10 * number for number in numbers if number != 33],
            "none": None,
            "a text": "x" * len(numbers),
        }[how]

    return ends


@pytest.mark.parametrize(
    ("plain", "how"),
    [(plain, how) for plain in (False, True) for how in HOWS if (plain, how) != (True, "hangs")],
)
def test_the_bad_one_of_a_call_is_found_and_the_others_are_carried_out(how: str, plain: bool) -> None:
    code, deliveries = HOWS[how]

    @virtual(bank(plain=plain, ends=badly(how), timeout=5))
    async def scenario(lab: Lab) -> None:
        ids = await fill(lab, 100, attempt=1)
        lab.subscriber()
        await lab.finished("bookings")
        expected, told = written(ids), {effect_id: 10 * number for number, effect_id in enumerate(ids)}
        if code:
            del expected[ids[33]]
        assert lab.ledger.tables == expected
        assert await answers(lab) == told | ({ids[33]: code} if code else {})
        entry = await lab.entry("bookings", ids[33])
        assert (entry.status, entry.due) == (Status.FAILED if code else Status.DONE, None)
        assert entry.deliveries == deliveries
        assert [letter.code for letter in await lab.letters("bookings")] == ([code] if code else [])
        calls = [numbers for numbers, _ in lab.app.calls]
        assert len(calls) < (12 if how in BY_ITS_PLACE else 40)
        alone = [place for place, numbers in enumerate(calls) if numbers == [33]]
        assert len(alone) == deliveries - (how == "again")  # the last time all is well, with those behind it
        # What comes after it in its run is not carried out before: each call is in one transaction, and rolled back.
        assert max(place for place, numbers in enumerate(calls) if 83 in numbers) > alone[-1]
        assert not any(83 in numbers and 33 not in numbers for numbers in calls[: alone[-1]])

    scenario()


@virtual(bank(ends=lambda ctx, numbers: [1]))
async def test_a_count_that_is_right_for_one_alone_is_taken_from_each_alone(lab: Lab) -> None:
    await fill(lab, 2, attempt=1)
    await lab.send("bookings", 9, run="r0")
    lab.subscriber()
    await lab.finished("bookings")
    assert [len(numbers) for numbers in lab.ledger.tables.values()] == [1, 1, 1]
    assert {len(numbers) for numbers, _ in lab.app.calls} == {1, 2, 3}


@virtual(bank(ends=lambda ctx, numbers: None))
async def test_none_stands_for_all_only_where_the_effect_has_no_reply(lab: Lab) -> None:
    ids = await fill(lab, 3, attempt=1)
    lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == {}
    error = (await lab.entry("bookings", ids[0])).error
    assert error.code == "REPLY_INVALID"
    assert "was given 1 payloads and returned NoneType. Return a list" in error.message


@pytest.mark.parametrize("reply", [None, type(None)])
def test_none_stands_for_all_where_the_effect_has_no_reply(reply: Any) -> None:
    @virtual(bank(ends=lambda ctx, numbers: None, reply=reply))
    async def scenario(lab: Lab) -> None:
        ids = await fill(lab, 30, attempt=1)
        lab.subscriber()
        await lab.finished("bookings")
        assert lab.ledger.tables == written(ids)
        assert {reply.value for reply in await lab.replies()} == {b"null"}
        assert len(await lab.replies()) == 30

    scenario()


@virtual(bank())
async def test_an_unreadable_payload_is_set_apart_by_its_place(lab: Lab) -> None:
    ids = await fill(lab, 20, attempt=1)
    sent = await lab.send("bookings", "no number", run="r1", attempt=1)
    lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == written(ids)
    (letter,) = await lab.letters("bookings")
    assert (letter.code, letter.offset) == ("VALUE_UNREADABLE", sent.offset)
    assert len(lab.app.calls) < 6


@virtual(bank())
async def test_where_the_commit_fails_the_bad_one_of_many_is_found_by_halving(lab: Lab) -> None:
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
    assert "deferred constraint" in (await lab.entry("bookings", ids[40])).error.message
    assert len(lab.ledger.sizes) < 30


@virtual(bank())
async def test_f18_the_same_message_twice_is_carried_out_once_by_a_handler_of_many(lab: Lab) -> None:
    for _ in range(2):
        for run in runs_of(0, 3):
            await lab.send("bookings", 1, run=run, effect_id=f"{run}@0/bookings.1", attempt=1)
    lab.subscriber()
    await lab.finished("bookings")
    assert list(lab.ledger.tables.values()) == [(1,)] * 3
    assert sum(len(numbers) for numbers, _ in lab.app.calls) == 3
    assert len(await lab.replies()) == 3


@virtual(bank())
async def test_f17_a_rewind_over_what_a_handler_of_many_has_done_calls_it_with_the_new_ones_only(lab: Lab) -> None:
    ids = await fill(lab, 200, attempt=1)
    running = lab.subscriber()
    await lab.finished("bookings")
    await running.stop()
    done = len(lab.app.calls)
    await lab.rewind("bookings")
    ids += [(await lab.send("bookings", number, run=f"n{number}", attempt=1)).effect_id for number in range(200, 210)]
    lab.subscriber()
    await lab.finished("bookings")
    assert lab.ledger.tables == written(ids)
    assert sorted(number for numbers, _ in lab.app.calls[done:] for number in numbers) == list(range(200, 210))
    assert len(await lab.replies()) == 210


@pytest.mark.parametrize(
    "point", ["effect.taken", "effect.claimed", "effect.called", "effect.settled", "effect.committed"]
)
def test_f17_a_subscriber_that_dies_in_a_batch_has_written_all_of_it_or_nothing(point: str) -> None:
    @virtual(bank())
    async def scenario(lab: Lab) -> None:
        ids = await fill(lab, 60, attempt=1)
        lab.crash_at(point)
        dying = lab.subscriber()
        await lab.until(lambda: dying.over)
        committed = point in ("effect.settled", "effect.committed")
        assert len(lab.ledger.tables) == (len(lab.app.calls[0][0]) if committed else 0)
        lab.subscriber()
        await lab.finished("bookings")
        assert lab.ledger.tables == written(ids)
        assert (await answers(lab)).keys() == set(ids)

    scenario()


# ---- what is declared -----------------------------------------------------------------------------------------------


@virtual(bank(plain=True))
async def test_a_handler_of_many_that_cannot_use_the_connection_is_told_its_form(lab: Lab) -> None:
    lab.ledger.url = "postgresql://h/d"
    running = lab.subscriber()
    running.expected = True
    with pytest.raises(UsageError, match=r"`async def work\(ctx, payloads\)`"):
        await running.task


def test_a_handler_of_many_that_is_not_transactional_is_refused_with_words() -> None:
    with pytest.raises(ValueError, match="'book' of effect 'bookings': many=True is for transactional=True"):
        bank(transactional=False)()


def test_a_handler_of_many_that_takes_something_else_is_told_its_form() -> None:
    app = App("bank")
    bookings = app.effect("bookings", int)
    with pytest.raises(TypeError, match=r"async def book\(ctx: BatchContext, payloads: Sequence\[SomeType\]\)"):

        @app.subscriber(bookings, transactional=True, many=True)  # type: ignore[arg-type]
        async def book(numbers: Sequence[int]) -> None: ...


def test_a_handler_of_many_is_called_directly_in_a_unit_test() -> None:
    app = App("bank")
    bookings = app.effect("bookings", int)

    @app.subscriber(bookings, transactional=True, many=True)
    async def book(ctx: BatchContext, numbers: Sequence[int]) -> None:
        for delivery, number in zip(ctx.deliveries, numbers, strict=True):
            ctx.connection.append((delivery.effect_id, number))

    rows: list[Any] = []
    deliveries = [EffectContext("e1"), EffectContext("e2")]
    asyncio.run(book(BatchContext(deliveries, connection=rows), [1, 2]))  # type: ignore[arg-type]
    assert rows == [("e1", 1), ("e2", 2)]
