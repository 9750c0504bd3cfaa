"""The jobs as an app of `streams`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from bench.jobs import FAN, SLOW_SECONDS, page, step_result
from streams import App, Context, Node, TaskContext

__all__ = ["Turns", "app", "approval", "fan_out", "loop", "order", "order_pure", "slow", "waiting"]

app = App(os.environ.get("STREAMS_BENCH_APP", "bench"))


@app.task(pure=True)
async def reserve(ctx: TaskContext, order_id: str) -> dict[str, Any]:
    del ctx
    return step_result("reserve", order_id)


@app.task(pure=True)
async def charge(ctx: TaskContext, order_id: str) -> dict[str, Any]:
    del ctx
    return step_result("charge", order_id)


@app.task(pure=True)
async def ship(ctx: TaskContext, order_id: str) -> dict[str, Any]:
    del ctx
    return step_result("ship", order_id)


@app.workflow(version=1)
async def order(ctx: Context, order_id: str) -> dict[str, Any]:
    reserved = await ctx.run(reserve, order_id)
    charged = await ctx.run(charge, order_id)
    shipped = await ctx.run(ship, order_id)
    return {"reserve": reserved, "charge": charged, "ship": shipped}


@app.task
async def charge_slowly(ctx: TaskContext, order_id: str) -> dict[str, Any]:
    del ctx
    await asyncio.sleep(SLOW_SECONDS)
    return step_result("charge", order_id)


@app.workflow(version=1)
async def slow(ctx: Context, order_id: str) -> dict[str, Any]:
    reserved = await ctx.run(reserve, order_id)
    charged = await ctx.run(charge_slowly, order_id)
    shipped = await ctx.run(ship, order_id)
    return {"reserve": reserved, "charge": charged, "ship": shipped}


@app.workflow(version=1, durability="pipelined")
async def order_pure(ctx: Context, order_id: str) -> dict[str, Any]:
    """The same steps; they run beside the commits of those before, since they only compute."""
    reserved = await ctx.run(reserve, order_id)
    charged = await ctx.run(charge, order_id)
    shipped = await ctx.run(ship, order_id)
    return {"reserve": reserved, "charge": charged, "ship": shipped}


@app.workflow(version=1)
async def approval(ctx: Context, order_id: str) -> dict[str, Any]:
    reserved = await ctx.run(reserve, order_id)
    charged = await ctx.run(charge, order_id)
    if not await ctx.interrupt({"question": "Ship?"}, answer=bool):
        return {"reserve": reserved, "charge": charged}
    shipped = await ctx.run(ship, order_id)
    return {"reserve": reserved, "charge": charged, "ship": shipped}


@app.workflow(version=1)
async def waiting(ctx: Context, state: dict[str, Any]) -> bool:
    del state
    return await ctx.interrupt({"question": "Ship?"}, answer=bool)


@app.workflow(name="fan-out", version=1)
async def fan_out(ctx: Context, order_id: str) -> int:
    done = await ctx.all([ctx.run(reserve, f"{order_id}/{number}") for number in range(FAN)])
    return len(done)


@dataclass(frozen=True)
class Turns:
    """The state of the loop. A run's state is bounded, so a turn replaces the page of the one before."""

    last: int
    turn: int = 0
    text: str = ""


loop = app.graph("loop", state=Turns, version=1)


@loop.node
async def take_turn(ctx: TaskContext, state: Turns) -> dict[str, Any]:
    del ctx
    return {"turn": state.turn + 1, "text": page(state.turn + 1)}


@loop.flow
async def ask(ctx: Context, state: Turns) -> dict[str, Any]:
    del state
    await ctx.interrupt("Go on?", answer=bool)
    return {}


def again(state: Turns) -> Node[Turns, Turns] | None:
    return take_turn if state.turn < state.last else None


loop.edge(take_turn, ask)
loop.route(ask, again)
