"""The checker of the chaos test finds what it is there for: each test spoils a true history in one way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.log.memory import open_memory
from streams.log.port import Log, NewRecord, TopicPartition
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.wire.partitioner import partition_of
from streams.wire.records import (
    decode_checkpoint,
    decode_effect,
    decode_event,
    decode_lease,
    encode_checkpoint,
    encode_effect,
    encode_event,
    encode_lease,
)
from streams.wire.topics import Topics, topics_of
from tests.chaos.app import app
from tests.chaos.checker import check
from tests.chaos.dump import Dump, Rec
from tests.chaos.load import Accepted
from tests.chaos.model import JUNK, Plan, answer_of, encode
from tests.chaos.outside import Call, payments, read_calls
from tests.chaos.outside_checker import check_outside
from tests.runtime.checker import records_of, try_event
from tests.runtime.history import HANG_SECONDS

PARTITIONS = 2
ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)


class Story:
    """A true history, and what was sent and done outside."""

    def __init__(
        self,
        dump: Dump,
        accepted: list[Accepted],
        plans: dict[str, Plan],
        calls: list[Call],
        paid: dict[str, int],
    ) -> None:
        self.dump, self.accepted, self.plans, self.calls, self.paid = dump, accepted, plans, calls, paid
        self.topics = dump.topics

    def wrong(self) -> list[str]:
        found = check(self.dump, self.accepted, self.plans)
        return [*found.wrong, *check_outside(found, self.calls, self.paid, self.plans)]

    def expect(self, text: str) -> None:
        """The checker complains, and in these words."""
        wrong = self.wrong()
        assert any(text in line for line in wrong), wrong

    def records(self, topic: str, run_id: str) -> list[Rec]:
        """The list that holds the records of a run in a topic, for a test to change."""
        return self.dump.of(topic, partition_of(run_id.encode(), PARTITIONS))

    def event(self, run_id: str, body: type, count: int = 0) -> tuple[list[Rec], int, Event]:
        """The list of the events, the place in it of an event of the run, and the event."""
        records = self.records(self.topics.events, run_id)
        places = [
            (at, event)
            for at, event in enumerate(decode_event(record.value or b"") for record in records)
            if event.run_id == run_id and isinstance(event.body, body)
        ]
        return records, *places[count]

    def change(self, run_id: str, body: type, count: int = 0, /, **fields: Any) -> None:
        """Change fields of an event, or of its body where they are the body's."""
        records, at, event = self.event(run_id, body, count)
        own = {name: value for name, value in fields.items() if name in Event._fields}
        inner = {name: value for name, value in fields.items() if name not in own}
        event = event._replace(**own, body=event.body._replace(**inner))
        records[at] = records[at]._replace(value=encode_event(event))


def command(run_id: str, type_: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"type": type_, "command_id": f"{run_id}/{name}", **fields}


def plan(run_id: str, input_: Any) -> Plan:
    kind = run_id.partition("-")[0]
    return Plan(run_id, kind, input_, command(run_id, "start", "start", workflow=kind, input=input_))


PLANS = [
    plan("chain-1", {"number": 5, "ms": [1, 1]}),
    plan("buy-1", {"order": "o-1", "amount": 7, "ms": 2}),
    plan("ask-1", {"questions": 2}),
    plan("stopped-1", {"number": 1, "ms": 1}),
    plan("nap-1", {"seconds": [1.0]}),
    plan("nap-2", {"seconds": [1.0]}),
    plan("junk-1", None),
]


