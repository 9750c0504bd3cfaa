"""The app that the tests of ownership and commits run: short steps with effects, questions, tasks that are held."""

from __future__ import annotations

import asyncio
from typing import Any

from streams import App, Context, Retry, TaskContext

__all__ = ["Gate", "app", "gate"]

app = App("owned")
parcels = app.effect("parcels", str)
letters = app.effect("letters", str)


class Gate:
    """Holds tasks, and knows which of their attempts have begun."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.open = asyncio.Event()
        self.begun: list[tuple[str, int, int]] = []
        self.stopped: list[str] = []


gate = Gate()


@app.task
async def add(ctx: TaskContext, number: int) -> int:
    return number + 1


@app.task(retry=Retry(max_attempts=9, initial=0.01), timeout=300)
async def held(ctx: TaskContext) -> int:
    """Runs until the gate opens; returns its epoch, which is the owner's."""
    gate.begun.append((ctx.run_id, ctx.fencing_token.epoch, ctx.fencing_token.attempt))
    try:
        await gate.open.wait()
    except asyncio.CancelledError:
        gate.stopped.append(ctx.run_id)
        raise
    return ctx.fencing_token.epoch


@app.workflow(version=1)
async def steps(ctx: Context, number: int) -> int:
    for _ in range(3):
        number = await ctx.run(add, number)
        ctx.emit(parcels, f"{ctx.run_id}/{number}")
    return number


@app.workflow(version=1)
async def asks(ctx: Context, _: Any) -> str:
    return await ctx.interrupt("?", answer=str)


@app.workflow(version=1)
async def waits(ctx: Context, _: Any) -> int:
    return await ctx.run(held)


@app.workflow(version=1)
async def sleeps(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


@app.workflow(version=1)
async def writes(ctx: Context, size: int) -> str:
    """Two effects with one step, the second of a chosen size."""
    await ctx.run(add, size)
    ctx.emit(letters, "small")
    ctx.emit(parcels, "x" * size)
    return await ctx.interrupt("?", answer=str)


@app.workflow(version=1)
async def keeps(ctx: Context, size: int) -> str:
    """Keeps a value of a chosen size in its state."""
    await ctx.run(make, size)
    return await ctx.interrupt("?", answer=str)


@app.task
async def make(ctx: TaskContext, size: int) -> str:
    return "y" * size
