"""The app of the simulation where there are subscribers: effects that are carried out, requests that are answered."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from streams.authoring.app import App
from streams.authoring.context import Context
from streams.authoring.subscriber import EffectContext
from streams.authoring.task import Found, NotFound, Retry, Unknown
from streams.errors import RequestFailed
from streams.testing.sim.app import app as _plain
from streams.testing.sim.app import make_app, often, parcels
from streams.testing.sim.outside import Outside
from streams.testing.sim.services import LONG_SECONDS, Services, after_work, before_work

__all__ = [
    "BLIND",
    "NOTES",
    "NOTES_TRIES",
    "PAYMENTS",
    "QUOTES",
    "ROWS",
    "TICKETS",
    "TICKETS_ATTEMPTS",
    "make_served_app",
]

PAYMENTS, BLIND, NOTES, ROWS, TICKETS, QUOTES = "payments", "blind", "notes", "rows", "tickets", "quotes"
NOTES_TRIES = 4
"""The budget of a handler that runs out of it."""
TICKETS_ATTEMPTS = 2
"""The budget of a request that runs out of it."""
_HANDLER_SECONDS = 1.0

app = copy.copy(_plain)
# Its own, or the other app would have them too.
for _name in ("_definitions", "_tasks", "_effects", "_replies", "_subscriptions", "annotations", "named_types"):
    setattr(app, _name, copy.copy(getattr(_plain, _name)))

payments = app.effect(PAYMENTS, dict, reply=str, retry=often)
blind = app.effect(BLIND, dict, reply=str)
notes = app.effect(NOTES, dict, reply=str)
rows = app.effect(ROWS, dict, reply=str)
tickets = app.effect(TICKETS, dict, reply=str, retry=Retry(max_attempts=TICKETS_ATTEMPTS, initial=0.05, max_delay=0.1))
quotes = app.effect(QUOTES, dict, reply=int, retry=often)


def make_served_app(outside: Outside) -> App:
    """The app whose tasks and handlers see this world."""
    return make_app(outside, app)


# -- handlers ----------------------------------------------------------------------------------------------------


async def find(ctx: EffectContext, payload: dict[str, Any]) -> Found[str] | NotFound | Unknown:
    services: Services = ctx.resources.services
    with services.call(payload["effect"], ctx, payload["looks"], look=True) as look:
        await services.passes("before")
        if look == "raise":
            raise ConnectionError("the provider cannot be asked")
        found = services.find(ctx.idempotency_key)
        await services.passes("after")
    if look == "unknown":
        return Unknown("the provider cannot tell yet")
    return NotFound() if found is None else Found(found)


async def _call(effect: str, ctx: EffectContext, payload: dict[str, Any]) -> str:
    """A call of a provider that does things as often as it is asked."""
    services: Services = ctx.resources.services
    with services.call(effect, ctx, payload["acts"]) as act:
        await services.passes("before")
        before_work(act)
        await asyncio.sleep(LONG_SECONDS if act == "hang" else payload["ms"] / 2000)
        found = services.do(ctx.idempotency_key, payload["amount"])
        await asyncio.sleep(LONG_SECONDS if act == "hang late" else payload["ms"] / 2000)
        await services.passes("after")
        after_work(act)
    return found


@app.subscriber(payments, reconcile=find, retry=often, looks=often, timeout=_HANDLER_SECONDS)
async def pay(ctx: EffectContext, payload: dict[str, Any]) -> str:
    return await _call(PAYMENTS, ctx, payload)


@app.subscriber(tickets, reconcile=find, retry=often, looks=often, timeout=_HANDLER_SECONDS)
async def issue(ctx: EffectContext, payload: dict[str, Any]) -> str:
    return await _call(TICKETS, ctx, payload)


@app.subscriber(blind, retry=often, timeout=_HANDLER_SECONDS)
async def do_blindly(ctx: EffectContext, payload: dict[str, Any]) -> str:
    """Nobody can look it up, so only a person may have it done again."""
    return await _call(BLIND, ctx, payload)


@app.subscriber(notes, idempotent=True, retry=Retry(max_attempts=NOTES_TRIES, initial=0.05, max_delay=0.5))
def note(ctx: EffectContext, payload: dict[str, Any]) -> str:
    """The other side knows the key, so it may be asked as often as one likes."""
    services: Services = ctx.resources.services
    with services.call(NOTES, ctx, payload["acts"]) as act:
        before_work(act)
        found = services.do(ctx.idempotency_key, payload["amount"], once=True)
        after_work(act)
    return found


@app.subscriber(rows, transactional=True, retry=often, timeout=_HANDLER_SECONDS)
async def write(ctx: EffectContext, payload: dict[str, Any]) -> str:
    """A row for each key, in the transaction of the ledger."""
    services: Services = ctx.resources.services
    key = ctx.idempotency_key
    with services.call(ROWS, ctx, payload["acts"]) as act:
        table = ctx.connection
        table[key] = table.get(key, 0) + 1
        before_work(act)
        after_work(act)
    return f"row {key}"


# -- workflows ---------------------------------------------------------------------------------------------------


@app.workflow(version=1)
async def asked(ctx: Context, input: dict[str, Any]) -> str:
    """A request whose answer decides what is emitted."""
    found: str = await ctx.request(payments, input["payload"], idempotency_key=input["key"])
    ctx.emit(parcels, {"run": ctx.run_id, "key": input["key"]})
    return found


@app.workflow(version=1)
async def impatient(ctx: Context, input: dict[str, Any]) -> str:
    """It asks again and again, under one key."""
    found: str = await ctx.request(payments, input["payload"], idempotency_key=input["key"], timeout=input["timeout"])
    return found


@app.workflow(version=1)
async def ticket(ctx: Context, input: dict[str, Any]) -> list[str]:
    """It asks a few times and then goes on without an answer."""
    try:
        found = await ctx.request(tickets, input["payload"], idempotency_key=input["key"], timeout=input["timeout"])
    except RequestFailed as error:
        ctx.emit(parcels, {"run": ctx.run_id, "failed": error.code})
        return ["failed", error.kind, error.code]
    return ["done", found]


@app.workflow(version=1)
async def both(ctx: Context, input: dict[str, Any]) -> list[str]:
    """Two at once; one of them is written into the ledger's own database."""
    left = ctx.request(payments, input["payload"], idempotency_key=input["key"])
    right = ctx.request(rows, input["row"], idempotency_key=f"row/{input['key']}")
    return list(await ctx.all(left, right))


