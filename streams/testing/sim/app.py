"""The app of the simulation: a workflow for each thing that may go wrong, with tasks that note each call outside."""

# ruff: noqa: ARG001, ARG005 - tasks, nodes and keys take what they are called with

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from streams.authoring.app import App
from streams.authoring.context import Context
from streams.authoring.graph import extend
from streams.authoring.task import Found, NotFound, Retry, TaskContext
from streams.errors import Fail, OpError, TimedOut
from streams.testing.sim.outside import Outside

__all__ = ["BRITTLE_ATTEMPTS", "make_app"]

BRITTLE_ATTEMPTS = 3
"""The budget of a task that runs out of it when enough workers die."""
app = App("sim")
mails = app.effect("mails", dict)
parcels = app.effect("parcels", dict)
word = app.signal("word", int)
never = app.signal("never", int)
often = Retry(max_attempts=500, initial=0.05, max_delay=0.5)
"""A lost worker uses up an attempt: no run may fail because of that, but for the brittle ones."""


def make_app(outside: Outside, of: App = app) -> App:
    """The app whose tasks see this world. Its definitions are shared: a world costs next to nothing."""

    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[Outside]:
        yield outside

    made = copy.copy(of)
    made.lifespan = lifespan
    return made


# -- tasks -------------------------------------------------------------------------------------------------------


@app.task(retry=often)
async def add(ctx: TaskContext, number: int, ms: int) -> int:
    with ctx.resources.call(ctx, "add"):
        if ms >= 100:
            ctx.heartbeat({"half": number})
        await asyncio.sleep(ms / 1000)
    return number + 1


@app.task(retry=often)
def double(ctx: TaskContext, number: int) -> int:
    with ctx.resources.call(ctx, "double"):
        return number * 2


@app.task(retry=often, pure=True)
async def pure_add(ctx: TaskContext, number: int, ms: int) -> int:
    """It may run before its start is durable, and again where that never was; the call is noted all the same."""
    with ctx.resources.call(ctx, "pure_add"):
        await asyncio.sleep(0 if ms < 100 else ms / 1000)
    return number + 1


@app.task(retry=often, pure=True)
def pure_double(ctx: TaskContext, number: int) -> int:
    with ctx.resources.call(ctx, "pure_double"):
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


@app.task(retry=Retry(max_attempts=BRITTLE_ATTEMPTS, initial=0.02, max_delay=0.1))
async def brittle(ctx: TaskContext, number: int, ms: int) -> int:
    with ctx.resources.call(ctx, "brittle"):
        await asyncio.sleep(ms / 1000)
    return number


@app.task(retry=often, timeout=0.3)
async def hasty(ctx: TaskContext, number: int) -> int:
    """Its first attempts take too long."""
    with ctx.resources.call(ctx, "hasty"):
        await asyncio.sleep(1.0 if ctx.attempt < 3 else 0.01)
    return number + ctx.attempt // 1000


async def find_payment(ctx: TaskContext, order: str, amount: int, ms: int, lost: int) -> Found[str] | NotFound:
    with ctx.resources.call(ctx, "find_payment"):
        await asyncio.sleep(0.005)
        found = ctx.resources.find(ctx.idempotency_key)
    return Found(found) if found is not None else NotFound()


@app.task(key=lambda order, amount, ms, lost: f"pay/{order}", idempotent=False, reconcile=find_payment, retry=often)
async def pay(ctx: TaskContext, order: str, amount: int, ms: int, lost: int) -> str:
    with ctx.resources.call(ctx, "pay"):
        await asyncio.sleep(ms / 2000)
        found: str = ctx.resources.pay(ctx.idempotency_key, amount, lost)
        await asyncio.sleep(ms / 2000)
    return found


@app.task(key=lambda order, amount, ms, lost: f"charge/{order}", idempotent=False, retry=often)
async def charge(ctx: TaskContext, order: str, amount: int, ms: int, lost: int) -> str:
    with ctx.resources.call(ctx, "charge"):
        await asyncio.sleep(ms / 2000)
        found: str = ctx.resources.charge(ctx.idempotency_key, amount, lost)
        await asyncio.sleep(ms / 2000)
    return found


# -- workflows ---------------------------------------------------------------------------------------------------


@app.workflow(version=1)
async def chain(ctx: Context, input: dict[str, Any]) -> int:
    number: int = input["number"]
    for ms in input["ms"]:
        number = await ctx.run(add, number, ms)
        ctx.emit(mails, {"run": ctx.run_id, "number": number})
    return number


@app.workflow(version=1, durability="pipelined")
async def piped(ctx: Context, input: dict[str, Any]) -> int:
    """A chain whose steps run beside the commits of those before; but for the second one, which is not pure."""
    number: int = input["number"]
    for step, ms in enumerate(input["ms"]):
        number = await ctx.run(add if step == 1 else pure_add, number, ms)
        ctx.emit(mails, {"run": ctx.run_id, "number": number})
    both = await ctx.all([ctx.run(pure_double, number), ctx.run(pure_double, number + 1)])
    return sum(both)