async def live(folder: Path) -> Story:
    """Run the plans on a memory log by one worker and then another, which takes over in the middle."""
    first: Any = await open_memory()
    topics = topics_of(app.name, app.effects)
    await ensure_topics(first, topics, PARTITIONS)
    accepted: list[Accepted] = []

    async def send(run_id: str, what: dict[str, Any], value: bytes | None = None) -> None:
        key = run_id.encode()
        value = value or encode(what, as_json=len(accepted) % 2 == 0)
        number = partition_of(key, PARTITIONS)
        (offset,) = await first.append([NewRecord(topics.commands, number, key, value)])
        accepted.append(Accepted(run_id, what["type"], number, offset, value))

    async with asyncio.timeout(HANG_SECONDS):
        one = Worker(app, first.share(), settings=SETTINGS, owner="w1")
        task = asyncio.create_task(one.run())
        for each in PLANS:
            await send(each.run_id, each.start, b"no command" if each.kind == JUNK else None)
        await send("chain-1", PLANS[0].start)
        await until(first, topics, "ask-1", ev.OpScheduled, 1)
        await send("ask-1", command("ask-1", "resume", "a0", value=answer_of("ask-1", 0)))
        await until(first, topics, "ask-1", ev.OpScheduled, 2)
        await until(first, topics, "nap-1", ev.OpScheduled, 1)
        await until(first, topics, "nap-2", ev.OpScheduled, 1)
        one.stop()
        await task
        two = Worker(app, first.share(), settings=SETTINGS, owner="w2")
        task = asyncio.create_task(two.run())
        await send("ask-1", command("ask-1", "resume", "a1", value=answer_of("ask-1", 1)))
        await send("stopped-1", command("stopped-1", "cancel", "cancel"))
        for each in PLANS:
            if each.kind != JUNK:
                await until(first, topics, each.run_id, ENDS, 1)
        two.stop()
        await task
    plans = {each.run_id: each for each in PLANS}
    return Story(await dump_of(first, topics), accepted, plans, read_calls(folder), payments(folder))


SETTINGS = WorkerSettings(partitions=PARTITIONS, checkpoint_bytes_min=500)


async def until(log: Log, topics: Topics, run_id: str, body: Any, count: int) -> None:
    place = TopicPartition(topics.events, partition_of(run_id.encode(), PARTITIONS))
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        events = [event for event in map(try_event, await records_of(log, place)) if event is not None]
        if sum(event.run_id == run_id and isinstance(event.body, body) for event in events) >= count:
            return
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def dump_of(log: Log, topics: Topics) -> Dump:
    found: dict[str, list[list[Rec]]] = {}
    for name in topics.settings():
        places = [TopicPartition(name, number) for number in range(PARTITIONS)]
        found[name] = [[Rec(r.offset, r.key, r.value) for r in await records_of(log, place)] for place in places]
    return Dump(topics, PARTITIONS, found)


@pytest.fixture(scope="module")
def true_story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("outside")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAOS_OUTSIDE", str(folder))
        return asyncio.run(live(folder))


@pytest.fixture
def story(true_story: Story) -> Story:
    return deepcopy(true_story)


def test_a_true_history_passes(story: Story) -> None:
    assert story.wrong() == []
    assert max(lease.epoch for lease in leases_of(story, 0)) == 2


# -- events and epochs -----------------------------------------------------------------------------------------------


def leases_of(story: Story, number: int) -> list[Any]:
    return [decode_lease(record.value or b"") for record in story.dump.of(story.topics.leases, number)]


def test_a_dropped_event_is_found(story: Story) -> None:
    records, at, event = story.event("chain-1", ev.OpCompleted)
    del records[at]
    story.expect(f"has seq {(event.seq or 0) + 1} in run chain-1, after {(event.seq or 0) - 1}")


def test_a_dropped_end_is_found(story: Story) -> None:
    records, at, _ = story.event("chain-1", ev.RunCompleted)
    del records[at]
    story.expect("has not come to its end")


def test_a_repeated_event_is_found(story: Story) -> None:
    records, at, event = story.event("chain-1", ev.OpCompleted)
    records.insert(at + 1, records[at])
    story.expect(f"has seq {event.seq} in run chain-1, after {event.seq}")


def test_an_epoch_that_goes_back_is_found(story: Story) -> None:
    story.change("ask-1", ev.RunCompleted, epoch=1)
    story.expect("of epoch 1 comes after one of epoch 2")


def test_an_epoch_that_nobody_claimed_is_found(story: Story) -> None:
    story.change("ask-1", ev.RunCompleted, epoch=9)
    story.expect("has the epoch 9, which nobody claimed")


def test_two_owners_under_one_epoch_are_found(story: Story) -> None:
    story.change("ask-1", ev.RunOwned, owner="w9")
    story.expect("was written by w9 under the epoch 2 of w2")


def test_an_epoch_that_two_have_claimed_is_found(story: Story) -> None:
    records = story.dump.of(story.topics.leases, 0)
    lease = decode_lease(records[-1].value or b"")
    records.append(records[-1]._replace(value=encode_lease(lease._replace(owner="w9"))))
    story.expect(f"epoch {lease.epoch} of partition 0 was claimed by w2 and w9")


@pytest.mark.parametrize("field", ["epoch", "applied", "tail"])
def test_a_lease_that_goes_back_is_found(story: Story, field: str) -> None:
    records = story.dump.of(story.topics.leases, 0)
    lease = decode_lease(records[-1].value or b"")
    records.append(records[-1]._replace(value=encode_lease(lease._replace(**{field: getattr(lease, field) - 1}))))
    story.expect(f"the leases of partition 0 go back in {field}")


