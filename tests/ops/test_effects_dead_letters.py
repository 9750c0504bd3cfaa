"""Dead letters of commands and of effects: read, sent back once, and refused where that would be wrong."""

from __future__ import annotations

import json
from typing import Any

from streams.effects.port import Status
from streams.log.port import NewRecord
from streams.ops.dead_letters import Letter, Post, SentBack, Which
from streams.wire.headers import SENT_BACK, read_headers
from streams.wire.records import decode_command, encode_effect
from tests.ops.outboxes import EFFECT, TOPICS, Shop, message, play

ALL = Which()
START = b'{"type": "start", "workflow": "buy", "input": 1}'


async def all_of(post: Post, which: Which = ALL) -> list[Letter]:
    return [letter async for letter in post.letters(which)]


async def sent_back(post: Post, which: Which = ALL, **more: Any) -> list[SentBack]:
    told: list[SentBack] = []
    counts = await post.send_back(which, told=told.append, **more)
    assert sum(counts.values()) == len(told)
    return told


def test_a_letter_of_an_effect_goes_back_as_it_was_and_once() -> None:
    async def story(shop: Shop) -> None:
        one = message("o-1")
        offset = await shop.put(one)
        at = await shop.set_aside(one, offset)
        (letter,) = await all_of(Post(shop.log, TOPICS, EFFECT))
        plain = letter.plain()
        assert (plain["run_id"], plain["idempotency_key"], plain["sent_back"]) == ("o-1", "pay/o-1", 0)
        assert plain["from"] == f"shop.effects.payments[{shop.partition('o-1')}]@{offset}"
        assert letter.content(shop.client.values.codec)["payload"] == {"amount": 5}
        (first,) = await sent_back(Post(shop.log, TOPICS, EFFECT))
        assert (first.refused, first.letter.place) == ("", f"{shop.partition('o-1')}@{at}")
        # Somebody else, or the same person after a crash, sends it again.
        (second,) = await sent_back(Post(shop.log, TOPICS, EFFECT))
        assert (second.plain()["outcome"], second.letter.times) == ("sent before", 1)
        found = await shop.records(TOPICS.effect(EFFECT), shop.partition("o-1"))
        assert [record.value for record in found] == [encode_effect(one)] * 2
        assert read_headers(found[1].headers)[SENT_BACK] == f"{shop.partition('o-1')}@{at}"
        assert read_headers(found[1].headers)["streams-schema"] == read_headers(found[0].headers)["streams-schema"]
        assert SENT_BACK not in read_headers(found[0].headers)

    play(story)


def test_effects_are_sent_again_only_on_purpose() -> None:
    async def story(shop: Shop) -> None:
        await shop.set_aside(message("o-1"), 0)
        for _ in range(3):
            (done,) = await sent_back(Post(shop.log, TOPICS, EFFECT), again=True)
            assert done.place
        found = await shop.records(TOPICS.effect(EFFECT), shop.partition("o-1"))
        marks = [read_headers(record.headers)[SENT_BACK] for record in found]
        place = f"{shop.partition('o-1')}@0"
        assert marks == [place] * 3
        (letter,) = await all_of(Post(shop.log, TOPICS, EFFECT))
        assert letter.times == 3

    play(story)


def test_letters_of_effects_are_chosen_by_run_and_by_place() -> None:
    async def story(shop: Shop) -> None:
        for run in ("o-1", "o-2", "o-3", "o-1"):
            await shop.set_aside(message(run), 0)
        post = Post(shop.log, TOPICS, EFFECT)
        assert [letter.run_id for letter in await all_of(post, Which("o-1"))] == ["o-1", "o-1"]
        assert len(await all_of(post)) == 4
        where = shop.partition("o-2")
        found = await all_of(post, Which(at=(where, 0)))
        assert [letter.place for letter in found] == [f"{where}@0"]
        assert await all_of(post, Which(at=(where, 1_000))) == []
        assert await all_of(post, Which(at=(99, 0))) == []
        told = await sent_back(post, Which("o-1"))
        assert len(told) == 2
        assert all(one.place for one in told)

    play(story)


def test_what_cannot_go_back_to_the_effects_topic_is_refused_with_words() -> None:
    async def story(shop: Shop) -> None:
        await shop.set_aside(message("o-1"), 0, cut=True)
        await shop.set_aside(message("o-1"), 0, topic="other.effects.payments")
        junk = NewRecord(TOPICS.effect_dead(EFFECT), shop.partition("o-1"), b"o-1", b"junk")
        await shop.log.append([junk])
        await shop.set_aside(message("o-1"), 0)
        cut, foreign, unreadable, good = await sent_back(Post(shop.log, TOPICS, EFFECT))
        assert "too large to be kept whole" in cut.refused
        assert "it came from other.effects.payments" in foreign.refused
        assert "it is no dead letter" in unreadable.refused
        assert unreadable.letter.plain()["code"] == "LETTER_UNREADABLE"
        assert good.place
        assert len(await shop.records(TOPICS.effect(EFFECT), shop.partition("o-1"))) == 1

    play(story)


