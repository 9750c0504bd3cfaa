"""Temporal: its server with all services in one process, a worker with the job's three activities, and the load.

Over PostgreSQL, with 4 history shards as its development server has. Activities are not local ones, whose results are
stored only with the workflow's next task, which breaks the job's rule.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from order import Arguments, Load, Meter, arguments, right, tell
from servers import free_ports, server
from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

with workflow.unsafe.imports_passed_through():
    import order

NAMESPACE, QUEUE = "bench", "orders"
WARM_UP = 20
SLOTS = 100
SETTLE_SECONDS = 0.2
READY_SECONDS = 120.0
DATABASES = {"main": "temporal", "visibility": "visibility"}
STORE = """    {name}:
      sql:
        pluginName: "postgres12_pgx"
        databaseName: "bench_{kind}"
        connectAddr: "{host}:{port}"
        connectProtocol: "tcp"
        user: "{user}"
        password: "unused"
        maxConns: 20
        maxIdleConns: 20
        maxConnLifetime: "1h"
"""
SERVICE = """  {name}:
    rpc:
      grpcPort: {port}
      membershipPort: {membership}
      bindOnLocalHost: true
"""
CONFIG = """log:
  stdout: true
  level: error
persistence:
  defaultStore: main
  visibilityStore: visibility
  numHistoryShards: 4
  datastores:
{stores}
global:
  membership:
    maxJoinDuration: 30s
    broadcastAddress: "127.0.0.1"
services:
{services}
clusterMetadata:
  enableGlobalNamespace: false
  failoverVersionIncrement: 10
  masterClusterName: "active"
  currentClusterName: "active"
  clusterInformation:
    active:
      enabled: true
      initialFailoverVersion: 1
      rpcName: "frontend"
      rpcAddress: "127.0.0.1:{frontend}"
dcRedirectionPolicy:
  policy: "noop"
dynamicConfigClient:
  filepath: "{dynamic}"
  pollInterval: "60s"
