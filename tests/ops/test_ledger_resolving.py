"""An operator's word: written into the ledger, told to the run, and safe to say twice."""

from __future__ import annotations

from typing import Any

import pytest

from streams.effects.port import Ask, Entry, Key, Resolution, Settlement, Status, Word
from streams.errors import LogUnavailable, Refused
from streams.kernel.bodies import Failure
from streams.kernel.commands import Reply
from streams.ops.keeping import keeping_of
from streams.ops.resolving import open_again, settle_by_hand
from streams.wire.headers import SENT_BACK, read_headers
from streams.wire.records import decode_command, encode_effect
from tests.ops.outboxes import APP, EFFECT, TOPICS, Shop, message, play

DONE = Resolution(Status.DONE, response=b'{"paid":true}', operator="ada")
GIVEN_UP = Resolution(Status.FAILED, error=Failure("terminal", "GIVEN_UP", "the bank is gone"), operator="ada")


def key_of(run_id: str) -> Key:
    return Key(APP, EFFECT, f"pay/{run_id}")


async def entry_of(shop: Shop, run_id: str) -> Entry:
    return (await shop.ledger.look([key_of(run_id)]))[key_of(run_id)]


async def replies(shop: Shop, run_id: str) -> list[Any]:
    found = await shop.records(TOPICS.commands, shop.partition(run_id))
    return [decode_command(r.key, r.value, default_id="", offset=0) for r in found]


def test_what_was_done_is_written_into_the_ledger_and_told_to_the_run() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1", attempt=2), Status.PARKED)
        done = await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), DONE)
        assert (done.new, done.entry.status, done.entry.response) == (True, Status.DONE, DONE.response)
        (command,) = await replies(shop, "o-1")
        assert command.request == Reply("2", "o-1@7/2", 2, 4, DONE.response, None)
        assert (command.run_id, command.operator) == ("o-1", "ada")
        assert (await entry_of(shop, "o-1")).published

    play(story)


def test_an_effect_that_nobody_waits_for_gets_no_reply_from_the_ledger() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1", attempt=0), Status.PARKED)
        done = await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), DONE)
        assert done.reply is None
        assert await replies(shop, "o-1") == []

    play(story)


def test_what_is_given_up_ends_the_request_with_the_words_in_the_ledger() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1"), Status.UNCERTAIN, due_in=60.0)
        done = await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), GIVEN_UP)
        assert (done.entry.status, done.entry.due) == (Status.FAILED, None)
        (command,) = await replies(shop, "o-1")
        assert command.request.error == ("terminal", "GIVEN_UP", "the bank is gone")

    play(story)


@pytest.mark.parametrize("word", [DONE, GIVEN_UP], ids=["done", "given up"])
def test_a_crash_between_ledger_and_reply_is_made_good_by_saying_it_again(word: Resolution) -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1"), Status.PARKED)
        reply = shop.client.answer

        async def broken(*_: object, **__: object) -> None:
            raise LogUnavailable("away")

        shop.client.answer = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(LogUnavailable):
            await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), word)
        assert await replies(shop, "o-1") == []
        shop.client.answer = reply  # type: ignore[method-assign]
        again = await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), word)
        assert (again.new, again.reply is not None) == (False, True)
        third = await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), word)
        assert (third.new, third.reply) == (False, None)
        assert len(await replies(shop, "o-1")) == 1

    play(story)


def test_another_word_on_what_is_done_is_refused_by_the_ledger() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1"), Status.DONE, response=b"1")
        for word in (DONE, GIVEN_UP):
            with pytest.raises(Refused, match="NOTHING_TO_RESOLVE"):
                await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), word)
        with pytest.raises(Refused, match="NOTHING_TO_RESOLVE"):
            await shop.put(message("o-1"))
            await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        with pytest.raises(Refused, match="UNKNOWN_KEY"):
            await settle_by_hand(shop.client, shop.ledger, key_of("o-9"), DONE)
        with pytest.raises(Refused, match="UNKNOWN_KEY"):
            await open_again(shop.client, shop.ledger, key_of("o-9"), "ada")
        assert await replies(shop, "o-1") == []

    play(story)


async def claimed(shop: Shop, run_id: str, resent: str = "") -> Word:
    one = message(run_id)
    ask = Ask(key_of(run_id), b"hash", one.effect_id, run_id, "2", one.epoch, one.attempt, "0@0", resent)
    (verdict,) = await shop.ledger.claim([ask], "host/2", 60)
    return verdict.word


def test_what_was_not_done_goes_back_from_its_letter_and_is_carried_out_by_the_ledger() -> None:
    async def story(shop: Shop) -> None:
        one = message("o-1")
        await shop.entry(one, Status.PARKED)
        offset = await shop.put(one)
        at = await shop.set_aside(one, offset)
        await shop.take("o-1")
        assert await claimed(shop, "o-1") is Word.PARKED
        done = await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        where = shop.partition("o-1")
        assert done.sent_to == f"shop.effects.payments[{where}]@{offset + 1}"
        _, copy = await shop.records(TOPICS.effect(EFFECT), where)
        assert copy.value == encode_effect(one)
        assert read_headers(copy.headers)[SENT_BACK] == f"{where}@{at}"
        # Said twice, it is not sent twice: the subscriber has the copy before it.
        again = await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        assert again.sent_to == ""
        assert await claimed(shop, "o-1") is Word.CARRY_OUT

    play(story)


