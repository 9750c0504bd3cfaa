"""Requests: the message on the effect's topic, the reply that counts, time-outs, and what comes late."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from streams import App, Context, RequestFailed, Retry
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.log.port import TopicPartition
from streams.wire.records import EffectMessage, decode_effect
from tests.runtime.checker import records_of
from tests.runtime.history import HANG_SECONDS, encoded
from tests.runtime.lab import Lab, case

app = App("requests")


class Payment(NamedTuple):
    id: str
    cents: int


class Charge(NamedTuple):
    order: str
    cents: int


app.types(Payment, Charge)
payments = app.effect("payments", Charge, reply=Payment, retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01))
mails = app.effect("mails", str)


@app.workflow(version=1)
async def pay(ctx: Context, order: str) -> Any:
    payment = await ctx.request(payments, Charge(order, 500), idempotency_key=f"pay/{order}")
    return [type(payment).__name__, payment.id]


@app.workflow(version=1)
async def pay_in_time(ctx: Context, seconds: float) -> Any:
    try:
        return (await ctx.request(payments, Charge("o", 500), timeout=seconds)).id
    except RequestFailed as failed:
        return [failed.code, failed.kind, failed.message]


@app.workflow(version=1)
async def mail(ctx: Context, text: str) -> Any:
    return await ctx.request(mails, text)


async def sent(lab: Lab, effect: str, count: int = 1, run_id: str | None = None) -> list[EffectMessage]:
    """Wait for so many messages; those of a run are in the order of the topic."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        places = [TopicPartition(lab.topics.effect(effect), number) for number in range(lab.history.partitions)]
        messages = [
            decode_effect(record.value or b"") for place in places for record in await records_of(lab.log, place)
        ]
        found = [message for message in messages if run_id in (None, message.run_id)]
        await lab.history.read()
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages\n{lab.history}"
        await asyncio.sleep(0.01)


def reply_to(message: EffectMessage, value: Any = None, *, error: Any = None) -> cmd.Reply:
    data = None if error else encoded(value)
    return cmd.Reply(message.op, message.effect_id, message.attempt, message.epoch, data, error)


async def reply(lab: Lab, message: EffectMessage, value: Any = None, *, error: Any = None) -> Any:
    """Reply, and wait for what becomes of it."""
    offset = await lab.history.send(message.run_id, reply_to(message, value, error=error))
    return await lab.history.answered(offset, message.run_id)


@case(app)
async def test_a_reply_completes_the_request_as_the_declared_type(lab: Lab):
    await lab.worker()
    await lab.history.start("pay", "r", "o1")
    (message,) = await sent(lab, "payments")
    identity = lab.history.events["r"][0].identity
    assert message.effect_id == f"{identity}/1"
    assert (message.op, message.attempt, message.idempotency_key) == ("1", 1, "pay/o1")
    assert (message.epoch, message.workflow, message.version) == (lab.history.events["r"][0].epoch, "pay", 1)
    answered = await reply(lab, message, {"id": "p1", "cents": 500})
    assert isinstance(answered, ev.OpCompleted)
    assert await lab.history.result("r") == ["Payment", "p1"]
