"""DBOS Transact: a plain workflow of three plain steps, started from threads of the process that executes it.

Each step's result is committed before the next one begins; that is how DBOS always works.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import order
from dbos import DBOS, DBOSConfig
from order import Arguments, Load, Meter, arguments, right, tell

WARM_UP = 10
CALLERS = {"postgres": 8, "sqlite": 4}
"""More callers than this gain nothing: the executor is bound by its interpreter, and by its writer on SQLite."""
SETTLE_SECONDS = 0.1
POLL_SECONDS = 0.02
"""How often a waiting caller asks for a result. The default of a second would hide what a run takes."""


@DBOS.step()
def reserve(order_id: str) -> dict[str, Any]:
    return order.reserve(order_id)


@DBOS.step()
def charge(order_id: str) -> dict[str, Any]:
    return order.charge(order_id)


@DBOS.step()
def ship(order_id: str) -> dict[str, Any]:
    return order.ship(order_id)


@DBOS.workflow()
def place(order_id: str) -> dict[str, Any]:
    return {"reserve": reserve(order_id), "charge": charge(order_id), "ship": ship(order_id)}


@DBOS.workflow()
def approval(order_id: str) -> dict[str, Any]:
    first, second = reserve(order_id), charge(order_id)
    DBOS.recv("approval", timeout_seconds=60)
    return {"reserve": first, "charge": second, "ship": ship(order_id)}


def run(order_id: str) -> float:
    began = time.perf_counter()
    right(DBOS.start_workflow(place, order_id).get_result(polling_interval_sec=POLL_SECONDS), order_id)
    return time.perf_counter() - began


def answer(order_id: str) -> float:
    handle = DBOS.start_workflow(approval, order_id)
    time.sleep(SETTLE_SECONDS)  # until it waits
    began = time.perf_counter()
    DBOS.send(handle.get_workflow_id(), "yes", topic="approval")
    right(handle.get_result(polling_interval_sec=POLL_SECONDS), order_id)
    return time.perf_counter() - began


def measured(asked: Arguments) -> None:
    load = Load()
    with ThreadPoolExecutor(min(asked.in_flight, CALLERS[asked.store])) as callers:
        list(callers.map(run, [f"warm-{number}" for number in range(WARM_UP)]))
        meter = Meter()
        load.saturated = list(callers.map(run, [f"run-{number}" for number in range(asked.runs)]))
        spent = meter.per_run(asked.runs)
    load.alone = [run(f"alone-{number}") for number in range(asked.alone)]
    load.approval = [answer(f"ask-{number}") for number in range(asked.approvals)]
    tell(spent, load.figures())


def main() -> None:
    asked = arguments(__doc__ or "", ("postgres", "sqlite"))
    url = asked.postgres if asked.store == "postgres" else f"sqlite:///{asked.folder}/dbos.db"
    settings: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=settings)
    DBOS.launch()
    try:
        measured(asked)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    main()