@app.workflow(version=1)
async def fan(ctx: Context, input: dict[str, Any]) -> list[int]:
    found = await ctx.all([ctx.run(add, i, ms) if i % 2 else ctx.run(double, i) for i, ms in enumerate(input["ms"])])
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
    found: list[int] = []
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
    found = await ctx.run(pay, input["order"], input["amount"], input["ms"], input["lost"])
    ctx.emit(parcels, {"run": ctx.run_id, "receipt": found}, idempotency_key=f"ship/{input['order']}")
    return found


@app.workflow(version=1)
async def spend(ctx: Context, input: dict[str, Any]) -> str:
    """What is done twice costs twice, and nobody can look it up: only an operator may try it again."""
    found = await ctx.run(charge, input["order"], input["amount"], input["ms"], input["lost"])
    ctx.emit(parcels, {"run": ctx.run_id, "receipt": found}, idempotency_key=f"ship/{input['order']}")
    return found


@app.workflow(version=1)
async def flaky(ctx: Context, input: dict[str, Any]) -> int:
    return await ctx.run(third_time)


@app.workflow(version=1)
async def frail(ctx: Context, input: dict[str, Any]) -> int:
    """Each worker that dies uses up an attempt, and there are few of them."""
    number = await ctx.run(brittle, input["number"], input["ms"])
    ctx.emit(mails, {"run": ctx.run_id, "number": number})
    return number


@app.workflow(version=1)
async def slow(ctx: Context, input: dict[str, Any]) -> int:
    return await ctx.run(hasty, input["number"])


@app.workflow(version=1)
async def doomed(ctx: Context, input: dict[str, Any]) -> int:
    number = await ctx.run(add, 1, 5)
    ctx.emit(mails, {"run": ctx.run_id, "number": number})
    if input["how"] == "task":
        await ctx.run(broken)
    raise Fail("DOOMED", "it says so")


@app.workflow(version=1)
async def buggy(ctx: Context, input: dict[str, Any]) -> int:
    """A mistake in the program: an operator has to end it."""
    number = await ctx.run(add, input["number"], 5)
    missing: dict[str, int] = {}
    return missing[str(number)]


@app.workflow(version=1)
async def late(ctx: Context, input: dict[str, Any]) -> list[Any]:
    found: list[Any] = [await ctx.timeout(ctx.receive(never), input["seconds"], default="late")]
    try:
        await ctx.interrupt({"number": -1}, timeout=input["seconds"])
    except TimedOut:
        found.append("timed out")
    ctx.emit(mails, {"run": ctx.run_id, "found": found})
    return found


@app.workflow(version=1)
async def crowd(ctx: Context, input: dict[str, Any]) -> int:
    """More tasks than a small worker has slots."""
    found = await ctx.all([ctx.run(brittle, i, input["ms"]) for i in range(input["width"])])
    return sum(found)


@app.workflow(version=1)
async def helped(ctx: Context, input: dict[str, Any]) -> str:
    """A failure is data that the code goes on with."""
    try:
        await ctx.run(broken)
    except OpError as error:
        ctx.emit(mails, {"run": ctx.run_id, "code": error.code})
        await ctx.sleep(0.02)
        number = await ctx.run(add, 1, input["ms"])
        return str(number)
    return "it worked"


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


class Survey(TypedDict, total=False):
    number: int
    lines: Annotated[list[str], extend]


survey = app.graph("survey", state=Survey, version=1)


@survey.node(retry=often)
async def begin(ctx: TaskContext, state: Survey) -> Any:
    with ctx.resources.call(ctx, "begin"):
        return {"lines": [f"begin {state['number']}"]}


@survey.node(retry=often)
async def near(ctx: TaskContext, state: Survey) -> Any:
    with ctx.resources.call(ctx, "near"):
        await asyncio.sleep(0.005)
    return {"lines": ["near"]}


@survey.flow
async def far(ctx: Context, state: Survey) -> Any:
    return {"lines": [f"far {await ctx.interrupt({'number': 0}, answer=int)}"]}


@survey.node(retry=often)
async def report(ctx: TaskContext, state: Survey) -> Any:
    with ctx.resources.call(ctx, "report"):
        return {"lines": ["report"]}


survey.edge(begin, near)
survey.edge(begin, far)
survey.join([near, far], report)


class Rounds(TypedDict, total=False):
    left: int
    found: Annotated[list[int], extend]


rounds = app.graph("rounds", state=Rounds, version=1)


@rounds.flow
async def hear(ctx: Context, state: Rounds) -> Any:
    """A signal of a later round waits in the inbox, whatever the steps drop."""
    heard = await ctx.receive(word)
    number = await ctx.run(add, heard, 5)
    ctx.emit(mails, {"run": ctx.run_id, "round": state["left"]})
    return {"left": state["left"] - 1, "found": [number]}


rounds.route(hear, lambda state: hear if state["left"] > 0 else None)
