"""Several subscribers that want the same effects: claims, frozen owners, and a group that is never at rest."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from streams.effects.port import Status
from tests.effects.real.play import play
from tests.effects.real.stage import LEASE_SECONDS, Pair, Stage, on_each_pair, stage
from tests.runtime.history import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS = ("holds", "rows", "ticks")


@on_each_pair
def test_f17_two_subscribers_of_two_logs_that_fight_over_the_same_claims(tmp_path: Path, pair: Pair):
    """The same messages in both, one ledger: each is carried out by one of them, at a provider that knows no keys."""
    (tmp_path / "other").mkdir()

    async def inside() -> None:
        async with stage(tmp_path, pair) as a:
            copy = Pair(None, a.ledger_url)
            async with stage(tmp_path / "other", copy, app=a.app, outside=a.outside) as b:
                await a.outside.down()
                await a.outside.up("--ignore-keys")
                orders = [f"o{number}" for number in range(150)]
                messages = [a.message(kind, order, attempt=1) for kind in KINDS for order in orders]
                for s in (a, b):
                    await s.send(*messages)
                await asyncio.gather(a.subscriber(only=list(KINDS)), b.subscriber(only=list(KINDS)))
                for s in (a, b):
                    await s.books.finished(*KINDS)
                    await s.close()
                assert a.outside.all_holds() == dict.fromkeys(orders, 1)
                assert a.books.rows() == {f"rows/{order}": 1 for order in orders}
                ticks = Counter(call.key for s in (a, b) for call in s.calls("tick"))
                assert ticks == {f"ticks/{order}": 1 for order in orders}
                for kind in KINDS:
                    assert {entry.status for entry in (await a.books.entries(kind)).values()} == {Status.DONE}

    asyncio.run(inside())


async def frozen_at(s: Stage, point: str, effect: str) -> None:
    """A subscriber stands still at a point of its only request."""
    process = await s.subscriber(f"{point}/{effect}", signal.SIGSTOP, only=[effect])
    s.arm()
    await s.ask(effect, "order")
    await until(lambda: process.frozen, f"{point} of {effect}")


@on_each_pair
def test_f17_a_frozen_subscriber_loses_its_claim_and_settles_nothing(tmp_path: Path, pair: Pair):
    """Its lease ends, another one looks and goes on; when it thaws, its outcome and its offset are refused."""

    async def before_the_call(s: Stage) -> None:
        await frozen_at(s, "effect.claimed", "holds")
        await s.subscriber(only=["holds"])
        await s.books.finished("holds")
        entry = await s.books.entry("holds", "holds/order")
        assert (entry.status, entry.deliveries) == (Status.DONE, 2)
        s.processes[0].signal(signal.SIGCONT)
        await until(lambda: len(s.outside.asked("order")) == 2, "the late call")
        await until(lambda: s.processes[0].heard("claim lost", "holds"), "word of the lost claim")
        await s.close()
        assert s.outside.asked("order") == [("holds/order", 201)] * 2  # the same key: the provider knows it
        assert s.outside.holds("order") == 1
        assert await s.books.entry("holds", "holds/order") == entry
        await s.books.check("holds")
        assert [len(found) for found in (await s.books.replies()).values()] == [1]

    async def after_the_call(s: Stage) -> None:
        await frozen_at(s, "effect.called", "once")
        await s.subscriber(only=["once"])
        await s.books.finished("once")
        entry = await s.books.entry("once", "once/order")
        assert entry.status is Status.PARKED
        s.processes[0].signal(signal.SIGCONT)
        await s.close()
        assert await s.books.entry("once", "once/order") == entry  # a person may be looking at it already
        assert s.outside.holds("order") == 1
        await s.books.check("once")
        assert await s.books.replies() == {}

    async def before_the_offset(s: Stage) -> None:
        await frozen_at(s, "effect.settled", "ticks")
        await s.subscriber(only=["ticks"])
        await s.books.finished("ticks")
        s.processes[0].signal(signal.SIGCONT)
        await s.close()
        await s.books.check("ticks")
        assert len(s.calls("tick")) == 1
        assert [len(found) for found in (await s.books.replies()).values()] == [1]

    play(tmp_path, pair, before_the_call, after_the_call, before_the_offset)


@on_each_pair
def test_f17_a_subscriber_frozen_in_its_transaction_holds_others_up_and_writes_once(tmp_path: Path, pair: Pair):
    async def scene(s: Stage) -> None:
        await frozen_at(s, "effect.called", "rows")
        await s.subscriber(only=["rows"])
        await asyncio.sleep(4 * LEASE_SECONDS)
        assert s.books.rows() == {}
        s.processes[0].signal(signal.SIGCONT)
        await s.books.finished("rows")
        await s.close()
        await s.books.check("rows")
        assert s.books.rows() == {"rows/order": 1}
        assert [len(found) for found in (await s.books.replies()).values()] == [1]

    play(tmp_path, pair, scene)


@on_each_pair
def test_subscribers_in_a_storm_of_rebalances_repeat_and_lose_nothing(tmp_path: Path, pair: Pair):
    """They come, leave in order and are killed, while effects keep coming."""

    async def feed(s: Stage, orders: list[str]) -> None:
        for order in orders:
            for kind in KINDS:
                await s.ask(kind, order)
            await asyncio.sleep(0.04)

    async def scene(s: Stage) -> None:
        rng = random.Random(7)
        orders = [f"o{number}" for number in range(200)]
        feeding = asyncio.create_task(feed(s, orders))
        crew = [await s.subscriber(only=list(KINDS)) for _ in range(2)]
        for turn in range(7):
            crew.append(await s.subscriber(only=list(KINDS)))
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            leaver = crew.pop(rng.randrange(len(crew)))
            if turn % 2:
                await leaver.end()
            else:
                assert await leaver.stop() == 0, leaver.said[-20:]
        await feeding
        await s.books.finished("holds", "rows")
        await s.close()
        await s.books.check("holds", "rows")
        assert s.outside.all_holds() == dict.fromkeys(orders, 1)
        assert s.books.rows() == {f"rows/{order}": 1 for order in orders}
        ticks = Counter(call.key for call in s.calls("tick"))
        s.check_calls(await s.books.entries("holds"), "hold")
        assert set(ticks.values()) == {1}  # neither looked up nor idempotent: after a kill a person is asked
        entries = await s.books.entries("ticks")
        assert {entry.status for entry in entries.values()} <= {Status.DONE, Status.PARKED}
        await s.books.check("ticks")

    play(tmp_path, pair, scene)
