"""The app of the chaos test: a workflow for each thing that may go wrong, with tasks that note each call outside."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

from streams import App, Context, Fail, Found, NotFound, Retry, TaskContext, TimedOut, extend
from tests.chaos.marks import Marks
from tests.chaos.outside import Outside

MARKS: list[Marks] = []
"""Set by the worker's process."""


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[Outside]:
    outside = Outside(Path(os.environ["CHAOS_OUTSIDE"]), MARKS[0] if MARKS else None)
    yield outside
    outside.close()


app = App("chaos", lifespan=lifespan)
mails = app.effect("mails", dict)
parcels = app.effect("parcels", dict)
word = app.signal("word", int)
never = app.signal("never", int)
often = Retry(max_attempts=500, initial=0.05, max_delay=0.5)
"""A lost worker uses up an attempt: no run of this test may run out of them."""


@app.task(retry=often)
async def add(ctx: TaskContext, number: int, ms: int) -> int:
    with ctx.resources.call(ctx, "add"):
        await asyncio.sleep(ms / 1000)
    return number + 1


@app.task(retry=often)
def double(ctx: TaskContext, number: int, ms: int) -> int:
    with ctx.resources.call(ctx, "double"):
        time.sleep(ms / 1000)
    return number * 2


@app.task(retry=often)
async def third_time(ctx: TaskContext) -> int:
    with ctx.resources.call(ctx, "third_time"):
        if ctx.attempt < 3:
            raise RuntimeError(f"attempt {ctx.attempt}")
    return 3


@app.task(retry=Retry(max_attempts=2, initial=0.05, max_delay=0.05))
async def broken(ctx: TaskContext) -> int:
    with ctx.resources.call(ctx, "broken"):
        raise RuntimeError("it never works")


async def find_payment(ctx: TaskContext, order: str, amount: int, ms: int) -> Found[str] | NotFound:
    with ctx.resources.call(ctx, "find_payment"):
        found = ctx.resources.find_payment(ctx.idempotency_key)
    return Found(found) if found is not None else NotFound()


@app.task(key=lambda order, amount, ms: f"pay/{order}", reconcile=find_payment, retry=often)
async def pay(ctx: TaskContext, order: str, amount: int, ms: int) -> str:
    with ctx.resources.call(ctx, "pay"):
        await asyncio.sleep(ms / 2000)
        found = ctx.resources.pay(ctx.idempotency_key, amount)
        await asyncio.sleep(ms / 2000)
    return found


@app.workflow(version=1)
async def chain(ctx: Context, input: dict[str, Any]) -> int:
    number = input["number"]
    for ms in input["ms"]:
        number = await ctx.run(add, number, ms)
        ctx.emit(mails, {"run": ctx.run_id, "number": number})
    return number


@app.workflow(version=1)
async def fan(ctx: Context, input: dict[str, Any]) -> list[int]:
    found = await ctx.all([ctx.run(add if i % 2 else double, i, ms) for i, ms in enumerate(input["ms"])])
    ctx.emit(parcels, {"run": ctx.run_id, "found": found})
    return found


@app.workflow(version=1)
async def race(ctx: Context, input: dict[str, Any]) -> list[int]:
    """The first that finishes decides on what comes after it."""
    won = await ctx.first([ctx.run(add, i, ms) for i, ms in enumerate(input["ms"])])
    ctx.emit(parcels, {"run": ctx.run_id, "winner": won.index})
    return [won.index, await ctx.run(add, won.value * 10, 1)]


@app.workflow(version=1)
async def nap(ctx: Context, input: dict[str, Any]) -> list[int]:
    async def branch(number: int, seconds: float) -> int:
        await ctx.sleep(seconds)
        ctx.emit(mails, {"run": ctx.run_id, "woke": number}, idempotency_key=f"woke/{ctx.run_id}/{number}")
        return await ctx.run(add, number, 5)

    found = await ctx.all([ctx.spawn(branch(i, seconds)) for i, seconds in enumerate(input["seconds"])])
    await ctx.sleep(0.01)
    return found


