"""An order: hold stock and money, ask a person about the large ones, pay once, ship once.

    streams demo order                        # the whole story, with two kills, in a folder of its own

or by hand, in three terminals:

    python examples/provider.py               # the outside world: stock and payments
    streams worker examples/order.py:app
    streams start order --run-id o-1 --input '{"order_id": "o-1", "customer": "Ada", "currency": "EUR",
        "items": [{"sku": "lamp", "quantity": 30, "unit_price": "45.00"}]}'
    streams resume o-1 --value '{"approved": true}'

The workflow is pure: it only decides. Everything that touches the provider is a task, runs at least once, and carries
a key made of business facts, so that a repeat is the same request. What cannot be known after a crash is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal
from urllib.parse import quote

from provider_client import ProviderRefused, get, post

from streams import App, Cancelled, Context, Fail, Found, NotFound, Op, OpError, Retry, TaskContext

LIMIT = Decimal("1000.00")
CENT = Decimal("0.01")
MOST = 1_000_000

app = App("orders")


@dataclass(frozen=True)
class Item:
    sku: str
    quantity: int
    unit_price: Decimal


@dataclass(frozen=True)
class Order:
    """What comes in. `behaviour` asks the provider to misbehave for this order (see provider.py)."""

    order_id: str
    customer: str
    items: list[Item]
    currency: str = "EUR"
    card: Literal["ok", "declined"] = "ok"
    behaviour: dict[str, str | int] | None = None


@dataclass(frozen=True)
class Intent:
    """The provider's promise to take an amount; no money moves until it is confirmed."""

    intent_id: str


@dataclass(frozen=True)
class Payment:
    payment_id: str


@dataclass(frozen=True)
class Decision:
    """The answer to the question whether to accept a large order."""

    approved: bool
    note: str = ""


@dataclass(frozen=True)
class Receipt:
    status: Literal["confirmed", "rejected"]
    order_id: str
    amount: Decimal
    payment_id: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Shipment:
    order_id: str
    payment_id: str
    items: list[Item] = field(default_factory=list)


shipments = app.effect("shipments", Shipment)

# ---- Tasks: plain functions that run in threads and may be repeated at any time --------------------------------------

# With the provider down: five tries in some three seconds, then the op is parked for a person. Nothing is lost;
# `streams retry RUN` goes on once the provider is back.
patient = Retry(max_attempts=5, initial=0.2, max_delay=2.0, on_exhausted="park")


