"""The workflows of the growth curves: each grows in one thing alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from bench.jobs import step_result
from streams import App, Context, Node, TaskContext

__all__ = ["Carried", "Paged", "app", "carry", "many_steps", "order", "page_loop", "waiting"]

app = App(os.environ.get("STREAMS_BENCH_APP", "growth"))


@app.task
async def step(ctx: TaskContext, number: int) -> dict[str, Any]:
    del ctx
    return step_result("step", f"order-{number}")


@app.workflow(version=1)
async def order(ctx: Context, order_id: str) -> dict[str, Any]:
    """Three steps, as the other scenarios have them."""
    del order_id
    return {name: await ctx.run(step, number) for number, name in enumerate(("reserve", "charge", "ship"))}


@app.workflow(version=1)
async def waiting(ctx: Context, state: dict[str, Any]) -> bool:
    del state
    return await ctx.interrupt({"question": "Ship?"}, answer=bool)


@app.workflow(name="many-steps", version=1)
async def many_steps(ctx: Context, steps: int) -> int:
    """One coroutine that has so many steps behind it in the end."""
    for number in range(steps):
        await ctx.run(step, number)
    return steps


@dataclass(frozen=True)
class Carried:
    """A state of which most never changes. Half of it comes with the input: no single value may take 256 KB."""

    last: int
    half: int = 0
    turn: int = 0
    text: str = ""
    more: str = ""


carry = app.graph("carry", state=Carried, version=1)


@carry.node
async def take_carried(ctx: TaskContext, state: Carried) -> dict[str, Any]:
    del ctx
    if state.turn == 0:
        return {"turn": 1, "more": "x" * state.half}
    if state.turn == state.last - 1:
        return {"turn": state.last, "more": ""}  # a result, too, is a value of at most 256 KB
    return {"turn": state.turn + 1}


def carried_again(state: Carried) -> Node[Carried, Carried] | None:
    return take_carried if state.turn < state.last else None


carry.route(take_carried, carried_again)


@dataclass(frozen=True)
class Paged:
    """A state of which a page of 1 KB is replaced in each turn."""

    last: int
    turn: int = 0
    text: str = ""


page_loop = app.graph("page-loop", state=Paged, version=1)


@page_loop.node
async def take_page(ctx: TaskContext, state: Paged) -> dict[str, Any]:
    del ctx
    return {"turn": state.turn + 1, "text": f"turn {state.turn} ".ljust(1024, ".")}


def paged_again(state: Paged) -> Node[Paged, Paged] | None:
    return take_page if state.turn < state.last else None


page_loop.route(take_page, paged_again)
