"""The job as a service and as a workflow of Restate; an ASGI application that `restate_peer.py` serves."""

from __future__ import annotations

from typing import Any

import order
import restate
from restate import Context, Service, Workflow, WorkflowContext, WorkflowSharedContext

orders = Service("Orders")
approvals = Workflow("Approvals")


@orders.handler()
async def place(ctx: Context, order_id: str) -> dict[str, Any]:
    return {
        "reserve": await ctx.run_typed("reserve", order.reserve, order_id=order_id),
        "charge": await ctx.run_typed("charge", order.charge, order_id=order_id),
        "ship": await ctx.run_typed("ship", order.ship, order_id=order_id),
    }


@approvals.main()
async def run(ctx: WorkflowContext, order_id: str) -> dict[str, Any]:
    reserved = await ctx.run_typed("reserve", order.reserve, order_id=order_id)
    charged = await ctx.run_typed("charge", order.charge, order_id=order_id)
    await ctx.promise("approval", type_hint=str).value()
    shipped = await ctx.run_typed("ship", order.ship, order_id=order_id)
    return {"reserve": reserved, "charge": charged, "ship": shipped}


@approvals.handler()
async def approve(ctx: WorkflowSharedContext, verdict: str) -> None:
    await ctx.promise("approval", type_hint=str).resolve(verdict)


# The protocol that keeps one stream for each run; the other one sends the journal anew after each step.
app = restate.app(services=[orders, approvals], protocol="bidi")