@app.workflow(version=1)
async def ask(ctx: Context, input: dict[str, Any]) -> list[int]:
    """One after the other without a name: an answer that comes twice must not answer the next question."""
    found = []
    for number in range(input["questions"]):
        found.append(await ctx.interrupt({"number": number}, answer=int))
        ctx.emit(parcels, {"run": ctx.run_id, "answer": found[-1]})
    return found


@app.workflow(version=1)
async def ask_both(ctx: Context, input: dict[str, Any]) -> list[int]:
    left = ctx.interrupt({"number": 0}, answer=int, key="left")
    right = ctx.interrupt({"number": 1}, answer=int, key="right")
    found = list(await ctx.all(left, right))
    ctx.emit(mails, {"run": ctx.run_id, "answers": found})
    return found


@app.workflow(version=1)
async def listen(ctx: Context, input: dict[str, Any]) -> list[int]:
    found = [await ctx.receive(word) for _ in range(input["count"])]
    ctx.emit(mails, {"run": ctx.run_id, "heard": sorted(found)})
    return sorted(found)


@app.workflow(version=1)
async def stopped(ctx: Context, input: dict[str, Any]) -> int:
    """Waits until it is cancelled, and cleans up."""
    try:
        await ctx.all(ctx.receive(never), ctx.run(add, 1, input["ms"]))
    finally:
        number = await ctx.run(add, input["number"], 5)
        ctx.emit(parcels, {"run": ctx.run_id, "cleaned": number})
    return number


@app.workflow(version=1)
async def buy(ctx: Context, input: dict[str, Any]) -> str:
    found = await ctx.run(pay, input["order"], input["amount"], input["ms"])
    ctx.emit(parcels, {"run": ctx.run_id, "receipt": found}, idempotency_key=f"ship/{input['order']}")
    return found


@app.workflow(version=1)
async def flaky(ctx: Context, input: dict[str, Any]) -> int:
    return await ctx.run(third_time)


@app.workflow(version=1)
async def doomed(ctx: Context, input: dict[str, Any]) -> int:
    number = await ctx.run(add, 1, 5)
    ctx.emit(mails, {"run": ctx.run_id, "number": number})
    if input["how"] == "task":
        await ctx.run(broken)
    raise Fail("DOOMED", "it says so")


@app.workflow(version=1)
async def late(ctx: Context, input: dict[str, Any]) -> list[Any]:
    found: list[Any] = [await ctx.timeout(ctx.receive(never), input["seconds"], default="late")]
    try:
        await ctx.interrupt({"number": -1}, timeout=input["seconds"])
    except TimedOut:
        found.append("timed out")
    ctx.emit(mails, {"run": ctx.run_id, "found": found})
    return found


@app.workflow(version=1, name="grown")
async def grown_1(ctx: Context, input: dict[str, Any]) -> str:
    await ctx.run(add, 1, 10)
    return "version 1"


@app.workflow(version=2, name="grown")
async def grown_2(ctx: Context, input: dict[str, Any]) -> str:
    await ctx.sleep(0.05)
    await ctx.run(double, 1, 10)
    return "version 2"


class Story(TypedDict, total=False):
    rounds: int
    width: int
    done: int
    lines: Annotated[list[str], extend]


story = app.graph("story", state=Story, version=1)


@story.node(retry=often)
async def plan(ctx: TaskContext, state: Story) -> Any:
    with ctx.resources.call(ctx, "plan"):
        return [write.send(i) for i in range(state["width"])]


@story.node(retry=often)
async def write(ctx: TaskContext, state: Story, number: int) -> Any:
    with ctx.resources.call(ctx, "write"):
        await asyncio.sleep(0.005 * (3 - number % 3))
    return {"lines": [f"{state['done']}.{number}"]}


@story.flow
async def publish(ctx: Context, state: Story) -> Any:
    ctx.emit(parcels, {"run": ctx.run_id, "lines": state["lines"]})
    await ctx.sleep(0.02)
    return {"done": state["done"] + 1}


story.edge(write, publish)
story.route(publish, lambda state: plan if state["done"] < state["rounds"] else None)
