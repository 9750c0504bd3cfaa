"""What every ledger promises, written once: an implementation subclasses `LedgerContract` and inherits all cases."""

from __future__ import annotations

import asyncio
import random

import pytest

from streams.effects.port import Claim, Key, Query, Resolution, Settlement, Status, Word
from streams.errors import Refused
from streams.kernel.bodies import Failure
from tests.contract.ledgers import LEASE, World, ask, case, claim_one, done, outcome

DECLINED = Failure("retryable", "DECLINED", "the card was declined")


def failed(verdict, due_in: float | None = None, **more) -> Settlement:
    return Settlement(verdict.entry.key, verdict.entry.claim, Status.FAILED, error=DECLINED, due_in=due_in, **more)


class Claiming:
    """Asks and their answers."""

    @case
    async def test_the_first_ask_is_carried_out(self, world: World):
        ledger = await world.ledger()
        before = await ledger.now_us()
        verdict = await claim_one(ledger, ask("k", epoch=7, attempt=2))
        entry = verdict.entry
        assert verdict.word is Word.CARRY_OUT
        assert (entry.status, entry.deliveries, entry.looks, entry.owner) == (Status.CLAIMED, 1, 0, "a")
        assert (entry.epoch, entry.attempt, entry.place, entry.request_hash) == (7, 2, "pay/0@k", b"content" * 4)
        assert before <= entry.created_at <= await ledger.now_us()
        assert entry.lease_until - entry.created_at == LEASE * 1_000_000
        assert await ledger.look([entry.key, Key("shop", "pay", "other")]) == {entry.key: entry}

    @case
    async def test_who_comes_later_waits_for_the_lease(self, world: World):
        a, b = await world.ledger(), await world.ledger()
        mine = await claim_one(a, ask("k"))
        other = await claim_one(b, ask("k"), "b")
        assert (other.word, other.until) == (Word.WAIT, mine.entry.lease_until)
        assert other.entry.claim == mine.entry.claim

    @case
    async def test_f17_an_orphaned_claim_is_looked_up_and_never_repeated_blindly(self, world: World):
        a, b = await world.ledger(), await world.ledger()
        lost = await claim_one(a, ask("k"), lease=self.short)
        await world.sleep(self.short + 0.1)
        found = await claim_one(b, ask("k"), "b")
        assert (found.word, found.entry.deliveries, found.entry.looks) == (Word.LOOK_UP, 1, 1)
        assert found.entry.claim != lost.entry.claim
        assert await a.settle([done(lost)]) == [False]
        assert await a.extend([Claim(lost.entry.key, lost.entry.claim)], LEASE) == [False]
        assert (await b.look([found.entry.key]))[found.entry.key].status is Status.CLAIMED
        assert await b.settle([done(found)]) == [True]
        assert (await claim_one(a, ask("k"))).word is Word.DONE

    @case
    async def test_f17_a_lease_that_is_prolonged_outlives_slow_work(self, world: World):
        a, b = await world.ledger(), await world.ledger()
        mine = await claim_one(a, ask("k"), lease=self.short)
        claim = Claim(mine.entry.key, mine.entry.claim)
        await world.sleep(self.short + 0.1)
        assert await a.extend([claim, Claim(claim.key, "another"), Claim(Key("shop", "pay", "x"), "y")], LEASE) == [
            True,
            False,
            False,
        ]
        assert (await claim_one(b, ask("k"), "b")).word is Word.WAIT
        assert await a.settle([done(mine)]) == [True]
        assert await a.extend([claim], LEASE) == [False]

    @case
    async def test_f17_what_is_done_answers_weeks_later(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([done(await claim_one(ledger, ask("k")), b"x" * 1000)])
        again = await claim_one(ledger, ask("k", place="pay/3@99"))
        assert (again.word, again.entry.response, again.entry.claim) == (Word.DONE, b"x" * 1000, "")
        assert again.entry.lease_until is None

    @case
    async def test_a_failure_waits_for_its_next_try(self, world: World):
        ledger = await world.ledger()
        first = await claim_one(ledger, ask("k"))
        assert await ledger.settle([failed(first, self.short)]) == [True]
        wait = await claim_one(ledger, ask("k"))
        assert (wait.word, wait.until, wait.entry.error) == (Word.WAIT, wait.entry.due, DECLINED)
        await world.sleep(self.short + 0.1)
        again = await claim_one(ledger, ask("k"))
        assert (again.word, again.entry.deliveries, again.entry.looks) == (Word.CARRY_OUT, 2, 0)

    @case
    async def test_what_was_given_up_is_opened_by_a_re_send_once(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([failed(await claim_one(ledger, ask("k")))])
        assert (await claim_one(ledger, ask("k"))).word is Word.GIVEN_UP
        sent_back = ask("k", resent="0@7")
        opened = await claim_one(ledger, sent_back)
        assert (opened.word, opened.entry.deliveries) == (Word.CARRY_OUT, 1)
        await ledger.settle([failed(opened)])
        assert (await claim_one(ledger, sent_back)).word is Word.GIVEN_UP
        assert (await claim_one(ledger, ask("k", resent="0@8"))).word is Word.CARRY_OUT

    @case
    async def test_an_unknown_outcome_is_looked_up_when_due_and_parked_at_last(self, world: World):
        ledger = await world.ledger()
        first = await claim_one(ledger, ask("k"))
        unsure = Settlement(first.entry.key, first.entry.claim, Status.UNCERTAIN, due_in=self.short)
        with pytest.raises(ValueError, match="time of its next look"):
            await ledger.settle([unsure._replace(due_in=None)])
        assert await ledger.settle([unsure]) == [True]
        assert (await claim_one(ledger, ask("k"))).word is Word.WAIT
        await world.sleep(self.short + 0.1)
        look = await claim_one(ledger, ask("k"))
        assert (look.word, look.entry.deliveries, look.entry.looks) == (Word.LOOK_UP, 1, 1)
        parked = Settlement(look.entry.key, look.entry.claim, Status.PARKED, error=DECLINED)
        assert await ledger.settle([parked]) == [True]
        assert (await claim_one(ledger, ask("k"))).word is Word.PARKED

    @case
    async def test_what_is_given_back_does_not_count(self, world: World):
        ledger = await world.ledger()
        first = await claim_one(ledger, ask("k"))
        await ledger.settle([failed(first, 0, returned=True)])
        assert (await claim_one(ledger, ask("k"))).entry.deliveries == 1

    @case
    async def test_f18_other_content_under_the_same_key_is_a_conflict_and_recorded(self, world: World):
        ledger = await world.ledger()
        mine = await claim_one(ledger, ask("k"))
        intruder = ask("k", b"another", effect_id="run-x/1/pay", place="pay/2@5")
        for _ in range(2):
            verdict = await claim_one(ledger, intruder)
            assert (verdict.word, verdict.entry.conflicts) == (Word.CONFLICT, 1)
            assert "run-x/1/pay at pay/2@5" in verdict.entry.conflict
        assert await ledger.settle([done(mine)]) == [True]
        assert (await claim_one(ledger, intruder)).word is Word.CONFLICT
        assert (await claim_one(ledger, intruder._replace(place="pay/2@6"))).entry.conflicts == 2
        assert (await claim_one(ledger, ask("k"))).word is Word.DONE

    @case
    async def test_f26_an_older_attempt_is_stale_and_a_newer_one_takes_the_outcome(self, world: World):
        ledger = await world.ledger()
        old = await claim_one(ledger, ask("k", attempt=1))
        newer = await claim_one(ledger, ask("k", attempt=2))
        assert (newer.word, newer.entry.attempt) == (Word.WAIT, 2)
        assert (await claim_one(ledger, ask("k", attempt=1))).word is Word.STALE
        assert await ledger.settle([done(old)]) == [True]
        answer = await claim_one(ledger, ask("k", attempt=2))
        assert (answer.word, answer.entry.attempt, answer.entry.response) == (Word.DONE, 2, b'"paid"')
        assert (await claim_one(ledger, ask("k", attempt=1))).word is Word.DONE

    @case
    async def test_f26_another_epoch_is_newer_only_within_its_op(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([failed(await claim_one(ledger, ask("k", epoch=5)), 0)])
        assert (await claim_one(ledger, ask("k", epoch=4, attempt=9))).word is Word.STALE
        other = await claim_one(ledger, ask("k", epoch=4, effect_id="run-other/1/pay"))
        assert (other.word, other.entry.epoch, other.entry.effect_id) == (Word.CARRY_OUT, 5, "run-k/1/pay")

    @case
    async def test_f18_the_same_key_twice_in_one_call_is_carried_out_once(self, world: World):
        ledger = await world.ledger()
        asks = [ask("k"), ask("other"), ask("k", place="pay/0@later"), ask("k", b"another"), ask("k", attempt=2)]
        words = [verdict.word for verdict in await ledger.claim(asks, "a", LEASE)]
        assert words == [Word.CARRY_OUT, Word.CARRY_OUT, Word.WAIT, Word.CONFLICT, Word.WAIT]
        entry = (await ledger.look([asks[0].key]))[asks[0].key]
        assert (entry.attempt, entry.conflicts, entry.deliveries) == (2, 1, 1)

    @case
    async def test_answers_come_in_the_order_of_the_asks(self, world: World):
        ledger = await world.ledger()
        known = await ledger.claim([ask(f"k{n}") for n in range(0, 60, 3)], "a", LEASE)
        await ledger.settle([done(verdict) for verdict in known[::2]])
        await ledger.settle([failed(verdict, 0) for verdict in known[1::4]])
        verdicts = await ledger.claim([ask(f"k{n}") for n in range(60)], "a", LEASE)
        assert [verdict.entry.key.key for verdict in verdicts] == [f"k{n}" for n in range(60)]
        expected = [
            Word.CARRY_OUT if n % 3 else (Word.DONE, Word.CARRY_OUT, Word.DONE, Word.WAIT)[n // 3 % 4]
            for n in range(60)
        ]
        assert [verdict.word for verdict in verdicts] == expected

    @case
    async def test_nothing_asked_is_nothing_answered(self, world: World):
        ledger = await world.ledger()
        assert await ledger.claim([], "a", LEASE) == []
        assert await ledger.settle([]) == []
        assert await ledger.extend([], LEASE) == []
        assert await ledger.look([]) == {}
        await ledger.note_published([])

    @case
    async def test_f18_owners_who_race_for_the_same_keys_get_each_once(self, world: World):
        handles = [await world.ledger() for _ in range(4)]
        asks = [ask(f"k{n}") for n in range(150)]

        async def race(number: int) -> list[str]:
            mine = random.Random(number).sample(asks, len(asks))
            verdicts = []
            for start in range(0, len(mine), 50):
                verdicts += await handles[number].claim(mine[start : start + 50], f"owner-{number}", LEASE)
            assert {verdict.word for verdict in verdicts} <= {Word.CARRY_OUT, Word.WAIT}
            return [verdict.entry.key.key for verdict in verdicts if verdict.word is Word.CARRY_OUT]

        won = await asyncio.gather(*(race(number) for number in range(4)))
        assert sorted(key for keys in won for key in keys) == sorted(a.key.key for a in asks)

    @case
    async def test_f17_owners_who_race_for_retries_get_each_once(self, world: World):
        handles = [await world.ledger() for _ in range(4)]
        asks = [ask(f"k{n}") for n in range(60)]
        first = await handles[0].claim(asks, "a", LEASE)
        await handles[0].settle([failed(verdict, 0) for verdict in first])
        answers = await asyncio.gather(
            *(h.claim(random.Random(n).sample(asks, 60), f"{n}", LEASE) for n, h in enumerate(handles))
        )
        won = [verdict.entry.key for verdicts in answers for verdict in verdicts if verdict.word is Word.CARRY_OUT]
        assert len(won) == len(set(won)) == 60


class Settling:
    """Outcomes, what is told of them, and an operator's word."""

    @case
    async def test_a_claim_is_settled_once(self, world: World):
        ledger = await world.ledger()
        mine = await claim_one(ledger, ask("k"))
        assert await ledger.settle([done(mine), done(mine)]) == [True, False]
        assert await ledger.settle([done(mine, b"other")]) == [False]
        assert (await ledger.look([mine.entry.key]))[mine.entry.key].response == b'"paid"'
        assert await ledger.settle([Settlement(Key("shop", "pay", "x"), "c", Status.DONE)]) == [False]

    @case
    async def test_what_is_published_is_noted_for_that_outcome_only(self, world: World):
        ledger = await world.ledger()
        mine = await claim_one(ledger, ask("k"))
        await ledger.settle([done(mine)])
        await ledger.note_published([outcome(mine, Status.PARKED), outcome(mine)._replace(attempt=9)])
        assert not (await claim_one(ledger, ask("k"))).entry.published
        await ledger.note_published([outcome(mine), outcome(mine)])
        assert (await claim_one(ledger, ask("k"))).entry.published
        newer = await claim_one(ledger, ask("k", attempt=2))
        assert (newer.word, newer.entry.published) == (Word.DONE, False)
        assert newer.entry.response == b'"paid"'
        await ledger.note_published([outcome(mine)])
        assert not (await claim_one(ledger, ask("k", attempt=2))).entry.published

    @case
    async def test_an_operator_resolves_what_is_parked(self, world: World):
        ledger = await world.ledger()
        keys = []
        for name, status in (("a", Status.DONE), ("b", Status.FAILED), ("c", Status.PARKED)):
            mine = await claim_one(ledger, ask(name))
            await ledger.settle([Settlement(mine.entry.key, mine.entry.claim, Status.PARKED, error=DECLINED)])
            word = Resolution(status, b'"by hand"', operator="Ann")
            entry = await ledger.resolve(mine.entry.key, word)
            assert (entry.status, entry.operator, entry.published) == (status, "Ann", False)
            assert (await ledger.look([entry.key]))[entry.key] == entry
            keys.append(entry.key)
        answers = [(await claim_one(ledger, ask(name))).word for name in "abc"]
        assert answers == [Word.DONE, Word.GIVEN_UP, Word.PARKED]
        again = await ledger.resolve(keys[1], Resolution(Status.FAILED, again=True))
        assert again.due is not None
        assert (await claim_one(ledger, ask("b"))).word is Word.CARRY_OUT

    @case
    async def test_an_operator_cannot_resolve_what_is_under_way_done_or_unknown(self, world: World):
        ledger = await world.ledger()
        mine = await claim_one(ledger, ask("k"), lease=self.short)
        word = Resolution(Status.FAILED)
        with pytest.raises(Refused, match="being carried out by a"):
            await ledger.resolve(mine.entry.key, word)
        await world.sleep(self.short + 0.1)
        await ledger.resolve(mine.entry.key, word)
        assert await ledger.settle([done(mine)]) == [False]
        other = await claim_one(ledger, ask("other"))
        await ledger.settle([done(other)])
        with pytest.raises(Refused, match="is done"):
            await ledger.resolve(other.entry.key, word)
        with pytest.raises(Refused, match="no entry"):
            await ledger.resolve(Key("shop", "pay", "nobody"), word)


class Keeping:
    """Listing, cleaning, and what any text or size does."""

    @case
    async def test_pages_come_in_the_order_of_the_keys(self, world: World):
        ledger = await world.ledger()
        names = ["a", "a" * 250, "a" * 250 + "b", "a" * 251, "b/1", "ä", "é", "中", "\uffee", "🎉", "A", "_", "~"]
        await ledger.claim([ask(name) for name in reversed(names)], "a", LEASE)
        await ledger.claim([ask("z", operation="mail"), ask("a", operation="zoo")], "a", LEASE)
        found = []
        while page := await ledger.entries(Query(limit=4, after=found[-1].key if found else None)):
            assert len(page) <= 4
            found += page
        keys = [entry.key for entry in found]
        expected = [("mail", "z"), *(("pay", name) for name in sorted(names)), ("zoo", "a")]
        assert keys == [Key("shop", operation, name) for operation, name in expected]

    @case
    async def test_a_listing_is_narrowed(self, world: World):
        ledger = await world.ledger()
        verdicts = await ledger.claim([ask(f"k{n}") for n in range(4)] + [ask("m", operation="mail")], "a", LEASE)
        await ledger.settle([done(verdicts[0]), failed(verdicts[1]), failed(verdicts[2], LEASE)])

        async def names(**query) -> list[str]:
            return [entry.key.key for entry in await ledger.entries(Query(**query))]

        assert await names(statuses=(Status.DONE,)) == ["k0"]
        assert await names(statuses=(Status.FAILED,)) == ["k1", "k2"]
        assert await names(statuses=(Status.FAILED, Status.DONE), operation="pay") == ["k0", "k1", "k2"]
        assert await names(operation="mail") == ["m"]
        assert await names(app="other") == []
        assert await names(run_id="run-k3") == ["k3"]
        assert await names(statuses=(Status.CLAIMED,), after=Key("shop", "pay", "a")) == ["k3"]

    @case
    async def test_cleaning_takes_only_what_is_over_and_old(self, world: World):
        ledger = await world.ledger()
        asks = [ask(f"k{n}") for n in range(6)]
        verdicts = await ledger.claim([*asks, ask("m", operation="mail")], "a", LEASE)
        await ledger.settle([done(verdicts[0]), done(verdicts[1]), failed(verdicts[2]), failed(verdicts[3], LEASE)])
        await ledger.settle([Settlement(verdicts[4].entry.key, verdicts[4].entry.claim, Status.PARKED)])
        await ledger.settle([done(verdicts[6])])
        assert await ledger.clean("shop", "pay", 3600) == 0
        await world.sleep(0.01)
        assert await ledger.clean("shop", "pay", 0.001, limit=2) == 2
        assert await ledger.clean("shop", "pay", 0.001) == 1
        assert await ledger.clean("shop", "pay", 0.001) == 0
        left = [entry.key.key for entry in await ledger.entries(Query())]
        assert left == ["m", "k3", "k4", "k5"]

    @case
    async def test_f23_every_text_comes_back_as_it_was(self, world: World):
        ledger = await world.ledger()
        texts = [
            "\x00",
            "a\x00b",
            "\ud800",
            "\udc00\ud800",
            "\ufeffx",
            "\u2028",
            "\\x00\\u0000",
            "\x1a0000",
            "'; --",
            "中🎉",
        ]
        asks = [
            ask(text, effect_id=f"{text}/1/{text}", run_id=text, op=text, place=text, resent=text) for text in texts
        ]
        verdicts = await ledger.claim(asks, texts[1], LEASE)
        assert [verdict.word for verdict in verdicts] == [Word.CARRY_OUT] * len(texts)
        errors = [Failure("terminal", text, text, text.encode("utf-8", "surrogatepass")) for text in texts]
        outcomes = [
            Settlement(v.entry.key, v.entry.claim, Status.FAILED, response=bytes(range(256)), error=e)
            for v, e in zip(verdicts, errors, strict=True)
        ]
        assert await ledger.settle(outcomes) == [True] * len(texts)
        found = await ledger.look([a.key for a in asks])
        for wanted, error in zip(asks, errors, strict=True):
            entry = found[wanted.key]
            assert (entry.key, entry.effect_id, entry.run_id, entry.op, entry.place, entry.resent) == (
                *(wanted.key, wanted.effect_id, wanted.run_id, wanted.op, wanted.place, wanted.resent),
            )
            assert (entry.error, entry.response) == (error, bytes(range(256)))
            assert await ledger.entries(Query(run_id=wanted.run_id)) == [entry]
            entry = await ledger.resolve(wanted.key, Resolution(Status.DONE, operator=wanted.run_id))
            assert entry.operator == wanted.run_id
        assert await ledger.clean("shop", "pay", 0) in range(len(texts) + 1)

    @case
    async def test_f23_long_keys_and_large_responses_are_no_trouble(self, world: World):
        ledger = await world.ledger()
        names = ["k" * 10_000, "k" * 9_999 + "x", "中" * 5_000]
        verdicts = await ledger.claim([ask(name, run_id=name) for name in names], "a", LEASE)
        assert [verdict.word for verdict in verdicts] == [Word.CARRY_OUT] * 3
        responses = [bytes([n]) * 256 * 1024 for n in range(3)]
        assert await ledger.settle([done(v, r) for v, r in zip(verdicts, responses, strict=True)]) == [True] * 3
        again = await ledger.claim([ask(name, run_id=name) for name in names], "b", LEASE)
        assert [(verdict.word, verdict.entry.response) for verdict in again] == [(Word.DONE, r) for r in responses]
        assert [entry.key.key for entry in await ledger.entries(Query())] == sorted(names)

    @case
    async def test_f23_a_batch_of_large_responses_is_written_whole(self, world: World):
        ledger = await world.ledger()
        verdicts = await ledger.claim([ask(f"k{n}") for n in range(80)], "a", LEASE)
        responses = [bytes([n]) * 256 * 1024 for n in range(80)]
        assert all(await ledger.settle([done(v, r) for v, r in zip(verdicts, responses, strict=True)]))
        await ledger.note_published([outcome(verdict) for verdict in verdicts])
        found = await ledger.look([verdict.entry.key for verdict in verdicts])
        assert [found[verdict.entry.key].response for verdict in verdicts] == responses
        assert all(entry.published for entry in found.values())

    @case
    async def test_tables_are_made_once_however_often_it_is_asked(self, world: World):
        ledger = await world.ledger()
        await claim_one(ledger, ask("k"))
        await ledger.migrate()
        await ledger.check()
        assert (await claim_one(await world.ledger(), ask("k"))).word is Word.WAIT


class Transactions:
    """Handlers that write where the ledger is."""

    @case
    async def test_writes_and_entries_are_committed_together(self, world: World):
        ledger = await world.ledger()

        def work(verdicts):
            assert [verdict.word for verdict in verdicts] == [Word.CARRY_OUT, Word.CARRY_OUT]
            return [verdict.entry.key.key for verdict in verdicts], [done(verdict) for verdict in verdicts]

        verdicts = await ledger.transact([ask("a"), ask("b")], "a", self.body(work))
        assert [(v.word, v.entry.status) for v in verdicts] == [(Word.CARRY_OUT, Status.DONE)] * 2
        assert await self.rows() == ["a", "b"]
        assert (await claim_one(await world.ledger(), ask("a"))).entry == verdicts[0].entry

    @case
    async def test_what_a_handler_raises_rolls_everything_back(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([failed(await claim_one(ledger, ask("b")), 0)])
        before = await ledger.look([ask("b").key])

        def work(verdicts):
            raise ArithmeticError("no")

        with pytest.raises(ArithmeticError, match="no"):
            await ledger.transact([ask("a"), ask("b")], "a", self.body(work))
        assert await self.rows() == []
        assert await ledger.look([ask("a").key, ask("b").key]) == before
        assert (await claim_one(ledger, ask("a"))).word is Word.CARRY_OUT

    @case
    async def test_a_claim_that_is_left_unsettled_leaves_nothing(self, world: World):
        ledger = await world.ledger()
        await ledger.settle([failed(await claim_one(ledger, ask("b")), 0)])
        before = await ledger.look([ask("b").key])

        def work(verdicts):
            return ["c"], [done(verdicts[2])]

        verdicts = await ledger.transact([ask("a"), ask("b"), ask("c")], "a", self.body(work))
        assert [verdict.word for verdict in verdicts] == [Word.CARRY_OUT] * 3
        found = await ledger.look([ask(name).key for name in "abc"])
        assert {key: entry for key, entry in found.items() if key.key != "c"} == before
        assert found[ask("c").key].status is Status.DONE
        again = await ledger.claim([ask("a"), ask("b")], "a", LEASE)
        assert [(v.word, v.entry.deliveries) for v in again] == [(Word.CARRY_OUT, 1), (Word.CARRY_OUT, 2)]

    @case
    async def test_f18_only_what_was_claimed_here_is_written(self, world: World):
        ledger = await world.ledger()
        theirs = await claim_one(ledger, ask("theirs"))
        await ledger.settle([done(await claim_one(ledger, ask("old")))])
        asks = [ask("new"), ask("old"), ask("theirs"), ask("new"), ask("old", b"another")]

        def work(verdicts):
            words = [verdict.word for verdict in verdicts]
            assert words == [Word.CARRY_OUT, Word.DONE, Word.WAIT, Word.WAIT, Word.CONFLICT]
            return ["new"], [done(verdicts[0])]

        verdicts = await ledger.transact(asks, "a", self.body(work))
        assert verdicts[3].until <= await ledger.now_us() + 10_000
        assert (await ledger.look([ask("old").key]))[ask("old").key].conflicts == 1
        assert await ledger.settle([done(theirs)]) == [True]

        with pytest.raises(ValueError, match="not claimed in this transaction"):
            await ledger.transact([ask("more")], "a", self.body(lambda verdicts: (["more"], [done(theirs)])))
        assert await self.rows() == ["new"]

    @case
    async def test_a_failure_may_be_settled_without_any_write(self, world: World):
        ledger = await world.ledger()
        (verdict,) = await ledger.transact([ask("a")], "a", self.body(lambda v: ([], [failed(v[0], self.short)])))
        assert (verdict.entry.status, verdict.entry.deliveries) == (Status.FAILED, 1)
        assert (await claim_one(ledger, ask("a"))).word is Word.WAIT
        await world.sleep(self.short + 0.1)
        (again,) = await ledger.transact([ask("a")], "a", self.body(lambda v: (["a"], [done(v[0])])))
        assert (again.word, again.entry.status, again.entry.deliveries) == (Word.CARRY_OUT, Status.DONE, 2)

    @case
    async def test_f18_handlers_who_race_for_the_same_keys_write_each_once(self, world: World):
        handles = [await world.ledger() for _ in range(4)]
        asks = [ask(f"k{n:02}") for n in range(40)]

        def work(verdicts):
            granted = [verdict for verdict in verdicts if verdict.word is Word.CARRY_OUT]
            return [verdict.entry.key.key for verdict in granted], [done(verdict) for verdict in granted]

        async def race(number: int) -> None:
            mine = random.Random(number).sample(asks, len(asks))
            for start in range(0, len(mine), 10):
                await handles[number].transact(mine[start : start + 10], f"{number}", self.body(work))

        async def claims() -> set[Word]:
            return {verdict.word for verdict in await handles[3].claim(asks[:20], "c", LEASE)}

        *_, words = await asyncio.gather(*(race(number) for number in range(3)), claims())
        assert words <= {Word.DONE, Word.CARRY_OUT}
        entries = await handles[0].entries(Query())
        assert await self.rows() == [entry.key.key for entry in entries if entry.status is Status.DONE]
        assert len(entries) == 40

    @case
    async def test_no_asks_are_a_transaction_all_the_same(self, world: World):
        ledger = await world.ledger()
        assert await ledger.transact([], "a", self.body(lambda verdicts: (["x"], []))) == []
        assert await self.rows() == ["x"]


class LedgerContract(Claiming, Settling, Keeping, Transactions):
    """Everything that any ledger promises."""
