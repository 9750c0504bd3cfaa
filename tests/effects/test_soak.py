"""Subscribers under kills, freezes, rebalances, failing commits and lost answers of the ledger, drawn from a seed."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from streams import App, EffectContext, Fail, Found, NotFound, Retry, TryAgain
from streams.effects.memory import MemoryLedger
from streams.effects.port import Status
from streams.errors import LedgerUnavailable
from streams.log.memory import Hooks
from streams.log.memory.hooks import End
from streams.runtime import crash
from streams.testing.loop import current_actor
from tests.effects.lab import Lab, virtual

SEEDS = int(os.environ.get("STREAMS_SOAK_SEEDS", "12"))
RUNS, MESSAGES, SECONDS = 12, 120, 60.0


class World(Hooks):
    """The outside, and what goes wrong. Nothing goes wrong any more once `calm` is set."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.calm = False
        self.paid: list[str] = []
        self.booked_order: dict[str, list[str]] = {}

    def chance(self, share: float) -> bool:
        return not self.calm and self.rng.random() < share

    async def before_commit(self, producer: str, snapshot: Any) -> None:
        if self.chance(0.1):
            await asyncio.sleep(self.rng.random())

    def end(self, producer: str) -> End:
        if self.chance(0.1):
            return self.rng.choice(["abort", "in_doubt_committed", "in_doubt_aborted", "in_doubt_open"])
        return "commit"

    def marker_delay(self, topic: str, partition: int) -> float:
        return self.rng.random() * 0.05 if self.chance(0.2) else 0.0


class Shaky(MemoryLedger):
    """Refuses some calls, and loses the answers of others."""

    def __init__(self, clock: Any, world: World) -> None:
        super().__init__(clock)
        self.world = world

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("claim", "settle", "extend", "note_published", "now_us", "transact"):
            return found

        async def call(*args: Any) -> Any:
            await asyncio.sleep(self.world.rng.random() * 0.01)
            if self.world.chance(0.03):
                raise LedgerUnavailable("away")
            answer = await found(*args)
            await asyncio.sleep(self.world.rng.random() * 0.01)
            if self.world.chance(0.03):
                raise LedgerUnavailable("the connection was cut")
            return answer

        return call


def make_app(world: World) -> App:
    app = App("soak")
    payments = app.effect("payments", str, reply=str)
    bookings = app.effect("bookings", str, reply=str)
    retry, looks = Retry(max_attempts=200, initial=0.2, max_delay=2), Retry(max_attempts=200, initial=0.2, max_delay=2)

    async def find(ctx: EffectContext, order: str) -> Found[str] | NotFound:
        await asyncio.sleep(world.rng.random() * 0.2)
        if world.chance(0.1):
            raise OSError("no route")
        return Found(order) if order in world.paid else NotFound()

    @app.subscriber(payments, reconcile=find, retry=retry, looks=looks, timeout=5)
    async def pay(ctx: EffectContext, order: str) -> str:
        await asyncio.sleep(world.rng.random() * (8 if world.chance(0.03) else 0.5))
        if world.chance(0.1):
            raise TryAgain("busy")
        if order.endswith("13"):
            raise Fail("UNLUCKY")
        world.paid.append(order)
        await asyncio.sleep(world.rng.random() * 0.2)
        if world.chance(0.1):
            raise ConnectionError("the answer was lost")
        return order

    @app.subscriber(bookings, transactional=True, retry=retry, batch=20)
    def book(ctx: EffectContext, order: str) -> str:
        if world.chance(0.02):
            raise ValueError("constraint")
        if order.endswith("13"):
            raise Fail("UNLUCKY")
        ctx.connection[order] = ctx.connection.get(order, 0) + 1
        rows = ctx.connection.get(ctx.run_id, ())
        ctx.connection[ctx.run_id] = (*rows, order)
        return order

    return app


async def disturb(lab: Lab, world: World) -> None:
    """Kill, freeze, throw out and start subscribers, for a while."""

    def hook(point: str) -> None:
        actor = current_actor()
        if actor is not None and actor.alive and point.startswith("effect.") and world.chance(0.002):
            for dying in (running for running in lab.running if running.actor is actor):
                dying.vanish()
                actor.die()

    crash.install(hook)
    until = lab.clock.monotonic() + SECONDS
    while lab.clock.monotonic() < until:
        await asyncio.sleep(world.rng.random() * 4)
        alive = [running for running in lab.running if not running.over]
        if len(alive) < 3 and world.rng.random() < 0.7:
            lab.subscriber(window=30, stop_seconds=2.0, drain_seconds=1.0, lease_seconds=20.0)
        if not alive:
            continue
        chosen, dice = world.rng.choice(alive), world.rng.random()
        if dice < 0.15:
            chosen.kill()
        elif dice < 0.3:
            chosen.subscriber.stop()
        elif dice < 0.5:
            chosen.actor.freeze()
            if world.rng.random() < 0.5:
                chosen.vanish()
            await asyncio.sleep(world.rng.random() * 5)
            chosen.actor.thaw()
        elif dice < 0.6:
            chosen.vanish()
    crash.install(None)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_effects_happen_once_whatever_goes_wrong(seed: int) -> None:
    world = World(seed)

    @virtual(lambda: make_app(world), hooks=lambda: world)
    async def scenario(lab: Lab) -> None:
        lab.ledger = Shaky(lab.clock, world)
        disturbing = asyncio.ensure_future(disturb(lab, world))
        orders: list[tuple[str, str]] = []
        for number in range(MESSAGES):
            run = f"r{world.rng.randrange(RUNS)}"
            orders.append((run, f"o{number}"))
            for effect in ("payments", "bookings"):
                effect_id = f"{run}@0/{effect}.{number}"
                for _ in range(1 + world.chance(0.1)):
                    await lab.send(effect, f"o{number}", run=run, effect_id=effect_id, attempt=1)
            if number % 4 == 0:
                await asyncio.sleep(world.rng.random())
        await disturbing
        world.calm = True
        lab.subscriber(lease_seconds=20.0)
        for effect in ("payments", "bookings"):
            await lab.finished(effect)
        await lab.end()

        good = [order for _, order in orders if not order.endswith("13")]
        assert sorted(world.paid) == sorted(good)
        booked = {key: count for key, count in lab.ledger.tables.items() if key.startswith("o")}
        assert booked == dict.fromkeys(good, 1)
        for run in {run for run, _ in orders}:
            of_run = [order for its_run, order in orders if its_run == run and order in good]
            assert list(lab.ledger.tables.get(run, ())) == of_run
            assert [order for order in world.paid if order in of_run] == of_run
        entries = lab.ledger._entries.values()
        failed = [entry for entry in entries if entry.status is Status.FAILED]
        assert {entry.status for entry in entries} <= {Status.DONE, Status.FAILED}
        assert all(entry.error.code == "UNLUCKY" and entry.due is None for entry in failed)
        replies = {(reply.effect_id, reply.value, reply.error) for reply in await lab.replies()}
        assert len(replies) == len(entries)  # one that comes twice says the same
        assert {effect_id for effect_id, *_ in replies} == {entry.effect_id for entry in entries}
        assert len(entries) == 2 * MESSAGES
        for effect in ("payments", "bookings"):
            letters = {letter.code for letter in await lab.letters(effect)}
            assert letters == {"UNLUCKY"}

    scenario()