@app.workflow(version=1)
async def either(ctx: Context, input: dict[str, Any]) -> list[Any]:
    """An answer in time, or none."""
    request = ctx.request(payments, input["payload"], idempotency_key=input["key"])
    won = await ctx.first([request, ctx.sleep(input["seconds"])])
    ctx.emit(parcels, {"run": ctx.run_id, "winner": won.index})
    return [won.index, won.value]


@app.workflow(version=1)
async def withdrawn(ctx: Context, input: dict[str, Any]) -> str:
    """It is cancelled while it waits for its answer."""
    found: str = await ctx.request(payments, input["payload"], idempotency_key=input["key"])
    await ctx.sleep(100_000)
    return found


@app.workflow(version=1)
async def refused(ctx: Context, input: dict[str, Any]) -> list[str]:
    """The provider says no."""
    try:
        found = await ctx.request(payments, input["payload"], idempotency_key=input["key"])
    except RequestFailed as error:
        return ["failed", error.kind, error.code]
    return ["done", found]


@app.workflow(version=1)
async def unseen(ctx: Context, input: dict[str, Any]) -> str:
    """A person may have to find out."""
    found: str = await ctx.request(blind, input["payload"], idempotency_key=input["key"])
    return found


@app.workflow(version=1)
async def quoted(ctx: Context, input: dict[str, Any]) -> list[int]:
    """Answered by a service in another language, one question after another."""
    found = []
    for number in range(input["questions"]):
        payload = {"run": ctx.run_id, "number": number, "acts": input["acts"][number]}
        found.append(await ctx.request(quotes, payload, timeout=input["timeout"]))
    return found


@app.workflow(version=1)
async def told(ctx: Context, input: dict[str, Any]) -> int:
    """It tells and goes on."""
    for number, payload in enumerate(input["payloads"]):
        ctx.emit(notes, payload, idempotency_key=f"{input['key']}/{number}")
    return len(input["payloads"])


@app.workflow(version=1)
async def booked(ctx: Context, input: dict[str, Any]) -> int:
    """Rows, and what is known by no key: each message has its own."""
    for payload in input["payloads"]:
        ctx.emit(rows, payload)
        await ctx.sleep(0.01)
    return len(input["payloads"])


@app.workflow(version=1)
async def clash(ctx: Context, input: dict[str, Any]) -> int:
    """One key for two things, and for one of them twice: done once, refused once."""
    for payload in (input["payload"], input["payload"], {**input["payload"], "amount": -1}):
        ctx.emit(payments, payload, idempotency_key=input["key"])
    return 3
