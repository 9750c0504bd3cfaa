"""Waiting for what comes further, without losing what moves between a look and the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from streams.log.news import News


def on_loop(test: Callable[[News], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(News()), 30))

    run.__name__ = test.__name__
    return run


@on_loop
async def test_only_what_is_waited_for_wakes(news: News) -> None:
    news.tell({"a": 3})
    waiting = asyncio.create_task(news.wait({"a": 3, "b": 0}, 60.0))
    await asyncio.sleep(0)
    assert set(news.awaited) == {"a", "b"}
    news.tell({"a": 3, "c": 9})
    news.add("c")
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert news.number("c") == 10
    news.tell({"a": 4})
    await waiting
    assert news.awaited == []


@on_loop
async def test_what_moved_since_the_look_ends_the_wait_at_once(news: News) -> None:
    news.tell({"a": 5})
    await news.wait({"a": 4}, 60.0)
    news.tell({"a": 3})
    assert news.number("a") == 5
    await news.wait({"a": 5}, 0.01)
    await news.wait({"a": 5}, 0)


@on_loop
async def test_a_wake_reaches_everybody_and_leaves_nothing(news: News) -> None:
    tasks = [asyncio.create_task(news.wait({"a": 0, n: 0}, 60.0)) for n in range(3)]
    await asyncio.sleep(0)
    news.wake(1)
    await tasks[1]
    assert [task.done() for task in tasks] == [False, True, False]
    news.wake_all()
    await asyncio.gather(*tasks)
    assert news.awaited == []
    cancelled = asyncio.create_task(news.wait({"a": 0}, 60.0))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert news.awaited == []
