"""Claims that are lost, leases that are kept, and ends of a subscriber while something is away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams import TryAgain
from streams.effects.memory import MemoryLedger
from streams.effects.port import Key, Status
from streams.effects.subscriber import outside
from streams.errors import LedgerUnavailable, LogUnavailable
from tests.effects.lab import Lab, virtual
from tests.effects.test_flow import mailing, pause
from tests.effects.test_trouble import Shaky


def steal(lab: Lab, key: str, seconds: float) -> None:
    """As if somebody else had taken the claim over."""
    found = Key(lab.app.name, "mails", key)
    entry = lab.ledger._entries[found]
    until = lab.clock.now_us() + round(seconds * 1e6)
    lab.ledger._entries[found] = entry._replace(claim="another", owner="somebody", lease_until=until)


@virtual(mailing(timeout=500))
async def test_a_lease_is_prolonged_for_as_long_as_the_handler_runs(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: pause(300.0, text)
    sent = await lab.send("mails", "a", attempt=1)
    running = lab.subscriber()
    await lab.until(lambda: lab.app.calls)
    for _ in range(25):
        await asyncio.sleep(10)
        entry = await lab.entry("mails", sent.key)
        assert entry.status is Status.CLAIMED
        assert entry.lease_until > lab.clock.now_us() + 15_000_000
    await lab.finished("mails")
    assert lab.app.calls == ["a"]
    assert not running.told.heard("claim_lost")


@virtual(mailing())
async def test_a_handler_whose_claim_is_lost_is_told_and_writes_nothing(lab: Lab) -> None:
    contexts = []

    async def does(ctx: object, text: str) -> str:
        contexts.append(ctx)
        await asyncio.sleep(50)
        return text

    lab.app.does = does
    sent = await lab.send("mails", "a", attempt=1)
    running = lab.subscriber()
    await lab.until(lambda: contexts)
    steal(lab, sent.key, 1_000)
    await asyncio.sleep(11)
    assert contexts[0].cancelled
    assert running.told.heard("claim_lost", "mails", sent.effect_id)
    await asyncio.sleep(100)
    entry = await lab.entry("mails", sent.key)
    assert (entry.status, entry.owner) == (Status.CLAIMED, "somebody")
    assert len(contexts) == 1
    assert not await lab.replies()


@virtual(mailing())
async def test_an_outcome_that_comes_after_its_claim_was_lost_is_not_written(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: pause(5.0, text)
    sent = await lab.send("mails", "a", attempt=1)
    running = lab.subscriber()
    await lab.until(lambda: lab.app.calls)
    steal(lab, sent.key, 20)
    await asyncio.sleep(10)  # sooner than any lease is prolonged
    assert (await lab.entry("mails", sent.key)).owner == "somebody"
    assert running.told.heard("claim_lost", "mails", sent.effect_id)
    assert not await lab.replies()
    await lab.finished("mails")  # the other one never came back, and nothing can be looked up
    assert (await lab.entry("mails", sent.key)).status is Status.PARKED


@virtual(mailing())
async def test_a_call_that_is_stopped_before_its_first_step_lets_its_key_go(lab: Lab) -> None:
    first = []
    begin = outside.OutsideCalls._begin

    def lose_the_first(self: outside.OutsideCalls, message: object, verdict: object) -> None:
        begin(self, message, verdict)
        if not first:
            first.append(message)
            self._calls[message].lose()

    outside.OutsideCalls._begin = lose_the_first
    try:
        await lab.send("mails", "a", attempt=1)
        lab.subscriber()
        await lab.finished("mails")
    finally:
        outside.OutsideCalls._begin = begin
    assert lab.app.calls == ["a"]
    assert len(await lab.replies()) == 1


@virtual(mailing())
async def test_f26_a_claim_whose_answer_comes_when_its_lease_is_nearly_over_is_not_begun(lab: Lab) -> None:
    class Slow(MemoryLedger):
        claims = 0

        async def claim(self, *args: Any) -> Any:
            found = await super().claim(*args)
            Slow.claims += 1
            await asyncio.sleep(25 if Slow.claims == 1 else 0)
            return found

    lab.ledger = Slow(lab.clock)
    began = []
    lab.app.does = lambda ctx, text: began.append(lab.clock.monotonic()) or text
    sent = await lab.send("mails", "a", attempt=1)
    running = lab.subscriber()
    await lab.finished("mails")
    assert len(running.told.messages("half of their lease of 30 s was over")) == 1
    assert Slow.claims == 2
    assert began[0] > 24.9
    entry = await lab.entry("mails", sent.key)
    assert (len(began), entry.deliveries, entry.status) == (1, 1, Status.DONE)


@virtual(mailing())
async def test_a_stop_while_the_ledger_is_away_ends_within_its_bounds(lab: Lab) -> None:
    lab.ledger = Shaky(lab.clock)
    lab.app.does = lambda ctx, text: pause(1.0, text)
    await lab.send("mails", "a", attempt=1)
    running = lab.subscriber(stop_seconds=5.0, drain_seconds=2.0)
    await lab.until(lambda: lab.app.calls)
    lab.ledger.away = True
    await asyncio.sleep(5)
    began = lab.clock.monotonic()
    await running.stop()
    assert lab.clock.monotonic() - began < 15
    lab.ledger.away = False
    lab.subscriber()
    await lab.finished("mails")
    # It was done, but nobody could write that down: a person is asked.
    assert lab.app.calls == ["a"]
    assert [letter.code for letter in await lab.letters("mails")] == ["OUTCOME_UNKNOWN"]


@virtual(mailing())
async def test_a_stop_does_not_wait_for_what_is_tried_again_later(lab: Lab) -> None:
    lab.app.does = lambda ctx, text: (_ for _ in ()).throw(TryAgain("later", after=1_000))
    await lab.send("mails", "a")
    running = lab.subscriber()
    await lab.until(lambda: running.told.heard("effect_failed"))
    began = lab.clock.monotonic()
    await running.stop()
    assert lab.clock.monotonic() - began < 2


@virtual(mailing())
async def test_a_topic_that_is_gone_is_told_of_once_and_waited_for(lab: Lab) -> None:
    topics, name = lab.log._store.topics, lab.topics.commands
    running = lab.subscriber()
    await lab.until(lambda: len(running.windows("mails")) == 2)
    kept = topics.pop(name)
    await lab.send("mails", "a", attempt=1)
    await asyncio.sleep(20)
    assert len(running.told.messages("cannot be written")) == 1
    topics[name] = kept
    await lab.finished("mails")
    assert len(await lab.replies()) == 1
    assert lab.app.calls == ["a"]


@virtual(mailing())
async def test_a_stop_ends_a_subscriber_that_still_waits_for_its_ledger(lab: Lab) -> None:
    class Away(MemoryLedger):
        async def migrate(self) -> None:
            raise LedgerUnavailable("no route")

    lab.ledger = Away(lab.clock)
    running = lab.subscriber()
    await lab.until(lambda: running.told.heard("ledger_away"))
    await asyncio.sleep(100)
    began = lab.clock.monotonic()
    await running.stop()
    assert lab.clock.monotonic() - began < 1


@virtual(mailing())
async def test_a_stop_ends_a_subscriber_that_still_waits_for_its_log(lab: Lab) -> None:
    log = lab.log.share()

    async def producer(name: str) -> Any:
        raise LogUnavailable("no broker answers")

    log.producer = producer
    running = lab.subscriber(log=log)
    await lab.until(lambda: running.told.messages("cannot be reached"))
    began = lab.clock.monotonic()
    await running.stop()
    assert lab.clock.monotonic() - began < 1


@virtual(mailing())
async def test_a_log_that_does_not_come_within_a_minute_ends_a_subscriber(lab: Lab) -> None:
    log = lab.log.share()

    async def producer(name: str) -> Any:
        raise LogUnavailable("no broker answers")

    log.producer = producer
    running = lab.subscriber(log=log)
    running.expected = True
    with pytest.raises(LogUnavailable):
        await running.task
    assert 59 < lab.clock.monotonic() < 70
