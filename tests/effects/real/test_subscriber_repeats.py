"""F18, F17: what comes twice is carried out once, in one poll, from the start of the topic, a week later."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from streams.effects.port import Entry, Status
from streams.kernel import bodies as ev
from streams.log.port import Span
from tests.effects.real.books import Letter
from tests.effects.real.notes import Call
from tests.effects.real.play import play
from tests.effects.real.stage import PARTITIONS, TILL, Pair, Stage, on_each_pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WEEK_US = 7 * 86_400 * 1_000_000


class Seen(NamedTuple):
    """All that could show a repetition."""

    rows: Counter[str]
    calls: Counter[Call]
    letters: list[Letter]
    commands: list[Span]
    entries: dict[str, Entry]


async def look_at(s: Stage, *effects: str) -> Seen:
    letters = [letter for effect in effects for letter in await s.books.letters(effect)]
    commands = [await s.log.span(s.history.topics.commands, number) for number in range(PARTITIONS)]
    entries = {key: entry for effect in effects for key, entry in (await s.books.entries(effect)).items()}
    return Seen(s.books.rows(), Counter(s.calls()), letters, commands, entries)


async def rewind(s: Stage, offset: int | None, *effects: str) -> None:
    topics = s.history.topics
    for effect in effects:
        offsets: dict[int, Any] = dict.fromkeys(range(PARTITIONS), offset)
        await s.log.rewind_group(topics.subscribers(effect), topics.effect(effect), offsets)


@on_each_pair
def test_f18_the_same_effect_id_twice_in_one_poll_of_a_subscriber(tmp_path: Path, pair: Pair):
    """Three copies of each, in one batch of the log; and a provider that would do it again each time."""

    async def scene(s: Stage) -> None:
        await s.outside.down()
        await s.outside.up("--ignore-keys")
        orders = [f"o{number}" for number in range(20)]
        kinds = ("holds", "rows", "ticks")
        for kind in kinds:
            await s.send(*(s.message(kind, order, attempt=1) for order in orders for _ in range(3)))
        process = await s.subscriber(only=list(kinds))
        await s.books.finished(*kinds)
        assert await process.stop() == 0
        await s.books.check(*kinds)
        assert s.outside.all_holds() == dict.fromkeys(orders, 1)
        assert s.books.rows() == {f"rows/{order}": 1 for order in orders}
        assert Counter(call.key for call in s.calls("tick")) == {f"ticks/{order}": 1 for order in orders}
        assert {len(found) for found in (await s.books.replies()).values()} == {1}
        for kind in kinds:
            assert await s.books.letters(kind) == []

    play(tmp_path, pair, scene)


@on_each_pair
def test_f18_two_runs_that_ask_effects_of_a_subscriber_under_one_key(tmp_path: Path, pair: Pair):
    """The same content is one operation, and both are told its outcome; another content is refused and recorded."""

    async def scene(s: Stage) -> None:
        for kind in ("holds", "rows", "ticks"):
            same = {"attempt": 1, "idempotency_key": f"{kind}/shared"}
            await s.send(
                s.message(kind, "first", **same),
                s.message(kind, "second", **same, payload=json.dumps({"order": "first"}).encode()),
                s.message(kind, "third", **same, payload=json.dumps({"order": "third"}).encode()),
            )
        await s.subscriber(only=["holds", "rows", "ticks"])
        await s.books.finished("holds", "rows", "ticks")
        await s.close()
        replies = await s.books.replies()
        for kind in ("holds", "rows", "ticks"):
            entry = await s.books.entry(kind, f"{kind}/shared")
            assert (entry.status, entry.conflicts > 0) == (Status.DONE, True)
            # Partitions differ, so either content may have come first; it is the one that was carried out.
            told = {run: replies[f"{run}@0/{kind}", 1, 1][0] for run in ("first", "second", "third")}
            done = {run for run, reply in told.items() if reply.error is None}
            assert done in ({"first", "second"}, {"third"})
            assert {told[run].value for run in done} == {entry.response}
            assert {told[run].error[:2] for run in told.keys() - done} == {("terminal", "KEY_CONFLICT")}
            letters = await s.books.letters(kind)
            assert {one.message.run_id for one in letters} == told.keys() - done
            assert {one.code for one in letters} == {"KEY_CONFLICT"}
        assert sum(s.outside.all_holds().values()) == 1
        assert s.books.rows() == {"rows/shared": 1}
        assert len(s.calls("tick")) == 1

    play(tmp_path, pair, scene)


@on_each_pair
def test_f26_a_request_that_is_asked_again_while_its_subscriber_is_still_at_it(tmp_path: Path, pair: Pair):
    """One call, whose outcome counts for the newest attempt only."""

    async def scene(s: Stage) -> None:
        await s.outside.down()
        await s.outside.up("--ignore-keys")
        await s.outside.behave("o-1", "slow", delay_ms=4_000)
        await s.worker(TILL)
        await s.subscriber(only=["holds"])
        await s.history.start("hurry", "run", "o-1")
        assert await s.history.result("run") == "rs-1"
        await s.books.finished("holds")
        await s.close()
        await s.check()
        attempts = [message.attempt for message in await s.books.messages("holds")]
        assert len(attempts) > 1
        assert attempts == list(range(1, len(attempts) + 1))
        assert s.outside.asked("o-1") == [("hold/o-1", 201)]
        assert len(s.calls("hold")) == 1
        entry = await s.books.entry("holds", "hold/o-1")
        assert (entry.status, entry.deliveries) == (Status.DONE, 1)
        # Each message has its reply, in order; that of an attempt which had run out of time changes nothing.
        assert [attempt for _, _, attempt in await s.books.replies()] == attempts
        rejected = s.history.bodies("run", ev.CommandRejected)
        assert [body.code for body in rejected] == ["STALE_REPLY"] * (len(attempts) - 1)

    play(tmp_path, pair, scene)


@on_each_pair
def test_f17_a_topic_of_ten_thousand_effects_that_a_subscriber_reads_again_from_its_start(tmp_path: Path, pair: Pair):
    """Rewound, and with its offsets deleted, and a week later: no call, no row, no reply and no letter comes twice."""

    async def scene(s: Stage) -> None:
        kinds = ("rows", "ticks", "odd")
        orders = [f"o{number}" for number in range(4_990)]
        for kind in ("rows", "ticks"):
            await s.ask(kind, *orders)
        hows = ["fail"] * 10 + ["raise"] * 10
        payloads = [json.dumps({"order": f"x{n}", "how": how}).encode() for n, how in enumerate(hows)]
        await s.send(*(s.message("odd", f"x{n}", attempt=1, payload=value) for n, value in enumerate(payloads)))
        process = await s.subscriber(only=list(kinds))
        await s.books.finished(*kinds, seconds=120)
        assert await process.stop() == 0
        await s.books.check(*kinds)
        before = await look_at(s, *kinds)
        assert before.rows == Counter({f"rows/{order}": 1 for order in orders})
        assert len(before.calls) == 10_000
        assert len(before.letters) == 20
        assert {len(found) for found in (await s.books.replies()).values()} == {1}
        for offset, age_us in ((0, 0), (None, WEEK_US)):
            await s.books.age(age_us)
            before = before._replace(entries=(await look_at(s, *kinds)).entries)
            await rewind(s, offset, *kinds)
            assert [await s.books.pending(kind) for kind in kinds] == [4_990, 4_990, 20]
            process = await s.subscriber(only=list(kinds))
            await s.books.finished(*kinds, seconds=120)
            assert await process.stop() == 0
            assert await look_at(s, *kinds) == before

    play(tmp_path, pair, scene)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("pair", ["real"], indirect=True)
def test_f26_a_subscriber_carries_out_only_what_was_committed(tmp_path: Path, pair: Pair):
    """Aborted effects never, and those of an open transaction not before its end."""

    async def scene(s: Stage) -> None:
        assert pair.kafka is not None
        settings = {"bootstrap.servers": pair.kafka.bootstrap, "transactional.id": s.app, "partitioner": "murmur2"}
        producer = Producer(settings)
        await asyncio.to_thread(producer.init_transactions, 60)

        async def put(kind: str, order: str) -> None:
            record = s.record(s.message(kind, order, attempt=1))
            producer.begin_transaction()
            producer.produce(record.topic, record.value, record.key, record.partition, headers=list(record.headers))
            await asyncio.to_thread(producer.flush, 60)

        await s.subscriber(only=["ticks", "rows"])
        for kind in ("ticks", "rows"):
            for number in range(3):
                await put(kind, f"aborted{number}")
                await asyncio.to_thread(producer.abort_transaction, 60)
            await put(kind, "late")
            await s.ask(kind, *(f"behind{number}" for number in range(8)))
            await asyncio.sleep(1.0)
            assert s.calls("tick" if kind == "ticks" else "write", f"{kind}/late") == []
            await asyncio.to_thread(producer.commit_transaction, 60)
        await s.books.finished("ticks", "rows")
        await s.close()
        await s.books.check("ticks", "rows")
        wanted = {"late", *(f"behind{number}" for number in range(8))}
        assert s.books.rows() == {f"rows/{order}": 1 for order in wanted}
        assert {call.key for call in s.calls("tick")} == {f"ticks/{order}" for order in wanted}

    play(tmp_path, pair, scene)
