"""The story of an order: two workers are killed, one payment is made."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from typing import Any

from streams.cli.demo.play import Ending, Play
from streams.cli.demo.stage import Child, Stage, Stuck

__all__ = ["ORDER", "RUN", "ask_provider", "provider", "tell"]

RUN = "o-1001"
SKU = "lamp"
ORDER = {
    "order_id": RUN,
    "customer": "Çaylı No 3",  # noqa: RUF001 - a name
    "currency": "EUR",
    "items": [{"sku": SKU, "quantity": 30, "unit_price": "45.00"}, {"sku": "desk", "quantity": 1, "unit_price": "180"}],
    "card": "ok",
    # The provider turns the first request away, so that a retry is part of the story too.
    "behaviour": {"operation": "confirm", "mode": "fail_before", "times": 1},
}
AFTER_PAYING = "task.returned/confirm_payment:2"  # its first attempt returns the 503


async def tell(play: Play) -> Ending:
    """Play it and say what came of it."""
    say, stage = play.narrator, play.stage
    say.title(
        "streams demo order",
        "workers are killed at the worst moments; the order is paid and shipped once, or not at all",
    )
    async with play.opened("order"):
        port = await provider(stage)
        worker = stage.worker(1, "order")
        say.step(f"The provider of stock and payments runs on port {port}; worker 1 runs the app `{play.app}`.")
        await play.start("order", RUN, ORDER)
        question = await play.asked(RUN, worker)
        say.step(
            f"Order {RUN} was started: validated, priced, stock reserved, payment intent created.",
            note="It is above the limit, so it asks a person and waits. A waiting run holds no worker.",
        )
        stage.kill(worker)
        say.kill(
            f"kill -9 {worker.pid}: worker 1 is gone.",
            note=f"Nobody is at work now. The question is in the log.{play.silence}",
        )
        approved = await play.answer(RUN, question)
        worker = await (_pay(play, port) if approved else _decline(play))
        ended = await play.ended(RUN, worker)
        say.done(f"The run is {ended['status']}: {ended['result']['status']}.")
        await play.timeline(RUN)
        return await _ending(play, port, ended, approved=approved)


async def provider(stage: Stage) -> int:
    """Start the provider of the example; give its port."""
    script = str(stage.examples / "provider.py")
    child = stage.start("provider", script, "--port", "0", "--db", str(stage.folder / "provider.db"))

    async def listening() -> int | None:
        first = child.said().partition("\n")[0]
        return int(first.rpartition(":")[2]) if first.startswith("provider listening on") else None

    port = await stage.until("the provider listens", listening, needs=child)
    stage.environment["ORDERS_PROVIDER"] = f"http://127.0.0.1:{port}"
    return port


async def _pay(play: Play, port: int) -> Child:
    say, stage = play.narrator, play.stage
    second = stage.worker(2, "order", crash_at=AFTER_PAYING)
    say.step("Worker 2 takes over and finds the answer. The provider's first reply is a 503, so it tries again.")
    await stage.until_killed(second, "between the payment and its record")
    payments = (await asyncio.to_thread(ask_provider, port, "/stats"))["payments"]
    if payments != 1:
        raise Stuck(f"worker 2 was to be killed after its payment, but the provider counts {payments}")
    say.kill(
        f"kill -9 {second.pid}: worker 2 is gone, at the worst moment.",
        note="The provider has taken the money; nothing in the log says so.",
    )
    third = stage.worker(3, "order")
    say.step("Worker 3 takes over. It does not guess: it asks the provider about the payment, and finds it.")
    return third


async def _decline(play: Play) -> Child:
    second = play.stage.worker(2, "order")
    play.narrator.step("Worker 2 takes over and finds the answer: it voids the intent and gives the stock back.")
    return second


async def _ending(play: Play, port: int, ended: dict[str, Any], *, approved: bool) -> Ending:
    stats = await asyncio.to_thread(ask_provider, port, "/stats")
    stock = await asyncio.to_thread(ask_provider, port, f"/stock/{SKU}")
    effects = await play.effects()
    play.narrator.facts(
        "what the provider counts",
        {
            "requests to pay": stats["requests"],
            "payments": stats["payments"],
            "intents voided": stats["voided"],
            "stock taken": stock["initial"] - stock["available"],
        },
    )
    play.narrator.facts(
        "what left through the log",
        {f"{play.app}.effects.shipments": "1 message" if effects == 1 else f"{effects} messages"},
    )
    facts = {
        **ended,
        "worker_kills": play.stage.kills,
        "effects": effects,
        "provider_requests": stats["requests"],
        "provider_payments": stats["payments"],
    }
    result = ended["result"] or {}
    found = {
        **facts,
        "result": result.get("status"),
        "stock taken": stock["initial"] - stock["available"],
        "requests to pay, at least": min(stats["requests"], 2),
    }
    return Ending.of(facts, _promised(approved=approved), found)


def _promised(*, approved: bool) -> dict[str, Any]:
    if approved:
        return {
            "status": "completed",
            "result": "confirmed",
            "worker_kills": 2,
            "effects": 1,
            "provider_payments": 1,
            "requests to pay, at least": 2,
            "stock taken": 30,
        }
    return {
        "status": "completed",
        "result": "rejected",
        "worker_kills": 1,
        "effects": 0,
        "provider_payments": 0,
        "provider_requests": 0,
        "stock taken": 0,
    }


def ask_provider(port: int, path: str) -> dict[str, Any]:
    """What the provider answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()
