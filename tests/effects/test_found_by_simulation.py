"""What the simulator has found in subscribers and in the rules of the ledger, each as short as it can be."""

from __future__ import annotations

import asyncio
from typing import Any

from streams import App, EffectContext
from streams.clock import SystemClock
from streams.effects.asks import read_ask
from streams.effects.memory import MemoryLedger
from streams.effects.port import Ask, Key, Resolution, Settlement, Status, Word
from streams.effects.subscriber.call import Call
from streams.effects.subscriber.outcomes import How
from streams.effects.subscriber.window import Message, Window
from tests.effects.lab import Lab, virtual

KEY = Key("shop", "pay", "k")


def ask(resent: str = "") -> Ask:
    return Ask(KEY, b"hash", "r@1/1", "r", "1", 1, 0, "pay[0]@0", resent)


async def carry_out(ledger: MemoryLedger, resent: str, status: Status) -> Word:
    """Ask, and settle what is granted."""
    (verdict,) = await ledger.claim([ask(resent)], "s1", 30)
    if verdict.word is Word.CARRY_OUT:
        assert await ledger.settle([Settlement(KEY, verdict.entry.claim, status)]) == [True]
    return verdict.word


def test_a_re_send_after_an_operators_word_opens_the_entry_once() -> None:
    async def main() -> None:
        ledger = MemoryLedger(SystemClock())
        assert await carry_out(ledger, "", Status.PARKED) is Word.CARRY_OUT
        await ledger.resolve(KEY, Resolution(Status.FAILED, again=True))
        assert await carry_out(ledger, "0@1", Status.FAILED) is Word.CARRY_OUT
        # A rewind brings the re-send again, and nobody has asked for that.
        assert await carry_out(ledger, "0@1", Status.DONE) is Word.GIVEN_UP

    asyncio.run(main())


def test_an_older_re_send_opens_nothing_that_a_later_one_has_led_to() -> None:
    async def main() -> None:
        ledger = MemoryLedger(SystemClock())
        words = [await carry_out(ledger, resent, Status.FAILED) for resent in ("", "0@1", "0@20", "0@1", "0@20")]
        assert words == [Word.CARRY_OUT, Word.CARRY_OUT, Word.CARRY_OUT, Word.GIVEN_UP, Word.GIVEN_UP]

    asyncio.run(main())


def greeting() -> App:
    app = App("greeting")
    app.calls = []
    greetings = app.effect("greetings", str)

    @app.subscriber(greetings, idempotent=True)
    async def greet(ctx: EffectContext, name: str) -> None:
        app.calls.append(name)

    return app


@virtual(greeting)
async def test_a_call_that_is_stopped_before_its_first_step_tells_that_it_was_never_begun(lab: Lab) -> None:
    """Its key would stay held, and a frozen subscriber that comes back would never take the message up again."""
    parts, subscription = lab.subscriber().subscriber.parts, lab.app.subscriptions["greetings"]
    await lab.send("greetings", "Ada", key="k")
    (record,) = await lab.records(lab.topics.effect("greetings"))
    message = Message(Window(record.partition, 1), record)
    message.effect, message.ask = read_ask(lab.app.name, "greetings", record, lab.codec)
    (verdict,) = await MemoryLedger(lab.clock).claim([message.ask], "s9", 30)
    hows: list[Any] = []
    for word in (Word.CARRY_OUT, Word.LOOK_UP):
        call = Call(parts, subscription, message, verdict._replace(word=word), lambda _, end: hows.append(end.how))
        call.start()
        call.leave()
        await asyncio.sleep(0.1)
    assert hows == [How.NOT_DONE, How.UNCLEAR]
    assert lab.app.calls == ["Ada"], "the subscriber itself has called it, and nobody else"
