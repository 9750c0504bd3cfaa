"""One message through the carrier of the Faust agent, without a broker: words of the ledger, answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from streams import App, Found, NotFound, Retry, TryAgain
from streams.clock import SystemClock
from streams.effects.faust.carrying import Carried, Carrier
from streams.effects.memory import MemoryLedger
from streams.effects.port import Key, Status
from streams.effects.subscriber.parts import Parts
from streams.effects.subscriber.settings import SubscriberSettings
from streams.errors import LedgerUnavailable
from streams.kernel.commands import Reply
from streams.log.port import Record
from streams.observer import Observer
from streams.runtime.host import Host
from streams.wire.app_codec import make_codec
from streams.wire.records import decode_command, encode_effect
from streams.wire.topics import topics_of
from tests.effects.faust_lab import effect, in_loop, until

SOON = Retry(max_attempts=3, initial=0.01, max_delay=0.02)


class Lossy(MemoryLedger):
    """The answer to the first call of `lost` never arrives, though what it asked for is written."""

    lost = ""
    calls = 0

    async def claim(self, *args: Any) -> Any:
        return self._answer("claim", await super().claim(*args))

    async def settle(self, *args: Any) -> Any:
        return self._answer("settle", await super().settle(*args))

    def _answer(self, name: str, answer: Any) -> Any:
        self.calls += 1
        if name == self.lost:
            self.lost = ""
            raise LedgerUnavailable("the connection is gone")
        return answer


class Case:
    """A carrier, what its handler was called with, and how it answers."""

    def __init__(self, handler: Callable[..., Any] | None = None, **options: Any) -> None:
        self.app = App("shop")
        self.calls: list[str] = []
        self.ledger = Lossy(SystemClock())
        pay = self.app.effect("pay", dict, reply=str)

        async def done(ctx: Any, payload: dict) -> str:
            self.calls.append(ctx.idempotency_key)
            return await handler(ctx, payload) if handler is not None else "ok"

        self.subscription = self.app.subscriber(pay, retry=SOON, looks=SOON, **options)(done)
        self.carrier = self.make("one")

    def make(self, owner: str) -> Carrier:
        parts = Parts(
            self.app,
            None,
            self.ledger,
            topics=topics_of("shop", ["pay"]),
            codec=make_codec(self.app.annotations, self.app.named_types),
            owner=owner,
            settings=SubscriberSettings(lease_seconds=0.3, ask_again_seconds=0.05, ledger_pause_seconds=0.05),
            observer=Observer(),
            clock=SystemClock(),
            host=Host(),
            fail=lambda error: None,
        )
        return Carrier(parts, self.subscription)

    async def carry(self, message: Any, gone: Callable[[], bool] = lambda: False, carrier: Any = None) -> Any:
        record = Record("shop.effects.pay", 0, 7, 0, message.run_id.encode(), encode_effect(message))
        return await asyncio.wait_for((carrier or self.carrier).carry(record, gone), 20)

    def status(self, key: str = "key1") -> Status:
        return self.ledger._entries[Key("shop", "pay", key)].status


def reply(carried: Carried) -> Any:
    (record,) = carried.records
    assert (record.topic, record.partition) == ("shop.commands", 0)
    found = decode_command(record.key, record.value, default_id="", offset=0).request
    assert isinstance(found, Reply)
    return found


@in_loop
async def test_a_message_is_carried_out_once_and_answered_until_that_is_noted() -> None:
    case = Case()
    first = await case.carry(effect(1))
    assert reply(first).value == b'"ok"'
    again = await case.carry(effect(1))  # a crash came before the note: the answer goes out again
    assert reply(again).value == b'"ok"'
    await case.ledger.note_published([first.outcome])
    assert await case.carry(effect(1)) == Carried()
    assert case.calls == ["key1"]


@in_loop
async def test_the_lost_answer_to_a_claim_is_no_unknown_outcome() -> None:
    case = Case()
    case.ledger.lost = "claim"
    assert reply(await case.carry(effect(1))).value == b'"ok"'
    assert case.calls == ["key1"]


@in_loop
async def test_f26_a_claim_whose_answer_comes_when_its_lease_is_nearly_over_is_not_begun() -> None:
    class Slow(MemoryLedger):
        claims = 0

        async def claim(self, *args: Any) -> Any:
            found = await super().claim(*args)
            Slow.claims += 1
            await asyncio.sleep(0.2 if Slow.claims == 1 else 0)
            return found

    case = Case()
    case.ledger = Slow(SystemClock())
    case.carrier = case.make("one")
    begun = []

    async def done(ctx: Any, payload: dict) -> str:
        begun.append((Slow.claims, ctx.delivery))
        return "ok"

    object.__setattr__(case.subscription, "function", done)
    assert reply(await case.carry(effect(1))).value == b'"ok"'
    assert len(begun) == 1
    assert begun[0][0] > 1
    assert begun[0][1] == 1


@in_loop
async def test_the_lost_answer_to_a_settlement_repeats_nothing() -> None:
    case = Case()
    case.ledger.lost = "settle"
    assert reply(await case.carry(effect(1))).value == b'"ok"'
    assert case.calls == ["key1"]


@in_loop
async def test_two_messages_of_one_key_at_once_are_one_call() -> None:
    async def slow(ctx: Any, payload: Any) -> str:
        await asyncio.sleep(0.2)
        return "slow"

    case = Case(slow)
    found = await asyncio.gather(*(case.carry(effect(1, run=run, key="same")) for run in ("a", "b", "c")))
    assert [reply(carried).value for carried in found] == [b'"slow"'] * 3
    assert case.calls == ["same"]


@in_loop
async def test_what_another_worker_carries_out_is_waited_for_and_its_lease_is_kept() -> None:
    async def longer_than_the_lease(ctx: Any, payload: Any) -> str:
        await asyncio.sleep(1)
        return "slow"

    case = Case(longer_than_the_lease)
    other = case.make("two")
    found = await asyncio.gather(case.carry(effect(1)), case.carry(effect(1), carrier=other))
    assert [reply(carried).value for carried in found] == [b'"slow"'] * 2
    assert case.calls == ["key1"]


@in_loop
async def test_a_claim_whose_owner_is_gone_is_looked_up_not_repeated() -> None:
    async def look(ctx: Any, payload: Any) -> Any:
        looked.append(ctx.idempotency_key)
        return Found("it was done")

    looked: list[str] = []
    case = Case(reconcile=look)

    async def hang(ctx: Any, payload: Any) -> str:
        return await asyncio.sleep(60, "never")

    dead = Case(hang)
    dead.ledger = dead.carrier._parts.ledger = case.ledger
    task = asyncio.ensure_future(dead.carry(effect(1)))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert case.status() is Status.CLAIMED
    assert reply(await case.carry(effect(1), carrier=case.make("two"))).value == b'"it was done"'
    assert (looked, case.calls) == (["key1"], [])


@in_loop
async def test_not_found_means_once_more_and_raising_without_a_look_up_a_person() -> None:
    async def fail_once(ctx: Any, payload: Any) -> str:
        if ctx.delivery == 1:
            raise RuntimeError("the line is dead")
        return f"try {ctx.delivery}"

    async def look(ctx: Any, payload: Any) -> Any:
        return NotFound()

    sure = Case(fail_once, reconcile=look)
    assert reply(await sure.carry(effect(1))).value == b'"try 2"'
    keyed = Case(fail_once, idempotent=True)
    assert reply(await keyed.carry(effect(1))).value == b'"try 2"'
    unsure = Case(fail_once)
    (letter,) = (await unsure.carry(effect(1))).records
    assert (letter.topic, unsure.status(), unsure.calls) == ("shop.effects.pay.dead", Status.PARKED, ["key1"])


@in_loop
async def test_the_same_key_for_something_else_is_never_carried_out() -> None:
    case = Case()
    await case.carry(effect(1))
    letter, answer = (await case.carry(effect(2, '{"other": 1}', key="key1"))).records
    assert letter.topic == "shop.effects.pay.dead"
    assert decode_command(answer.key, answer.value, default_id="", offset=0).request.error[1] == "KEY_CONFLICT"
    assert case.calls == ["key1"]


@in_loop
async def test_nothing_is_begun_for_a_partition_that_is_gone_or_at_a_stop() -> None:
    case = Case()
    assert await case.carry(effect(1), lambda: True) is None
    case.carrier.close()
    assert await case.carry(effect(1)) is None
    assert (case.calls, case.ledger.calls) == ([], 0)


@in_loop
async def test_a_stop_after_the_claim_gives_it_back() -> None:
    case = Case()
    claim = case.ledger.claim

    async def closing(*args: Any) -> Any:
        case.carrier.close()
        return await claim(*args)

    case.ledger.claim = closing
    assert await case.carry(effect(1)) is None
    case.ledger.claim = claim
    assert case.status() is Status.FAILED
    assert reply(await case.carry(effect(1), carrier=case.make("next"))).value == b'"ok"'
    assert case.calls == ["key1"]


@in_loop
async def test_a_stop_does_not_wait_for_a_later_try() -> None:
    async def busy(ctx: Any, payload: Any) -> str:
        raise TryAgain("in an hour", after=3600)

    case = Case(busy)
    task = asyncio.ensure_future(case.carry(effect(1)))
    await until(lambda: case.calls and case.status() is Status.FAILED)
    case.carrier.close()
    assert await task is None
    assert case.status() is Status.FAILED