def test_a_take_over_that_is_not_told_is_found(story: Story) -> None:
    records, at, _ = story.event("ask-1", ev.RunOwned)
    del records[at]
    story.expect("goes on with run ask-1 under epoch 2 without run.owned")


def test_an_event_in_a_foreign_partition_is_found(story: Story) -> None:
    records, at, _ = story.event("chain-1", ev.OpCompleted)
    number = partition_of(b"chain-1", PARTITIONS)
    story.dump.of(story.topics.events, 1 - number).append(records.pop(at))
    story.expect("in a partition that is not that of its run")


def test_a_clock_that_goes_back_is_found(story: Story) -> None:
    story.change("chain-1", ev.RunCompleted, at=1)
    story.expect("of run chain-1 is older than the event before it")


def test_bytes_that_are_no_event_are_found(story: Story) -> None:
    records, at, _ = story.event("chain-1", ev.RunCompleted)
    records[at] = records[at]._replace(value=b"nothing")
    story.expect("cannot be read")


def test_another_identity_is_found(story: Story) -> None:
    story.change("chain-1", ev.RunCompleted, identity="chain-1@77")
    story.expect("belongs to chain-1@77, and run chain-1 is chain-1@")


def test_an_event_that_does_not_fit_its_run_is_found(story: Story) -> None:
    story.change("nap-1", ev.TimerFired, op="77")
    story.expect("cannot be folded")


def test_a_lease_of_another_partition_is_found(story: Story) -> None:
    records = story.dump.of(story.topics.leases, 0)
    records[0] = records[0]._replace(key=b"1")
    story.expect("the lease at 0/")


# -- checkpoints -----------------------------------------------------------------------------------------------------


def change_checkpoint(story: Story, run_id: str, **fields: Any) -> None:
    records = story.records(story.topics.checkpoints, run_id)
    at = max(at for at, record in enumerate(records) if record.key == run_id.encode())
    state = decode_checkpoint(records[at].value or b"")
    records[at] = records[at]._replace(value=encode_checkpoint(state._replace(**fields)))


def test_a_wrong_checkpoint_is_found(story: Story) -> None:
    change_checkpoint(story, "chain-1", result=b"8")
    story.expect("is not its fold: result differ")


def test_a_checkpoint_under_another_key_is_found(story: Story) -> None:
    records = story.records(story.topics.checkpoints, "chain-1")
    at = max(at for at, record in enumerate(records) if record.key == b"chain-1")
    records[at] = records[at]._replace(key=b"chain-7")
    story.expect("of run chain-1 lies under the key b'chain-7'")


def test_two_checkpoints_that_differ_are_found(story: Story) -> None:
    records = story.records(story.topics.checkpoints, "chain-1")
    at = max(at for at, record in enumerate(records) if record.key == b"chain-1")
    records.append(records[at])
    change_checkpoint(story, "chain-1", result=b"8")
    story.expect("a checkpoint of run chain-1 differs from another one")


def test_a_checkpoint_of_no_event_is_found(story: Story) -> None:
    change_checkpoint(story, "chain-1", seq=99)
    story.expect("the checkpoint of run chain-1 at seq 99 has no event")


def test_an_end_without_a_checkpoint_is_found(story: Story) -> None:
    records = story.records(story.topics.checkpoints, "chain-1")
    records[:] = [record for record in records if record.key != b"chain-1"]
    story.expect("without a checkpoint of its end")


def test_a_tail_above_what_no_checkpoint_covers_is_found(story: Story) -> None:
    records = story.records(story.topics.checkpoints, "nap-1")
    records[:] = [record for record in records if record.key != b"nap-1"]
    story.expect("and in no checkpoint of nap-1")


def test_a_deleted_checkpoint_is_found(story: Story) -> None:
    records = story.records(story.topics.checkpoints, "chain-1")
    records.append(Rec(999, b"chain-1", None))
    story.expect("no run was damaged or has expired")


def test_a_transaction_that_hangs_is_found(story: Story) -> None:
    story.dump = story.dump._replace(unread={(story.topics.events, 1): 77})
    story.expect("a transaction hangs in chaos.events/1 below the end 77")


# -- commands --------------------------------------------------------------------------------------------------------


