"""An app whose tasks hold stock at the provider, each with another answer to what nobody knows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from streams import App, Context, Found, NotFound, Retry, TaskContext, Unknown

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from provider_client import ProviderError, ProviderRefused, get, post

app = App(os.environ.get("STAGE_APP", "buying"))
soon = Retry(max_attempts=4, initial=0.05, max_delay=0.2)


def ask_for_stock(order: str, key: str) -> str:
    answer = post("/reservations", {"order_id": order, "sku": "lamp", "quantity": 1}, key=key)
    return str(answer["reservation_id"])


def look_up(ctx: Any, order: str) -> Found[str] | NotFound:
    """What the provider says of the key. Where it does not answer this raises, and nothing is known."""
    try:
        found = get("/operations/" + quote(ctx.idempotency_key, safe=""))
    except ProviderRefused:
        return NotFound()
    return Found(str(found["response"]["reservation_id"]))


def no_idea(ctx: TaskContext, order: str) -> Found[str] | NotFound | Unknown:
    try:
        get("/health")
    except ProviderError:
        return Unknown("the provider is away")
    return Unknown("the provider keeps no list")


@app.task(key=lambda order: f"hold/{order}", reconcile=look_up, retry=soon)
def hold(ctx: TaskContext, order: str) -> str:
    """Looked up under its key."""
    return ask_for_stock(order, ctx.idempotency_key)


@app.task(
    key=lambda order: f"guess/{order}", reconcile=no_idea, retry=Retry(max_attempts=2, initial=0.05, max_delay=0.1)
)
def hold_blind(ctx: TaskContext, order: str) -> str:
    """Its look-up never knows."""
    return ask_for_stock(order, ctx.idempotency_key)


@app.task(key=lambda order: f"key/{order}", retry=soon)
def hold_keyed(ctx: TaskContext, order: str) -> str:
    """No look-up: the provider knows the key."""
    return ask_for_stock(order, ctx.idempotency_key)


@app.task(key=lambda order: f"once/{order}", idempotent=False, retry=soon)
def hold_once(ctx: TaskContext, order: str) -> str:
    """Never twice by itself."""
    return ask_for_stock(order, ctx.idempotency_key)


@app.workflow(version=1)
async def looked_up(ctx: Context, order: str) -> str:
    return await ctx.run(hold, order)


@app.workflow(version=1)
async def blind(ctx: Context, order: str) -> str:
    return await ctx.run(hold_blind, order)


@app.workflow(version=1)
async def keyed(ctx: Context, order: str) -> str:
    return await ctx.run(hold_keyed, order)


@app.workflow(version=1)
async def once(ctx: Context, order: str) -> str:
    return await ctx.run(hold_once, order)
