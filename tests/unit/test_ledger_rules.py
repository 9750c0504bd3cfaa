"""What no history of asks, outcomes, crashes and operators may bring about, tried on random histories."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.effects import rules
from streams.effects.columns import entry_of, row_of
from streams.effects.port import Ask, Claim, Entry, Key, Outcome, Resolution, Settlement, Status, Word
from streams.errors import Refused
from streams.kernel.bodies import Failure

KEY = Key("shop", "pay", "k")
CONTENT, OTHER = b"content", b"other"
GRANTED = {Word.CARRY_OUT, Word.LOOK_UP}
ERROR = Failure("retryable", "DECLINED", "no")


def ask(**more) -> Ask:
    defaults = {
        "request_hash": CONTENT,
        "effect_id": "run/1/pay",
        "run_id": "run",
        "op": "pay",
        "epoch": 1,
        "attempt": 1,
        "place": "pay/0@1",
    }
    return Ask(KEY, **(defaults | more))


class History:
    """One key of a ledger, those who hold or held claims of it, and what an all-knowing observer has seen."""

    def __init__(self) -> None:
        self.entry: Entry | None = None
        self.now = 1_000_000
        self.names = count()
        self.claims: list[tuple[str, Word]] = []
        self.may_have_happened = False
        self.newest = (0, 0)

    def ask(self, wanted: Ask, lease: float = 1.0) -> Word:
        before = self.entry
        name = f"claim-{next(self.names)}"
        verdict, changed = rules.judge(before, wanted, owner="a", claim=name, lease_seconds=lease, now=self.now)
        self.entry = changed if changed is not None else before
        assert verdict.entry == self.entry
        self._check(before, wanted, verdict.word, name)
        if verdict.word in GRANTED:
            self.claims.append((name, verdict.word))
            self.may_have_happened = True
        if verdict.word is Word.WAIT:
            assert verdict.until > self.now
        return verdict.word

    def _check(self, before: Entry | None, wanted: Ask, word: Word, name: str) -> None:
        if word is Word.CARRY_OUT:
            assert not self.may_have_happened
        if word in GRANTED:
            assert self.entry.claim == name
            assert before is None or before.status is not Status.DONE
            assert before is None or not (before.status is Status.CLAIMED and before.lease_until > self.now)
            assert wanted.request_hash == (before.request_hash if before else wanted.request_hash)
        if before is not None and wanted.request_hash != before.request_hash:
            assert word is Word.CONFLICT
            unchanged = {"conflicts", "conflict", "updated_at"}
            assert all(a == b for f, a, b in zip(Entry._fields, before, self.entry, strict=True) if f not in unchanged)
        if before is not None:  # the fencing token never goes back
            assert (self.entry.epoch, self.entry.attempt) >= (before.epoch, before.attempt)

    def settle(self, who: int, settlement: Settlement) -> bool:
        """The outcome of one of those who ever held a claim."""
        if not self.claims:
            return False
        claim, _ = self.claims[who % len(self.claims)]
        changed = rules.settle(self.entry, settlement._replace(claim=claim), self.now)
        live = self.entry.status is Status.CLAIMED and self.entry.claim == claim
        assert (changed is not None) == live
        if changed is not None:
            assert claim == self.claims[-1][0]
            self.entry = changed
            self.may_have_happened = settlement.status is not Status.FAILED
        return changed is not None

    def resolve(self, resolution: Resolution) -> None:
        try:
            self.entry = rules.resolve(self.entry, resolution, self.now)
        except Refused:
            return
        self.may_have_happened = resolution.status is not Status.FAILED


asks = st.builds(
    ask,
    request_hash=st.sampled_from([CONTENT] * 4 + [OTHER]),
    effect_id=st.sampled_from(["run/1/pay"] * 3 + ["run/2/pay"]),
    epoch=st.integers(1, 2),
    attempt=st.integers(0, 3),
    place=st.sampled_from(["pay/0@1", "pay/0@2"]),
    resent=st.sampled_from(["", "", "0@1", "0@2"]),
)
GIVEN_UP = Settlement(KEY, "", Status.FAILED, error=ERROR)
settlements = st.just(GIVEN_UP) | st.builds(
    Settlement,
    key=st.just(KEY),
    claim=st.just(""),
    status=st.sampled_from([Status.DONE, Status.FAILED, Status.FAILED, Status.UNCERTAIN, Status.PARKED]),
    response=st.none(),
    error=st.none(),
    due_in=st.sampled_from([0.0, 0.5, 3.0]),
    returned=st.booleans(),
)
resolutions = st.builds(
    Resolution,
    status=st.sampled_from([Status.DONE, Status.FAILED, Status.PARKED]),
    response=st.none(),
    error=st.none(),
    again=st.booleans(),
    operator=st.just("Ann"),
)
steps = st.one_of(
    st.tuples(st.just("ask"), asks),
    st.tuples(st.just("ask"), asks),
    st.tuples(st.just("settle"), st.integers(0, 5), settlements),
    st.tuples(st.just("settle"), st.just(-1), settlements),
    st.tuples(st.just("extend"), st.integers(0, 5)),
    st.tuples(st.just("sleep"), st.sampled_from([0.1, 0.6, 1.5, 4.0])),
    st.tuples(st.just("resolve"), resolutions),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=40))
def test_f17_nothing_that_may_have_happened_is_carried_out_again(history) -> None:
    world = History()
    for kind, *values in history:
        if kind == "ask":
            world.ask(*values)
        elif kind == "settle":
            world.settle(*values)
        elif kind == "resolve":
            world.resolve(*values)
        elif kind == "sleep":
            world.now += round(values[0] * 1_000_000)
        elif world.claims:
            held = Claim(KEY, world.claims[values[0] % len(world.claims)][0])
            longer = rules.extend(world.entry, held, 1.0, world.now)
            assert (longer is not None) == (world.entry.claim == held.claim)
            world.entry = longer or world.entry
        check_form(world.entry)


def check_form(entry: Entry | None) -> None:
    """What holds of every entry between two steps."""
    if entry is None:
        return
    claimed = entry.status is Status.CLAIMED
    assert bool(entry.claim) == bool(entry.owner) == (entry.lease_until is not None) == claimed
    assert entry.due is None or entry.status in (Status.FAILED, Status.UNCERTAIN, Status.DONE, Status.PARKED)
    assert entry.deliveries >= 0
    assert entry.looks >= 0
    assert entry_of(row_of(entry)) == entry


@settings(deadline=None)
@given(st.lists(st.tuples(asks, settlements, st.sampled_from([0.1, 2.0, 5.0])), min_size=1, max_size=15))
def test_f17_no_key_is_locked_for_ever(history) -> None:
    """Whoever keeps asking comes to an end, or to a claim, once the times that were named are over."""
    world = History()
    for wanted, settlement, pause in history:
        world.ask(wanted)
        world.settle(-1, settlement)
        world.now += round(pause * 1_000_000)
    world.now += 10_000_000
    entry = world.entry
    word = world.ask(ask(request_hash=entry.request_hash, effect_id="run/9/pay"))
    assert word in {Word.CARRY_OUT, Word.LOOK_UP, Word.DONE, Word.GIVEN_UP, Word.PARKED}


@settings(deadline=None)
@given(asks, asks, st.integers(0, 3))
def test_f26_of_two_attempts_of_one_op_the_older_never_wins(first: Ask, second: Ask, before: int) -> None:
    first, second = (one._replace(effect_id="run/1/pay", request_hash=CONTENT) for one in (first, second))
    older, newer = sorted((first, second), key=lambda one: (one.epoch, one.attempt))
    world = History()
    world.ask(newer)
    if before:
        world.settle(-1, Settlement(KEY, "", Status.UNCERTAIN if before > 1 else Status.FAILED, due_in=0.0))
    word = world.ask(older)
    if (older.epoch, older.attempt) < (newer.epoch, newer.attempt):
        assert word is Word.STALE
    else:
        assert word is not Word.STALE


def test_f17_a_claim_after_a_crash_is_looked_up_even_by_the_same_owner() -> None:
    world = History()
    assert world.ask(ask()) is Word.CARRY_OUT
    world.now += 1_000_000
    assert world.ask(ask()) is Word.LOOK_UP
    world.now += 1_000_000
    assert world.ask(ask()) is Word.LOOK_UP
    assert world.entry.looks == 2


def test_what_a_look_up_did_not_find_is_carried_out_and_counts_as_begun() -> None:
    world = History()
    world.ask(ask())
    world.now += 1_000_000
    world.ask(ask())
    assert world.settle(-1, Settlement(KEY, "", Status.FAILED, due_in=0.0))
    assert world.ask(ask()) is Word.CARRY_OUT
    assert (world.entry.deliveries, world.entry.looks) == (2, 0)


@pytest.mark.parametrize("status", [Status.DONE, Status.FAILED])
def test_what_is_over_answers_an_older_attempt_too(status: Status) -> None:
    world = History()
    world.ask(ask(attempt=3))
    world.settle(-1, Settlement(KEY, "", status))
    expected = Word.DONE if status is Status.DONE else Word.GIVEN_UP
    assert world.ask(ask(attempt=1)) is expected
    assert world.entry.attempt == 3


def test_an_outcome_is_told_once_for_each_attempt_that_waits_for_it() -> None:
    world = History()
    world.ask(ask())
    world.settle(-1, Settlement(KEY, "", Status.DONE))
    told = Outcome(KEY, "run/1/pay", 1, 1, Status.DONE)
    world.entry = rules.published(world.entry, told)
    assert world.entry.published
    assert rules.published(world.entry, told) is None
    assert world.ask(ask(attempt=2)) is Word.DONE
    assert not world.entry.published
    assert rules.published(world.entry, told) is None
