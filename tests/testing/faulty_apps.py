"""Apps with a fault each that only a crash brings to light, or that shows by luck alone without one."""

from __future__ import annotations

import asyncio
import random
import time
from uuid import uuid4

from streams import App, Context, Found, NotFound, Retry, TaskContext
from streams.testing import Scenario

app = App("faulty")
mails = app.effect("mails", str)


class Provider:
    """Pays once a key, and sends whatever it is asked to."""

    def __init__(self) -> None:
        self.payments: dict[str, int] = {}
        self.mails: list[str] = []


@app.task
async def step(ctx: TaskContext, value: float) -> float:
    return value


@app.workflow(version=1)
async def by_chance(ctx: Context, _: None) -> float:
    """Draws lots outside of `ctx.random`."""
    lot = random.random()
    await ctx.run(step, 1.0)
    return await ctx.run(step, lot)


@app.workflow(version=1)
async def by_lot(ctx: Context, _: None) -> float:
    """Goes one of two ways by a lot; the next lot of the same source would go the same way."""
    await ctx.run(step, 1.0)
    if random.random() < 0.5:
        await ctx.sleep(1)
    return await ctx.run(step, 2.0)


@app.workflow(version=1)
async def by_the_clock(ctx: Context, _: None) -> float:
    """Looks at the machine's clock."""
    at = time.perf_counter()
    await ctx.sleep(3_600)
    return await ctx.run(step, at)


outside: list[str] = []


@app.workflow(version=1)
async def posting(ctx: Context, _: None) -> None:
    """Touches the world in workflow code."""
    outside.append("a mail")
    await ctx.sleep(60)
    await ctx.run(step, 1.0)


@app.task
async def send(ctx: TaskContext, text: str) -> None:
    ctx.resources.mails.append(text)
    await asyncio.sleep(1)


@app.workflow(version=1)
async def telling(ctx: Context, _: None) -> None:
    """Sends in a task, without a key, what should leave as an effect."""
    await ctx.run(send, "it is done")


@app.task(key=lambda order: f"pay/{order}")
async def pay(ctx: TaskContext, order: str) -> str:
    """The key that it sends is another one at each attempt."""
    key = f"{ctx.idempotency_key}/{ctx.attempt}"
    ctx.resources.payments[key] = 1
    await asyncio.sleep(1)
    return "paid"


@app.workflow(version=1)
async def paying(ctx: Context, order: str) -> str:
    return await ctx.run(pay, order)


@app.task(key=lambda order: f"pay/{order}/{uuid4()}")
async def pay_somehow(ctx: TaskContext, order: str) -> str:
    ctx.resources.payments[ctx.idempotency_key] = 1
    return "paid"


@app.workflow(version=1)
async def paying_somehow(ctx: Context, order: str) -> str:
    """The key of its op is made of chance."""
    return await ctx.run(pay_somehow, order)


def never_found(ctx: TaskContext, order: str) -> Found[str] | NotFound:
    return NotFound()


@app.task(key=lambda order: f"pay/{order}", reconcile=never_found, idempotent=False)
async def pay_blindly(ctx: TaskContext, order: str) -> str:
    ctx.resources.payments[f"{ctx.idempotency_key}/{len(ctx.resources.payments)}"] = 1
    return "paid"


@app.workflow(version=1)
async def looking(ctx: Context, order: str) -> str:
    """Its look-up looks in the wrong place."""
    return await ctx.run(pay_blindly, order)


@app.task(retry=Retry(max_attempts=1))
async def frail(ctx: TaskContext, value: int) -> int:
    return value


@app.workflow(version=1)
async def hasty(ctx: Context, value: int) -> int:
    """A worker that dies uses up its only attempt."""
    return await ctx.run(frail, value)


@app.task(idempotent=False)
async def once(ctx: TaskContext, order: str) -> str:
    ctx.resources.payments[f"{order}/{len(ctx.resources.payments)}"] = 1
    return "paid"


@app.workflow(version=1)
async def asking(ctx: Context, order: str) -> str:
    """No fault: what may have happened waits for a person."""
    found = await ctx.run(once, order)
    ctx.emit(mails, found)
    return found


async def asking_scenario(s: Scenario) -> None:
    await s.result(await s.start(asking, "o-1"))


async def mending_scenario(s: Scenario) -> None:
    """The same with a person, who looks at the provider."""
    run = await s.start(asking, "o-1")
    await s.sleep(60)
    parked = asyncio.ensure_future(s.waiting(run, "parked"))
    ended = asyncio.ensure_future(s.ended(run))
    await asyncio.wait([parked, ended], return_when=asyncio.FIRST_COMPLETED)
    if parked.done():
        if s.resources.payments:
            await s.complete(run, parked.result(), "paid")
        else:
            await s.retry(run)
    await ended