"""


@activity.defn
async def reserve(order_id: str) -> dict[str, Any]:
    return order.reserve(order_id)


@activity.defn
async def charge(order_id: str) -> dict[str, Any]:
    return order.charge(order_id)


@activity.defn
async def ship(order_id: str) -> dict[str, Any]:
    return order.ship(order_id)


async def step(function: Any, order_id: str) -> Any:
    return await workflow.execute_activity(function, order_id, start_to_close_timeout=timedelta(seconds=60))


@workflow.defn
class Order:
    @workflow.run
    async def run(self, order_id: str) -> dict[str, Any]:
        return {
            "reserve": await step(reserve, order_id),
            "charge": await step(charge, order_id),
            "ship": await step(ship, order_id),
        }


@workflow.defn
class Approval:
    def __init__(self) -> None:
        self.approved = False

    @workflow.signal
    def approve(self) -> None:
        self.approved = True

    @workflow.run
    async def run(self, order_id: str) -> dict[str, Any]:
        reserved, charged = await step(reserve, order_id), await step(charge, order_id)
        await workflow.wait_condition(lambda: self.approved)
        return {"reserve": reserved, "charge": charged, "ship": await step(ship, order_id)}


def program(name: str) -> str:
    """What `make bench-peers` has built, beside this python."""
    found = Path(sys.prefix) / "go" / "bin" / name
    if not found.exists():
        raise SystemExit(f"there is no {found.name} of Temporal: `make bench-peers TEMPORAL=1` builds it where Go is")
    return str(found)


def configured(asked: Arguments, ports: list[int]) -> Path:
    place = urlsplit(asked.postgres)
    options = {"host": place.hostname, "port": place.port, "user": place.username}
    names = ("frontend", "matching", "history", "worker")
    services = [
        SERVICE.format(name=name, port=ports[2 * number], membership=ports[2 * number + 1])
        for number, name in enumerate(names)
    ]
    dynamic = asked.folder / "dynamic.yaml"
    dynamic.write_text("limit.maxIDLength:\n  - value: 255\n    constraints: {}\n", encoding="utf-8")
    stores = [STORE.format(name=name, kind=kind, **options) for name, kind in DATABASES.items()]
    config = asked.folder / "temporal.yaml"
    whole = CONFIG.format(stores="".join(stores), services="".join(services), frontend=ports[0], dynamic=dynamic)
    config.write_text(whole, encoding="utf-8")
    return config


def prepare(asked: Arguments) -> None:
    """Make its databases and their tables anew."""
    import psycopg

    place = urlsplit(asked.postgres)
    with psycopg.connect(asked.postgres, autocommit=True) as connection:
        for kind in DATABASES.values():
            connection.execute(f"DROP DATABASE IF EXISTS bench_{kind} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE bench_{kind}")
    for kind in DATABASES.values():
        base = [program("sql"), "--plugin", "postgres12_pgx", "--ep", str(place.hostname), "-p", str(place.port)]
        base += ["-u", str(place.username), "--pw", "unused", "--db", f"bench_{kind}"]
        subprocess.run([*base, "setup-schema", "-v", "0.0"], check=True, stdout=sys.stderr)
        subprocess.run([*base, "update-schema", "-s", f"postgresql/v12/{kind}"], check=True, stdout=sys.stderr)


async def connected(frontend: int) -> Client:
    """A client, once the server has taken the namespace."""
    from google.protobuf.duration_pb2 import Duration

    end = time.monotonic() + READY_SECONDS
    kept = Duration(seconds=86_400)
    request = RegisterNamespaceRequest(namespace=NAMESPACE, workflow_execution_retention_period=kept)
    while True:
        try:
            client = await Client.connect(f"127.0.0.1:{frontend}", namespace=NAMESPACE)
            await client.workflow_service.register_namespace(request)
        except (RPCError, RuntimeError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.5)
        else:
            return client


async def measured(asked: Arguments, frontend: int, pid: int) -> None:
    client = await connected(frontend)
    limit = asyncio.Semaphore(asked.in_flight)

    async def run(order_id: str) -> float:
        async with limit:
            began = time.perf_counter()
            right(await client.execute_workflow(Order.run, order_id, id=order_id, task_queue=QUEUE), order_id)
            return time.perf_counter() - began

    async def answer(order_id: str) -> float:
        handle = await client.start_workflow(Approval.run, order_id, id=order_id, task_queue=QUEUE)
        await asyncio.sleep(SETTLE_SECONDS)  # until it waits
        began = time.perf_counter()
        await handle.signal(Approval.approve)
        right(await handle.result(), order_id)
        return time.perf_counter() - began

    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Order, Approval],
        activities=[reserve, charge, ship],
        max_concurrent_workflow_tasks=SLOTS,
        max_concurrent_activities=SLOTS,
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        await first(run)
        await asyncio.gather(*(run(f"warm-{number}") for number in range(WARM_UP)))
        load, meter = Load(), Meter([pid])
        load.saturated = await asyncio.gather(*(run(f"run-{number}") for number in range(asked.runs)))
        spent = meter.per_run(asked.runs)
        load.alone = [await run(f"alone-{number}") for number in range(asked.alone)]
        load.approval = [await answer(f"ask-{number}") for number in range(asked.approvals)]
    tell(spent, load.figures())


async def first(run: Any) -> None:
    """A new namespace is served once each service has it in its cache."""
    end = time.monotonic() + READY_SECONDS
    number = 0
    while True:
        try:
            await asyncio.wait_for(run(f"first-{number}"), 30)
        except (RPCError, TimeoutError):
            if time.monotonic() > end:
                raise
            number += 1
            await asyncio.sleep(1)
        else:
            return


def main() -> None:
    asked = arguments(__doc__ or "", ("postgres",))
    binary = program("server")
    prepare(asked)
    ports = free_ports(8)
    command = [binary, "--config-file", str(configured(asked, ports)), "--allow-no-auth", "start"]
    with server(command, asked.folder, "temporal-server") as process:
        asyncio.run(measured(asked, ports[0], process.pid))


if __name__ == "__main__":
    main()
