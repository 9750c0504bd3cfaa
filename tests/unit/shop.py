"""A small app that has one of everything: tasks, a timer, an interrupt, a signal, an effect, and a graph."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TypedDict

from streams import App, Context, Fail, Retry, TaskContext

app = App("shop")


@dataclass(frozen=True)
class Order:
    id: str
    amount: Decimal


@dataclass(frozen=True)
class Receipt:
    status: str
    amount: Decimal


@dataclass(frozen=True)
class Answer:
    approved: bool


paid = app.effect("paid", Receipt)
note = app.signal("note", str)


@app.task(retry=Retry(max_attempts=3, on_exhausted="park"))
async def price(ctx: TaskContext, order: str) -> Decimal:
    raise AssertionError("nothing runs tasks here")


@app.task(idempotent=False, key=lambda order: f"pay/{order}")
async def pay(ctx: TaskContext, order: str) -> str:
    raise AssertionError("nothing runs tasks here")


@app.workflow(version=2)
async def buy(ctx: Context, order: Order) -> Receipt:
    amount = await ctx.run(price, order.id)
    answer = await ctx.interrupt({"question": "Approve?", "amount": amount}, answer=Answer, key="approval")
    if not answer.approved:
        raise Fail("REJECTED", "nobody wants it", {"order": order})
    await ctx.run(pay, order.id)
    receipt = Receipt("paid", amount)
    ctx.emit(paid, receipt, idempotency_key=f"paid/{order.id}")
    return receipt


@app.workflow(version=1)
async def chatter(ctx: Context, count: int) -> list[str]:
    texts = [await ctx.receive(note) for _ in range(count)]
    await ctx.sleep(60)
    return texts


@app.workflow(version=1)
async def echo(ctx: Context, value: str) -> str:
    return value


@app.workflow(version=1)
async def broken(ctx: Context, value: str) -> str:
    raise RuntimeError(value)


class Doc(TypedDict, total=False):
    text: str
    done: bool


graph = app.graph("doc", state=Doc, version=1)


@graph.node
async def draft(ctx: TaskContext, state: Doc) -> Doc:
    raise AssertionError("nothing runs tasks here")


@graph.flow
async def check(ctx: Context, state: Doc) -> Doc:
    return {"done": await ctx.interrupt(state["text"], answer=bool)}


graph.edge(draft, check)
