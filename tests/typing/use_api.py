"""How users type their workflows. mypy --strict and pyright must accept every line but those marked `# E: why`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, assert_type
from uuid import UUID

from streams import (
    App,
    Context,
    Fail,
    Found,
    NotFound,
    Op,
    Refused,
    RequestFailed,
    Retry,
    StreamsError,
    TaskContext,
    TaskFailed,
    TimedOut,
    Unknown,
    Won,
    extend,
)

app = App("orders")


@dataclass
class Order:
    id: str
    sku: str


@dataclass
class Quote:
    amount: Decimal


@dataclass
class Payment:
    id: str


@dataclass
class Decision:
    approved: bool


@dataclass
class Receipt:
    status: str
    payment: str | None = None


@dataclass
class Shipment:
    order_id: str
    payment_id: str


# --- tasks ---


@app.task(retry=Retry(max_attempts=5, initial=0.5, on_exhausted="park"), timeout=30)
async def price(ctx: TaskContext, sku: str) -> Quote:
    ctx.heartbeat({"attempt": ctx.attempt, "key": ctx.idempotency_key})
    return Quote(Decimal(1))


@app.task
def pay(ctx: TaskContext, order_id: str, amount: int, *, note: str = "") -> str:
    if amount < 0:
        raise Fail("NEGATIVE", "amounts are positive", {"amount": amount})
    return order_id


@app.task()
def blocking(ctx: TaskContext) -> int:
    return 1


async def find_payment(ctx: TaskContext, order_id: str, amount: Decimal) -> Found[Payment] | NotFound:
    return NotFound() if ctx.cancelled else Found(Payment(order_id))


async def find_text(ctx: TaskContext, order_id: str, amount: Decimal) -> Found[str] | NotFound | Unknown:
    return Unknown()


@app.task(key=lambda order_id, amount: f"pay/{order_id}", reconcile=find_payment)
async def create_payment(ctx: TaskContext, order_id: str, amount: Decimal) -> Payment:
    return Payment(order_id)


async def charge(ctx: TaskContext, order_id: str, amount: Decimal) -> Payment:
    return Payment(order_id)


async def refund(ctx: TaskContext, payment_id: str) -> Payment:
    return Payment(payment_id)


app.task(reconcile=find_payment)(charge)
app.task(reconcile=find_text)(charge)  # E: the look-up finds another type
app.task(reconcile=find_payment)(refund)  # E: the look-up takes other arguments
Retry(on_exhausted="skip")  # E: no such choice


# --- workflows ---

approve = app.signal("approve", Decision)
shipments = app.effect("shipments", Shipment)
charges = app.effect("charges", Shipment, reply=Payment)


@app.workflow(version=1)
async def fulfil(ctx: Context, order: Order) -> Receipt:
    quote = await ctx.run(price, order.sku)
    assert_type(quote, Quote)
    decision = await ctx.interrupt({"question": "Approve?", "amount": quote.amount}, answer=Decision)
    assert_type(decision, Decision)
    if not decision.approved:
        return Receipt("rejected")
    payment = await ctx.run(create_payment, order.id, quote.amount)
    assert_type(payment, Payment)
    ctx.emit(shipments, Shipment(order.id, payment.id), idempotency_key=f"ship/{order.id}")
    return Receipt("confirmed", payment.id)


async def branch(number: int) -> int:
    return number


@app.workflow(version=2)
async def everything(ctx: Context, order: Order) -> dict[str, str]:
    paid = ctx.run(pay, "o", 1, note="x")
    assert_type(paid, Op[str])
    assert_type(paid.id, str)
    assert_type(paid.done, bool)
    assert_type(await paid, str)
    assert_type(await ctx.run(blocking), int)
    assert_type(await ctx.run(price.with_options(timeout=1, retry=Retry(max_attempts=1)), "a"), Quote)
    assert_type(await ctx.interrupt("anything?"), Any)
    assert_type(await ctx.interrupt("which?", answer=Decision, key="k", timeout=timedelta(hours=1)), Decision)
    assert_type(await ctx.receive(approve), Decision)
    assert_type(await ctx.sleep(1.5), None)
    assert_type(await ctx.sleep_until(datetime(2030, 1, 1, tzinfo=UTC)), None)
    assert_type(await ctx.spawn(branch(1)), int)

    quote, receipt = await ctx.all(ctx.run(price, "a"), ctx.run(pay, "o", 2))
    assert_type(quote, Quote)
    assert_type(receipt, str)
    assert_type(await ctx.all(ctx.run(price, sku) for sku in ("a", "b")), list[Quote])
    won = await ctx.first(ctx.run(price, "a"), ctx.run(pay, "o", 2))
    assert_type(won, Won[Quote] | Won[str])
    assert_type(won.value, Quote | str)
    assert_type(won.index, int)
    ops = [ctx.run(price, "a"), ctx.run(price, "b")]
    done, pending = await ctx.wait(ops, count=1)
    assert_type(done, list[Op[Quote]])
    assert_type(pending, list[Op[Quote]])
    assert_type(await ctx.timeout(ctx.receive(approve), 60, default=None), Decision | None)
    asked = ctx.request(charges, Shipment("o", "p"), idempotency_key="k", timeout=timedelta(minutes=1))
    assert_type(asked, Op[Payment])
    assert_type(await ctx.request(shipments, Shipment("o", "p")), None)
    try:
        assert_type((await asked).id, str)
    except RequestFailed as refused:
        assert_type(refused.kind, str)
    try:
        assert_type(await ctx.timeout(ctx.receive(approve), timedelta(minutes=1)), Decision)
    except TimedOut as late:
        assert_type(late.code, str)
    except TaskFailed as failed:
        assert_type(failed.message, str)
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.uuid(), UUID)

    ctx.run(price, 5)  # E: wrong argument
    ctx.run(pay, "o")  # E: missing argument
    ctx.run(pay, "o", 1, remark="x")  # E: unknown keyword
    ctx.run(branch, 1)  # E: not a task
    (await ctx.run(price, "a")).total  # E: wrong use of a result
    ctx.run(price, "a").amount  # E: an op is not its result
    decision: str = await ctx.interrupt("ok?", answer=Decision)  # E: wrong answer type
    (await ctx.receive(approve)).amount  # E: wrong use of a signal
    ctx.emit(shipments, Quote(Decimal(1)), idempotency_key="k")  # E: wrong effect payload
    ctx.request(charges, Quote(Decimal(1)))  # E: wrong payload of a request
    ctx.request(price, "a")  # E: not an effect
    (await ctx.request(charges, Shipment("o", "p"))).amount  # E: wrong use of a reply
    number: int = await ctx.spawn(pause(ctx))  # E: wrong use of a branch
    first: int = (await ctx.all(ctx.run(price, "a"), ctx.run(pay, "o", 2)))[0]  # E: wrong use of a pair
    return {"decision": decision, "number": str(number), "first": str(first)}


async def pause(ctx: Context) -> str:
    await ctx.sleep("long")  # E: not a duration
    return "rested"


# --- graphs ---


@dataclass
class Report:
    text: str = ""
    parts: Annotated[list[str], extend] = field(default_factory=list)


report = app.graph("report", state=Report, version=1)


@report.node
async def generate(ctx: TaskContext, state: Report) -> dict[str, Any]:
    return {"text": state.text + "x"}


@report.node
async def per_item(ctx: TaskContext, state: Report, item: int) -> dict[str, Any]:
    return {"parts": [str(item)]}


@report.flow
async def ask(ctx: Context, state: Report) -> dict[str, Any]:
    answer = await ctx.interrupt(state.text, answer=Decision)
    return {"text": str(answer.approved)}


@report.node
async def write(ctx: TaskContext, state: Report) -> dict[str, Any]:
    return {"text": state.words}  # E: wrong use of the state


async def other_state(ctx: TaskContext, state: Order) -> dict[str, Any]:
    return {}


report.edge(generate, ask)
report.route(ask, lambda state: [per_item.send(number) for number in range(len(state.parts))])
report.join([generate, ask], write)
per_item.send("x")  # E: wrong send
report.node(other_state)  # E: a node of another state


def refused(error: Refused) -> StreamsError:
    return error
