"""What nobody knew, found out by a person: `streams ledger` and `streams dead-letters` with runs that wait for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from streams.effects.port import Status
from streams.kernel import bodies as ev
from tests.effects.real.play import play
from tests.effects.real.stage import TILL, Pair, Stage, on_each_pair
from tests.runtime.history import until
from tests.system.streams_process import streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def tell(s: Stage, *words: str, code: int = 0) -> Any:
    """Give a command to `streams`, as a person does; what it prints."""
    where = ["--log", s.url, "--ledger", s.ledger_url, "--app", s.app, "--json"]
    done = await asyncio.to_thread(streams, *words, *where)
    assert done.code == code, done
    return [json.loads(line) for line in done.out.splitlines()]


@on_each_pair
def test_effects_that_a_subscriber_has_parked_are_resolved_by_a_person(tmp_path: Path, pair: Pair):
    """Done, with the value that was seen outside; not done, and so carried out; never to be done."""

    async def scene(s: Stage) -> None:
        orders = ("done", "not-done", "never")
        for order in orders:
            await s.outside.behave(order, "drop_after" if order == "done" else "fail_before")
        await s.worker(TILL)
        await s.subscriber(only=["once"])
        for order in orders:
            await s.history.start("careful", order, order)
        for order in orders:
            await s.books.becomes("once", f"once/{order}", Status.PARKED)
        parked = await tell(s, "ledger", "list", "--status", "parked", "--effect", "once")
        assert {entry["key"] for entry in parked} == {f"once/{order}" for order in orders}
        assert [s.history.end(order) for order in orders] == [None] * 3
        number = s.outside.number("done")
        await tell(s, "ledger", "resolve", "once/done", "--effect", "once", "--done", f'"rs-{number}"')
        await tell(s, "ledger", "resolve", "once/not-done", "--effect", "once", "--not-done")
        await tell(s, "ledger", "resolve", "once/never", "--effect", "once", "--give-up", "the customer has left")
        assert await s.history.result("done") == f"rs-{number}"
        assert (await s.history.result("not-done")).startswith("rs-")
        await s.history.ended("never")
        assert isinstance(s.history.end("never"), ev.RunFailed)
        await s.books.finished("once")
        await s.close()
        await s.books.check("once")
        assert s.outside.all_holds() == {"done": 1, "not-done": 1}
        assert len(s.outside.asked("not-done")) == 2

    play(tmp_path, pair, scene)


@on_each_pair
def test_dead_letters_of_a_subscriber_that_are_sent_back_are_carried_out_once_more(tmp_path: Path, pair: Pair):
    """Given up while there was no stock; sent back twice by two people, and carried out once."""

    async def scene(s: Stage) -> None:
        await s.subscriber(only=["odd"])
        payload = json.dumps({"order": "o-1", "how": "fail"}).encode()
        await s.send(*(s.message("odd", f"o-{n}", attempt=1, payload=payload) for n in range(3)))
        await s.books.finished("odd")
        assert len(await s.books.letters("odd")) == 3
        before = len(s.calls("odd"))
        (letter,) = await tell(s, "dead-letters", "send-back", "--effect", "odd", "--run", "o-1")
        place = f"{letter['partition']}@{letter['offset']}"
        await until(lambda: len(s.calls("odd")) == before + 1, "the one call")
        await s.books.finished("odd")
        (again,) = await tell(s, "dead-letters", "send-back", "--effect", "odd", "--at", place, code=1)
        assert (letter["outcome"], again["outcome"]) == ("sent", "refused")
        await s.close()
        assert len(s.calls("odd")) == before + 1
        assert len(await s.books.letters("odd")) == 4  # it fails once more, and is set aside once more
        assert {entry.status for entry in (await s.books.entries("odd")).values()} == {Status.FAILED}

    play(tmp_path, pair, scene)


@on_each_pair
def test_f17_a_subscriber_that_is_stopped_in_a_call_which_does_not_end(tmp_path: Path, pair: Pair):
    """It leaves within its bound, with the claim as it is; the next one looks the work up."""

    async def scene(s: Stage) -> None:
        await s.outside.down()
        await s.outside.up("--ignore-keys")
        await s.outside.behave("order", "slow", delay_ms=60_000)
        first = await s.subscriber(only=["holds"], stop_seconds=0.5, drain_seconds=0.5)
        await s.ask("holds", "order")
        await s.outside.held("order")
        assert await first.stop() == 0
        assert (await s.books.entry("holds", "holds/order")).status is Status.CLAIMED
        await s.subscriber(only=["holds"])
        await s.books.finished("holds")
        await s.close()
        await s.books.check("holds")
        assert len(s.outside.asked("order")) == 1
        assert (await s.books.entry("holds", "holds/order")).status is Status.DONE

    play(tmp_path, pair, scene)
