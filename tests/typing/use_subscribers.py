"""How users type their subscribers. mypy --strict and pyright must accept every line but those marked `# E: why`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from streams import (
    App,
    BatchContext,
    EffectContext,
    Fail,
    FencingToken,
    Found,
    NotFound,
    Retry,
    Subscription,
    TryAgain,
    Unknown,
)

app = App("orders")


@dataclass
class Charge:
    order_id: str
    amount: int


@dataclass
class Payment:
    id: str


@dataclass
class Shipment:
    order_id: str


charges = app.effect("charges", Charge, reply=Payment)
shipments = app.effect("shipments", Shipment)


async def find(ctx: EffectContext, charge: Charge) -> Found[Payment] | NotFound | Unknown:
    return Unknown() if ctx.cancelled else Found(Payment(charge.order_id))


def find_plainly(ctx: EffectContext, charge: Charge) -> Found[Payment] | NotFound:
    return NotFound()


async def find_text(ctx: EffectContext, charge: Charge) -> Found[str] | NotFound:
    return NotFound()


@app.subscriber(charges, reconcile=find, retry=Retry(max_attempts=3), timeout=timedelta(seconds=5))
async def pay(ctx: EffectContext, charge: Charge) -> Payment:
    assert_type(ctx.fencing_token, FencingToken)
    assert_type(ctx.headers, dict[str, str])
    assert_type(ctx.attempt, int)
    if charge.amount < 0:
        raise Fail("NEGATIVE", "amounts are positive")
    if ctx.delivery < 2:
        raise TryAgain("busy", after=1.5)
    return Payment(charge.order_id)


assert_type(pay, Subscription[Charge, Payment])


@app.subscriber(shipments, transactional=True, batch=100)
def ship(ctx: EffectContext, shipment: Shipment) -> None:
    connection: Any = ctx.connection
    connection.execute("insert", shipment.order_id)


@app.subscriber(charges, transactional=True, many=True, batch=100)
async def book(ctx: BatchContext, payloads: Sequence[Charge]) -> list[Payment]:
    assert_type(ctx.deliveries, tuple[EffectContext, ...])
    return [Payment(charge.order_id) for charge in payloads]


assert_type(book, Subscription[Charge, Payment])


@app.subscriber(shipments, transactional=True, many=True)
def ship_many(ctx: BatchContext, payloads: Sequence[Shipment]) -> None:
    connection: Any = ctx.connection
    connection.executemany("insert", [(shipment.order_id,) for shipment in payloads])


async def by_hand_many() -> None:
    assert_type(await book(BatchContext([EffectContext("id")]), [Charge("o", 1)]), Sequence[Payment] | None)
    await book(BatchContext(), [Shipment("o")])  # E: wrong payloads


async def by_hand() -> None:
    assert_type(await pay(EffectContext("id", delivery=2), Charge("o", 1)), Payment)
    await pay(EffectContext("id"), Shipment("o"))  # E: wrong payload


@app.subscriber(charges, reconcile=find_plainly, looks=Retry(max_attempts=2))
def pay_plainly(ctx: EffectContext, charge: Charge) -> Payment:
    return Payment(charge.order_id)


@app.subscriber(charges, idempotent=True)  # E: the handler takes another payload
async def other_payload(ctx: EffectContext, shipment: Shipment) -> Payment:
    return Payment(shipment.order_id)


async def text(ctx: EffectContext, charge: Charge) -> str:
    return charge.order_id


app.subscriber(charges)(text)  # E: the handler returns another type
app.subscriber(charges, reconcile=find_text)  # E: the look-up finds another type
app.subscriber("charges")  # E: an effect, not its name


async def texts(ctx: BatchContext, payloads: Sequence[Charge]) -> list[str]:
    return [charge.order_id for charge in payloads]


app.subscriber(charges, transactional=True, many=True)(texts)  # E: the results are of another type
app.subscriber(charges, transactional=True, many=True)(text)  # E: it takes one
app.subscriber(charges, many=True)  # E: not transactional
