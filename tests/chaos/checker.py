"""Proves from the topics alone that nothing was lost, nothing was doubled, and each partition had one writer at a time.

It shares with the engine the formats of the records and `evolve`, and no memory. Each check yields what is wrong in
clear words; `test_checker.py` shows of each that it can fail.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.run import Run, Status, is_terminal, status_of
from streams.wire.partitioner import partition_of
from streams.wire.records import (
    EffectMessage,
    Lease,
    decode_checkpoint,
    decode_dead_letter,
    decode_effect,
    decode_event,
    decode_lease,
)
from tests.chaos.dump import Dump, Rec
from tests.chaos.load import Accepted
from tests.chaos.model import JUNK, Outcome, Plan, judge

__all__ = ["Found", "Placed", "check"]


class Placed(NamedTuple):
    """An event and its place."""

    partition: int
    offset: int
    event: Event


class Found(NamedTuple):
    """What the topics say, and what is wrong with it."""

    events: list[Placed]
    runs: dict[str, Run]
    effects: dict[str, list[EffectMessage]]
    epochs: int
    rejected: Counter[str]
    wrong: list[str]


def check(dump: Dump, accepted: Iterable[Accepted], plans: Mapping[str, Plan]) -> Found:
    """All checks of the topics."""
    found = Found([], {}, {}, 0, Counter(), [])
    accepted = list(accepted)
    wrong = found.wrong
    wrong += [
        f"a transaction hangs in {name}/{number} below the end {end}" for (name, number), end in dump.unread.items()
    ]
    leases = {number: list(_leases(dump, number, wrong)) for number in range(dump.partitions)}
    for number in range(dump.partitions):
        events = list(_events(dump, number, wrong))
        found.events.extend(events)
        wrong += _check_epochs(number, events, leases[number])
        wrong += _check_seqs(events)
        checkpoints = list(_checkpoints(dump, number, wrong))
        wrong += _check_folds(events, checkpoints, found.runs)
        wrong += _check_tail(number, events, leases[number], checkpoints)
        wrong += _check_commands(dump, number, events)
        wrong += _check_effects(dump, number, events, found.effects)
    found.rejected.update(e.body.code for *_, e in found.events if isinstance(e.body, ev.CommandRejected))
    wrong += _check_once(found)
    wrong += _check_accepted(dump, accepted, found)
    wrong += _check_ends(accepted, plans, found)
    wrong += _check_dead_letters(dump, accepted, plans)
    return found._replace(epochs=sum(lease[-1].epoch for lease in leases.values() if lease))


# -- reading ---------------------------------------------------------------------------------------------------------


def _events(dump: Dump, number: int, wrong: list[str]) -> Iterator[Placed]:
    for record in dump.of(dump.topics.events, number):
        where = f"the event at {number}/{record.offset}"
        try:
            event = decode_event(record.value or b"")
        except WireError as error:
            wrong.append(f"{where} cannot be read: {error}")
            continue
        if record.key != event.run_id.encode() or partition_of(record.key, dump.partitions) != number:
            wrong.append(f"{where} lies under the key {record.key!r} in a partition that is not that of its run")
        yield Placed(number, record.offset, event)


def _leases(dump: Dump, number: int, wrong: list[str]) -> Iterator[Lease]:
    for record in dump.of(dump.topics.leases, number):
        lease = decode_lease(record.value or b"")
        if lease.partition != number or record.key != str(number).encode():
            wrong.append(f"the lease at {number}/{record.offset} is of partition {lease.partition}")
        yield lease


# -- one writer ------------------------------------------------------------------------------------------------------


def _check_epochs(number: int, events: list[Placed], leases: list[Lease]) -> Iterator[str]:
    """Epochs of a partition never go back, each has one owner, and each was claimed before it was used."""
    owners: dict[int, str] = {}
    for name in ("epoch", "applied", "tail"):
        values = [getattr(lease, name) for lease in leases]
        if values != sorted(values):
            yield f"the leases of partition {number} go back in {name}: {values}"
    for lease in leases:
        if owners.setdefault(lease.epoch, lease.owner) != lease.owner:
            yield f"epoch {lease.epoch} of partition {number} was claimed by {owners[lease.epoch]} and {lease.owner}"
    # Compaction keeps the last lease and those after its own last pass: from the oldest on, none is missing.
    oldest = min(owners, default=0)
    last = 0
    for _, offset, event in events:
        where = f"the event at {number}/{offset} ({event.type} of {event.run_id})"
        if event.epoch < last:
            yield f"{where} of epoch {event.epoch} comes after one of epoch {last}"
        last = max(last, event.epoch)
        owner = _owner(event)
        if event.epoch not in owners and event.epoch >= oldest:
            yield f"{where} has the epoch {event.epoch}, which nobody claimed"
            owners[event.epoch] = owner or "?"
        elif owner and owners.setdefault(event.epoch, owner) != owner:
            yield f"{where} was written by {owner} under the epoch {event.epoch} of {owners[event.epoch]}"


def _owner(event: Event) -> str:
    return event.body.owner if isinstance(event.body, (ev.RunOwned, ev.RunStarted)) else ""


def _check_seqs(events: list[Placed]) -> Iterator[str]:
    """The seq of every run is dense, under one identity, and a run says when another epoch goes on with it."""
    last: dict[str, Event] = {}
    for number, offset, event in events:
        if event.seq is None:
            continue
        where = f"the event at {number}/{offset} ({event.type})"
        before = last.get(event.run_id)
        if event.seq != (1 if before is None else (before.seq or 0) + 1):
            yield f"{where} has seq {event.seq} in run {event.run_id}, after {before.seq if before else 'none'}"
        if before is not None and before.identity != event.identity:
            yield f"{where} belongs to {event.identity}, and run {event.run_id} is {before.identity}"
        if before is not None and before.epoch != event.epoch and not isinstance(event.body, ev.RunOwned):
            yield f"{where} goes on with run {event.run_id} under epoch {event.epoch} without run.owned"
        if before is not None and event.at < before.at:
            yield f"{where} of run {event.run_id} is older than the event before it"
        last[event.run_id] = event


# -- state -----------------------------------------------------------------------------------------------------------


def _checkpoints(dump: Dump, number: int, wrong: list[str]) -> Iterator[Run]:
    for record in dump.of(dump.topics.checkpoints, number):
        where = f"the checkpoint at {number}/{record.offset}"
        state = decode_checkpoint(record.value) if record.value is not None else None
        if not isinstance(state, Run):
            wrong.append(f"{where} is {state!r}, and no run was damaged or has expired")
            continue
        if record.key != state.run_id.encode():
            wrong.append(f"{where} of run {state.run_id} lies under the key {record.key!r}")
        yield state


def _check_folds(events: list[Placed], checkpoints: list[Run], runs: dict[str, Run]) -> Iterator[str]:
    """Fold the events into `runs`; each checkpoint equals the fold up to its seq, and each end has one."""
    left: dict[tuple[str, int], Run] = {}
    for checkpoint in checkpoints:
        if left.setdefault((checkpoint.run_id, checkpoint.seq), checkpoint) != checkpoint:
            yield f"a checkpoint of run {checkpoint.run_id} differs from another one at seq {checkpoint.seq}"
    broken: set[str] = set()
    for number, offset, event in events:
        if event.seq is None or event.run_id in broken:
            continue
        before = runs.get(event.run_id) or Run(event.run_id, event.identity)
        try:
            run = runs[event.run_id] = evolve(before, event)
        except ValueError as error:
            broken.add(event.run_id)
            yield f"the event at {number}/{offset} cannot be folded: {error}"
            continue
        yield from _check_fold(before, run, left.pop((run.run_id, run.seq), None))
    for run_id, seq in left:
        if run_id not in broken:
            yield f"the checkpoint of run {run_id} at seq {seq} has no event"


def _check_fold(before: Run, run: Run, checkpoint: Run | None) -> Iterator[str]:
    where = f"run {run.run_id} at seq {run.seq}"
    if checkpoint is not None and checkpoint != run:
        fields = [name for name in Run._fields if getattr(run, name) != getattr(checkpoint, name)]
        yield f"the checkpoint of {where} is not its fold: {', '.join(fields)} differ"
    if is_terminal(run) and checkpoint is None:
        yield f"{where} has ended without a checkpoint of its end"
    if is_terminal(run) and any(op.kind == "task" for op in before.ops.values()):
        yield f"{where} has ended while a task of it was open"


def _check_tail(number: int, events: list[Placed], leases: list[Lease], checkpoints: list[Run]) -> Iterator[str]:
    """Below the tail every event is in a checkpoint."""
    latest = {checkpoint.run_id: checkpoint.seq for checkpoint in checkpoints}
    tail = leases[-1].tail if leases else 0
    for _, offset, event in events:
        if offset < tail and event.seq is not None and event.seq > latest.get(event.run_id, 0):
            yield f"the event at {number}/{offset} lies below the tail {tail} and in no checkpoint of {event.run_id}"


# -- commands --------------------------------------------------------------------------------------------------------


def _check_commands(dump: Dump, number: int, events: list[Placed]) -> Iterator[str]:
    """Every command has exactly one outcome, under its own run, in the order of the commands."""
    commands = {record.offset: record for record in dump.of(dump.topics.commands, number)}
    outcomes: dict[int, int] = {}
    for _, offset, event in events:
        if event.offset is None:
            continue
        where = f"the event at {number}/{offset} ({event.type})"
        if event.offset not in commands:
            yield f"{where} is the outcome of command {event.offset}, which the topic does not hold"
        elif commands[event.offset].key != event.run_id.encode():
            yield f"{where} is the outcome of a command to another run: {commands[event.offset].key!r}"
        if event.offset in outcomes:
            yield f"the command at {number}/{event.offset} has two outcomes, at {outcomes[event.offset]} and {offset}"
        outcomes[event.offset] = offset
    for lost in sorted(set(commands) - set(outcomes)):
        yield f"the command at {number}/{lost} ({commands[lost].key!r}) has no outcome"


def _check_accepted(dump: Dump, accepted: list[Accepted], found: Found) -> Iterator[str]:
    """What the broker has acknowledged is there as it was sent. (That it has an outcome is checked of all.)"""
    known = {
        (number, record.offset): record
        for number in range(dump.partitions)
        for record in dump.of(dump.topics.commands, number)
    }
    for run_id, type_, partition, offset, value in accepted:
        record = known.get((partition, offset))
        if record is None:
            yield f"the accepted {type_} of run {run_id} at {partition}/{offset} is gone"
        elif (record.key, record.value) != (run_id.encode(), value):
            yield f"the accepted {type_} of run {run_id} at {partition}/{offset} is another record now"


def _check_dead_letters(dump: Dump, accepted: list[Accepted], plans: Mapping[str, Plan]) -> Iterator[str]:
    letters: Counter[tuple[int, int]] = Counter()
    for number in range(dump.partitions):
        for record in dump.of(dump.topics.dead_letters, number):
            letter = decode_dead_letter(record.value or b"")
            letters[number, letter.offset] += 1
            run_id = (letter.key or b"").decode()
            if run_id not in plans or plans[run_id].kind != JUNK:
                yield f"the command at {number}/{letter.offset} is among the dead letters: {letter.reason}"
    for place, count in letters.items():
        if count > 1:
            yield f"the command at {place[0]}/{place[1]} is among the dead letters {count} times"
    for run_id, _, partition, offset, _ in accepted:
        if plans[run_id].kind == JUNK and (partition, offset) not in letters:
            yield f"the junk at {partition}/{offset} is not among the dead letters"


# -- effects ---------------------------------------------------------------------------------------------------------


def _check_effects(
    dump: Dump, number: int, events: list[Placed], found: dict[str, list[EffectMessage]]
) -> Iterator[str]:
    """Each effect.emitted has exactly one message with the same content, and each message has its event."""
    emitted: dict[str, tuple[Event, ev.EffectEmitted]] = {}
    for *_, event in events:
        if isinstance(event.body, ev.EffectEmitted):
            emitted[f"{event.identity}/{event.body.op}"] = (event, event.body)
    seen: Counter[str] = Counter()
    for name in dump.topics.effect_names:
        for record in dump.of(dump.topics.effect(name), number):
            message = decode_effect(record.value or b"")
            found.setdefault(message.run_id, []).append(message)
            seen[message.effect_id] += 1
            yield from _compare(f"the message at {name}/{number}/{record.offset}", name, record, message, emitted)
    for effect_id in set(emitted) - set(seen):
        yield f"effect {effect_id} was emitted and never published"


def _compare(
    where: str, name: str, record: Rec, message: EffectMessage, emitted: dict[str, tuple[Event, ev.EffectEmitted]]
) -> Iterator[str]:
    if message.effect_id not in emitted:
        yield f"{where} is effect {message.effect_id}, which no event has emitted"
        return
    event, body = emitted[message.effect_id]
    said = (message.run_id, message.effect, message.payload, message.idempotency_key, message.epoch, name, record.key)
    meant = (event.run_id, body.effect, body.payload, body.key, event.epoch, body.effect, event.run_id.encode())
    if said != meant:
        yield f"{where} differs from its event: {said} instead of {meant}"


def _check_once(found: Found) -> Iterator[str]:
    """Over all partitions and effects: every effect id once, every business key once."""
    messages = [message for of_run in found.effects.values() for message in of_run]
    for what, counts in (
        ("effect id", Counter(message.effect_id for message in messages)),
        ("idempotency key", Counter(message.idempotency_key for message in messages)),
    ):
        for id_, count in counts.items():
            if count > 1:
                yield f"the {what} {id_} was published {count} times"


# -- ends ------------------------------------------------------------------------------------------------------------


def _check_ends(accepted: list[Accepted], plans: Mapping[str, Plan], found: Found) -> Iterator[str]:
    """Every accepted start's run, and every run that began, has come to the end that the model predicts."""
    wanted = {one.run_id for one in accepted if one.type == "start" and plans[one.run_id].kind != JUNK}
    early = _cancelled_early(found.events)
    bodies = {event.run_id: event.body for *_, event in found.events if event.seq is not None}
    for run_id in sorted(wanted | {run.run_id for run in found.runs.values() if run.workflow}):
        run = found.runs.get(run_id)
        if run_id not in plans:
            yield f"run {run_id} was started, and nobody has asked for it"
        elif run is None or not run.workflow:
            yield f"run {run_id} was accepted and never started"
        elif not is_terminal(run):
            state = f"blocked: {run.blocked}" if run.blocked else f"waits for {[*run.ops.values()]}"
            yield f"run {run_id} ({status_of(run)}, seq {run.seq}) has not come to its end: {state}"
        else:
            messages = sorted(found.effects.get(run_id, []), key=lambda message: message.at)
            effects = tuple((m.effect, m.idempotency_key, json.loads(m.payload)) for m in messages)
            value = _value(bodies[run_id])
            outcome = Outcome(status_of(run).value, value, effects, run_id in early)
            yield from (f"run {run_id}: {complaint}" for complaint in judge(plans[run_id], outcome))
    for run_id, run in found.runs.items():
        if not run.workflow and run_id in plans and status_of(run) is not Status.PENDING:
            yield f"run {run_id} was never started and is {status_of(run)}"


def _cancelled_early(events: list[Placed]) -> set[str]:
    asked: set[str] = set()
    early: set[str] = set()
    for *_, event in events:
        if isinstance(event.body, ev.CancelRequested):
            asked.add(event.run_id)
        elif isinstance(event.body, ev.RunStarted) and event.run_id in asked:
            early.add(event.run_id)
    return early


def _value(body: ev.Body) -> object:
    if isinstance(body, ev.RunCompleted):
        return json.loads(body.result)
    return body.error.code if isinstance(body, ev.RunFailed) else None
