"""What a subscriber is at when its partition goes: a commit on its way, and code in threads that nobody can stop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from streams import App, EffectContext, Fail, Found, NotFound
from streams.effects.port import Status
from streams.effects.subscriber.publishing import Publishing, _Flight
from streams.effects.subscriber.window import Window, WindowState
from streams.log.memory import Hooks
from streams.log.port import GroupSnapshot
from tests.effects.lab import PARTITIONS, Lab, virtual


class SlowCommit(Hooks):
    """Holds up the first commit of a subscriber, after which its partitions are somebody else's."""

    def __init__(self) -> None:
        self.held = False

    async def before_commit(self, producer: str, snapshot: GroupSnapshot) -> None:
        if not self.held:
            self.held = True
            await asyncio.sleep(5.0)


def answering() -> App:
    app = App("answering")
    app.calls = []
    questions = app.effect("questions", str, reply=str)

    @app.subscriber(questions)
    async def answer(ctx: EffectContext, text: str) -> str:
        app.calls.append(text)
        if text == "no":
            raise Fail("NO", "never")
        return text

    return app


@virtual(answering, hooks=SlowCommit)
async def test_replies_and_letters_of_a_fenced_commit_are_published_when_the_partition_comes_back(lab: Lab) -> None:
    """To the very same subscriber: its memory must not take them for published."""
    subscriber = lab.subscriber()
    await lab.until(lambda: len(subscriber.windows("questions")) == PARTITIONS)
    await lab.send("questions", "yes", run="r1", key="k1", attempt=1)
    await lab.send("questions", "no", run="r2", key="k2", attempt=1)
    await lab.until(lambda: len(lab.app.calls) == 2)
    await asyncio.sleep(1.0)
    subscriber.vanish()
    await lab.finished("questions")
    assert [(await lab.entry("questions", key)).status for key in ("k1", "k2")] == [Status.DONE, Status.FAILED]
    assert sorted(reply.effect_id.partition("@")[0] for reply in await lab.replies()) == ["r1", "r2"]
    assert [letter.code for letter in await lab.letters("questions")] == ["NO"]
    assert sorted(lab.app.calls) == ["no", "yes"]


def working() -> App:
    app = App("working")
    app.begun, app.done = [], []
    works = app.effect("works", str, reply=str)

    def find(ctx: EffectContext, text: str) -> Found[str] | NotFound:
        return Found("found") if ctx.idempotency_key in app.done else NotFound()

    @app.subscriber(works, reconcile=find)
    def work(ctx: EffectContext, text: str) -> str:
        app.begun.append(ctx.idempotency_key)
        time.sleep(1.5)
        app.done.append(ctx.idempotency_key)
        return text

    return app


@virtual(working, real=True)
async def test_a_plain_handler_keeps_its_claim_when_its_partition_goes_to_another_subscriber(lab: Lab) -> None:
    """Its thread goes on: whoever looked it up meanwhile would find nothing, and do the work beside it."""
    times = {"lease_seconds": 0.4, "drain_seconds": 0.1, "ask_again_seconds": 0.1}
    first = lab.subscriber(**times)
    await lab.until(lambda: len(first.windows("works")) == PARTITIONS)
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        await lab.send("works", "x", run=f"run of {key}", key=key, attempt=1)
    await lab.until(lambda: len(lab.app.begun) == len(keys))
    second = lab.subscriber(**times)
    await lab.until(lambda: second.windows("works"))
    await lab.finished("works")
    assert sorted(lab.app.begun) == keys
    assert len(await lab.replies()) == len(keys)


class _Group:
    """A member whose group has moved on as it says; and what asks it, at once."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self.parts = self.member = self

    async def committed(self, partition: int) -> int | None:
        return self.offsets.get(partition)

    async def ask_log(self, ask: Any, _: str) -> Any:
        return await ask()


@pytest.mark.parametrize(
    ("offsets", "happened"),
    [({0: 5, 1: 5}, True), ({0: 9, 1: 0}, False), ({0: 0, 1: 5}, False), ({}, False)],
)
def test_a_commit_in_doubt_has_happened_only_where_all_its_offsets_were_moved(
    offsets: dict[int, int], happened: bool
) -> None:
    """Another subscriber that has taken one partition over moves its offset too: that says nothing of the others."""
    flight = _Flight(GroupSnapshot("group", "topic", None, {}))
    for number in range(3):
        window = Window(number, 1)
        window.move(WindowState.OPEN)
        flight.windows[window] = 5 if number < 2 else 0  # the third is written for, and its offset stays
    publishing = Publishing(cast("Any", _Group(offsets)))
    assert asyncio.run(publishing._was_committed(flight)) is happened
