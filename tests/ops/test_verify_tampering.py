"""Each kind of tampering with a good log is found, and named exactly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import OpPhase, Run, is_terminal, stub_of
from streams.log.memory.log import MemoryLog
from streams.log.port import Record
from streams.ops.verify import Divergence, Report, verify
from streams.ops.verify.report import KINDS
from streams.wire.binary import encode_long, encode_text
from streams.wire.headers import SENT_BACK
from streams.wire.records import (
    Damaged,
    EffectMessage,
    canonical_checkpoint,
    decode_checkpoint,
    decode_effect,
    decode_event,
    decode_lease,
    encode_checkpoint,
    encode_effect,
    encode_event,
    encode_lease,
)
from streams.wire.schemas import PREFIX_BYTES, packed_schemas
from tests.ops.good import EFFECTS, Copy, make


@pytest.fixture(scope="module")
def good() -> MemoryLog:
    return make()


@pytest.fixture
def copy(good: MemoryLog) -> Copy:
    return Copy(good)


def judge(copy: Copy, **options: Any) -> Report:
    return asyncio.run(verify(copy.log, "good", **options))


def is_event(run_id: str, body: type) -> Callable[[Record], bool]:
    return lambda record: record.key == run_id.encode() and isinstance(decode_event(record.value or b"").body, body)


def event_of(copy: Copy, run_id: str, body: type, number: int = 0) -> tuple[Record, Event]:
    record = copy.find(copy.topics.events, is_event(run_id, body), number)
    return record, decode_event(record.value or b"")


def state_of(copy: Copy, run_id: str, number: int = -1) -> tuple[Record, Run]:
    record = copy.find(copy.topics.checkpoints, lambda r: r.key == run_id.encode(), number)
    state = decode_checkpoint(record.value or b"")
    assert isinstance(state, Run)
    return record, state


# Each spoils the copy and returns what must be found: kind, run, topic, offset, field (None: whatever it is).
Found = tuple[str, str, str, int | None, str]


def _edited(name: str, kind: str, field: str, type_: type = ev.OpCompleted, **changes: Any) -> Any:
    def spoil(copy: Copy) -> Found:
        record, event = event_of(copy, "order2", type_)
        changed = {key: value(event) if callable(value) else value for key, value in changes.items()}
        copy.put(record, value=encode_event(event._replace(**changed)))
        return kind, "order2", copy.topics.events, record.offset, field

    return pytest.param(spoil, id=name)


def bytes_of_an_event(copy: Copy) -> Found:
    record, _ = event_of(copy, "order2", ev.OpCompleted)
    copy.put(record, value=(record.value or b"")[:-3])
    return "event.unreadable", "order2", copy.topics.events, record.offset, ""


def null_event(copy: Copy) -> Found:
    record, _ = event_of(copy, "order2", ev.OpCompleted)
    copy.put(record, value=None)
    return "event.unreadable", "order2", copy.topics.events, record.offset, ""


def unknown_schema(copy: Copy) -> Found:
    record, _ = event_of(copy, "order2", ev.OpCompleted)
    copy.put(record, value=b"\xc3\x01" + b"12345678" + (record.value or b"")[10:])
    return "event.schema", "order2", copy.topics.events, record.offset, ""


def key_of_another(copy: Copy) -> Found:
    record, _ = event_of(copy, "waits", ev.RunStarted)
    for each in list(copy.records(copy.topics.events)):
        if each.key == b"waits":
            copy.put(each, key=b"another")
    return "event.key", "waits", copy.topics.events, record.offset, "key"


def one_under_the_key_of_another(copy: Copy) -> Found:
    """The other run is not to blame."""
    record, _ = event_of(copy, "order2", ev.OpCompleted)
    other = next(r for r in copy.records(copy.topics.events) if r.partition == record.partition and r.key != b"order2")
    copy.put(record, key=other.key)
    return "event.key", "order2", copy.topics.events, record.offset, "key"


def other_id(copy: Copy) -> Found:
    record, event = event_of(copy, "order2", ev.OpCompleted)
    old = f"{event.identity}/{event.seq}".encode()
    assert (record.value or b"").count(old) == 1
    copy.put(record, value=(record.value or b"").replace(old, old[:-1] + b"0"))
    return "event.id", "order2", copy.topics.events, record.offset, "event_id"


def lost_event(copy: Copy) -> Found:
    record, _ = event_of(copy, "order2", ev.OpScheduled)
    copy.drop(record)
    later = copy.find(copy.topics.events, lambda r: r.key == b"order2" and r.offset > record.offset)
    return "event.seq", "order2", copy.topics.events, later.offset, "seq"


def first_event_lost(copy: Copy) -> Found:
    record, _ = event_of(copy, "ask3", ev.RunStarted)
    copy.drop(record)
    later = copy.find(copy.topics.events, lambda r: r.key == b"ask3")
    return "event.seq", "ask3", copy.topics.events, later.offset, "seq"


def repeated_event(copy: Copy) -> Found:
    record, _ = event_of(copy, "waits", ev.OpScheduled)
    offset = copy.add(record)
    return "event.seq", "waits", copy.topics.events, offset, "seq"


def after_the_end(copy: Copy) -> Found:
    record, event = event_of(copy, "order2", ev.RunCompleted)
    last = decode_event(copy.find(copy.topics.events, lambda r: r.partition == record.partition, -1).value or b"")
    body = ev.SignalReceived("news", b"1")
    late = event._replace(seq=(event.seq or 0) + 1, epoch=last.epoch, body=body)
    offset = copy.add(record, value=encode_event(late))
    return "event.after-end", "order2", copy.topics.events, offset, "seq"


def other_identity(copy: Copy) -> Found:
    record, event = event_of(copy, "waits", ev.OpScheduled)
    copy.put(record, value=encode_event(event._replace(identity="waits@99")))
    return "event.identity", "waits", copy.topics.events, record.offset, "identity"


def old_epoch(copy: Copy) -> Found:
    record, event = event_of(copy, "waits", ev.OpScheduled, -1)
    copy.put(record, value=encode_event(event._replace(epoch=1)))
    return "event.epoch", "waits", copy.topics.events, record.offset, "epoch"


def unclaimed_epoch(copy: Copy) -> Found:
    record, _ = event_of(copy, "waits", ev.RunStarted)
    for each in list(copy.records(copy.topics.events)):
        if each.partition == record.partition and each.offset >= record.offset:
            later = decode_event(each.value or b"")
            copy.put(each, value=encode_event(later._replace(epoch=77)))
    return "event.epoch", "waits", copy.topics.events, record.offset, "epoch"


def other_owner(copy: Copy) -> Found:
    record, event = event_of(copy, "waits", ev.RunStarted)
    copy.put(record, value=encode_event(event._replace(body=event.body._replace(owner="somebody"))))
    return "event.owner", "waits", copy.topics.events, record.offset, "owner"


def not_owned(copy: Copy) -> Found:
    """A run that was taken over, with an event of the new epoch before it says so."""
    record, event = event_of(copy, "ask4", ev.RunOwned)
    copy.put(record, value=encode_event(event._replace(body=ev.SignalReceived("news", b"1"))))
    return "event.epoch", "ask4", copy.topics.events, record.offset, "epoch"


def checkpoint(change: Callable[[Run], Run], run_id: str, field: str) -> Callable[[Copy], Found]:
    def spoil(copy: Copy) -> Found:
        record, state = state_of(copy, run_id)
        changed = change(state)
        assert changed != state
        copy.put(record, value=encode_checkpoint(changed))
        return "checkpoint.differs", run_id, copy.topics.checkpoints, record.offset, field

    return spoil


def changed_op(run: Run) -> Run:
    (op,) = run.ops.values()
    return run._replace(ops={op.id: op._replace(phase=OpPhase.HELD)})


def changed_entry(run: Run) -> Run:
    journal = list(run.journal)
    journal[1] = journal[1]._replace(hash=b"forged")
    return run._replace(journal=type(run.journal)(journal))


def other_order(copy: Copy) -> Found:
    """The same ops in another order are other bytes."""
    record, state = state_of(copy, "both")
    copy.put(record, value=encode_checkpoint(state._replace(ops=dict(reversed(state.ops.items())))))
    return "checkpoint.differs", "both", copy.topics.checkpoints, record.offset, "ops"


def checkpoint_bytes(copy: Copy) -> Found:
    record, _ = state_of(copy, "order2")
    copy.put(record, value=(record.value or b"")[:-2])
    return "checkpoint.unreadable", "order2", copy.topics.checkpoints, record.offset, ""


def checkpoint_empty(copy: Copy) -> Found:
    record, _ = state_of(copy, "order2")
    copy.put(record, value=b"")
    return "checkpoint.unreadable", "order2", copy.topics.checkpoints, record.offset, ""


def checkpoint_schema(copy: Copy) -> Found:
    record, _ = state_of(copy, "order2")
    copy.put(record, value=b"\xc3\x01" + b"12345678" + (record.value or b"")[10:])
    return "checkpoint.schema", "order2", copy.topics.checkpoints, record.offset, ""


def checkpoint_key(copy: Copy) -> Found:
    record, _ = state_of(copy, "order2")
    copy.put(record, key=b"order22")
    return "checkpoint.key", "order22", copy.topics.checkpoints, record.offset, ""


def checkpoints_lost(copy: Copy) -> Found:
    for record in [r for r in copy.records(copy.topics.checkpoints) if r.key == b"order2"]:
        copy.drop(record)
    return "checkpoint.missing", "order2", copy.topics.checkpoints, None, "seq"


def checkpoint_deleted(copy: Copy) -> Found:
    record, _ = state_of(copy, "order2")
    copy.add(record, value=None)
    return "checkpoint.missing", "order2", copy.topics.checkpoints, None, "seq"


def checkpoint_ahead(copy: Copy) -> Found:
    record, state = state_of(copy, "waits")
    offset = copy.add(record, value=encode_checkpoint(state._replace(seq=state.seq + 5)))
    return "checkpoint.orphan", "waits", copy.topics.checkpoints, offset, ""


def checkpoint_of_nobody(copy: Copy) -> Found:
    record, state = state_of(copy, "waits")
    run_id = next(n for n in map("x{}".format, range(99)) if _home(n) == record.partition)
    ghost = state._replace(run_id=run_id, identity=f"{run_id}@1")
    offset = copy.add(record, key=run_id.encode(), value=encode_checkpoint(ghost))
    return "checkpoint.orphan", run_id, copy.topics.checkpoints, offset, ""


def _home(run_id: str) -> int:
    from streams.wire.partitioner import partition_of

    return partition_of(run_id.encode(), 4)


def marked_as_damaged(copy: Copy) -> Found:
    record, state = state_of(copy, "waits")
    mark = Damaged("waits", 3, "it was not", state.identity, state.seq)
    offset = copy.add(record, value=encode_checkpoint(mark))
    return "checkpoint.damaged", "waits", copy.topics.checkpoints, offset, ""


def not_deleted(copy: Copy) -> Found:
    record, event = event_of(copy, "order2", ev.RunCompleted)
    last = decode_event(copy.find(copy.topics.events, lambda r: r.partition == record.partition, -1).value or b"")
    expired = event._replace(seq=(event.seq or 0) + 1, epoch=last.epoch, body=ev.RunExpired("long ago"))
    offset = copy.add(record, value=encode_event(expired))
    return "checkpoint.not-deleted", "order2", copy.topics.events, offset, ""


def lost_command(copy: Copy) -> Found:
    """The outcome of a command is gone: a refusal, which no run would miss."""
    record, event = event_of(copy, "nobody", ev.CommandRejected)
    copy.drop(record)
    return "command.lost", "nobody", copy.topics.commands, event.offset, ""


def two_outcomes(copy: Copy) -> Found:
    record, event = event_of(copy, "nobody", ev.CommandRejected)
    last = decode_event(copy.find(copy.topics.events, lambda r: r.partition == record.partition, -1).value or b"")
    offset = copy.add(record, value=encode_event(event._replace(epoch=last.epoch)))
    return "command.twice", "nobody", copy.topics.events, offset, "offset"


def command_gone(copy: Copy) -> Found:
    record, event = event_of(copy, "nobody", ev.CommandRejected)
    copy.drop(copy.find(copy.topics.commands, lambda r: (r.partition, r.offset) == (record.partition, event.offset)))
    return "command.unknown", "nobody", copy.topics.events, record.offset, "offset"


def command_of_another(copy: Copy) -> Found:
    record, event = event_of(copy, "nobody", ev.CommandRejected)
    command = copy.find(copy.topics.commands, lambda r: (r.partition, r.offset) == (record.partition, event.offset))
    copy.put(command, key=b"somebody")
    return "command.key", "nobody", copy.topics.events, record.offset, "key"


def is_effect(copy: Copy, run_id: str, name: str) -> Record:
    return copy.find(copy.topics.effect(name), lambda record: record.key == run_id.encode())


def effect_lost(copy: Copy) -> Found:
    copy.drop(is_effect(copy, "order2", "parcels"))
    return "effect.lost", "order2", "good.effects.parcels", None, ""


def second_attempt(copy: Copy) -> tuple[Record, EffectMessage]:
    """The message with which the request was made again."""
    topic = copy.topics.effect("charges")
    record = copy.find(topic, lambda record: decode_effect(record.value or b"").attempt == 2)
    return record, decode_effect(record.value or b"")


def attempt_lost(copy: Copy) -> Found:
    copy.drop(second_attempt(copy)[0])
    return "effect.lost", "pays", "good.effects.charges", None, ""


def attempt_twice(copy: Copy) -> Found:
    offset = copy.add(second_attempt(copy)[0])
    return "effect.twice", "pays", "good.effects.charges", offset, ""


def attempt_of_nobody(copy: Copy) -> Found:
    record, message = second_attempt(copy)
    offset = copy.add(record, value=encode_effect(message._replace(attempt=3)))
    return "effect.orphan", "pays", "good.effects.charges", offset, ""


def attempt(name: str, value: Any) -> Any:
    def spoil(copy: Copy) -> Found:
        record, message = second_attempt(copy)
        copy.put(record, value=encode_effect(message._replace(**{name: value})))
        return "effect.differs", "pays", "good.effects.charges", record.offset, name

    return pytest.param(spoil, id=f"attempt_{name}")


def effect_topic_lost(copy: Copy) -> Found:
    for name in ("good.effects.parcels", "good.effects.parcels.dead"):
        del copy.log._store.topics[name]
    for run_id in ("order0", "order1", "order3", "order4", "order5", *(f"clean{n}" for n in range(6))):
        for record in [r for r in copy.records(copy.topics.events) if r.key == run_id.encode()]:
            if isinstance(decode_event(record.value or b"").body, ev.EffectEmitted):
                event = decode_event(record.value or b"")
                if event.body.effect == "parcels":
                    copy.put(record, value=encode_event(event._replace(body=event.body._replace(effect="mails"))))
    record, _ = event_of(copy, "order2", ev.EffectEmitted)
    return "effect.lost", "order2", copy.topics.events, record.offset, ""


def effect_of_nobody(copy: Copy) -> Found:
    record = is_effect(copy, "order2", "parcels")
    message = decode_effect(record.value or b"")._replace(effect_id="order2@0/99")
    offset = copy.add(record, value=encode_effect(message))
    return "effect.orphan", "order2", "good.effects.parcels", offset, ""


def effect_twice(copy: Copy) -> Found:
    offset = copy.add(is_effect(copy, "order2", "parcels"))
    return "effect.twice", "order2", "good.effects.parcels", offset, ""


def effect_bytes(copy: Copy) -> Found:
    record = is_effect(copy, "order2", "parcels")
    copy.put(record, value=b"junk")
    return "effect.unreadable", "order2", "good.effects.parcels", record.offset, ""


def effect(name: str, value: Any) -> Any:
    def spoil(copy: Copy) -> Found:
        record = is_effect(copy, "order2", "parcels")
        message = decode_effect(record.value or b"")
        copy.put(record, value=encode_effect(message._replace(**{name: value})))
        return "effect.differs", "order2", "good.effects.parcels", record.offset, name

    return pytest.param(spoil, id=f"effect {name}")


def effect_key(copy: Copy) -> Found:
    record = is_effect(copy, "order2", "parcels")
    copy.put(record, key=b"order3")
    return "effect.differs", "order2", "good.effects.parcels", record.offset, "key"


def last_lease(copy: Copy, number: int = -1) -> Record:
    return copy.find(copy.topics.leases, lambda record: record.partition == 2, number)


def lease(kind: str, field: str, **changes: Any) -> Any:
    def spoil(copy: Copy) -> Found:
        record = last_lease(copy)
        copy.put(record, value=encode_lease(decode_lease(record.value or b"")._replace(**changes)))
        return kind, "", copy.topics.leases, record.offset, field

    return pytest.param(spoil, id=f"{kind} {field}")


def lease_bytes(copy: Copy) -> Found:
    record = last_lease(copy, 0)
    copy.put(record, value=b"junk")
    return "lease.unreadable", "", copy.topics.leases, record.offset, ""


def events_cut(copy: Copy) -> Found:
    """The end of the events is gone, as after a broker that came back without its disk."""
    record = last_lease(copy)
    for topic in (
        copy.topics.events,
        copy.topics.checkpoints,
        copy.topics.effect("mails"),
        copy.topics.effect("parcels"),
    ):
        copy.cut(topic, 2, 0)
    return "lease.tail", "", copy.topics.leases, record.offset, "tail"


def letter_bytes(copy: Copy) -> Found:
    record = copy.find(copy.topics.dead_letters, lambda record: True)
    copy.put(record, value=b"junk")
    return "dead-letter.unreadable", "", copy.topics.dead_letters, record.offset, ""


SPOILS = [
    bytes_of_an_event,
    null_event,
    unknown_schema,
    key_of_another,
    one_under_the_key_of_another,
    other_id,
    lost_event,
    first_event_lost,
    repeated_event,
    after_the_end,
    other_identity,
    old_epoch,
    unclaimed_epoch,
    other_owner,
    not_owned,
    _edited("an event before its time", "event.time", "at", at=lambda event: event.at - 10_000_000),
    _edited("a cause that is none", "event.cause", "cause", ev.EffectEmitted, cause=4_711),
    _edited("what only a newer release folds", "event.schema", "", body=ev.PatchMarked("9", "later")),
    _edited("no such op", "event.fold", "", body=ev.OpCompleted("99", 1, b"1")),
    pytest.param(checkpoint(lambda run: run._replace(result=b'"forged"'), "order2", "result"), id="a result"),
    pytest.param(checkpoint(changed_op, "waits", "ops.2.phase"), id="an op"),
    pytest.param(checkpoint(changed_entry, "waits", "journal.1.hash"), id="an entry of the journal"),
    pytest.param(checkpoint(lambda run: run._replace(offset=run.offset + 1), "waits", "offset"), id="an offset"),
    pytest.param(checkpoint(lambda run: stub_of(run)._replace(seen=("x",)), "order2", "seen.0"), id="a stub"),
    other_order,
    checkpoint_bytes,
    checkpoint_empty,
    checkpoint_schema,
    checkpoint_key,
    checkpoints_lost,
    checkpoint_deleted,
    checkpoint_ahead,
    checkpoint_of_nobody,
    marked_as_damaged,
    not_deleted,
    lost_command,
    two_outcomes,
    command_gone,
    command_of_another,
    effect_lost,
    effect_topic_lost,
    effect_of_nobody,
    effect_twice,
    effect_bytes,
    effect_key,
    effect("payload", b'{"what":"B"}'),
    effect("idempotency_key", "ship/another"),
    effect("epoch", 9),
    effect("workflow", "another"),
    effect("version", 2),
    lease_bytes,
    lease("lease.goes-back", "epoch", epoch=1),
    lease("lease.goes-back", "tail", tail=0),
    lease("lease.goes-back", "applied", applied=0),
    lease("lease.differs", "partition", partition=1),
    lease("lease.differs", "owner", owner="somebody"),
    lease("lease.tail", "tail", tail=9_999),
    lease("lease.applied", "applied", applied=9_999),
    lease("lease.topic", "topic_id", topic_id="another"),
    events_cut,
    letter_bytes,
    attempt_lost,
    attempt_twice,
    attempt_of_nobody,
    attempt("idempotency_key", "pay/another"),
    attempt("payload", b"6"),
    attempt("epoch", 9),
    attempt("at", 9),
]


def test_a_good_log_has_no_divergence(copy: Copy) -> None:
    report = judge(copy)
    assert report.divergences == ()
    assert report.good
    assert report.runs == 33
    assert report.events > 250
    assert report.checkpoints > 30
    assert report.effects == sum(1 for name in EFFECTS for _ in copy.records(copy.topics.effect(name)))
    assert report.commands == sum(1 for _ in copy.records(copy.topics.commands))
    assert report.dead_letters == 2
    assert report.passes == 4
    assert not any(report.not_compared)


def test_a_message_of_the_effects_that_an_operator_sent_back_is_no_divergence(copy: Copy) -> None:
    record = is_effect(copy, "order2", "parcels")
    before = judge(copy)
    copy.add(record, headers=(*record.headers, (SENT_BACK, b"0@3")))
    report = judge(copy)
    assert (report.divergences, report.effects) == ((), before.effects)


@pytest.mark.parametrize("spoil", SPOILS)
def test_tampering_is_found_and_named(copy: Copy, spoil: Callable[[Copy], Found]) -> None:
    kind, run_id, topic, offset, field = spoil(copy)
    report = judge(copy)
    assert not report.good
    found = _the_one(report, run_id, kind)
    assert (found.kind, found.topic, found.offset, found.field) == (kind, topic, offset, field)
    assert found.advice
    assert not field or found.expected != found.found
    assert report == judge(copy, memory_bytes_max=1)._replace(seconds=report.seconds, passes=report.passes)


def _the_one(report: Report, run_id: str, kind: str) -> Divergence:
    """That of the run; of a partition as a whole, the one of this kind, for one cause may show in several ways."""
    found = [d for d in report.divergences if d.run_id == run_id and (run_id or d.kind == kind)]
    assert len(found) == 1, report.divergences
    return found[0]


def test_every_kind_of_divergence_has_been_provoked(good: MemoryLog) -> None:
    kinds = {getattr(spoil, "values", [spoil])[0](Copy(good))[0] for spoil in SPOILS}
    assert kinds == set(KINDS)


def test_later_attempts_of_a_run_that_cannot_be_folded_are_blamed_on_nobody(copy: Copy) -> None:
    record, event = event_of(copy, "pays", ev.AttemptFailed)
    copy.put(record, value=encode_event(event._replace(seq=50)))
    report = judge(copy)
    assert [d.kind for d in report.divergences if d.run_id == "pays"] == ["event.seq"]
    assert [d.more for d in report.divergences if d.run_id == "pays"] == [0]


def test_values_of_users_are_never_shown(copy: Copy) -> None:
    record, state = state_of(copy, "order2")
    copy.put(record, value=encode_checkpoint(state._replace(result=b'"a secret"')))
    effect_record = is_effect(copy, "order3", "parcels")
    message = decode_effect(effect_record.value or b"")
    copy.put(effect_record, value=encode_effect(message._replace(payload=b'"a secret"')))
    report = judge(copy)
    found = {d.kind: d for d in report.divergences}
    assert set(found) == {"checkpoint.differs", "effect.differs"}
    assert "secret" not in str(report.plain())
    assert found["checkpoint.differs"].found.startswith("10 bytes (")


def test_of_each_run_the_first_divergence_counts_the_others(copy: Copy) -> None:
    record, _ = event_of(copy, "order2", ev.OpScheduled)
    copy.drop(record)
    copy.drop(is_effect(copy, "order2", "parcels"))
    report = judge(copy)
    assert report.divergent == 1
    assert report.divergences[0].kind == "event.seq"
    assert report.divergences[0].more >= 1
    assert report.divergences[0].code == ("order v1, code " + (event_of(copy, "order2", ev.RunStarted)[1].code or ""))


def test_a_stub_in_the_place_of_the_whole_state_is_right(copy: Copy) -> None:
    for record in list(copy.records(copy.topics.checkpoints)):
        state = decode_checkpoint(record.value or b"")
        if isinstance(state, Run) and is_terminal(state):
            copy.add(record, value=encode_checkpoint(stub_of(state)))
    assert judge(copy).divergences == ()


def without_head(data: bytes) -> bytes:
    """What follows the fingerprint of a checkpoint in the form of the schemas 1 and 2."""
    id_ = encode_text(canonical_checkpoint(data)[0])
    at = data.index(id_, PREFIX_BYTES)
    return id_ + encode_long(1) + data[at + len(id_) :]


def test_checkpoints_of_an_older_release_are_compared_as_this_one_writes_them(copy: Copy) -> None:
    """Those of a run have not changed since, but for what stands in front."""
    whole = judge(copy)
    (old,) = [schema for schema in packed_schemas()._by_prefix.values() if schema.title == "checkpoint-1"]
    for record in list(copy.records(copy.topics.checkpoints)):
        copy.put(record, value=old.prefix + without_head(record.value or b""))
    report = judge(copy)
    assert report._replace(seconds=0) == whole._replace(seconds=0)
    record, state = state_of(copy, "waits")
    forged = encode_checkpoint(state._replace(version=9))
    copy.put(record, value=old.prefix + without_head(forged))
    (found,) = judge(copy).divergences
    assert (found.kind, found.field, found.expected, found.found) == ("checkpoint.differs", "version", "1", "9")
