"""Every way in which a handler can end, and what the run, the ledger and the dead letters see of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from streams import App, EffectContext, Fail, Found, NotFound, Retry, TryAgain, Unknown
from streams.effects.port import Status
from tests.effects.lab import Lab, virtual


@dataclass
class Charge:
    order: str
    amount: int


@dataclass
class Payment:
    id: str


class Provider:
    """The outside world: what the handlers were told, and what they are to do."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.looks: list[str] = []
        self.contexts: list[EffectContext] = []
        self.does: Any = lambda ctx, charge: Payment(charge.order)
        self.finds: Any = lambda ctx, charge: NotFound()


def shop(**options: Any) -> Any:
    def make() -> App:
        app = App("shop")
        app.provider = provider = Provider()
        charges = app.effect("charges", Charge, reply=Payment)
        app.types(Payment)

        async def find(ctx: EffectContext, charge: Charge) -> Found[Payment] | NotFound | Unknown:
            provider.looks.append(charge.order)
            return provider.finds(ctx, charge)

        chosen = {"retry": Retry(max_attempts=3, initial=1.0), "timeout": 5, **options}
        if chosen.pop("reconciled", False):
            chosen["reconcile"] = find

        @app.subscriber(charges, **chosen)
        async def pay(ctx: EffectContext, charge: Charge) -> Payment:
            provider.calls.append((charge.order, ctx.delivery))
            provider.contexts.append(ctx)
            done = provider.does(ctx, charge)
            return await done if asyncio.iscoroutine(done) else done

        return app

    return make


@virtual(shop())
async def test_done_is_replied_to_and_noted(lab: Lab) -> None:
    sent = await lab.send("charges", Charge("o1", 5), run="r1", attempt=1, epoch=7, headers=(("trace", b"t1"),))
    running = lab.subscriber()
    await lab.finished("charges")
    await running.stop()
    (reply,) = await lab.replies()
    assert (reply.op, reply.effect_id, reply.attempt, reply.epoch) == ("charges.1", sent.effect_id, 1, 7)
    assert lab.codec.decode(reply.value) == Payment("o1")
    assert reply.error is None
    (command,) = await lab.commands()
    assert command.run_id == "r1"
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.deliveries, entry.published, entry.run_id) == (Status.DONE, 1, True, "r1")
    (ctx,) = lab.app.provider.contexts
    assert (ctx.effect_id, ctx.idempotency_key, ctx.run_id) == (sent.effect_id, sent.key, "r1")
    assert (ctx.fencing_token, ctx.attempt, ctx.delivery, ctx.workflow) == ((7, 1), 1, 1, "w")
    assert ctx.headers["trace"] == "t1"
    assert ctx.at.timestamp() == lab.clock.now_us() // 10**6 or ctx.at.tzinfo is not None
    assert running.told.heard("effect_done", "charges", sent.effect_id, "r1", 1)
    assert not await lab.letters("charges")


@virtual(shop())
async def test_an_emitted_effect_has_no_reply(lab: Lab) -> None:
    sent = await lab.send("charges", Charge("o1", 5))
    lab.subscriber()
    await lab.finished("charges")
    assert not await lab.commands()
    assert (await lab.entry("charges", sent.key)).status is Status.DONE


@virtual(shop())
async def test_fail_is_given_up_at_once(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise Fail("NO_FUNDS", "the card is empty", {"card": 1})

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    running = lab.subscriber()
    await lab.finished("charges")
    (reply,) = await lab.replies()
    assert reply.error == ("terminal", "NO_FUNDS", "the card is empty")
    (letter,) = await lab.letters("charges")
    assert (letter.code, letter.offset, letter.topic) == ("NO_FUNDS", sent.offset, lab.topics.effect("charges"))
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.due) == (Status.FAILED, None)
    assert running.told.heard("effect_refused", "charges", sent.effect_id, "r1", "NO_FUNDS")
    assert lab.app.provider.calls == [("o1", 1)]


@virtual(shop(retry=Retry(terminal=(PermissionError,))))
async def test_a_terminal_exception_says_the_same_as_fail(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise PermissionError("not allowed")

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    lab.subscriber()
    await lab.finished("charges")
    assert (await lab.replies())[0].error == ("terminal", "PermissionError", "not allowed")
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.due, entry.deliveries) == (Status.FAILED, None, 1)


