"""An app whose effects are carried out by subscribers, with another rule for the unknown in each of them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from streams import App, BatchContext, Context, EffectContext, Fail, Found, NotFound, Retry, TryAgain
from streams.runtime import crash
from tests.effects.real.buying import ask_for_stock, look_up
from tests.effects.real.notes import note

from provider_client import ProviderRefused, ProviderUnavailable  # isort: skip - `buying` knows the way to it

EFFECTS = ("holds", "keyed", "once", "rows", "odd", "odd_rows", "deadly", "ticks", "packs")
TABLE = "CREATE TABLE IF NOT EXISTS written (key TEXT, effect_id TEXT, run TEXT, value TEXT)"
"""Without any unique column: what is written twice is seen twice."""

app = App(os.environ.get("STAGE_APP", "till"))
holds, keyed, once, rows, odd, odd_rows, deadly, ticks, packs = (app.effect(name, dict, reply=str) for name in EFFECTS)
often = Retry(max_attempts=1_000, initial=0.05, max_delay=0.3)
few = Retry(max_attempts=3, initial=0.05, max_delay=0.1)
on_sqlite = os.environ.get("STAGE_LEDGER", "sqlite:").startswith("sqlite:")


def ask(ctx: EffectContext, order: str) -> str:
    """What a good subscriber makes of the provider's answers: a "no", nobody there, or nobody knows."""
    try:
        return ask_for_stock(order, ctx.idempotency_key)
    except ProviderUnavailable as error:
        raise TryAgain(str(error)) from error
    except ProviderRefused as error:
        raise Fail(error.code, error.message) from error


def find(ctx: EffectContext, payload: dict[str, Any]) -> Found[str] | NotFound:
    note(ctx, "find")
    return look_up(ctx, payload["order"])


@app.subscriber(holds, reconcile=find, retry=often, looks=often)
def hold(ctx: EffectContext, payload: dict[str, Any]) -> str:
    note(ctx, "hold")
    return ask(ctx, payload["order"])


@app.subscriber(keyed, idempotent=True, retry=often)
def hold_keyed(ctx: EffectContext, payload: dict[str, Any]) -> str:
    note(ctx, "keyed")
    return ask(ctx, payload["order"])


@app.subscriber(once, retry=often)
def hold_once(ctx: EffectContext, payload: dict[str, Any]) -> str:
    note(ctx, "once")
    return ask(ctx, payload["order"])


@app.subscriber(ticks, retry=often)
async def tick(ctx: EffectContext, payload: dict[str, Any]) -> str:
    note(ctx, "tick")
    return f"tick {payload['order']}"


# -- in the ledger's own transaction: a coroutine for PostgreSQL, a plain function for sqlite ------------------------

WRITE = "INSERT INTO written VALUES (?, ?, ?, ?)"


def row_of(ctx: EffectContext, payload: dict[str, Any]) -> tuple[str, str, str, str]:
    return ctx.idempotency_key, ctx.effect_id, ctx.run_id, payload["order"]


