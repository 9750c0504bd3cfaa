"""Requests: the message on the effect's topic, the reply that counts, time-outs, and what comes late."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, NamedTuple

import pytest

from streams import App, Context, Refused, RequestFailed, Retry, RunTerminal
from streams.client import Client
from streams.clock import SystemClock
from streams.errors import UsageError
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.log.port import TopicPartition
from streams.ops.repair import plan_repair
from streams.wire.records import EffectMessage, decode_effect
from tests.runtime.checker import records_of
from tests.runtime.faults import KINDS, Faults
from tests.runtime.history import HANG_SECONDS, encoded, send_raw, start, until
from tests.runtime.lab import PARTITIONS, Lab, case
from tests.runtime.rewinding import rewind, skipped
from tests.runtime.test_bad_records import damage

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
async def pay_both(ctx: Context, order: str) -> Any:
    both = [ctx.request(payments, Charge(order, cents)) for cents in (1, 2)]
    found = []
    for op in both:
        try:
            found.append((await op).id)
        except RequestFailed as failed:
            found.append(failed.code)
    return found


@app.workflow(version=1)
async def mail(ctx: Context, text: str) -> Any:
    return await ctx.request(mails, text)


class Ahead(SystemClock):
    """A clock that a test moves."""

    seconds = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.seconds * 1_000_000)


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


@case(app)
async def test_the_client_replies_and_hears_what_became_of_it(lab: Lab):
    await lab.worker()
    client = Client(lab.log, app)
    await lab.history.start("pay", "r", "o1")
    (message,) = await sent(lab, "payments")
    with pytest.raises(Refused) as refused:
        await client.accepted(await client.reply(message, "no payment"))
    assert refused.value.code == "REPLY_INVALID"
    assert await client.accepted(await client.reply(message, Payment("p1", 500)))
    with pytest.raises(RunTerminal):
        await client.accepted(await client.reply(message, Payment("p2", 500)))
    assert await client.result("r") == ["Payment", "p1"]
    await lab.history.start("pay_both", "s", "o2")
    first, second = await sent(lab, "payments", 2, "s")
    assert await client.accepted(await client.reply(first, Payment("p1", 5)))
    assert not await client.accepted(await client.reply(first, Payment("p9", 5))), "known before"
    assert await client.accepted(await client.reply(second, error=("terminal", "DECLINED", "no money")))
    assert await client.result("s") == ["p1", "DECLINED"]
    for wrong in ({"error": ("fatal", "X", "x")}, {"value": 1, "error": ("terminal", "X", "x")}):
        with pytest.raises(UsageError, match="retryable, terminal, unknown"):
            await client.reply(message, wrong.get("value"), error=wrong["error"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nobody waits for a reply"):
        await client.reply(message._replace(attempt=0), 1)
    await client.close()


@case(app)
async def test_the_message_names_the_attempt_and_says_the_same_each_time(lab: Lab):
    await lab.worker()
    await lab.history.start("pay", "r", "o1")
    (first,) = await sent(lab, "payments")
    await reply(lab, first, error=("retryable", "BUSY", "later"))
    second = (await sent(lab, "payments", 2))[1]
    assert second == first._replace(attempt=2, at=second.at)
    stale = await reply(lab, first, {"id": "old", "cents": 1})
    assert stale.code == "STALE_REPLY"
    await reply(lab, second, {"id": "p2", "cents": 500})
    assert await lab.history.result("r") == ["Payment", "p2"]
    assert [body.value for body in lab.history.bodies("r", ev.OutcomeLate)] == [encoded({"id": "old", "cents": 1})]


@case(app)
async def test_a_request_that_nobody_answers_is_made_again_and_fails_as_unknown(lab: Lab):
    await lab.worker()
    await lab.history.start("pay_in_time", "r", 0.05)
    code, kind, text = await lab.history.result("r")
    assert (code, kind) == ("RETRIES_EXHAUSTED", "unknown")
    assert "3 attempts of request 'payments' failed" in text
    messages = await sent(lab, "payments", 3)
    assert [message.attempt for message in messages] == [1, 2, 3]
    assert len({(m.effect_id, m.idempotency_key, m.payload) for m in messages}) == 1


@case(app)
async def test_a_request_without_a_time_out_waits_over_take_overs_and_eviction(lab: Lab):
    running = await lab.worker(live_runs_max=0)
    await lab.history.start("pay", "r", "o1")
    (message,) = await sent(lab, "payments")
    await running.kill()
    running = await lab.worker(live_runs_max=0)
    assert len(await sent(lab, "payments")) == 1
    await running.stop()
    await lab.worker()
    await reply(lab, message, {"id": "p1", "cents": 500})
    assert await lab.history.result("r") == ["Payment", "p1"]
    assert lab.history.bodies("r", ev.AttemptFailed) == []
    assert len(await sent(lab, "payments")) == 1


@case(app)
async def test_time_outs_and_back_off_survive_a_crash(lab: Lab):
    clock = Ahead()
    running = await lab.worker(clock=clock)
    await lab.history.start("pay_in_time", "r", 3_600)
    (first,) = await sent(lab, "payments")
    await running.kill()
    clock.seconds = 3_601
    running = await lab.worker(clock=clock)
    second = (await sent(lab, "payments", 2))[1]
    assert (second.attempt, second.epoch > first.epoch) == (2, True)
    await running.kill()
    clock.seconds = 2 * 3_602
    await lab.worker(clock=clock)
    third = (await sent(lab, "payments", 3))[2]
    assert (await reply(lab, second, {"id": "p2", "cents": 5})).code == "STALE_REPLY"
    await reply(lab, third, {"id": "p3", "cents": 5})
    assert await lab.history.result("r") == "p3"


@case(app)
async def test_a_parked_request_answers_to_an_operator(lab: Lab):
    running = await lab.worker()
    for run_id in ("skip", "complete", "retry"):
        await lab.history.start("pay_in_time", run_id, 3_600)
        (message,) = await sent(lab, "payments", 1, run_id)
        assert isinstance(await reply(lab, message, error=("unknown", "LOST", "the line broke")), ev.OpParked)
    assert len(running.told.heard("op_parked")) == 3
    await lab.history.send("skip", cmd.Skip("1"))
    assert (await lab.history.result("skip"))[:2] == ["SKIPPED", "terminal"]
    offset = await lab.history.send("complete", cmd.Complete("1", b'"no payment"'))
    assert (await lab.history.answered(offset, "complete")).code == "INPUT_INVALID"
    await lab.history.send("complete", cmd.Complete("1", encoded({"id": "by hand", "cents": 5})))
    assert await lab.history.result("complete") == "by hand"
    await lab.history.send("retry", cmd.Retry("1"))
    message = (await sent(lab, "payments", 2, "retry"))[1]
    await reply(lab, message, {"id": "p2", "cents": 5})
    assert await lab.history.result("retry") == "p2"


@case(app)
async def test_a_reply_for_a_run_that_nobody_knows_is_refused(lab: Lab):
    await lab.worker()
    offset = await lab.history.send("nobody", cmd.Reply("1", "nobody@0/1", 1, 1, b"1"))
    assert (await lab.history.answered(offset, "nobody")).code == "UNKNOWN_RUN"
    await lab.history.start("mail", "r", "hello")
    (message,) = await sent(lab, "mails")
    offset = await lab.history.send("r", reply_to(message)._replace(effect_id="r@9/1"))
    assert (await lab.history.answered(offset, "r")).code == "STALE_REPLY"
    await reply(lab, message, None)
    assert await lab.history.result("r") is None


@case(app)
@pytest.mark.parametrize("order", ["a reply before its request", "the older attempt last", "two in one batch"])
async def test_f26_of_several_results_the_first_valid_one_wins(lab: Lab, order: str):
    await lab.worker()
    if order == "a reply before its request":
        early = cmd.Reply("1", "r@1/1", 1, 1, encoded({"id": "early", "cents": 1}))
        offsets = await lab.history.send_all([("r", early), ("r", start("pay", "o1"))])
        assert (await lab.history.answered(offsets[0], "r")).code == "UNKNOWN_RUN"
        (message,) = await sent(lab, "payments")
        to_come = reply_to(message, {"id": "early", "cents": 1})._replace(attempt=2)
        offset = await lab.history.send("r", to_come)
        assert (await lab.history.answered(offset, "r")).code == "STALE_REPLY"
        await reply(lab, message, {"id": "right", "cents": 1})
        assert await lab.history.result("r") == ["Payment", "right"]
        return
    await lab.history.start("pay_both", "r", "o1")
    first, other = await sent(lab, "payments", 2)
    if order == "the older attempt last":
        await reply(lab, first, error=("retryable", "BUSY", "later"))
        newer = next(message for message in await sent(lab, "payments", 3) if message.attempt == 2)
        requests = [reply_to(newer, {"id": "new", "cents": 1}), reply_to(first, {"id": "old", "cents": 2})]
    else:
        requests = [reply_to(first, {"id": "new", "cents": 1}), reply_to(first, {"id": "old", "cents": 2})]
    offsets = await lab.history.send_all([("r", request) for request in requests])
    assert isinstance(await lab.history.answered(offsets[0], "r"), ev.OpCompleted)
    assert (await lab.history.answered(offsets[1], "r")).code == "DUPLICATE"
    await reply(lab, other, error=("terminal", "DECLINED", "no money"))
    assert await lab.history.result("r") == ["new", "DECLINED"]
    (late,) = lab.history.bodies("r", ev.OutcomeLate)
    assert late.value == encoded({"id": "old", "cents": 2})


@case(app)
@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "forced"])
async def test_f09_a_reply_after_the_end_changes_nothing_however_often(lab: Lab, how: str):
    running = await lab.worker()
    await lab.history.start("pay", "r", "o1")
    (message,) = await sent(lab, "payments")
    if how in ("cancelled", "forced"):
        await lab.history.send("r", cmd.Cancel(force=how == "forced"))
    if how != "forced":
        error = ("terminal", "DECLINED", "no money") if how == "failed" else None
        await reply(lab, message, None if error else {"id": "p1", "cents": 5}, error=error)
    await lab.history.ended("r")
    before = await lab.check()
    for _ in range(2):
        for error in (None, ("retryable", "X", "x"), ("terminal", "X", "x"), ("unknown", "X", "x")):
            late = await reply(lab, message, None if error else {"id": "late", "cents": 5}, error=error)
            assert late.code == "RUN_TERMINAL"
        await running.kill()
        running = await lab.worker()
    after = await lab.check()
    assert after.runs["r"] == before.runs["r"]
    assert after.effects == before.effects
    assert len(lab.history.bodies("r", ev.OutcomeLate)) == 8


@case(app)
@pytest.mark.parametrize("kind", KINDS)
async def test_f26_nothing_leaves_before_it_is_committed_and_nothing_twice(lab: Lab, kind: str):
    faults = Faults(lambda number, records: kind if number % 3 == 0 and number < 40 else None)
    await lab.worker(faults=faults)
    run_ids = [f"r{number}" for number in range(6)]
    for run_id in run_ids:
        await lab.history.start("pay", run_id, run_id)
    answered: set[tuple[str, int]] = set()
    deadline = time.monotonic() + HANG_SECONDS
    while any(lab.history.end(run_id) is None for run_id in run_ids):
        assert time.monotonic() < deadline, str(lab.history)
        for message in await sent(lab, "payments", 0):
            if (message.effect_id, message.attempt) not in answered:
                answered.add((message.effect_id, message.attempt))
                again = ("retryable", "BUSY", "later") if message.attempt == 1 else None
                value = None if again else {"id": message.run_id, "cents": 5}
                await lab.history.send(message.run_id, reply_to(message, value, error=again))
        await asyncio.sleep(0.01)
    for run_id in run_ids:
        assert await lab.history.result(run_id) == ["Payment", run_id]
    assert len(await sent(lab, "payments")) == len(answered) == 12
    assert faults.struck


@case(app)
async def test_f21_a_group_that_is_moved_back_over_replies_repeats_nothing(lab: Lab):
    running = await lab.worker()
    await lab.history.start("pay_both", "r", "o1")
    first, _ = await sent(lab, "payments", 2)
    await reply(lab, first, error=("retryable", "BUSY", "later"))
    second = next(message for message in await sent(lab, "payments", 3) if message.attempt == 2)
    await reply(lab, second, {"id": "p1", "cents": 5})
    await running.stop()
    before = await lab.check()
    await rewind(lab.log, lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), 0))
    running = await lab.worker()
    await lab.history.start("mail", "after", "x")
    await sent(lab, "mails")
    after = await lab.check()
    assert after.runs["r"] == before.runs["r"]
    assert len([message for message in after.effects if message.run_id == "r"]) == 3
    assert skipped(running) == 3


@case(app)
async def test_any_producer_answers_with_json(lab: Lab):
    await lab.worker()
    await lab.history.start("pay", "r", "o1")
    (message,) = await sent(lab, "payments")
    fields = {"op": message.op, "effect_id": message.effect_id, "attempt": message.attempt, "epoch": message.epoch}
    place = lab.history.partition("r")
    for more, code in (
        ({"error": {"class": "fatal", "code": "X", "message": "x"}}, "REPLY_INVALID"),
        ({"value": {"id": 7}}, "REPLY_INVALID"),
        ({"value": {"id": "p1", "cents": 5}, "attempt": 7}, "STALE_REPLY"),
        ({"value": 1, "error": None, "extra": 1}, "COMMAND_INVALID"),
    ):
        data = json.dumps({"type": "reply", **fields, **more}).encode()
        offset = await send_raw(lab.log, lab.topics.commands, place, b"r", data)
        assert (await lab.history.answered(offset, "r")).code == code
    data = json.dumps({"type": "reply", **fields, "value": {"id": "p1", "cents": 5}}).encode()
    await send_raw(lab.log, lab.topics.commands, place, b"r", data)
    assert await lab.history.result("r") == ["Payment", "p1"]


@case(app)
async def test_f06_a_reply_to_a_damaged_run_waits_for_its_repair(lab: Lab):
    running = await lab.worker()
    await lab.history.start("pay_in_time", "r", 3_600)
    (message,) = await sent(lab, "payments")
    await running.stop()
    lab.damaged.add("r")
    await damage(lab, "r", "random bytes")
    running = await lab.worker()
    await lab.history.send("r", reply_to(message, {"id": "p1", "cents": 5}))
    await until(lambda: running.told.heard("dead_letter"), "the reply among the dead letters")
    client = Client(lab.log, app)
    plan = await plan_repair(client, "r")
    assert (plan.waiting, plan.risks) == (1, [])
    assert [op.kind for op in plan.state.ops.values()] == ["request"]
    assert await client.accepted(await client.repair("r", plan.request("a test", parked=False), operator="ada"))
    assert await lab.history.result("r") == "p1"
    assert len(await sent(lab, "payments")) == 1
    await client.close()


@case(app)
async def test_f06_a_request_that_a_repair_would_lose_is_told(lab: Lab):
    running = await lab.worker()
    await lab.history.start("pay_both", "r", "o1")
    _, second = await sent(lab, "payments", 2)
    await running.stop()
    lab.damaged.add("r")
    await damage(lab, "r", "a gap in seq")
    await lab.worker()
    client = Client(lab.log, app)
    plan = await plan_repair(client, "r", to=2)
    assert f"the request payments (key {second.idempotency_key}) has left, and is sent again" in plan.risks
    assert plan.request("a test", parked=False).parked
    await client.close()
