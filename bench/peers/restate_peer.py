"""Restate: its server, one process of the service, and the load from this process.

The server keeps its default settings (24 partitions, a flush for each write), with its telemetry off. Every request has
an idempotency key, so that its result can be read afterwards, as the job asks.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from order import Arguments, Load, Meter, arguments, right, tell
from servers import answers, free_ports, post, server

HERE = Path(__file__).resolve().parent
WARM_UP = 50
SETTLE_SECONDS = 0.05
CONFIG = """listen-mode = "tcp"
bind-ip = "127.0.0.1"
bind-port = {node}
node-name = "bench"
cluster-name = "bench"
disable-telemetry = true
log-filter = "warn"
base-dir = "{folder}"
[ingress]
bind-address = "127.0.0.1:{ingress}"
[admin]
bind-address = "127.0.0.1:{admin}"
"""
SERVE = "-m granian --interface asgi --host 127.0.0.1 --workers 1 --http 2 --loop uvloop --no-ws --log-level warning"


def restate_server() -> str:
    """The binary that the npm package brings, installed beside this python's virtual environment."""
    places = sorted(Path(sys.prefix).glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not places:
        raise SystemExit("there is no restate-server: `make bench-peers` installs it where npm is")
    return str(places[0])


class Caller:
    """Calls the ingress."""

    def __init__(self, session: aiohttp.ClientSession, ingress: str) -> None:
        self._session = session
        self._ingress = ingress

    async def _read(self, way: str, path: str, body: str | None = None, key: str | None = None) -> Any:
        headers = {"idempotency-key": key} if key else {}
        async with self._session.request(way, f"{self._ingress}/{path}", json=body, headers=headers) as answer:
            if answer.status >= 300:
                raise AssertionError(f"{path} gave {answer.status}: {await answer.text()}")
            return await answer.json(content_type=None) if answer.content_length != 0 else None

    async def run(self, order_id: str) -> float:
        began = time.perf_counter()
        right(await self._read("POST", "Orders/place", order_id, key=order_id), order_id)
        return time.perf_counter() - began

    async def answer(self, order_id: str) -> float:
        await self._read("POST", f"Approvals/{order_id}/run/send", order_id)
        await asyncio.sleep(SETTLE_SECONDS)  # until it waits
        result = asyncio.create_task(self._read("GET", f"restate/workflow/Approvals/{order_id}/attach"))
        await asyncio.sleep(0.01)
        began = time.perf_counter()
        await self._read("POST", f"Approvals/{order_id}/approve", "yes")
        right(await result, order_id)
        return time.perf_counter() - began

    async def readable(self, order_id: str) -> None:
        """The result of a run that has ended, from the server alone."""
        right(await self._read("GET", f"restate/invocation/Orders/place/{order_id}/output"), order_id)


async def measured(asked: Arguments, ingress: str, servers: list[int]) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        caller = Caller(session, ingress)
        limit = asyncio.Semaphore(asked.in_flight)

        async def limited(order_id: str) -> float:
            async with limit:
                return await caller.run(order_id)

        await asyncio.gather(*(limited(f"warm-{number}") for number in range(WARM_UP)))
        load, meter = Load(), Meter(servers)
        load.saturated = await asyncio.gather(*(limited(f"run-{number}") for number in range(asked.runs)))
        spent = meter.per_run(asked.runs)
        load.alone = [await caller.run(f"alone-{number}") for number in range(asked.alone)]
        load.approval = [await caller.answer(f"ask-{number}") for number in range(asked.approvals)]
        await caller.readable(f"run-{asked.runs - 1}")
    tell(spent, load.figures())


def main() -> None:
    asked = arguments(__doc__ or "", ("server",))
    binary = restate_server()
    ingress, admin, node, port = free_ports(4)
    config = asked.folder / "restate.toml"
    config.write_text(CONFIG.format(node=node, ingress=ingress, admin=admin, folder=asked.folder), encoding="utf-8")
    serve = [sys.executable, *SERVE.split(), "--port", str(port), "restate_service:app"]
    with (
        server(serve, asked.folder, "service", PYTHONPATH=str(HERE)) as service,
        server([binary, "--no-logo", "--config-file", str(config)], asked.folder, "restate-server") as restate,
    ):
        answers(f"http://127.0.0.1:{admin}/health", restate)
        answers(f"http://127.0.0.1:{ingress}/restate/health", restate)
        post(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{port}"})
        pids = [restate.pid, *children(service.pid)]
        uvloop.run(measured(asked, f"http://127.0.0.1:{ingress}", pids))


def children(pid: int) -> list[int]:
    """A process and what it has started: the web server's worker does the work. Needs /proc."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return [pid, *map(int, listed.read_text("ascii").split())] if listed.exists() else [pid]


if __name__ == "__main__":
    main()
