"""LangGraph: a graph of three nodes, compiled with a checkpointer on SQLite or PostgreSQL.

Durability is `sync`: the default, `async`, writes a step's checkpoint while the next step runs, which breaks the job's
rule. The graph runs in its caller, so there is no hand-over to a worker, and nothing resumes a run whose caller died.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from order import Arguments, Load, Meter, arguments, charge, reserve, right, ship, tell

WARM_UP = 20
SAVERS = 16
"""A PostgreSQL saver holds one lock around each of its calls, so one saver alone never uses two connections."""


class Order(TypedDict, total=False):
    """The state of a run."""

    order_id: str
    reserve: dict[str, Any]
    charge: dict[str, Any]
    approved: bool
    ship: dict[str, Any]


async def take_reserve(state: Order) -> Order:
    return {"reserve": reserve(state["order_id"])}


async def take_charge(state: Order) -> Order:
    return {"charge": charge(state["order_id"])}


async def ask(state: Order) -> Order:
    del state
    return {"approved": interrupt("Ship?")}


async def take_ship(state: Order) -> Order:
    return {"ship": ship(state["order_id"])}


def plain_reserve(state: Order) -> Order:
    return {"reserve": reserve(state["order_id"])}


def plain_charge(state: Order) -> Order:
    return {"charge": charge(state["order_id"])}


def plain_ask(state: Order) -> Order:
    del state
    return {"approved": interrupt("Ship?")}


def plain_ship(state: Order) -> Order:
    return {"ship": ship(state["order_id"])}


PLAIN = (plain_reserve, plain_charge, plain_ask, plain_ship)
ASYNC = (take_reserve, take_charge, ask, take_ship)


def compiled(saver: Any, nodes: tuple[Any, ...], *, approval: bool) -> Any:
    names = ["take_reserve", "take_charge", "ask", "take_ship"]
    graph = StateGraph(Order)
    path = [(name, node) for name, node in zip(names, nodes, strict=True) if approval or name != "ask"]
    last = START
    for name, node in path:
        graph.add_node(name, node)
        graph.add_edge(last, name)
        last = name
    graph.add_edge(last, END)
    return graph.compile(checkpointer=saver)


def config(run_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": run_id}}


def on_sqlite(asked: Arguments) -> None:
    """One caller: SQLite has one writer, and the plain saver in one thread is the fastest of what there is."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(asked.folder / "checkpoints.db")) as saver:
        saver.setup()  # turns the write-ahead log on; synchronous stays FULL
        order, approval = (compiled(saver, PLAIN, approval=asks) for asks in (False, True))

        def run(run_id: str) -> float:
            began = time.perf_counter()
            result = order.invoke({"order_id": run_id}, config(run_id), durability="sync")
            right(result, run_id)
            return time.perf_counter() - began

        def answer(run_id: str) -> float:
            approval.invoke({"order_id": run_id}, config(run_id), durability="sync")
            began = time.perf_counter()
            right(approval.invoke(Command(resume=True), config(run_id), durability="sync"), run_id)
            return time.perf_counter() - began

        for number in range(WARM_UP):
            run(f"warm-{number}")
        load, meter = Load(), Meter()
        load.saturated = [run(f"run-{number}") for number in range(asked.runs)]
        spent = meter.per_run(asked.runs)
        load.alone = [run(f"alone-{number}") for number in range(asked.alone)]
        load.approval = [answer(f"ask-{number}") for number in range(asked.approvals)]
    tell(spent, load.figures())


async def on_postgres(asked: Arguments) -> None:
    """Several savers share one pool of connections."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    async with AsyncExitStack() as stack:
        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool = AsyncConnectionPool(asked.postgres, min_size=SAVERS, max_size=SAVERS, open=False, kwargs=options)
        await stack.enter_async_context(pool)
        savers = [AsyncPostgresSaver(pool) for _ in range(SAVERS)]
        await savers[0].setup()
        orders = cycle([compiled(saver, ASYNC, approval=False) for saver in savers])
        approval = compiled(savers[0], ASYNC, approval=True)
        limit = asyncio.Semaphore(asked.in_flight)

        async def run(run_id: str) -> float:
            async with limit:
                began = time.perf_counter()
                result = await next(orders).ainvoke({"order_id": run_id}, config(run_id), durability="sync")
                right(result, run_id)
                return time.perf_counter() - began

        async def answer(run_id: str) -> float:
            await approval.ainvoke({"order_id": run_id}, config(run_id), durability="sync")
            began = time.perf_counter()
            right(await approval.ainvoke(Command(resume=True), config(run_id), durability="sync"), run_id)
            return time.perf_counter() - began

        await asyncio.gather(*(run(f"warm-{number}") for number in range(WARM_UP)))
        load, meter = Load(), Meter()
        load.saturated = await asyncio.gather(*(run(f"run-{number}") for number in range(asked.runs)))
        spent = meter.per_run(asked.runs)
        load.alone = [await run(f"alone-{number}") for number in range(asked.alone)]
        load.approval = [await answer(f"ask-{number}") for number in range(asked.approvals)]
    tell(spent, load.figures())


if __name__ == "__main__":
    found = arguments(__doc__ or "", ("sqlite", "postgres"))
    if found.store == "sqlite":
        on_sqlite(found)
    else:
        asyncio.run(on_postgres(found))