@virtual(shop())
async def test_try_again_uses_up_the_retries(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise TryAgain("busy")

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    running = lab.subscriber()
    await lab.finished("charges")
    assert lab.app.provider.calls == [("o1", 1), ("o1", 2), ("o1", 3)]
    (reply,) = await lab.replies()
    kind, code, message = reply.error
    assert (kind, code) == ("terminal", "RETRIES_EXHAUSTED")
    assert "3 tries" in message
    assert "busy" in message
    (letter,) = await lab.letters("charges")
    assert letter.code == "RETRIES_EXHAUSTED"
    failed = running.told.heard("effect_failed", "charges", sent.effect_id)
    assert [what[4] for what in failed] == [1, 2]
    assert 0.5 <= failed[0][7] <= 1.0 <= failed[1][7] <= 2.0


@virtual(shop())
async def test_try_again_may_say_when(lab: Lab) -> None:
    times = []

    def does(ctx: EffectContext, charge: Charge) -> Payment:
        times.append(asyncio.get_running_loop().time())
        if ctx.delivery == 1:
            raise TryAgain("busy", after=40)
        if ctx.delivery == 2:
            raise TryAgain("nonsense", after=float("nan"))
        return Payment("p")

    lab.app.provider.does = does
    await lab.send("charges", Charge("o1", 5), attempt=1)
    lab.subscriber()
    await lab.finished("charges")
    assert 39.9 < times[1] - times[0] < 41
    assert times[2] - times[1] < 2.1
    assert (await lab.replies())[0].error is None


@virtual(shop(retry=Retry(max_attempts=2, initial=0.1, on_exhausted="park")))
async def test_used_up_retries_may_park(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise TryAgain("busy")

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    lab.subscriber()
    await lab.finished("charges")
    assert (await lab.entry("charges", sent.key)).status is Status.PARKED
    assert not await lab.replies()
    assert [letter.code for letter in await lab.letters("charges")] == ["RETRIES_EXHAUSTED"]


@virtual(shop())
async def test_what_may_have_happened_is_parked_without_a_look_up(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise ConnectionError("reset by peer")

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    running = lab.subscriber()
    await lab.finished("charges")
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.error.code, entry.error.kind) == (Status.PARKED, "OUTCOME_UNKNOWN", "unknown")
    assert "ConnectionError: reset by peer" in entry.error.message
    assert not await lab.replies()
    assert [letter.code for letter in await lab.letters("charges")] == ["OUTCOME_UNKNOWN"]
    assert running.told.heard("effect_parked", "charges", sent.effect_id, "r1", "OUTCOME_UNKNOWN")
    assert lab.app.provider.calls == [("o1", 1)]


@virtual(shop(idempotent=True))
async def test_what_may_have_happened_is_repeated_under_its_key_where_that_is_safe(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        if ctx.delivery < 3:
            raise ConnectionError("reset by peer")
        return Payment(ctx.idempotency_key)

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), key="pay/o1", attempt=1)
    lab.subscriber()
    await lab.finished("charges")
    assert lab.app.provider.calls == [("o1", 1), ("o1", 2), ("o1", 3)]
    assert {ctx.idempotency_key for ctx in lab.app.provider.contexts} == {"pay/o1"}
    assert lab.codec.decode((await lab.replies())[0].value) == Payment(sent.key)


@virtual(shop(reconciled=True))
async def test_found_is_used(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise ConnectionError("reset by peer")

    lab.app.provider.does = does
    lab.app.provider.finds = lambda ctx, charge: Found(Payment("there"))
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    lab.subscriber()
    await lab.finished("charges")
    assert lab.codec.decode((await lab.replies())[0].value) == Payment("there")
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.deliveries) == (Status.DONE, 1)
    assert (len(lab.app.provider.calls), len(lab.app.provider.looks)) == (1, 1)


@virtual(shop(reconciled=True))
async def test_not_found_is_carried_out_and_counted(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise ConnectionError("reset by peer")

    lab.app.provider.does = does
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    lab.subscriber()
    await lab.finished("charges")
    assert lab.app.provider.calls == [("o1", 1), ("o1", 2), ("o1", 3)]
    assert len(lab.app.provider.looks) == 3
    assert (await lab.replies())[0].error[1] == "RETRIES_EXHAUSTED"
    assert (await lab.entry("charges", sent.key)).status is Status.FAILED


@virtual(shop(reconciled=True, looks=Retry(max_attempts=4, initial=1)))
async def test_a_look_up_that_cannot_tell_is_asked_again_and_then_a_person(lab: Lab) -> None:
    def does(ctx: EffectContext, charge: Charge) -> Payment:
        raise ConnectionError("reset by peer")

    def finds(ctx: EffectContext, charge: Charge) -> Any:
        if len(lab.app.provider.looks) == 1:
            raise OSError("no route")
        return Unknown("the provider is slow") if len(lab.app.provider.looks) < 4 else None

    lab.app.provider.does, lab.app.provider.finds = does, finds
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    running = lab.subscriber()
    await lab.finished("charges")
    assert len(lab.app.provider.looks) == 4
    assert len(lab.app.provider.calls) == 1
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.error.code) == (Status.PARKED, "OUTCOME_UNKNOWN")
    assert "it returned NoneType" in entry.error.message
    codes = [what[5] for what in running.told.heard("effect_failed")]
    assert codes == ["ConnectionError", "RECONCILE_FAILED", "OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"]


@virtual(shop())
async def test_a_result_that_cannot_be_stored_is_parked_for_the_work_is_done(lab: Lab) -> None:
    lab.app.provider.does = lambda ctx, charge: object() if charge.order == "o1" else "x" * 300_000
    one = await lab.send("charges", Charge("o1", 5), attempt=1)
    two = await lab.send("charges", Charge("o2", 5), attempt=1, run="r2")
    lab.subscriber()
    await lab.finished("charges")
    found = [await lab.entry("charges", sent.key) for sent in (one, two)]
    assert [(entry.status, entry.error.code) for entry in found] == [
        (Status.PARKED, "VALUE_NOT_STORABLE"),
        (Status.PARKED, "VALUE_TOO_LARGE"),
    ]
    assert {letter.code for letter in await lab.letters("charges")} == {"VALUE_NOT_STORABLE", "VALUE_TOO_LARGE"}
    assert not await lab.replies()


@virtual(shop())
async def test_a_result_that_is_no_reply_of_the_effect_is_parked_and_plain_json_becomes_one(lab: Lab) -> None:
    results = {"wrong": "text", "none": None, "plain": {"id": "p"}, "nobody": "text"}
    lab.app.provider.does = lambda ctx, charge: results[charge.order]
    sent = {
        order: await lab.send("charges", Charge(order, 5), run=order, attempt=0 if order == "nobody" else 1)
        for order in results
    }
    lab.subscriber()
    await lab.finished("charges")
    found = {order: await lab.entry("charges", sent[order].key) for order in results}
    assert {order: entry.status for order, entry in found.items()} == {
        "wrong": Status.PARKED,
        "none": Status.PARKED,
        "plain": Status.DONE,
        "nobody": Status.DONE,
    }
    assert {found[order].error.code for order in ("wrong", "none")} == {"REPLY_INVALID"}
    (reply,) = await lab.replies()
    assert lab.codec.decode(reply.value) == Payment("p")


@virtual(shop(timeout=3))
async def test_a_handler_that_hangs_is_cancelled_and_may_have_done_it(lab: Lab) -> None:
    lab.app.provider.does = lambda ctx, charge: asyncio.sleep(1_000)
    sent = await lab.send("charges", Charge("o1", 5))
    lab.subscriber()
    await lab.finished("charges")
    entry = await lab.entry("charges", sent.key)
    assert (entry.status, entry.error.code) == (Status.PARKED, "OUTCOME_UNKNOWN")
    assert "HANDLER_TIMED_OUT: it took longer than 3 s" in entry.error.message
    assert lab.app.provider.contexts[0].cancelled


@virtual(shop(timeout=3))
async def test_a_handler_that_ignores_its_end_keeps_its_claim_and_its_outcome_counts(lab: Lab) -> None:
    async def stubborn() -> Payment:
        for _ in range(100):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue
        return Payment("late")

    lab.app.provider.does = lambda ctx, charge: stubborn()
    sent = await lab.send("charges", Charge("o1", 5), attempt=1)
    lab.subscriber()
    await asyncio.sleep(80)
    entry = await lab.entry("charges", sent.key)
    assert entry.status is Status.CLAIMED
    assert entry.lease_until > lab.clock.now_us()
    await lab.finished("charges")
    assert lab.codec.decode((await lab.replies())[0].value) == Payment("late")
    assert len(lab.app.provider.calls) == 1