def test_a_command_without_an_outcome_is_found(story: Story) -> None:
    records = story.records(story.topics.commands, "ask-1")
    records.append(Rec(999, b"ask-1", b"{}"))
    story.expect("has no outcome")


def test_a_lost_command_is_found(story: Story) -> None:
    """Its outcome is dropped; the record is there still."""
    records, at, event = story.event("chain-1", ev.CommandRejected)
    del records[at]
    story.expect(f"/{event.offset} (b'chain-1') has no outcome")


def test_an_accepted_command_that_is_gone_is_found(story: Story) -> None:
    accepted = story.accepted[0]
    records = story.records(story.topics.commands, accepted.run_id)
    records[:] = [record for record in records if record.offset != accepted.offset]
    story.expect(f"the accepted start of run {accepted.run_id} at")
    story.expect("which the topic does not hold")


def test_an_accepted_command_that_has_changed_is_found(story: Story) -> None:
    story.accepted[0] = story.accepted[0]._replace(value=b"another")
    story.expect("is another record now")


def test_a_command_with_two_outcomes_is_found(story: Story) -> None:
    records, at, _ = story.event("chain-1", ev.CommandRejected)
    records.append(records[at])
    story.expect("has two outcomes")


def test_an_outcome_under_another_run_is_found(story: Story) -> None:
    story.change("chain-1", ev.CommandRejected, run_id="chain-2")
    story.expect("is the outcome of a command to another run")


def test_an_accepted_start_that_never_ran_is_found(story: Story) -> None:
    story.plans["chain-9"] = story.plans["chain-1"]._replace(run_id="chain-9")
    story.accepted.append(story.accepted[0]._replace(run_id="chain-9"))
    story.expect("run chain-9 was accepted and never started")


def test_a_run_that_nobody_asked_for_is_found(story: Story) -> None:
    del story.plans["chain-1"]
    story.accepted[:] = [one for one in story.accepted if one.run_id != "chain-1"]
    story.expect("run chain-1 was started, and nobody has asked for it")


def test_a_dead_letter_that_is_missing_is_found(story: Story) -> None:
    for number in range(PARTITIONS):
        story.dump.of(story.topics.dead_letters, number).clear()
    story.expect("is not among the dead letters")


def test_a_dead_letter_that_came_twice_is_found(story: Story) -> None:
    records = story.records(story.topics.dead_letters, "junk-1")
    records.append(records[0])
    story.expect("is among the dead letters 2 times")


def test_a_good_command_among_the_dead_letters_is_found(story: Story) -> None:
    story.plans["junk-1"] = story.plans["junk-1"]._replace(kind="chain")
    story.expect("is among the dead letters:")


# -- effects ---------------------------------------------------------------------------------------------------------


def of_effect(story: Story, name: str, run_id: str) -> tuple[list[Rec], int]:
    records = story.records(story.topics.effect(name), run_id)
    return records, next(at for at, record in enumerate(records) if record.key == run_id.encode())


def test_a_doubled_effect_is_found(story: Story) -> None:
    records, at = of_effect(story, "mails", "chain-1")
    records.append(records[at])
    story.expect("was published 2 times")


def test_a_lost_effect_is_found(story: Story) -> None:
    records, at = of_effect(story, "mails", "chain-1")
    del records[at]
    story.expect("was emitted and never published")
    story.expect("is missing")


def test_an_effect_of_no_event_is_found(story: Story) -> None:
    records, at = of_effect(story, "mails", "chain-1")
    message = decode_effect(records[at].value or b"")
    records.append(records[at]._replace(value=encode_effect(message._replace(effect_id="chain-1@0/77"))))
    story.expect("which no event has emitted")


@pytest.mark.parametrize(
    "fields", [{"payload": b"{}"}, {"idempotency_key": "other"}, {"epoch": 99}, {"effect": "parcels"}, {"run_id": "x"}]
)
def test_an_effect_that_differs_from_its_event_is_found(story: Story, fields: dict[str, Any]) -> None:
    records, at = of_effect(story, "mails", "chain-1")
    message = decode_effect(records[at].value or b"")
    records[at] = records[at]._replace(value=encode_effect(message._replace(**fields)))
    story.expect("differs from its event")


def test_a_business_key_that_comes_twice_is_found(story: Story) -> None:
    records, at = of_effect(story, "parcels", "buy-1")
    message = decode_effect(records[at].value or b"")
    records.append(records[at]._replace(value=encode_effect(message._replace(effect_id="buy-1@0/77"))))
    story.expect("the idempotency key ship/o-1 was published 2 times")


