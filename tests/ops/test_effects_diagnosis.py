"""What a diagnosis says of a run's effects: pending or consumed, at whom, since when, and what the ledger knows."""

from __future__ import annotations

from typing import Any

from streams.client import StoredEvent
from streams.clock import SystemClock
from streams.effects.port import Key, Status
from streams.errors import LedgerMismatch, LedgerUnavailable
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.ops.deliveries import OutEffect, effect_lines, effects_of, join, ledger_view
from tests.ops.outboxes import APP, EFFECT, TOPICS, Shop, message, play


def stored(seq: int, body: Any) -> StoredEvent:
    return StoredEvent(Event("o-1", "o-1@7", seq, 1_000, None, None, 4, body), 100 + seq, 1)


def requested(op: str, key: str | None = None) -> ev.OpScheduled:
    return ev.OpScheduled(op, "request", EFFECT, b"1", b"", attempt=1, key=key)


async def diagnosed(shop: Shop, effects: list[OutEffect]) -> list[OutEffect]:
    known = await ledger_view(shop.ledger, APP, effects)
    return await join(shop.client, "o-1", shop.partition("o-1"), effects, known, now=SystemClock().now_us())


def test_effects_and_each_attempt_of_a_request_are_messages() -> None:
    history = [
        stored(1, ev.EffectEmitted("1", EFFECT, b"1", "ship/1", b"")),
        stored(2, requested("2", "pay/o-1")),
        stored(3, requested("3")),
        stored(4, ev.AttemptStarted("2", 2)),
        stored(5, ev.AttemptStarted("9", 2)),  # of a task
    ]
    found = [(one.effect_id, one.key, one.op, one.attempt, one.offset) for one in effects_of(history)]
    assert found == [
        ("o-1@7/1", "ship/1", "1", 0, 101),
        ("o-1@7/2", "pay/o-1", "2", 1, 102),
        ("o-1@7/3", "o-1@7/3", "3", 1, 103),
        ("o-1@7/2", "pay/o-1", "2", 2, 104),
    ]


PAYMENT = list(effects_of([stored(2, requested("2", "pay/o-1"))]))


def test_an_effect_is_pending_until_its_subscriber_has_passed_it() -> None:
    async def story(shop: Shop) -> None:
        where = shop.partition("o-1")
        (gone,) = await diagnosed(shop, PAYMENT)
        assert (gone.message, gone.ledger, gone.advice) == (None, None, ())
        offset = await shop.put(message("o-1"))
        (first,) = await diagnosed(shop, PAYMENT)
        assert first.message is not None
        seen = first.message
        place = (f"{APP}.effects.{EFFECT}", where, offset, "shop.subscribers.payments")
        assert (seen.topic, seen.partition, seen.offset, seen.group) == place
        assert (seen.state, seen.begun, seen.lag, seen.letter) == ("pending", False, 1, None)
        assert first.advice == ("streams subscribe MODULE:APP --only payments",)
        await shop.log.rewind_group(TOPICS.subscribers(EFFECT), TOPICS.effect(EFFECT), {where: 0})
        await shop.put(message("o-1", key="another", attempt=9))
        (second,) = await diagnosed(shop, PAYMENT)
        assert second.message is not None
        assert (second.message.state, second.message.begun, second.message.lag) == ("pending", True, 2)
        assert second.advice == ()
        await shop.take("o-1")
        (third,) = await diagnosed(shop, PAYMENT)
        assert third.message is not None
        assert (third.message.state, third.message.lag) == ("consumed", 0)
        text = "\n".join(effect_lines([gone, first, second, third]))
        assert "its message is kept no more" in text
        assert "nobody of group shop.subscribers.payments has begun" in text
        assert "has it before it (lag at most 2)" in text
        assert "has passed it" in text

    play(story)


def test_the_ledger_says_what_became_of_an_effect_and_what_to_do() -> None:
    async def story(shop: Shop) -> None:
        offset = await shop.put(message("o-1"))
        await shop.take("o-1")
        await shop.entry(message("o-1"), Status.PARKED)
        at = await shop.set_aside(message("o-1"), offset)
        (parked,) = await diagnosed(shop, PAYMENT)
        assert parked.ledger is not None
        assert (parked.ledger["status"], parked.ledger["deliveries"]) == ("parked", 1)
        assert parked.ledger["error"]["code"] == "OUTCOME_UNKNOWN"
        assert [line.partition("payments ")[2] for line in parked.advice] == [
            "--done JSON",
            "--not-done",
            "--give-up TEXT",
        ]
        assert parked.message is not None
        assert parked.message.letter == f"{shop.partition('o-1')}@{at}"
        (line, *_) = effect_lines([parked])
        assert "ledger: parked: OUTCOME_UNKNOWN: who knows" in line
        assert line.startswith("effect out: payments, id o-1@7/2, attempt 1, key pay/o-1")

    play(story)


def test_what_was_given_up_of_an_effect_can_be_sent_back() -> None:
    async def story(shop: Shop) -> None:
        at = await shop.set_aside(message("o-1"), await shop.put(message("o-1")))
        await shop.take("o-1")
        place = f"{shop.partition('o-1')}@{at}"
        cure = f"streams dead-letters send-back --effect payments --at {place}"
        (found,) = await diagnosed(shop, PAYMENT)
        assert (found.ledger, found.advice[1]) == (None, cure)
        await shop.entry(message("o-1"), Status.FAILED)
        (found,) = await diagnosed(shop, PAYMENT)
        assert found.ledger is not None
        assert (found.ledger["status"], found.advice[1]) == ("failed", cure)

    play(story)


def test_a_ledger_that_is_away_does_not_break_the_diagnosis_of_effects() -> None:
    class Away:
        url = "postgresql://127.0.0.1/x"

        def __init__(self, error: Exception) -> None:
            self.error = error

        async def check(self) -> None:
            raise self.error

        async def look(self, keys: list[Key]) -> dict[Key, Any]:
            raise AssertionError(keys)

    async def story(shop: Shop) -> None:
        await shop.put(message("o-1"))
        for error in (LedgerUnavailable("it is down"), LedgerMismatch("it is of version 9")):
            known = await ledger_view(Away(error), APP, PAYMENT)  # type: ignore[arg-type]
            assert known.flaw == f"the ledger postgresql://127.0.0.1/x cannot be asked: {error}"
            (found,) = await join(shop.client, "o-1", shop.partition("o-1"), PAYMENT, known, now=0)
            assert found.message is not None

    play(story)


def test_effects_of_a_topic_that_is_not_there_are_told_of_all_the_same() -> None:
    async def story(shop: Shop) -> None:
        effect = PAYMENT[0]._replace(effect="letters")
        (found,) = await diagnosed(shop, [effect])
        assert found.message is None

    play(story)
