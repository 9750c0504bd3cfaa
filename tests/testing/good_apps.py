"""Apps that every crash leaves as they are, each with what the outside does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

from streams import App, Cancelled, Context, Fail, Found, NotFound, OpError, Retry, TaskContext, extend
from streams.testing import Scenario

app = App("good")
mails = app.effect("mails", dict)
parcels = app.effect("parcels", dict)
news = app.signal("news", int)
soon = Retry(max_attempts=10, initial=60, max_delay=3600)


class Bank:
    """A provider that pays once a key."""

    def __init__(self) -> None:
        self.payments: dict[str, int] = {}
        self.calls: list[str] = []

    def pay(self, key: str, amount: int) -> str:
        self.calls.append(key)
        self.payments.setdefault(key, amount)
        return f"receipt for {key}"


@app.task(retry=soon)
async def add(ctx: TaskContext, number: int) -> int:
    await asyncio.sleep(0.5)
    return number + 1


@app.task(retry=soon)
def double(ctx: TaskContext, number: int) -> int:
    return number * 2


@app.task(retry=soon)
async def flaky(ctx: TaskContext) -> int:
    if ctx.attempt < 3:
        raise RuntimeError(f"attempt {ctx.attempt}")
    return 3


@app.task(retry=soon, pure=True)
async def count_up(ctx: TaskContext, number: int) -> int:
    return number + 1


@app.task(key=lambda order, amount: f"pay/{order}", retry=soon)
async def pay(ctx: TaskContext, order: str, amount: int) -> str:
    await asyncio.sleep(1)
    receipt: str = ctx.resources.pay(ctx.idempotency_key, amount)
    await asyncio.sleep(1)
    return receipt


async def find_transfer(ctx: TaskContext, order: str, amount: int) -> Found[str] | NotFound:
    await asyncio.sleep(0.1)
    key = ctx.idempotency_key
    return Found(f"receipt for {key}") if key in ctx.resources.payments else NotFound()


@app.task(key=lambda order, amount: f"transfer/{order}", idempotent=False, reconcile=find_transfer, retry=soon)
async def transfer(ctx: TaskContext, order: str, amount: int) -> str:
    await asyncio.sleep(0.1)
    receipt: str = ctx.resources.pay(ctx.idempotency_key, amount)
    await asyncio.sleep(0.1)
    return receipt


@app.workflow(version=1, durability="pipelined")
async def piped(ctx: Context, number: int) -> int:
    for _ in range(2):
        number = await ctx.run(count_up, number)
        ctx.emit(parcels, {"number": number})
    number += await ctx.interrupt("how many more?", answer=int)
    number = await ctx.run(add, number)
    return await ctx.run(count_up, number)


@app.workflow(version=1)
async def order(ctx: Context, name: str) -> list[str]:
    amount = await ctx.run(double, 21)
    await ctx.sleep(30 * 86_400)
    if not await ctx.interrupt({"amount": amount}, answer=bool, key="approval"):
        raise Fail("REJECTED", name)
    found = [await ctx.run(pay, name, amount), await ctx.run(transfer, name, amount)]
    ctx.emit(parcels, {"order": name, "id": str(ctx.uuid())}, idempotency_key=f"ship/{name}")
    return found


@app.workflow(version=1)
async def fan(ctx: Context, count: int) -> list[int]:
    found = await ctx.all([ctx.run(add if i % 2 else double, i) for i in range(count)])
    ctx.emit(mails, {"found": found})
    return [*found, await ctx.run(flaky)]


@app.workflow(version=1)
async def branches(ctx: Context, count: int) -> list[int]:
    async def branch(number: int) -> int:
        await ctx.sleep(86_400 * number)
        heard = await ctx.receive(news)
        ctx.emit(mails, {"branch": number, "heard": heard})
        return await ctx.run(add, heard)

    return list(await ctx.all([ctx.spawn(branch(number)) for number in range(count)]))


@app.workflow(version=1)
async def cleaned(ctx: Context, number: int) -> int:
    try:
        await ctx.interrupt("never answered")
    except Cancelled:
        ctx.emit(mails, {"cleaned": await ctx.run(add, number)})
        raise
    return number


@app.workflow(version=1)
async def helped(ctx: Context, number: int) -> str:
    try:
        await ctx.run(hopeless)
    except OpError as error:
        ctx.emit(mails, {"code": error.code})
        return error.code
    return "it worked"


@app.task(retry=Retry(max_attempts=40, initial=0.1, terminal=(ValueError,)))
async def hopeless(ctx: TaskContext) -> int:
    raise ValueError("it never works")


@dataclass
class Story:
    lines: Annotated[list[str], extend] = field(default_factory=list)
    rounds: int = 0


story = app.graph("story", state=Story, version=1)


@story.node(retry=soon)
async def plan(ctx: TaskContext, state: Story) -> Any:
    return [write.send(number) for number in range(3)]


@story.node(retry=soon)
async def write(ctx: TaskContext, state: Story, number: int) -> dict[str, Any]:
    await asyncio.sleep(0.1 * (3 - number))
    return {"lines": [f"{state.rounds}.{number}"]}


@story.flow
async def publish(ctx: Context, state: Story) -> dict[str, Any]:
    ctx.emit(parcels, {"lines": state.lines})
    await ctx.sleep(3_600)
    return {"rounds": state.rounds + 1}


story.edge(write, publish)
story.route(publish, lambda state: plan if state.rounds < 2 else None)


# -- what the outside does -------------------------------------------------------------------------------------------


async def order_scenario(s: Scenario) -> None:
    run = await s.start(order, "o-1")
    await s.waiting(run, "approval")
    await s.sleep(3_600)
    await s.resume(run, True)
    assert await s.result(run) == ["receipt for pay/o-1", "receipt for transfer/o-1"]


async def rejected_scenario(s: Scenario) -> None:
    run = await s.start(order, "o-2", run_id="o-2")
    await s.waiting(run)
    await s.resume(run, False, interrupt="approval")
    assert await s.ended(run) == "failed"


async def fan_scenario(s: Scenario) -> None:
    await s.start(fan, 5)


async def branches_scenario(s: Scenario) -> None:
    run = await s.start(branches, 3)
    for number in range(3):
        await s.signal(run, news, number * 10)
        await s.sleep(40_000)
    assert await s.result(run) == [1, 11, 21]


async def cleaned_scenario(s: Scenario) -> None:
    run = await s.start(cleaned, 7)
    await s.waiting(run)
    await s.cancel(run)


async def helped_scenario(s: Scenario) -> None:
    assert await s.result(await s.start(helped, 1)) == "ValueError"


async def story_scenario(s: Scenario) -> None:
    run = await s.start(story, {})
    await s.ended(run)


async def several_scenario(s: Scenario) -> None:
    runs = [await s.start(fan, 2), await s.start("helped", 1), await s.start(story, {}, attributes={"kind": "short"})]
    for run in runs:
        await s.ended(run)


async def piped_scenario(s: Scenario) -> None:
    """The start of the first run lies in the topic before a worker comes, so it is driven in the default mode."""
    for _ in range(2):
        run = await s.start(piped, 1)
        await s.resume(run, 10, interrupt=await s.waiting(run))
        assert await s.result(run) == 15


SCENARIOS = {
    "order": order_scenario,
    "rejected": rejected_scenario,
    "fan": fan_scenario,
    "branches": branches_scenario,
    "cleaned": cleaned_scenario,
    "helped": helped_scenario,
    "story": story_scenario,
    "several": several_scenario,
    "piped": piped_scenario,
}
