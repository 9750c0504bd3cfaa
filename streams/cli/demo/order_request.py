"""The story of an order that is paid by a subscriber: it is killed before and after the payment, and pays once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from streams.cli.demo.order import ORDER, RUN, ask_provider, provider
from streams.cli.demo.play import Ending, Play
from streams.cli.demo.stage import Child, Stuck
from streams.cli.terminal import text_of

__all__ = ["tell"]

EXAMPLE = "order_request"
EFFECT = "payments"
BEFORE_THE_CALL = f"effect.claimed/{EFFECT}"
# The provider turns the first request away, so the first call returns its 503. The second one pays.
AFTER_PAYING = f"effect.called/{EFFECT}:2"


async def tell(play: Play) -> Ending:
    """Play it and say what came of it."""
    say, stage = play.narrator, play.stage
    await play.prepare_ledger()
    say.title(
        "streams demo order --via subscriber",
        "the worker asks, a subscriber pays; both are killed at the worst moments, and the order is paid once",
    )
    async with play.opened(EXAMPLE):
        port = await provider(stage)
        worker = stage.worker(1, EXAMPLE)
        say.step(f"The provider of payments runs on port {port}; worker 1 runs the app `{play.app}`.")
        await play.start("order", RUN, ORDER)
        asked = await play.asked(RUN, worker)
        say.step(f"Order {RUN} was started. It is above the limit, so it asks a person and waits.")
        stage.kill(worker)
        say.kill(
            f"kill -9 {worker.pid}: worker 1 is gone.",
            note=f"Nobody is at work now. The question is in the log.{play.silence}",
        )
        approved = await play.answer(RUN, asked)
        worker = stage.worker(2, EXAMPLE)
        if approved:
            await _pay(play, port)
        else:
            say.step("Worker 2 takes over and finds the answer: nothing is asked for.")
        ended = await play.ended(RUN, worker)
        say.done(f"The run is {ended['status']}: {ended['result']['status']}.")
        await play.timeline(RUN)
        return await _ending(play, port, ended, approved=approved)


async def _pay(play: Play, port: int) -> Child:
    say, stage = play.narrator, play.stage
    say.step(
        "Worker 2 takes over, finds the answer, and asks for the payment: a message on "
        f"{play.app}.effects.{EFFECT}, committed with the state that waits for its reply.",
        note="No subscriber runs yet. The request waits in the log.",
    )
    first = stage.subscriber(1, EXAMPLE, crash_at=BEFORE_THE_CALL)
    await stage.until_killed(first, "between its claim and its call")
    await _counts(port, 0, "subscriber 1 was to be killed before its call")
    say.kill(
        f"kill -9 {first.pid}: subscriber 1 is gone, after its claim and before its call.",
        note=f"Its ledger says: claimed. Nobody but the provider knows that nothing was paid.{play.silence}",
    )
    second = stage.subscriber(2, EXAMPLE, crash_at=AFTER_PAYING)
    say.step(
        "Subscriber 2 finds the claim of a dead one. It does not guess: it looks the payment up, and there is none.",
        note="So it pays. The first answer is a 503, which proves nothing: it looks again, and pays again.",
    )
    await stage.until_killed(second, "between the payment and its note in the ledger")
    await _counts(port, 1, "subscriber 2 was to be killed after its payment")
    say.kill(
        f"kill -9 {second.pid}: subscriber 2 is gone, at the worst moment.",
        note=f"The provider has taken the money; neither the ledger nor the log says so.{play.silence}",
    )
    third = stage.subscriber(3, EXAMPLE)
    say.step("Subscriber 3 takes over, looks the payment up, finds it, notes it, and replies to the run.")
    return third


async def _counts(port: int, payments: int, what: str) -> None:
    found = (await asyncio.to_thread(ask_provider, port, "/stats"))["payments"]
    if found != payments:
        raise Stuck(f"{what}, but the provider counts {found} payments")


async def _ending(play: Play, port: int, ended: dict[str, Any], *, approved: bool) -> Ending:
    stats = await asyncio.to_thread(ask_provider, port, "/stats")
    effects = await play.effects()
    entry = await play.ledger_entry(EFFECT, f"order/{RUN}/pay")
    counted = {"requests to pay": stats["requests"], "payments": stats["payments"]}
    play.narrator.facts("what the provider counts", counted)
    if entry is not None:
        shown = ("status", "deliveries", "looks", "response")
        play.narrator.facts("what the ledger knows of the payment", {name: text_of(entry[name]) for name in shown})
    facts = {
        **ended,
        "worker_kills": play.stage.kills,
        "subscriber_kills": play.stage.subscriber_kills,
        "effects": effects,
        "provider_requests": stats["requests"],
        "provider_payments": stats["payments"],
    }
    found = {
        **facts,
        "result": (ended["result"] or {}).get("status"),
        "ledger": None if entry is None else entry["status"],
        "requests to pay, at least": min(stats["requests"], 2),
    }
    return Ending.of(facts, _promised(approved=approved), found)


def _promised(*, approved: bool) -> Mapping[str, Any]:
    if approved:
        return {
            "status": "completed",
            "result": "confirmed",
            "worker_kills": 1,
            "subscriber_kills": 2,
            "effects": 2,  # the request and the shipment
            "provider_payments": 1,
            "requests to pay, at least": 2,
            "ledger": "done",
        }
    return {
        "status": "completed",
        "result": "rejected",
        "worker_kills": 1,
        "subscriber_kills": 0,
        "effects": 0,
        "provider_payments": 0,
        "provider_requests": 0,
        "ledger": None,
    }