def test_an_effect_that_the_input_does_not_call_for_is_found(story: Story) -> None:
    """The event and the message agree, and both are wrong."""
    story.change("chain-1", ev.EffectEmitted, payload=b'{"run": "chain-1", "number": 99}')
    records, at = of_effect(story, "mails", "chain-1")
    message = decode_effect(records[at].value or b"")
    changed = message._replace(payload=b'{"run": "chain-1", "number": 99}')
    records[at] = records[at]._replace(value=encode_effect(changed))
    story.expect("run chain-1: its effect ('mails', {'run': 'chain-1', 'number': 99}) was not expected")
    story.expect("run chain-1: its effect ('mails', {'run': 'chain-1', 'number': 6}) is missing")


# -- ends ------------------------------------------------------------------------------------------------------------


def test_a_wrong_result_is_found(story: Story) -> None:
    story.change("chain-1", ev.RunCompleted, result=b"8")
    story.expect("run chain-1: it ended with 8 instead of 7")


def test_a_wrong_status_is_found(story: Story) -> None:
    story.change("stopped-1", ev.RunCancelled, forced=True)
    records, at, event = story.event("stopped-1", ev.RunCancelled)
    records[at] = records[at]._replace(value=encode_event(event._replace(body=ev.RunCompleted(b"2"))))
    story.expect("run stopped-1: it ended as completed (2) instead of cancelled")


def cut(story: Story, run_id: str, at: int) -> None:
    """Drop all events of the run that come after a place in the list."""
    records = story.records(story.topics.events, run_id)
    records[at + 1 :] = [record for record in records[at + 1 :] if record.key != run_id.encode()]


def test_a_run_that_ends_while_a_task_is_open_is_found(story: Story) -> None:
    records, at, event = story.event("chain-1", ev.OpCompleted, 1)
    records[at] = records[at]._replace(value=encode_event(event._replace(body=ev.RunCompleted(b"7"))))
    cut(story, "chain-1", at)
    story.expect("while a task of it was open")


def test_a_blocked_run_is_found(story: Story) -> None:
    records, at, event = story.event("chain-1", ev.RunCompleted)
    body = ev.RunBlocked(ev.Failure("code", "WORKFLOW_BUG", "a bug"))
    records[at] = records[at]._replace(value=encode_event(event._replace(body=body)))
    story.expect("run chain-1 (blocked, seq")


def test_an_end_of_a_run_that_never_began_is_found(story: Story) -> None:
    story.plans["chain-9"] = story.plans["chain-1"]._replace(run_id="chain-9")
    _, _, event = story.event("stopped-1", ev.CancelRequested)
    ghost = event._replace(run_id="chain-9", identity="chain-9@0", offset=None, cause=None)
    records = story.records(story.topics.events, "chain-9")
    for seq, body in enumerate([ev.CancelRequested(force=True), ev.RunCancelled(forced=True)], 1):
        value = encode_event(ghost._replace(seq=seq, body=body))
        records.append(Rec(1_000 + seq, b"chain-9", value))
    story.expect("run chain-9 was never started and is cancelled")


# -- the world outside -----------------------------------------------------------------------------------------------


def test_an_attempt_that_ran_without_a_start_is_found(story: Story) -> None:
    story.calls.append(story.calls[0]._replace(attempt=9, ended=False))
    story.expect("ran and its start is in no event")


def test_an_attempt_that_ran_twice_is_found(story: Story) -> None:
    begun = next(call for call in story.calls if not call.ended)
    story.calls.append(begun._replace(pid=1))
    story.expect("ran more than once")


def test_an_attempt_under_another_token_is_found(story: Story) -> None:
    at = next(at for at, call in enumerate(story.calls) if not call.ended)
    story.calls[at] = story.calls[at]._replace(epoch=7)
    story.expect("ran under epochs {7}, started under 1")


def test_an_outcome_without_a_call_is_found(story: Story) -> None:
    story.calls[:] = [call for call in story.calls if call.run != "chain-1"]
    story.expect("completed and was never called")


@pytest.mark.parametrize(
    "spoil", [lambda paid: paid.clear(), lambda paid: paid.update({"pay/o-1": 8}), lambda paid: paid.update({"x": 1})]
)
def test_a_payment_that_is_missing_or_wrong_is_found(story: Story, spoil: Callable[[dict[str, int]], None]) -> None:
    spoil(story.paid)
    story.expect("payments and orders differ")
