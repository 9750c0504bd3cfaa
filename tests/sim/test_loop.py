"""The virtual loop: time, actors, and what becomes of those that are killed."""

from __future__ import annotations

import asyncio
import gc
import random
import time

import pytest

from streams.testing.clock import EPOCH_US, VirtualClock
from streams.testing.loop import Stuck, VirtualLoop, current_actor, run_virtual


def test_time_passes_at_once_and_exactly():
    async def main():
        loop = asyncio.get_running_loop()
        clock = VirtualClock(loop)
        order = []
        loop.call_later(0.25, order.append, "b")
        loop.call_later(0.125, order.append, "a")
        await asyncio.sleep(400 * 86_400)
        assert order == ["a", "b"]
        assert loop.time() == pytest.approx(400 * 86_400, abs=1e-6)
        assert clock.now_us() == EPOCH_US + 400 * 86_400 * 1_000_000
        clock.jump(-1.5)
        assert clock.now_us() == EPOCH_US + 400 * 86_400 * 1_000_000 - 1_500_000
        assert clock.monotonic() == loop.time()

    began = time.monotonic()
    run_virtual(main())
    assert time.monotonic() - began < 60  # a year would be longer


def test_time_outs_work():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.sleep(11)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10


def test_a_wait_for_nothing_is_told_with_what_waits():
    async def forever():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck, match=r"(?s)no timer is set.*forever"):
        run_virtual(forever())


def test_spinning_and_too_much_time_are_told():
    async def spin():
        while True:  # noqa: ASYNC110 - spinning is what is tried here
            await asyncio.sleep(0)

    async def long():
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with pytest.raises(Stuck, match="spins"):
        run_virtual(spin())
    with pytest.raises(Stuck, match="100 virtual seconds"):
        run_virtual(long(), seconds_max=100)


def test_threads_are_replaced_by_calls():
    async def main():
        assert await asyncio.to_thread(current_actor) is None
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)

    run_virtual(main())


def test_what_a_callback_raises_is_not_lost():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())


def test_chance_is_seeded_and_put_back():
    async def main():
        return random.random()

    before = random.getstate()
    assert run_virtual(main(), 7) == run_virtual(main(), 7) != run_virtual(main(), 8)
    assert random.getstate() == before


async def tick(order, name, loop):
    while True:
        assert current_actor().name == name
        order.append((name, loop.time()))
        await asyncio.sleep(1)


def test_a_frozen_actor_goes_on_where_it_was():
    async def main():
        loop = asyncio.get_running_loop()
        order = []
        a, b = loop.actor("a"), loop.actor("b")
        a.start(tick(order, "a", loop))
        b.start(tick(order, "b", loop))
        await asyncio.sleep(1.5)
        a.freeze()
        await asyncio.sleep(3)
        a.thaw()
        await asyncio.sleep(1.2)
        return order

    order = run_virtual(main())
    assert [at for name, at in order if name == "a"] == [0, 1, 4.5, 5.5]
    assert [at for name, at in order if name == "b"] == [0, 1, 2, 3, 4, 5]


def test_what_a_frozen_actor_was_waiting_for_runs_in_order_and_may_be_cancelled_meanwhile():
    async def main():
        loop = asyncio.get_running_loop()
        order = []
        actor = loop.actor("a")

        async def work():
            late = loop.call_later(2, order.append, "cancelled after the thaw")
            loop.call_later(1, lambda: (order.append("first"), late.cancel()))
            loop.call_later(3, order.append, "last")

        actor.start(work())
        await asyncio.sleep(0.5)
        actor.freeze()
        await asyncio.sleep(5)
        assert order == []
        actor.thaw()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return order

    assert run_virtual(main()) == ["first", "last"]


def test_a_killed_actor_does_nothing_more_and_cleans_nothing_up():
    order = []

    async def main():
        loop = asyncio.get_running_loop()
        actor = loop.actor("a")

        async def inner():
            try:
                await asyncio.sleep(2)
            finally:
                order.append("clean-up")
                await asyncio.sleep(1)
                order.append("more clean-up")

        async def work():
            loop.call_later(1.5, order.append, "timer")
            await asyncio.gather(inner(), inner())

        actor.start(work())
        await asyncio.sleep(1)
        actor.kill()
        actor.start(inner())  # never begins
        await asyncio.sleep(10)
        gc.collect()
        assert order == []
        with pytest.raises(Stuck):  # nothing of it is left that could happen
            await loop.create_future()

    with pytest.raises(Stuck):
        run_virtual(main())
    order.clear()
    gc.collect()
    assert order == []


def test_an_actor_that_dies_in_the_middle_of_its_code():
    async def main():
        loop = asyncio.get_running_loop()
        actor = loop.actor("a")
        order = []

        async def work():
            try:
                order.append("before")
                current_actor().die()
            finally:
                await asyncio.sleep(0)
                order.append("after")

        actor.start(work())
        loop.call_soon(lambda: None, context=actor.context())
        await asyncio.sleep(1)
        return order

    assert run_virtual(main()) == ["before"]


def test_futures_wake_the_actor_that_waits_and_not_the_one_that_set_them():
    async def main():
        loop = asyncio.get_running_loop()
        a, b = loop.actor("a"), loop.actor("b")
        shared = loop.create_future()
        seen = []

        async def waits():
            await shared
            seen.append(current_actor())

        async def sets():
            shared.set_result(None)

        a.start(waits())
        await asyncio.sleep(1)
        b.start(sets())
        await asyncio.sleep(1)
        assert seen == [a]

    run_virtual(main())


def test_two_loops_behave_alike():
    async def main():
        loop = asyncio.get_running_loop()
        order = []

        async def work(name):
            for _ in range(20):
                await asyncio.sleep(loop.random.random())
                order.append((name, loop.time()))

        await asyncio.gather(*(work(name) for name in range(5)))
        return order

    assert run_virtual(main(), 3) == run_virtual(main(), 3)


def test_the_loop_can_be_made_by_hand():
    loop = VirtualLoop(1)
    assert loop.run_until_complete(asyncio.sleep(5, "done")) == "done"
    loop.end()
