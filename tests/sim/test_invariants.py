"""The invariants of the simulator find what they are there for: each test spoils a true history in one way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streams.kernel import bodies as ev
from streams.log.port import Record
from streams.runtime.settings import WorkerSettings
from streams.testing.loop import run_virtual
from streams.testing.sim.invariants import check, check_lives
from streams.testing.sim.model import KINDS, Plan, draw
from streams.wire.records import Damaged, decode_event, encode_checkpoint, encode_event
from tests.sim.good import PARTITIONS, GoodWorld
from tests.sim.planted.faults import FAULTS
from tests.sim.planted.planting import planted
from tests.sim.spoiled import Spoiled, take

SETTINGS = WorkerSettings(
    partitions=PARTITIONS,
    stop_seconds=0.1,
    checkpoint_bytes_min=500,
    sweep_seconds=0.5,
    checkpoint_age_seconds=0.5,
    clock_refuse_seconds=10_000.0,
)


INPUTS: dict[str, dict[str, Any]] = {
    "chain": {"ms": [2500, 20, 20]},  # so long that the first worker stops in the middle
    "spend": {"lost": 1},
    "nap": {"seconds": [0.1, 4.0]},
}


def with_input(one: Plan, fields: dict[str, Any]) -> Plan:
    input_ = {**one.input, **fields}
    start = {**one.start, "input": input_}
    sends = tuple(send._replace(command=start) if send.command == one.start else send for send in one.sends)
    return one._replace(input=input_, start=start, sends=sends)


def plans() -> list[Plan]:
    """At least two of each kind."""
    rng, found, number = random.Random(5), list[Plan](), 0
    while any(sum(one.kind == kind for one in found) < 2 for kind in KINDS):
        one = draw(rng, number)
        number += 1
        if sum(other.kind == one.kind for other in found) < 2:
            found.append(with_input(one, INPUTS[one.kind]) if one.kind in INPUTS else one)
    return found


async def live() -> tuple[GoodWorld, Any, list[str]]:
    world = GoodWorld()
    await world.live(plans(), SETTINGS)
    return world, await take(world), await check(world)


@pytest.fixture(scope="module")
def good() -> tuple[GoodWorld, Any]:
    world, records, wrong = run_virtual(live())
    assert wrong == []
    return world, records


@pytest.fixture
def spoiled(good: tuple[GoodWorld, Any]) -> Spoiled:
    return Spoiled(*good)


def test_a_true_history_is_right(spoiled: Spoiled):
    assert spoiled.wrong() == []


def test_the_true_history_has_everything_in_it(spoiled: Spoiled):
    bodies = {
        type(decode_event(record.value or b"").body)
        for (topic, _), records in spoiled.records.items()
        if topic == spoiled.topics.events
        for record in records
    }
    wanted = {
        *(ev.RunStarted, ev.RunOwned, ev.RunCompleted, ev.RunFailed, ev.RunCancelled, ev.RunBlocked),
        *(ev.OpScheduled, ev.OpCompleted, ev.OpFailed, ev.OpParked, ev.OpWithdrawn, ev.TimerFired, ev.StateAdvanced),
        *(ev.AttemptStarted, ev.AttemptFailed, ev.AttemptReturned, ev.AttemptNoted, ev.InterruptAnswered),
        *(ev.SignalReceived, ev.SignalTaken, ev.CancelRequested, ev.CommandRejected, ev.EffectEmitted),
    }
    assert wanted - bodies == set()


# -- what is spoiled, and how the complaint reads ----------------------------------------------------------------

Spoil = Callable[[Spoiled], Any]
CASES: dict[str, tuple[Spoil, str]] = {}


def spoils(text: str) -> Callable[[Spoil], Spoil]:
    def keep(spoil: Spoil) -> Spoil:
        CASES[spoil.__name__] = (spoil, text)
        return spoil

    return keep


@spoils("is of partition 1")
def a_lease_of_another_partition(s: Spoiled) -> None:
    s.lease(partition=1)


@spoils("was claimed by")
def two_owners_of_an_epoch(s: Spoiled) -> None:
    s.lease(owner="w9")


@spoils("go back in epoch")
def an_epoch_that_goes_back(s: Spoiled) -> None:
    s.lease(epoch=1)


@spoils("go back in applied")
def an_applied_offset_that_goes_back(s: Spoiled) -> None:
    s.lease(applied=0)


@spoils("go back in tail")
def a_tail_that_goes_back(s: Spoiled) -> None:
    s.lease(tail=0)


@spoils("comes after one of epoch 7")
def an_event_of_an_old_epoch(s: Spoiled) -> None:
    s.change((*s.find("chain", ev.OpCompleted)[:2], s.find("chain", ev.OpCompleted)[2]), epoch=7)


@spoils("which nobody claimed")
def an_epoch_that_nobody_claimed(s: Spoiled) -> None:
    records, at, _ = s.find("chain", ev.OpCompleted)
    for place in range(at, len(records)):
        s.change((records, place, decode_event(records[place].value or b"")), epoch=9)


@spoils("was written by w9 under the epoch")
def an_epoch_used_by_another(s: Spoiled) -> None:
    s.change(s.find("chain", ev.RunStarted), owner="w9")


@spoils("was written before the claim of its epoch")
def an_event_before_the_claim(s: Spoiled) -> None:
    records, at, _ = s.find("chain", ev.RunOwned)
    records[at] = records[at]._replace(timestamp=1)


@spoils("was written after the next owner's claim")
def an_event_of_a_zombie(s: Spoiled) -> None:
    records, at, _ = s.find("chain", ev.RunStarted)
    records[at] = records[at]._replace(timestamp=records[at].timestamp + 100_000)


@spoils("lies under the key b'another'")
def an_event_under_another_key(s: Spoiled) -> None:
    records, at, _ = s.find("fan", ev.RunStarted)
    records[at] = records[at]._replace(key=b"another")


@spoils("follows on seq")
def an_event_is_gone(s: Spoiled) -> None:
    records, at, _ = s.find("chain", ev.EffectEmitted)
    del records[at]


@spoils("is the first one of its run")
def the_first_event_is_gone(s: Spoiled) -> None:
    records, at, _ = s.find("flaky", ev.RunStarted)
    del records[at]


@spoils("and the run is")
def another_identity(s: Spoiled) -> None:
    s.change(s.find("chain", ev.OpCompleted), identity="chain@99")


@spoils("without run.owned")
def a_new_owner_that_says_nothing(s: Spoiled) -> None:
    records, at, event = s.find("nap", ev.RunOwned)
    records[at] = records[at]._replace(value=encode_event(event._replace(body=ev.AttemptNoted("1", 1, b"1"))))


@spoils("is older than the event before it")
def time_that_goes_back(s: Spoiled) -> None:
    s.change(s.find("chain", ev.OpCompleted), at=1)


@spoils("has no outcome")
def a_lost_command(s: Spoiled) -> None:
    s.change(s.find("chain", ev.RunStarted), offset=None)


@spoils("has two outcomes")
def a_command_applied_twice(s: Spoiled) -> None:
    offset = s.find("chain", ev.RunStarted)[2].offset
    s.change(s.find("chain", ev.OpCompleted), offset=offset)


@spoils("after that of command")
def commands_out_of_order(s: Spoiled) -> None:
    records, at, first = s.find("chain", ev.RunStarted)
    later = next(
        place for place in range(at + 1, len(records)) if decode_event(records[place].value or b"").offset is not None
    )
    second = decode_event(records[later].value or b"")
    s.change((records, at, first), offset=second.offset)
    s.change((records, later, second), offset=first.offset)


@spoils("is the outcome of a command to another run")
def the_outcome_of_another_command(s: Spoiled) -> None:
    commands_out_of_order(s)


@spoils("which the topic does not hold")
def the_outcome_of_no_command(s: Spoiled) -> None:
    s.change(s.find("chain", ev.RunStarted), offset=9_999)


@spoils("that came after it")
def an_applied_offset_ahead_of_the_outcomes(s: Spoiled) -> None:
    s.lease(at=0, applied=50)
    for at in range(1, len(s.records[s.topics.leases, 0])):
        s.lease(at=at, applied=50)


@spoils("has applied 9999")
def a_last_lease_that_is_ahead(s: Spoiled) -> None:
    s.lease(applied=9_999)


@spoils("is gone")
def an_accepted_command_is_gone(s: Spoiled) -> None:
    s.sent.append(s.sent[0]._replace(offset=9_999))


@spoils("is another record now")
def an_accepted_command_has_changed(s: Spoiled) -> None:
    records = s.records[s.topics.commands, s.sent[0].partition]
    at = next(at for at, record in enumerate(records) if record.offset == s.sent[0].offset)
    records[at] = records[at]._replace(value=b"{}")


def letters(s: Spoiled) -> list[Record]:
    return next(records for (topic, _), records in s.records.items() if topic == s.topics.dead_letters and records)


@spoils("is not among the dead letters")
def junk_that_vanishes(s: Spoiled) -> None:
    letters(s).clear()


@spoils("is among the dead letters 2 times")
def junk_that_comes_twice(s: Spoiled) -> None:
    records = letters(s)
    records.append(records[-1]._replace(offset=records[-1].offset + 1))


@spoils("is among the dead letters: ")
def a_good_command_among_the_dead_letters(s: Spoiled) -> None:
    for run_id, one in list(s.plans.items()):
        if one.kind == "junk":
            s.plans[run_id] = one._replace(kind="chain")


@spoils("refuses a start with another input as")
def a_conflict_taken_for_a_repeat(s: Spoiled) -> None:
    found = s.find("", ev.CommandRejected)
    s.change(found, command_id="chain-1/conflict", code="DUPLICATE")


# -- effects -----------------------------------------------------------------------------------------------------


@spoils("was emitted by no event")
def an_orphan_effect(s: Spoiled) -> None:
    s.change_effect("chain", effect_id="chain@0/99")


@spoils("differs from its event")
def an_effect_with_another_payload(s: Spoiled) -> None:
    s.change_effect("chain", payload=b"{}")


@spoils("was emitted and never published")
def a_lost_effect(s: Spoiled) -> None:
    records, at, _ = s.effect("chain")
    del records[at]


@spoils("the effect id")
def an_effect_published_twice(s: Spoiled) -> None:
    records, at, _ = s.effect("chain")
    records.append(records[at]._replace(offset=records[-1].offset + 1))


@spoils("the idempotency key")
def a_key_published_twice(s: Spoiled) -> None:
    _, _, message = s.effect("nap")
    s.change_effect("chain", idempotency_key=message.idempotency_key)


# -- state -------------------------------------------------------------------------------------------------------


@spoils("cannot be folded")
def an_event_that_does_not_fit(s: Spoiled) -> None:
    s.change(s.find("chain", ev.OpCompleted), op="77")


@spoils("is not its fold: result differ")
def a_checkpoint_that_is_not_the_fold(s: Spoiled) -> None:
    s.checkpoint("chain", result=b"0")


@spoils("has no event")
def a_checkpoint_ahead_of_the_events(s: Spoiled) -> None:
    s.checkpoint("chain", seq=999)


@spoils("lies under the key b'another'")
def a_checkpoint_under_another_key(s: Spoiled) -> None:
    records, at = s.checkpoint("chain")
    records[at] = records[at]._replace(key=b"another")


@spoils("differs from another one at seq")
def two_checkpoints_of_one_seq(s: Spoiled) -> None:
    records, at = s.checkpoint("chain")
    good = records[at]
    s.checkpoint("chain", result=b"0")
    records.append(good._replace(offset=records[-1].offset + 1))


@spoils("says that run")
def a_damaged_run(s: Spoiled) -> None:
    records, at = s.checkpoint("chain")
    run_id = (records[at].key or b"").decode()
    records[at] = records[at]._replace(value=encode_checkpoint(Damaged(run_id, 1, "it is broken")))


@spoils("has ended without a checkpoint of its end")
def an_end_without_checkpoint(s: Spoiled) -> None:
    records, at = s.checkpoint("chain")
    del records[at]


@spoils("lies below the tail")
def a_tail_ahead_of_the_checkpoints(s: Spoiled) -> None:
    leases = s.records[s.topics.leases, 0]
    for at in range(len(leases)):
        s.lease(at=at, tail=400)


@spoils("has ended while a task of it was open")
def an_end_with_an_open_task(s: Spoiled) -> None:
    records, at, event = s.find("chain", ev.OpCompleted)
    after = records[at + 1 :]
    later = [at for at, r in enumerate(after, at + 1) if decode_event(r.value or b"").run_id == event.run_id]
    for place in reversed(later):
        del records[place]
    s.change((records, at, event), body=ev.RunCompleted(b"1"))


@spoils("its journal cannot be replayed")
def a_history_that_the_code_does_not_write(s: Spoiled) -> None:
    s.change(s.find("chain", ev.OpScheduled, 1), hash=b"12345678")


@spoils("and the replay of its journal still waits")
def an_end_too_early(s: Spoiled) -> None:
    records, at, event = s.find("ask_both", ev.InterruptAnswered)
    s.put(records, at, event._replace(seq=(event.seq or 0) + 1, offset=None, body=ev.RunCompleted(b"[]")))


# -- ops ---------------------------------------------------------------------------------------------------------


@spoils("before its time")
def a_timer_that_fires_early(s: Spoiled) -> None:
    found = next(found for n in range(9) if (found := s.find("nap", ev.OpScheduled, n))[2].body.kind == "timer")
    s.change(found, due=found[2].at + 10**12)


@spoils("µs after its time")
def a_timer_that_fires_late(s: Spoiled) -> None:
    found = s.find("nap", ev.TimerFired)
    found[0][found[1]] = found[0][found[1]]._replace(timestamp=found[0][found[1]].timestamp + 4_000)


@spoils("still ran")
def a_release_that_forgets_an_attempt(s: Spoiled) -> None:
    found = s.find("chain", ev.AttemptReturned)
    s.change(found, body=ev.AttemptNoted(found[2].body.op, found[2].body.attempt, b"1"))


@spoils("was the last")
def the_outcome_of_another_attempt(s: Spoiled) -> None:
    s.change(s.find("chain", ev.OpCompleted), attempt=5)


@spoils("ends an attempt while the op is")
def the_outcome_of_no_attempt(s: Spoiled) -> None:
    _, _, failed = s.find("flaky", ev.AttemptFailed)
    s.change(s.find("flaky", ev.AttemptStarted), body=failed.body)


@spoils("and its attempt was started under")
def the_outcome_of_an_old_epoch(s: Spoiled) -> None:
    """The attempt was begun under the first epoch, and its outcome is taken under the second."""
    found = s.find("chain", ev.AttemptReturned)
    body = found[2].body
    s.change(found, body=ev.AttemptNoted(body.op, body.attempt, b"1"))
    again = next(
        again
        for nth in range(99)
        if (again := s.find("", ev.AttemptStarted, nth))[2].run_id == found[2].run_id and again[2].body.op == body.op
    )
    s.change(again, body=ev.AttemptNoted(body.op, body.attempt, b"2"))


@spoils("before its back-off is over")
def a_back_off_cut_short(s: Spoiled) -> None:
    _, _, event = s.find("flaky", ev.AttemptFailed)
    s.change(s.find("flaky", ev.AttemptFailed), due=event.body.due + 10**9)


@spoils("follows on attempt 1")
def an_attempt_that_is_not_counted(s: Spoiled) -> None:
    s.change(s.find("flaky", ev.AttemptStarted), attempt=7)


@spoils("of 2")
def more_attempts_than_the_task_allows(s: Spoiled) -> None:
    """The end of `broken` is put off by one more attempt."""
    records, at, event = s.find("helped", ev.OpFailed)
    first, again = s.find("helped", ev.AttemptFailed), s.find("helped", ev.AttemptStarted)
    seq = event.seq or 0
    s.change((records, at, event), body=first[2].body._replace(attempt=2, due=event.at))
    s.put(records, at, event._replace(seq=seq + 1, body=again[2].body._replace(attempt=3)))


@spoils("has used up 1 attempts of 2")
def fewer_attempts_than_the_task_has(s: Spoiled) -> None:
    _, _, end = s.find("helped", ev.OpFailed)
    s.change(s.find("helped", ev.AttemptFailed), body=end.body._replace(attempt=1))


@spoils("nobody knows whether it has happened")
def a_blind_repeat(s: Spoiled) -> None:
    _, _, event = s.find("spend", ev.OpParked)
    body = ev.AttemptFailed(event.body.op, 1, event.body.reason, event.at, maybe=True)
    s.change(s.find("spend", ev.OpParked), body=body)


@spoils("begins while attempt 1 runs")
def an_attempt_beside_another(s: Spoiled) -> None:
    found = s.find("flaky", ev.AttemptFailed)
    s.change(found, body=ev.AttemptNoted(found[2].body.op, 1, b"1"))


# -- outside -----------------------------------------------------------------------------------------------------


def call_of(s: Spoiled, kind: str, attempt: int = 1) -> int:
    return next(
        at
        for at, call in enumerate(s.outside.calls)
        if call.run_id.startswith(f"{kind}-") and call.attempt == attempt and not call.ended
    )


def change_call(s: Spoiled, kind: str, attempt: int = 1, **fields: Any) -> None:
    at = call_of(s, kind, attempt)
    s.outside.calls[at] = s.outside.calls[at]._replace(**fields)


@spoils("its start is in no event")
def a_call_without_a_start(s: Spoiled) -> None:
    change_call(s, "chain", attempt=1, key="?")


@spoils("ran under epochs [77]")
def a_call_under_another_token(s: Spoiled) -> None:
    change_call(s, "chain", epoch=77)


@spoils("ms before its start was written")
def a_call_before_its_start(s: Spoiled) -> None:
    change_call(s, "chain", at=0)


@spoils("ran more than once")
def a_call_that_comes_twice(s: Spoiled) -> None:
    s.outside.calls.append(s.outside.calls[call_of(s, "chain")])


@spoils("ran on ['w1', 'w9']")
def two_workers_under_one_epoch(s: Spoiled) -> None:
    change_call(s, "chain", worker="w9")


@spoils("completed and was never called")
def an_outcome_out_of_nothing(s: Spoiled) -> None:
    key = s.outside.calls[call_of(s, "chain")].key
    s.outside.calls[:] = [call for call in s.outside.calls if call.key != key]


@spoils("tasks run at once on w1, which has 1 loop slots")
def more_tasks_than_slots(s: Spoiled) -> None:
    s.settings = replace(s.settings, loop_slots=1)


@spoils("3 tasks run at once on w9, which has 1 thread slots")
def more_plain_functions_than_threads(s: Spoiled) -> None:
    s.settings = replace(s.settings, thread_slots=1)
    call = next(call for call in s.outside.calls if call.what == "double")
    s.outside.calls += [call._replace(worker="w9", ended=False)] * 3


@spoils("paid without a look")
def a_payment_without_a_look(s: Spoiled) -> None:
    at = call_of(s, "buy")
    s.outside.calls[at] = s.outside.calls[at]._replace(attempt=2)


@spoils("was paid under pay/other")
def a_payment_under_another_key(s: Spoiled) -> None:
    s.outside.payments["pay/other"] = 3


@spoils("was paid under pay/o-buy")
def a_payment_of_another_amount(s: Spoiled) -> None:
    s.outside.payments[next(iter(s.outside.payments))] = 12_345


@spoils("was charged 9 times")
def a_charge_too_many(s: Spoiled) -> None:
    key, amounts = next(iter(s.outside.charges.items()))
    s.outside.charges[key] = amounts[:1] * 9


@spoils("its order was never paid")
def a_receipt_for_nothing(s: Spoiled) -> None:
    s.outside.payments.clear()


# -- ends --------------------------------------------------------------------------------------------------------


def without_end(s: Spoiled, kind: str) -> None:
    records, at, _ = s.find(kind, ev.RunCompleted)
    del records[at]


@spoils("has not come to its end")
def a_run_that_does_not_end(s: Spoiled) -> None:
    without_end(s, "chain")


@spoils("was accepted and never started")
def a_run_that_never_starts(s: Spoiled) -> None:
    _, _, event = s.find("chain", ev.RunStarted)
    records = s.of(s.topics.events, event.run_id)
    records[:] = [record for record in records if record.key != event.run_id.encode()]


@spoils("nobody has asked for it")
def a_run_that_nobody_asked_for(s: Spoiled) -> None:
    _, _, event = s.find("chain", ev.RunStarted)
    s.sent = [sent for sent in s.sent if sent.run_id != event.run_id]
    del s.plans[event.run_id]


@spoils("instead of completed")
def a_run_that_ends_otherwise(s: Spoiled) -> None:
    failure = ev.Failure("terminal", "BOOM", "it failed")
    s.change(s.find("chain", ev.RunCompleted), body=ev.RunFailed(failure))


@spoils("it ended with 5 instead of")
def a_run_with_another_result(s: Spoiled) -> None:
    s.change(s.find("chain", ev.RunCompleted), result=b"5")


@spoils("it ended with [1, 1] instead of")
def signals_that_count_twice(s: Spoiled) -> None:
    s.change(s.find("listen", ev.RunCompleted), result=b"[1, 1]")


@spoils("is missing")
def an_effect_that_was_never_meant(s: Spoiled) -> None:
    """The event and the message agree with each other, and not with what the workflow is to do."""
    message = s.effect("fan")[2]
    found = next(f for n in range(9) if (f := s.find("fan", ev.EffectEmitted, n))[2].run_id == message.run_id)
    s.change(found, payload=b"{}")
    s.change_effect("fan", payload=b"{}")


@pytest.mark.parametrize("name", CASES)
def test_spoiled(name: str, spoiled: Spoiled):
    spoil, text = CASES[name]
    spoil(spoiled)
    wrong = spoiled.wrong()
    assert any(text in line for line in wrong), wrong


def test_a_fold_that_counts_attempts_otherwise(spoiled: Spoiled):
    """No record can spoil this one: it is the fold itself that is wrong."""
    with planted(FAULTS["handed_back_attempt_counts"]):
        wrong = spoiled.wrong()
    assert any("leaves 1 attempts as used up, and it was 0" in line for line in wrong), wrong


# -- memory ------------------------------------------------------------------------------------------------------


async def remembered(spoil: Callable[[GoodWorld], None]) -> list[str]:
    world = GoodWorld()
    await world.live(plans(), SETTINGS)
    spoil(world)
    return await check(world)


def hot_of(world: GoodWorld, kind: str) -> Any:
    for partition in world.workers[0].owner.partitions.values():
        for run_id, hot in partition.runs.items():
            if run_id.startswith(f"{kind}-"):
                return partition, run_id, hot
    raise AssertionError(kind)


def forget(world: GoodWorld) -> None:
    partition, run_id, _ = hot_of(world, "chain")
    del partition.runs[run_id]


def invent(world: GoodWorld) -> None:
    partition, _, hot = hot_of(world, "chain")
    partition.runs["chain-x"] = hot


def change(world: GoodWorld) -> None:
    _, _, hot = hot_of(world, "chain")
    hot.run = hot.run._replace(result=b"0")


def damage(world: GoodWorld) -> None:
    hot_of(world, "chain")[2].damaged = "it is broken"


def cover(world: GoodWorld) -> None:
    """Memory believes in a checkpoint that is not there: the bug waits for its person, and has one of its own."""
    records = world.log._store.partition(world.topics.checkpoints, hot_of(world, "buggy")[0].number)
    key = hot_of(world, "buggy")[1].encode()
    records._entries = [entry for entry in records._entries if entry.record is None or entry.record.key != key]


def step_back(world: GoodWorld) -> None:
    hot_of(world, "chain")[0].applied = 0


def step_ahead(world: GoodWorld) -> None:
    world.log._store.partition(world.topics.events, 0)
    hot_of(world, "chain")[0].epoch = 99


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (forget, "is not in memory"),
        (invent, "is in memory, against the log"),
        (change, "memory is not the fold: result differ"),
        (damage, "is taken for damaged"),
        (cover, "is in no checkpoint, and memory takes None"),
        (step_back, "is taken for the next one"),
        (step_ahead, "it works under epoch 99"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_memory_that_is_not_the_log(spoil: Callable[[GoodWorld], None], text: str):
    wrong = run_virtual(remembered(spoil))
    assert any(text in line for line in wrong), wrong


async def waiting(spoil: Callable[[Any], None]) -> tuple[list[str], list[str]]:
    """A run that waits for a question of which nobody knows, with its coroutine live."""
    world = GoodWorld()
    one = next(one for one in plans() if one.kind == "late")
    task = asyncio.create_task(world.live([with_input(one, {"seconds": 100.0})], SETTINGS, until=1_000.0))
    await asyncio.sleep(20)
    worker = world.workers[0]
    hot = hot_of(world, "late")[2]
    before = list(check_lives(worker))
    assert hot.live is not None, "nothing is live, so nothing is compared"
    spoil(hot)
    after = list(check_lives(worker))
    task.cancel()
    return before, after


def lose_a_branch(hot: Any) -> None:
    hot.live._branches[0].counter += 1


def settle_a_leaf(hot: Any) -> None:
    next(leaf for leaf in hot.live._leaves.values() if not leaf.done).done = True


def change_the_journal(hot: Any) -> None:
    hot.run = hot.run._replace(journal=type(hot.run.journal)(list(hot.run.journal)[:-1]))


@pytest.mark.parametrize("spoil", [lose_a_branch, settle_a_leaf, change_the_journal])
def test_a_coroutine_that_is_not_its_journal(spoil: Callable[[Any], None]):
    before, after = run_virtual(waiting(spoil))
    assert before == []
    assert len(after) == 1, after
