"""An order whose payment is a request: a subscriber pays at the provider, once, and its reply goes on with the run.

    streams demo order --via subscriber       # the whole story, with three kills, in a folder of its own

or by hand, in four terminals:

    python examples/provider.py               # the outside world: payments
    streams worker examples/order_request.py:app
    streams subscribe examples/order_request.py:app
    streams start order --run-id o-1 --input '{"order_id": "o-1", "customer": "Ada", "currency": "EUR",
        "items": [{"sku": "lamp", "quantity": 30, "unit_price": "45.00"}]}'
    streams resume o-1 --value '{"approved": true}'

Beside examples/order.py, where the worker itself pays in a task: here it only asks for it. The request leaves in one
transaction with the state that made it, and waits in the log until somebody carries it out. The subscriber notes in its
ledger what it begins and what it has done, under a key made of business facts, and looks up what it cannot know.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Literal
from urllib.parse import quote

from provider_client import ProviderRefused, ProviderUnavailable, get, post

from streams import App, Context, EffectContext, Fail, Found, NotFound, RequestFailed, Retry, TryAgain

LIMIT = Decimal("1000.00")
CENT = Decimal("0.01")
MOST = 1_000_000

app = App("orders-by-request")


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
class Charge:
    """What the subscriber is asked to pay."""

    order_id: str
    amount: Decimal
    currency: str
    card: str = "ok"
    behaviour: dict[str, str | int] | None = None


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
    status: Literal["confirmed", "rejected", "declined"]
    order_id: str
    amount: Decimal
    payment_id: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Shipment:
    order_id: str
    payment_id: str


payments = app.effect("payments", Charge, reply=Payment)
shipments = app.effect("shipments", Shipment)

# ---- The workflow: pure, and so the same at every replay -------------------------------------------------------------


@app.workflow(version=1, name="order")
async def fulfil(ctx: Context, order: Order) -> Receipt:
    check(order)
    amount = price(order)
    decision = Decision(approved=True)
    if amount > LIMIT:
        decision = await ctx.interrupt(question(order, amount), answer=Decision, key="approval")
    if not decision.approved:
        return Receipt("rejected", order.order_id, amount, note=decision.note)
    charge = Charge(order.order_id, amount, order.currency, order.card, order.behaviour)
    try:
        payment = await ctx.request(payments, charge, idempotency_key=f"order/{order.order_id}/pay")
    except RequestFailed as refused:
        return Receipt("declined", order.order_id, amount, note=refused.code)
    ctx.emit(shipments, Shipment(order.order_id, payment.payment_id), idempotency_key=f"order/{order.order_id}/ship")
    return Receipt("confirmed", order.order_id, amount, payment.payment_id, decision.note)


def check(order: Order) -> None:
    """Refuse what can never become an order."""
    bad = [item.sku for item in order.items if not is_sane(item)]
    if not order.items or bad:
        reason = f"quantity or price of {', '.join(bad)}" if bad else "no items"
        raise Fail("INVALID_ORDER", f"order {order.order_id} cannot be filled: {reason}")


def is_sane(item: Item) -> bool:
    return 0 < item.quantity <= MOST and item.unit_price.is_finite() and 0 < item.unit_price <= MOST


def price(order: Order) -> Decimal:
    """The total, rounded once, to the cent."""
    total = sum((item.quantity * item.unit_price for item in order.items), Decimal(0))
    return max(total.quantize(CENT, ROUND_HALF_UP), CENT)


def question(order: Order, amount: Decimal) -> dict[str, Any]:
    return {
        "question": f"The order is above {LIMIT} {order.currency}. Accept it?",
        "order_id": order.order_id,
        "customer": order.customer,
        "amount": amount,
        "currency": order.currency,
    }


# ---- The subscriber: a process of its own, which may be killed at any time -------------------------------------------


def look_up_payment(ctx: EffectContext, charge: Charge) -> Found[Payment] | NotFound:  # noqa: ARG001
    """Asked when an earlier try may have paid: its process was killed, or the answer was lost."""
    try:
        done = get("/operations/" + quote(confirm_key(ctx), safe=""))
    except ProviderRefused:  # it knows no operation under this key
        return NotFound()
    return Found(Payment(done["response"]["payment_id"])) if done["status"] < 300 else NotFound()


@app.subscriber(
    payments,
    reconcile=look_up_payment,
    retry=Retry(max_attempts=8, initial=0.2, max_delay=2.0),
    looks=Retry(max_attempts=10, initial=0.2, max_delay=5.0),
)
def pay(ctx: EffectContext, charge: Charge) -> Payment:
    """Two calls under two keys, so that each of them is one operation at the provider, however often it is asked."""
    body: dict[str, Any] = {
        "order_id": charge.order_id,
        "amount": str(charge.amount),
        "currency": charge.currency,
        "card": charge.card,
    }
    if charge.behaviour is not None:
        body["behaviour"] = charge.behaviour
    intent = ask("/intents", body, f"{ctx.idempotency_key}/intent")["intent_id"]
    path = f"/intents/{quote(intent, safe='')}/confirm"
    return Payment(ask(path, {"order_id": charge.order_id}, confirm_key(ctx))["payment_id"])


def confirm_key(ctx: EffectContext) -> str:
    return f"{ctx.idempotency_key}/confirm"


def ask(path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """A "no" is final, and what never left here is sure not to be done. Anything else may have been: it is raised."""
    try:
        return post(path, body, key=key)
    except ProviderRefused as refused:
        raise Fail(refused.code, refused.message) from refused
    except ProviderUnavailable as away:
        raise TryAgain(away.message) from away
