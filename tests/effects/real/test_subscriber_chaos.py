"""Workers and subscribers killed, frozen and stopped at random while orders come in; then only the outside is asked."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from streams.effects.port import Status
from streams.kernel import bodies as ev
from tests.effects.real.books import sql
from tests.effects.real.play import play
from tests.effects.real.stage import TILL, Pair, Stage, on_each_pair
from tests.system.processes import Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KINDS = ("holds", "rows", "ticks")
MODES = ("drop_after", "fail_after", "fail_before", "slow")
WEIGHTS = {
    "kill a subscriber": 6,
    "kill a worker": 3,
    "freeze a subscriber": 2,
    "stop a subscriber": 2,
    "stop a worker": 1,
    "cut the ledger's connections": 2,
    "kill the provider": 1,
}
SECONDS = float(os.environ.get("STREAMS_CHAOS_SECONDS") or 0)
STUCK_SECONDS = 240.0


class Crew:
    """Two workers and two subscribers, each replaced when it has gone."""

    def __init__(self, s: Stage, rng: random.Random) -> None:
        self.s = s
        self.rng = rng
        self.workers: list[Process] = []
        self.subscribers: list[Process] = []
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._sleepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        while len(self.workers) < 2:
            self.workers.append(await self.s.worker(TILL))
        while len(self.subscribers) < 2:
            self.subscribers.append(await self.s.subscriber(only=list(KINDS)))

    async def strike(self, fault: str) -> None:
        """Do one fault; whoever has gone is replaced a little later."""
        self.done[fault] += 1
        match fault:
            case "kill a subscriber" | "kill a worker":
                await self._taken(fault).end()
            case "stop a subscriber" | "stop a worker":
                process = self._taken(fault)
                if code := await process.stop():
                    self.wrong.append(f"{fault}: it ended with {code}: {process.said[-5:]}")
            case "freeze a subscriber":
                self._sleepers.append(asyncio.create_task(self._freeze(self.rng.choice(self.subscribers))))
            case "kill the provider":
                await self.s.outside.down()
                await asyncio.sleep(self.rng.uniform(0.0, 1.5))
                await self.s.outside.up()
            case _:
                await asyncio.to_thread(cut_connections, self.s.ledger_url)

    def _taken(self, fault: str) -> Process:
        crew = self.workers if fault.endswith("worker") else self.subscribers
        return crew.pop(self.rng.randrange(len(crew)))

    async def _freeze(self, process: Process) -> None:
        with suppress(ProcessLookupError):  # it may have been killed before
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(self.rng.uniform(3.0, 4.5))
            process.signal(signal.SIGCONT)

    async def calm_down(self) -> None:
        await asyncio.gather(*self._sleepers)
        await self.start()
        for process in (*self.workers, *self.subscribers):
            if process.process.returncode is not None:
                self.wrong.append(f"{process.pid} ended by itself: {process.said[-5:]}")


def cut_connections(url: str) -> None:
    """Each of PostgreSQL's processes for this database is ended, in the middle of what it is at."""
    with suppress(psycopg.OperationalError):  # its own one may be among them
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = ?"
        sql(url, ended, url.rpartition("/")[2])


async def feed(s: Stage, rng: random.Random, orders: list[str], stop: asyncio.Event) -> None:
    """Orders come in, some of whose provider will misbehave."""
    while not stop.is_set():
        fresh = [f"o{len(orders) + number}" for number in range(rng.randint(1, 6))]
        for order in fresh:
            with suppress(OSError):  # it is down just now
                if rng.random() < 0.2:
                    await s.outside.behave(order, rng.choice(MODES), delay_ms=rng.choice([0, 500, 3_000]))
        for order in fresh:
            await s.history.start("buy", f"run-{order}", order)
        orders += fresh
        await asyncio.sleep(rng.uniform(0.1, 0.5))


async def chaos(s: Stage, rng: random.Random, seconds: float, faults: list[str]) -> str:
    """Returns what has happened, in a line."""
    crew, orders, stop = Crew(s, rng), list[str](), asyncio.Event()
    await crew.start()
    feeding = asyncio.create_task(feed(s, rng, orders, stop))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(rng.uniform(0.3, 1.8))
        await crew.strike(rng.choices(faults, [WEIGHTS[fault] for fault in faults])[0])
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        await crew.start()
    stop.set()
    await feeding
    await crew.calm_down()
    await asyncio.wait_for(s.history.ended(*(f"run-{order}" for order in orders)), STUCK_SECONDS)
    await s.books.finished(*KINDS, seconds=STUCK_SECONDS)
    await crew.calm_down()
    await s.close()
    assert crew.wrong == []
    await prove(s, orders)
    parked = sum(entry.status is Status.PARKED for entry in (await s.books.entries("ticks")).values())
    return f"{len(orders)} orders, {dict(crew.done)}, {parked} ticks parked, calls {len(s.calls())}"


async def prove(s: Stage, orders: list[str]) -> None:
    """Each order has one payment, one row and one end; nothing is lost, and no letter lies there without a cause."""
    checked = await s.check()
    assert set(checked.runs) == {f"run-{order}" for order in orders}
    for order in orders:
        ends = s.history.bodies(f"run-{order}", ev.RunCompleted)
        assert len(ends) == 1, f"run-{order}: {s.history.end(f'run-{order}')}"
    assert s.outside.all_holds() == dict.fromkeys(orders, 1)
    assert s.books.rows() == {f"row/{order}": 1 for order in orders}
    await s.books.check(*KINDS)
    s.check_calls(await s.books.entries("holds"), "hold")
    ticks = await s.books.entries("ticks")
    s.check_calls(ticks, "tick")
    assert set(ticks) == {f"tick/{order}" for order in orders}
    assert {entry.status for entry in ticks.values()} <= {Status.DONE, Status.PARKED}
    for kind in ("holds", "rows"):
        assert await s.books.letters(kind) == []
    assert {one.code for one in await s.books.letters("ticks")} <= {"OUTCOME_UNKNOWN"}


@on_each_pair
def test_chaos_of_workers_and_subscribers(tmp_path: Path, pair: Pair, capsys: pytest.CaptureFixture[str]):
    """STREAMS_CHAOS_SEED repeats a choice of faults, STREAMS_CHAOS_SECONDS says how long they go on."""
    seed = int(os.environ.get("STREAMS_CHAOS_SEED") or secrets.randbits(32))
    real = pair.kafka is not None
    faults = [fault for fault in WEIGHTS if real or "connections" not in fault]
    said = [f"STREAMS_CHAOS_SEED={seed}"]

    async def scene(s: Stage) -> None:
        said.append(await chaos(s, random.Random(seed), SECONDS or (50 if real else 20), faults))

    try:
        play(tmp_path, pair, scene)
    finally:
        with capsys.disabled():
            print(f"\nchaos of subscribers: {'; '.join(said)}", flush=True)  # noqa: T201 - the seed is wanted