def rows_of(ctx: BatchContext, payloads: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [row_of(one, payload) for one, payload in zip(ctx.deliveries, payloads, strict=True)]


if on_sqlite:

    @app.subscriber(rows, transactional=True, retry=often)
    def write(ctx: EffectContext, payload: dict[str, Any]) -> str:
        note(ctx, "write")
        connection: sqlite3.Connection = ctx.connection
        connection.execute(WRITE, row_of(ctx, payload))
        return f"row of {payload['order']}"

    @app.subscriber(odd_rows, transactional=True, retry=few)
    def write_odd(ctx: EffectContext, payload: dict[str, Any]) -> Any:
        note(ctx, "write_odd")
        ctx.connection.execute(WRITE, row_of(ctx, payload))
        return strange(payload["how"], ctx)

    @app.subscriber(packs, transactional=True, many=True, retry=often)
    def pack(ctx: BatchContext, payloads: Sequence[dict[str, Any]]) -> list[str]:
        for one in ctx.deliveries:
            note(one, "pack")
        ctx.connection.executemany(WRITE, rows_of(ctx, payloads))
        crash.passing("pack.written", "packs")
        return [f"pack of {payload['order']}" for payload in payloads]

else:

    @app.subscriber(rows, transactional=True, retry=often)
    async def write(ctx: EffectContext, payload: dict[str, Any]) -> str:
        note(ctx, "write")
        await ctx.connection.execute(WRITE.replace("?", "%s"), row_of(ctx, payload))
        return f"row of {payload['order']}"

    @app.subscriber(odd_rows, transactional=True, retry=few)
    async def write_odd(ctx: EffectContext, payload: dict[str, Any]) -> Any:
        note(ctx, "write_odd")
        await ctx.connection.execute(WRITE.replace("?", "%s"), row_of(ctx, payload))
        return strange(payload["how"], ctx)

    @app.subscriber(packs, transactional=True, many=True, retry=often)
    async def pack(ctx: BatchContext, payloads: Sequence[dict[str, Any]]) -> list[str]:
        for one in ctx.deliveries:
            note(one, "pack")
        async with ctx.connection.cursor() as cursor:
            await cursor.executemany(WRITE.replace("?", "%s"), rows_of(ctx, payloads))
        crash.passing("pack.written", "packs")
        return [f"pack of {payload['order']}" for payload in payloads]


# -- handlers as they should not be ----------------------------------------------------------------------------------


def strange(how: str, ctx: EffectContext) -> Any:
    match how:
        case "fail":
            raise Fail("NO_STOCK", "there is none", {"left": 0})
        case "again":
            raise TryAgain("not yet")
        case "second time" if ctx.delivery == 1:
            raise TryAgain("not yet", after=0.1)
        case "raise":
            raise RuntimeError("it broke in the middle")
        case "a lock":
            return asyncio.Lock()
        case "large":
            return "x" * 250_000
        case "too large":
            return "x" * 300_000
    return "well"


@app.subscriber(odd, retry=few, timeout=1.0)
async def strangely(ctx: EffectContext, payload: dict[str, Any]) -> Any:
    note(ctx, "odd")
    how = payload["how"]
    if how == "hang":
        await asyncio.sleep(3_600)
    if how == "block":
        time.sleep(1.5)  # noqa: ASYNC251 - what must not be done
    return strange(how, ctx)


def never_there(ctx: EffectContext, payload: dict[str, Any]) -> NotFound:
    note(ctx, "never there")
    return NotFound()


@app.subscriber(deadly, reconcile=never_there, retry=few, looks=often)
async def die(ctx: EffectContext, payload: dict[str, Any]) -> str:
    note(ctx, "die")
    os._exit(9)


# -- workflows -------------------------------------------------------------------------------------------------------


@app.workflow(version=1)
async def buy(ctx: Context, order: str) -> list[str]:
    """One payment, one row, one tick, one end."""
    held = await ctx.request(holds, {"order": order}, idempotency_key=f"hold/{order}")
    row = await ctx.request(rows, {"order": order}, idempotency_key=f"row/{order}")
    ctx.emit(ticks, {"order": order}, idempotency_key=f"tick/{order}")
    return [held, row]


@app.workflow(version=1)
async def hurry(ctx: Context, order: str) -> str:
    """Asks again before the answer can be there."""
    return await ctx.request(holds, {"order": order}, idempotency_key=f"hold/{order}", timeout=1.0)


@app.workflow(version=1)
async def careful(ctx: Context, order: str) -> str:
    return await ctx.request(once, {"order": order}, idempotency_key=f"once/{order}")


@app.workflow(version=1)
async def shop(ctx: Context, order: str) -> list[str]:
    """All kinds at once."""
    asked = [
        ctx.request(effect, {"order": f"{effect.name}/{order}"}, idempotency_key=f"{effect.name}/{order}")
        for effect in (holds, keyed, rows)
    ]
    return list(await ctx.all(asked))
