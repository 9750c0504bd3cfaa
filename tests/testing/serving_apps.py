"""An app with subscribers whose crashes change nothing, and options with which they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from streams import App, BatchContext, Context, EffectContext, Fail, Found, NotFound, RequestFailed, Retry, TryAgain
from streams.testing import Scenario

Script = Callable[[Scenario], Any]


class Provider:
    """The world outside: it pays as often as it is asked, and can be asked what it has paid."""

    def __init__(self) -> None:
        self.payments: list[tuple[str, int]] = []
        self.asked = 0

    def pay(self, key: str, amount: int) -> str:
        self.payments.append((key, amount))
        return f"paid {amount}"

    def find(self, key: str) -> str | None:
        return next((f"paid {amount}" for known, amount in self.payments if known == key), None)


async def find(ctx: EffectContext, amount: int) -> Found[str] | NotFound:
    found = ctx.resources.find(ctx.idempotency_key)
    return NotFound() if found is None else Found(found)


def shop(**options: Any) -> tuple[App, Script]:
    """A request that money is paid for, and a row for it in the ledger's own transaction."""
    app = App("shop")
    payments = app.effect("payments", int, reply=str)
    rows = app.effect("rows", dict)
    busy = app.effect("busy", str, reply=str)
    impossible = app.effect("impossible", str, reply=str)

    @app.subscriber(payments, **(options or {"reconcile": find}))
    async def pay(ctx: EffectContext, amount: int) -> str:
        await asyncio.sleep(0.1)
        done: str = ctx.resources.pay(ctx.idempotency_key, amount)
        await asyncio.sleep(0.1)
        return done

    @app.subscriber(rows, transactional=True)
    async def write(ctx: EffectContext, row: dict[str, Any]) -> None:
        ctx.connection[row["order"]] = ctx.connection.get(row["order"], 0) + row["amount"]

    @app.subscriber(busy, retry=Retry(initial=1.0, max_attempts=100), idempotent=True)
    async def try_again(ctx: EffectContext, name: str) -> str:
        if ctx.delivery < 2:
            raise TryAgain("not yet")
        return name.upper()

    @app.subscriber(impossible, idempotent=True)
    def refuse(ctx: EffectContext, name: str) -> str:
        raise Fail("NEVER", "it cannot be done")

    @app.workflow(version=1)
    async def buy(ctx: Context, order: str) -> str:
        receipt = await ctx.request(payments, 15, idempotency_key=f"pay/{order}")
        ctx.emit(rows, {"order": order, "amount": 15})
        try:
            await ctx.request(impossible, order)
        except RequestFailed as error:
            return f"{receipt}, {await ctx.request(busy, order)}, {error.code}"
        return receipt

    async def script(s: Scenario) -> None:
        run = await s.start(buy, "o-1")
        assert await s.result(run) == "paid 15, O-1, NEVER"

    return app, script


def shelf() -> tuple[App, Script]:
    """Rows that a handler of many writes, all of a batch in one call."""
    app = App("shelf")
    rows = app.effect("rows", int, reply=int)

    @app.subscriber(rows, transactional=True, many=True)
    async def write(ctx: BatchContext, numbers: Sequence[int]) -> list[int]:
        await asyncio.sleep(0.1)
        for delivery, number in zip(ctx.deliveries, numbers, strict=True):
            ctx.connection[delivery.idempotency_key] = (*ctx.connection.get(delivery.idempotency_key, ()), number)
        return [10 * number for number in numbers]

    @app.workflow(version=1)
    async def fill(ctx: Context, _: str) -> int:
        return sum(await ctx.all([ctx.request(rows, number, idempotency_key=f"row/{number}") for number in range(3)]))

    async def script(s: Scenario) -> None:
        assert await s.result(await s.start(fill, "s-1")) == 30

    return app, script