def test_a_letter_of_an_effect_that_nobody_can_read_goes_back_too() -> None:
    """A newer subscriber may know what this one did not."""

    async def story(shop: Shop) -> None:
        await shop.set_aside(message("o-1"), 0, value=b"\xc3\x01 from the future", code="EFFECT_UNREADABLE")
        (letter,) = await all_of(Post(shop.log, TOPICS, EFFECT))
        assert (letter.message, letter.run_id) == (None, "o-1")
        assert "future" in letter.content(shop.client.values.codec)["value"]
        (done,) = await sent_back(Post(shop.log, TOPICS, EFFECT, shop.ledger))
        assert done.place

    play(story)


def test_the_ledger_keeps_what_a_person_must_find_out_from_going_back() -> None:
    async def story(shop: Shop) -> None:
        await shop.set_aside(message("o-1"), 0)
        await shop.set_aside(message("o-2"), 0)
        await shop.entry(message("o-1"), Status.PARKED)
        await shop.entry(message("o-2"), Status.FAILED)
        told = await sent_back(Post(shop.log, TOPICS, EFFECT, shop.ledger))
        by_run = {one.letter.run_id: one for one in told}
        assert "streams ledger resolve pay/o-1 --effect payments" in by_run["o-1"].refused
        assert by_run["o-2"].place

    play(story)


def test_a_letter_that_the_ledger_has_opened_before_is_not_sent_back_in_vain() -> None:
    async def story(shop: Shop) -> None:
        for _ in range(2):
            await shop.set_aside(message("o-1"), 0)
        home = shop.partition("o-1")
        await shop.entry(message("o-1"), Status.FAILED, resent=f"{home}@0")
        first, second = await sent_back(Post(shop.log, TOPICS, EFFECT, shop.ledger), again=True)
        assert "has a letter of its own" in first.refused
        assert (second.letter.place, bool(second.place)) == (f"{home}@1", True)
        await shop.entry(message("o-2"), Status.DONE, resent=f"{shop.partition('o-2')}@0")
        await shop.set_aside(message("o-2"), 0)
        (done,) = await sent_back(Post(shop.log, TOPICS, EFFECT, shop.ledger), Which("o-2"), again=True)
        assert done.place  # it is answered once more

    play(story)


def test_a_command_goes_back_to_the_partition_of_its_run_under_the_id_of_its_first_place() -> None:
    async def story(shop: Shop) -> None:
        home = shop.partition("o-1")
        stray = (home + 1) % 3
        await shop.refuse(b"o-1", START, partition=stray, code="WRONG_PARTITION")
        await shop.refuse(b"o-1", START, partition=home)
        told = await sent_back(Post(shop.log, TOPICS))
        assert [one.place.partition("@")[0] for one in told] == [f"shop.commands[{home}]"] * 2
        found = await shop.records(TOPICS.commands, home)
        ids = {decode_command(r.key, r.value, default_id="", offset=0).command_id for r in found}
        topic_id = (await shop.log.describe_topics([TOPICS.commands]))[TOPICS.commands].id
        assert ids == {f"{topic_id}/{stray}/5", f"{topic_id}/{home}/5"}
        assert {read_headers(r.headers)[SENT_BACK] for r in found} == {f"{stray}@5", "5"}
        again = await sent_back(Post(shop.log, TOPICS))
        assert [one.plain()["outcome"] for one in again] == ["sent before"] * 2

    play(story)


def test_a_command_without_a_key_or_sense_keeps_its_place_and_bytes() -> None:
    async def story(shop: Shop) -> None:
        await shop.refuse(None, b"not json", partition=2)
        (letter,) = await all_of(Post(shop.log, TOPICS))
        assert letter.run_id is None
        (done,) = await sent_back(Post(shop.log, TOPICS))
        (found,) = await shop.records(TOPICS.commands, 2)
        assert (found.key, found.value, done.place) == (None, b"not json", "shop.commands[2]@0")

    play(story)


def test_commands_of_a_damaged_run_wait_for_its_repair() -> None:
    async def story(shop: Shop) -> None:
        await shop.refuse(b"o-1", START, code="RUN_DAMAGED")
        (done,) = await sent_back(Post(shop.log, TOPICS))
        assert "streams rebuild o-1 --reason TEXT" in done.refused

    play(story)


def test_a_command_with_an_id_of_its_own_keeps_it() -> None:
    async def story(shop: Shop) -> None:
        value = json.dumps({**json.loads(START), "command_id": "c-1"}).encode()
        await shop.refuse(b"o-1", value, partition=shop.partition("o-1"))
        await sent_back(Post(shop.log, TOPICS))
        (found,) = await shop.records(TOPICS.commands, shop.partition("o-1"))
        assert found.value == value

    play(story)