def test_a_message_that_the_subscriber_of_the_effect_has_before_it_is_not_sent_again() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1"), Status.UNCERTAIN, due_in=60.0)
        await shop.put(message("o-1"))
        done = await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        assert (done.sent_to, done.entry.status) == ("", Status.FAILED)
        assert len(await shop.records(TOPICS.effect(EFFECT), shop.partition("o-1"))) == 1
        assert await claimed(shop, "o-1") is Word.CARRY_OUT

    play(story)


def test_without_a_letter_the_message_goes_back_from_the_effects_topic() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1"), Status.PARKED)
        await shop.put(message("o-1", attempt=0))  # of an earlier attempt: another message
        await shop.put(message("o-1"))
        await shop.take("o-1")
        await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        *_, copy = await shop.records(TOPICS.effect(EFFECT), shop.partition("o-1"))
        assert copy.value == encode_effect(message("o-1"))
        assert read_headers(copy.headers)[SENT_BACK] == ""

    play(story)


def test_a_message_of_an_effect_that_is_kept_nowhere_is_not_opened_in_the_ledger() -> None:
    async def story(shop: Shop) -> None:
        await shop.entry(message("o-1"), Status.PARKED)
        await shop.set_aside(message("o-1"), 0, cut=True)
        with pytest.raises(Refused, match=r"MESSAGE_GONE.*--done JSON"):
            await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        assert (await entry_of(shop, "o-1")).status is Status.PARKED

    play(story)


def test_a_second_giving_up_can_be_opened_in_the_ledger_once_more() -> None:
    async def story(shop: Shop) -> None:
        one = message("o-1")
        await shop.entry(one, Status.PARKED)
        offset, marks = await shop.put(one), []
        for _ in range(2):
            await shop.set_aside(one, offset)
            await shop.take("o-1")
            await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
            *_, copy = await shop.records(TOPICS.effect(EFFECT), shop.partition("o-1"))
            marks.append(read_headers(copy.headers)[SENT_BACK])
            assert await claimed(shop, "o-1", marks[-1]) is Word.CARRY_OUT
            claim = (await entry_of(shop, "o-1")).claim
            await shop.ledger.settle([Settlement(key_of("o-1"), claim, Status.FAILED)])
            offset = copy.offset
        assert len(set(marks)) == 2

    play(story)


def test_the_ledger_keeps_entries_for_twice_the_topic_and_once_its_letters() -> None:
    async def story(shop: Shop) -> None:
        keeping = await keeping_of(shop.log, TOPICS, EFFECT)
        assert keeping.seconds == (2 * 8 + 31) * 86_400
        assert "keeps them 8 d" in keeping.reason
        unknown = await keeping_of(shop.log, TOPICS, "nothing")
        assert (unknown.seconds, "there is no topic" in unknown.reason) == (None, True)

    play(story)


def test_everybody_who_asked_under_the_key_of_the_ledger_is_told() -> None:
    """Two runs have asked for the same payment; both were set aside with it."""

    async def story(shop: Shop) -> None:
        one, two = message("o-1"), message("o-2", key="pay/o-1")
        await shop.entry(one, Status.PARKED)
        for each in (one, two, two._replace(attempt=2)):
            await shop.set_aside(each, await shop.put(each))
        conflict = message("o-3", key="pay/o-1")
        await shop.set_aside(conflict, await shop.put(conflict), code="KEY_CONFLICT")
        await settle_by_hand(shop.client, shop.ledger, key_of("o-1"), DONE)
        found = {command.run_id: command.request for run in ("o-1", "o-2") for command in await replies(shop, run)}
        assert {run: (reply.effect_id, reply.attempt, reply.value) for run, reply in found.items()} == {
            "o-1": ("o-1@7/2", 1, DONE.response),
            "o-2": ("o-2@7/2", 2, DONE.response),
        }

    play(story)


def test_everybody_who_asked_under_the_key_is_sent_back_to_the_ledger() -> None:
    async def story(shop: Shop) -> None:
        one, two = message("o-1"), message("o-2", key="pay/o-1")
        await shop.entry(one, Status.PARKED)
        for each in (one, two):
            await shop.set_aside(each, await shop.put(each))
            await shop.take(each.run_id)
        await open_again(shop.client, shop.ledger, key_of("o-1"), "ada")
        for each in (one, two):
            found = await shop.records(TOPICS.effect(EFFECT), shop.partition(each.run_id))
            copies = [record for record in found if SENT_BACK in read_headers(record.headers)]
            assert encode_effect(each) in [record.value for record in copies]

    play(story)