def ask(path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """Ask the provider. A "no" is final; everything else that goes wrong is worth another try."""
    try:
        return post(path, body, key=key)
    except ProviderRefused as refused:
        raise Fail(refused.code, refused.message) from refused


def find(key: str) -> dict[str, Any] | None:
    """What the provider answered under a key, if it ever granted it."""
    try:
        found = get("/operations/" + quote(key, safe=""))
    except ProviderRefused:
        return None
    granted: dict[str, Any] | None = found["response"] if found["status"] < 300 else None
    return granted


def find_payment(order_id: str) -> Payment | None:
    paid = get(f"/payments?order_id={quote(order_id, safe='')}")["payments"]
    return Payment(paid[0]["payment_id"]) if paid else None


@app.task(retry=patient, timeout=15, key=lambda order_id, sku, *_: f"order/{order_id}/reserve/{sku}")
def reserve(ctx: TaskContext, order_id: str, sku: str, quantity: int) -> None:
    ask("/reservations", {"order_id": order_id, "sku": sku, "quantity": quantity}, ctx.idempotency_key)


@app.task(retry=patient, timeout=15, key=lambda order, *_: f"order/{order.order_id}/intent")
def create_intent(ctx: TaskContext, order: Order, amount: Decimal) -> Intent:
    body: dict[str, Any] = {
        "order_id": order.order_id,
        "amount": str(amount),
        "currency": order.currency,
        "card": order.card,
    }
    if order.behaviour is not None:
        body["behaviour"] = order.behaviour
    return Intent(ask("/intents", body, ctx.idempotency_key)["intent_id"])


def look_up_payment(ctx: TaskContext, order_id: str, intent_id: str) -> Found[Payment] | NotFound:  # noqa: ARG001
    """Asked before another try when an earlier one may have paid: a crash or a lost answer proves nothing."""
    payment = find_payment(order_id)
    return Found(payment) if payment else NotFound()


@app.task(
    retry=patient,
    timeout=15,
    key=lambda order_id, *_: f"order/{order_id}/confirm",
    reconcile=look_up_payment,
)
def confirm_payment(ctx: TaskContext, order_id: str, intent_id: str) -> Payment:
    answer = ask(f"/intents/{quote(intent_id, safe='')}/confirm", {"order_id": order_id}, ctx.idempotency_key)
    return Payment(answer["payment_id"])


@app.task(retry=patient, timeout=15, key=lambda order_id, sku: f"order/{order_id}/release/{sku}")
def release(ctx: TaskContext, order_id: str, sku: str) -> None:
    """Give back what `reserve` took, if it took anything."""
    held = find(f"order/{order_id}/reserve/{sku}")
    if held is not None:
        ask(f"/reservations/{quote(held['reservation_id'], safe='')}/release", {}, ctx.idempotency_key)


@app.task(retry=patient, timeout=15, key=lambda order_id: f"order/{order_id}/void")
def void(ctx: TaskContext, order_id: str) -> Payment | None:
    """See to it that nothing can be paid any more. Where it was paid already, give the payment."""
    intent = find(f"order/{order_id}/intent")
    if intent is None:
        return None
    try:
        ask(f"/intents/{quote(intent['intent_id'], safe='')}/void", {}, ctx.idempotency_key)
    except Fail as refused:
        if refused.code == "INTENT_CAPTURED":
            return find_payment(order_id)
        raise
    return None


# ---- The workflow: pure, and so the same at every replay -------------------------------------------------------------


def check(order: Order) -> None:
    """Refuse what can never become an order."""
    bad = [item.sku for item in order.items if not is_sane(item)]
    twice = len({item.sku for item in order.items}) < len(order.items)
    if not order.items or bad or twice:
        reason = f"quantity or price of {', '.join(bad)}" if bad else "a sku twice" if twice else "no items"
        raise Fail("INVALID_ORDER", f"order {order.order_id} cannot be filled: {reason}")


def is_sane(item: Item) -> bool:
    return 0 < item.quantity <= MOST and item.unit_price.is_finite() and 0 < item.unit_price <= MOST


def price(order: Order) -> Decimal:
    """The total, rounded once, to the cent."""
    total = sum((item.quantity * item.unit_price for item in order.items), Decimal(0))
    return max(total.quantize(CENT, ROUND_HALF_UP), CENT)


@app.workflow(version=1, name="order")
async def fulfil(ctx: Context, order: Order) -> Receipt:
    check(order)
    amount = price(order)
    reserved = [ctx.run(reserve, order.order_id, item.sku, item.quantity) for item in order.items]
    intent = ctx.run(create_intent, order, amount)
    started: list[Op[Any]] = [*reserved, intent]
    decision = Decision(approved=True)
    try:
        _, held = await ctx.all(ctx.all(reserved), intent)
        if amount > LIMIT:
            decision = await ctx.interrupt(question(order, amount), answer=Decision, key="approval")
        if decision.approved:
            started.append(confirmed := ctx.run(confirm_payment, order.order_id, held.intent_id))
            payment: Payment | None = await confirmed
        else:
            payment = await undo(ctx, order, started)
    except (OpError, Cancelled) as stop:
        payment = None if is_conflict(stop) else await undo(ctx, order, started)
        if payment is None:
            raise
    if payment is None:
        return Receipt("rejected", order.order_id, amount, note=decision.note)
    ctx.emit(shipments, Shipment(order.order_id, payment.payment_id, order.items), idempotency_key=order.order_id)
    return Receipt("confirmed", order.order_id, amount, payment.payment_id, decision.note)


async def undo(ctx: Context, order: Order, started: Sequence[Op[Any]]) -> Payment | None:
    """Give everything back. It may be too late for that: then give the payment, and the order goes on."""
    with suppress(OpError):
        await ctx.all(started)  # what is still under way could take something after we have looked
    payment = await ctx.run(void, order.order_id)
    if payment is None:
        await ctx.all(ctx.run(release, order.order_id, item.sku) for item in order.items)
    return payment


def is_conflict(stop: BaseException) -> bool:
    """Whether another run holds this order, with other content: what stands at the provider is not ours to undo."""
    return isinstance(stop, OpError) and stop.code == "IDEMPOTENCY_CONFLICT"


def question(order: Order, amount: Decimal) -> dict[str, Any]:
    return {
        "question": f"The order is above {LIMIT} {order.currency}. Accept it?",
        "order_id": order.order_id,
        "customer": order.customer,
        "amount": amount,
        "currency": order.currency,
    }
