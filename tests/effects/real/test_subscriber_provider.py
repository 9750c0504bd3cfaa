"""A real provider that does the work and drops the connection, answers late or not at all, or is away for long."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from streams.effects.port import Status
from tests.effects.real.play import play
from tests.effects.real.stage import LEASE_SECONDS, Pair, Stage, on_each_pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS = ("holds", "keyed", "once")


@on_each_pair
@pytest.mark.parametrize("mode", ["drop_after", "fail_after"])
def test_f17_a_subscriber_whose_provider_does_the_work_and_gives_no_good_answer(tmp_path: Path, pair: Pair, mode: str):
    """The connection is dropped, or it answers with an error, after the work was done: each has its own way on."""

    async def scene(s: Stage) -> None:
        for kind in KINDS:
            await s.outside.behave(f"{kind}-1", mode)
            await s.ask(kind, f"{kind}-1", f"{kind}-2")
        await s.subscriber(only=list(KINDS))
        await s.books.finished(*KINDS)
        await s.close()
        await s.books.check(*KINDS)
        assert s.outside.all_holds() == {f"{kind}-{number}": 1 for kind in KINDS for number in (1, 2)}
        assert {kind: len(s.outside.asked(f"{kind}-1")) for kind in KINDS} == {"holds": 1, "keyed": 2, "once": 1}
        found = {kind: (await s.books.entry(kind, f"{kind}/{kind}-1")).status for kind in KINDS}
        assert found == {"holds": Status.DONE, "keyed": Status.DONE, "once": Status.PARKED}
        assert [one.code for one in await s.books.letters("once")] == ["OUTCOME_UNKNOWN"]
        assert len(await s.books.replies()) == 5

    play(tmp_path, pair, scene)


@on_each_pair
def test_f17_a_subscriber_whose_provider_answers_later_than_the_claim_lasts(tmp_path: Path, pair: Pair):
    """The claim is kept as long as the call takes: nobody else begins it."""

    async def scene(s: Stage) -> None:
        for kind in KINDS:
            await s.outside.behave(f"{kind}-1", "slow", delay_ms=round(3_500 * LEASE_SECONDS))
        first = await s.subscriber(only=list(KINDS))
        for kind in KINDS:
            await s.ask(kind, f"{kind}-1")
        await s.outside.held(*(f"{kind}-1" for kind in KINDS))
        second = await s.subscriber(only=list(KINDS))  # it may take partitions over, and then waits for the first
        await s.books.finished(*KINDS)
        await s.close()
        assert {first.process.returncode, second.process.returncode} == {0}
        await s.books.check(*KINDS)
        assert {kind: len(s.outside.asked(f"{kind}-1")) for kind in KINDS} == dict.fromkeys(KINDS, 1)

    play(tmp_path, pair, scene)


@on_each_pair
def test_a_subscriber_whose_provider_is_away_tries_again_and_holds_no_other_effect_up(tmp_path: Path, pair: Pair):
    """Nobody there is no reason to give up, as long as the retries last; the back-off survives a restart."""

    async def scene(s: Stage) -> None:
        await s.outside.down()
        await s.ask("holds", "a", "b", "c")
        await s.ask("ticks", "a", "b", "c")
        first = await s.subscriber(only=["holds", "ticks"])
        await s.books.finished("ticks")
        for order in "abc":
            await s.books.becomes("holds", f"holds/{order}", Status.FAILED)
        tried = {order: (await s.books.entry("holds", f"holds/{order}")).deliveries for order in "abc"}
        await first.end()
        await s.subscriber(only=["holds", "ticks"])
        await asyncio.sleep(1.5)
        await s.outside.up()
        await s.books.finished("holds")
        await s.close()
        await s.books.check("holds", "ticks")
        assert s.outside.all_holds() == {"a": 1, "b": 1, "c": 1}
        for order in "abc":
            entry = await s.books.entry("holds", f"holds/{order}")
            assert entry.deliveries > tried[order], "the count of deliveries began anew"
        assert len(s.calls("tick")) == 3

    play(tmp_path, pair, scene)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("pair", ["real"], indirect=True)
def test_a_subscriber_whose_provider_is_away_for_a_minute(tmp_path: Path, pair: Pair):
    """With work done whose answer was lost, a subscriber killed meanwhile, and what came while it was down."""

    async def scene(s: Stage) -> None:
        for number in range(5):
            await s.outside.behave(f"early{number}", "slow", delay_ms=30_000)
        first = await s.subscriber(only=["holds"])
        await s.ask("holds", *(f"early{number}" for number in range(5)))
        await s.outside.held(*(f"early{number}" for number in range(5)))
        await s.outside.down()
        down_at = time.monotonic()
        await s.ask("holds", *(f"late{number}" for number in range(45)))
        await asyncio.sleep(20)
        await first.end()
        await s.subscriber(only=["holds"])
        await asyncio.sleep(max(0.0, down_at + 60 - time.monotonic()))
        assert not await s.books.replies()
        await s.outside.up("--ignore-keys")
        await s.books.finished("holds")
        await s.close()
        await s.books.check("holds")
        assert s.outside.all_holds() == {f"early{n}": 1 for n in range(5)} | {f"late{n}": 1 for n in range(45)}
        assert await s.books.letters("holds") == []
        assert len(await s.books.replies()) == 50

    play(tmp_path, pair, scene)
