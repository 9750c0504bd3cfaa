"""F17: kill -9 of a subscriber before the claim, before, in and after the call, and before the offset."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from streams.effects.port import Status
from tests.effects.real.play import play
from tests.effects.real.stage import Pair, Stage, on_each_pair
from tests.system.processes import Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IN_THE_CALL = "in the call"
DEATHS = {
    "before the claim": "effect.taken",
    "before the call": "effect.claimed",
    IN_THE_CALL: "",
    "before done": "effect.called",
    "before the offset": "effect.settled",
    "after the offset": "effect.committed",
}
SLOW_MS = 30_000
"""The provider has done its work at once, and answers so late that the kill is sure to come before."""


async def die(s: Stage, effect: str, when: str) -> dict[str, str]:
    """One subscriber dies with a request of its own; before, it finishes what the last one has left. The orders."""
    order = f"{effect} {when}".replace(" ", "-")
    point = DEATHS[when]
    process = await s.subscriber(f"{point}/{effect}" if point else "", only=[effect])
    await s.books.finished(effect)
    if point:
        s.arm()
        await s.ask(effect, order)
        assert await process.gone() == -signal.SIGKILL, when
    else:
        await s.outside.behave(order, "slow", delay_ms=SLOW_MS)
        await s.ask(effect, order)
        await s.outside.held(order)
        replies = len(await s.books.replies())
        beside = {f"beside {number}": f"{order}-beside-{number}" for number in range(4)}
        await s.ask(effect, *beside.values())
        for other in beside.values():
            await s.books.becomes(effect, f"{effect}/{other}", Status.DONE)
        await s.books.replied(replies + len(beside))
        await process.end()
        return {when: order, **beside}
    return {when: order}


async def die_of_everything(s: Stage, effect: str, *, but: tuple[str, ...] = ()) -> dict[str, str]:
    """The orders, by when their subscriber died; a last one finishes all."""
    orders: dict[str, str] = {}
    for when in DEATHS:
        if when not in but:
            orders |= await die(s, effect, when)
    last: Process = await s.subscriber(only=[effect])
    await s.books.finished(effect)
    assert await last.stop() == 0
    await s.books.check(effect)
    return orders


async def statuses(s: Stage, effect: str, orders: dict[str, str]) -> dict[str, Status]:
    entries = await s.books.entries(effect)
    return {when: entries[f"{effect}/{order}"].status for when, order in orders.items()}


async def looked_up(s: Stage) -> None:
    """The provider would do all of it again: only the look-up keeps it from that."""
    await s.outside.down()
    await s.outside.up("--ignore-keys")
    orders = await die_of_everything(s, "holds")
    assert set((await statuses(s, "holds", orders)).values()) == {Status.DONE}
    assert {when: len(s.outside.asked(order)) for when, order in orders.items()} == dict.fromkeys(orders, 1)
    found = {when for when, order in orders.items() if s.calls("find", f"holds/{order}")}
    assert found == {"before the call", IN_THE_CALL, "before done"}
    assert len(await s.books.replies()) == len(orders)
    assert await s.books.letters("holds") == []


LOOKS = ("effect.looking_up", "effect.looked_up")


async def killed_while_looking_up(s: Stage) -> None:
    """The answer was lost; who looks it up dies before and after the look. The next one looks, and nobody repeats."""
    order = "holds-lost"
    await s.outside.behave(order, "drop_after")
    await s.ask("holds", order)
    for point in LOOKS:
        process = await s.subscriber(f"{point}/holds", only=["holds"])
        s.arm()
        assert await process.gone() == -signal.SIGKILL, point
    last = await s.subscriber(only=["holds"])
    await s.books.finished("holds")
    assert await last.stop() == 0
    await s.books.check("holds")
    assert (await statuses(s, "holds", {"": order}))[""] is Status.DONE
    assert len(s.outside.asked(order)) == 1
    assert len(s.calls("find", f"holds/{order}")) == 2  # before its look-up began, the first was dead


async def repeated(s: Stage) -> None:
    """The provider knows the key."""
    orders = await die_of_everything(s, "keyed")
    assert set((await statuses(s, "keyed", orders)).values()) == {Status.DONE}
    assert {when: s.outside.holds(order) for when, order in orders.items()} == dict.fromkeys(orders, 1)
    twice = {when for when, order in orders.items() if len(s.outside.asked(order)) == 2}
    assert twice == {IN_THE_CALL, "before done"}
    assert await s.books.letters("keyed") == []


async def left_to_a_person(s: Stage) -> None:
    """It can be neither looked up nor repeated."""
    orders = await die_of_everything(s, "once")
    found = await statuses(s, "once", orders)
    unknown = {"before the call", IN_THE_CALL, "before done"}
    assert {when for when, status in found.items() if status is Status.PARKED} == unknown
    assert {when for when, status in found.items() if status is Status.DONE} == orders.keys() - unknown
    asked = {when: len(s.outside.asked(order)) for when, order in orders.items()}
    assert asked == dict.fromkeys(orders, 1) | {"before the call": 0}  # nobody has guessed
    letters = await s.books.letters("once")
    assert {one.message.run_id for one in letters if one.message} == {orders[when] for when in unknown}
    assert {one.code for one in letters} == {"OUTCOME_UNKNOWN"}
    replied = {effect_id.partition("@")[0] for effect_id, _, _ in await s.books.replies()}
    assert replied == {orders[when] for when in orders.keys() - unknown}


async def rolled_back(s: Stage) -> None:
    """Row and outcome are in one transaction."""
    orders = await die_of_everything(s, "rows", but=(IN_THE_CALL,))
    assert set((await statuses(s, "rows", orders)).values()) == {Status.DONE}
    assert s.books.rows() == {f"rows/{order}": 1 for order in orders.values()}
    twice = {when for when, order in orders.items() if len(s.calls("write", f"rows/{order}")) == 2}
    assert twice == {"before done"}
    assert await s.books.letters("rows") == []


PACK = 200
PACK_DEATHS = {
    "before the call": "effect.claimed",
    IN_THE_CALL: "pack.written",
    "before done": "effect.called",
    "before the offset": "effect.settled",
    "after the offset": "effect.committed",
}


async def rolled_back_together(s: Stage) -> None:
    """All rows of a batch and all of its outcomes are in one transaction."""
    asked: set[str] = set()
    for when, point in PACK_DEATHS.items():
        process = await s.subscriber(f"{point}/packs", only=["packs"])
        await s.books.finished("packs")
        assert s.books.rows() == dict.fromkeys(asked, 1), when
        known = set(await s.books.entries("packs"))
        s.arm()
        orders = [f"{when.replace(' ', '-')}-{number}" for number in range(PACK)]
        await s.ask("packs", *orders)
        assert await process.gone() == -signal.SIGKILL, when
        written = set(s.books.rows())
        assert written == set(await s.books.entries("packs")), "a row without its outcome, or the other way round"
        assert (written > known) is (when in ("before the offset", "after the offset")), when
        asked |= {f"packs/{order}" for order in orders}
    last = await s.subscriber(only=["packs"])
    await s.books.finished("packs")
    assert await last.stop() == 0
    await s.books.check("packs")
    assert s.books.rows() == dict.fromkeys(asked, 1)
    entries = await s.books.entries("packs")
    assert {entry.status for entry in entries.values()} == {Status.DONE}
    assert len({effect_id for effect_id, _, _ in await s.books.replies()}) == len(asked)
    assert len(s.calls("pack")) > len(asked), "no call was interrupted"
    assert await s.books.letters("packs") == []


@on_each_pair
def test_f17_subscribers_killed_in_a_handler_of_many_have_written_the_batch_or_nothing(tmp_path: Path, pair: Pair):
    play(tmp_path, pair, rolled_back_together)


@on_each_pair
def test_f17_subscribers_killed_at_every_point_look_up_or_repeat_under_the_same_key(tmp_path: Path, pair: Pair):
    play(tmp_path, pair, looked_up, killed_while_looking_up, repeated)


@on_each_pair
def test_f17_subscribers_killed_at_every_point_ask_a_person_or_have_written_all_or_nothing(tmp_path: Path, pair: Pair):
    play(tmp_path, pair, left_to_a_person, rolled_back)
