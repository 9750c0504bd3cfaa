"""Rules of the log that need no fold: one writer, dense histories, an outcome for each command, effects as emitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.log.port import Record
from streams.testing.sim.history import History, Judged
from streams.testing.sim.model import CLASHING, CONFLICT, JUNK
from streams.wire.headers import SENT_BACK
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, Lease
from streams.wire.topics import Topics

__all__ = ["check_log", "is_sent_back", "where"]

Events = list[tuple[Record, Event]]
Leases = list[tuple[Record, Lease]]


def check_log(history: History, world: Judged) -> Iterator[str]:
    """All of them."""
    for number in range(history.partitions):
        events, leases = history.events[number], history.leases[number]
        yield from _check_leases(number, leases)
        yield from _check_epochs(events, leases)
        yield from _check_places(history.partitions, number, events)
        yield from _check_seqs(events)
        yield from _check_commands(number, history.commands[number], events)
        yield from _check_applied(number, events, leases)
        yield from _check_effects(history, number)
    yield from _check_once(history)
    yield from _check_accepted(history, world)
    yield from _check_letters(history, world)


def where(record: Record, event: Event) -> str:
    """Names an event."""
    return f"the event at {record.partition}/{record.offset} ({event.type} {event.seq} of {event.run_id})"


# -- one writer --------------------------------------------------------------------------------------------------


def _check_leases(number: int, leases: Leases) -> Iterator[str]:
    owners: dict[int, str] = {}
    for record, lease in leases:
        if lease.partition != number or record.key != str(number).encode():
            yield f"the lease at {number}/{record.offset} is of partition {lease.partition}"
        if owners.setdefault(lease.epoch, lease.owner) != lease.owner:
            yield f"epoch {lease.epoch} of partition {number} was claimed by {owners[lease.epoch]} and {lease.owner}"
    for name in ("epoch", "applied", "tail"):
        values = [getattr(lease, name) for _, lease in leases]
        if values != sorted(values):
            yield f"the leases of partition {number} go back in {name}: {values}"


def _check_epochs(events: Events, leases: Leases) -> Iterator[str]:
    """Epochs never go back, each has one owner, was claimed before it was used, and is over with the next claim."""
    owners = {lease.epoch: lease.owner for _, lease in leases}
    claimed: dict[int, int] = {}
    for record, lease in leases:
        claimed.setdefault(lease.epoch, record.timestamp)
    oldest, last, told = min(owners, default=0), 0, set()
    following = _next_claims(claimed)
    for record, event in events:
        epoch = event.epoch
        if epoch < last:
            yield f"{where(record, event)} of epoch {epoch} comes after one of epoch {last}"
        last = max(last, epoch)
        if epoch not in owners and epoch >= oldest:
            if epoch not in told:
                yield f"{where(record, event)} has the epoch {epoch}, which nobody claimed"
            told.add(epoch)
            continue
        owner = event.body.owner if isinstance(event.body, (ev.RunOwned, ev.RunStarted)) else ""
        if owner and owners.get(epoch, owner) != owner:
            yield f"{where(record, event)} was written by {owner} under the epoch {epoch} of {owners[epoch]}"
        if record.timestamp < claimed.get(epoch, 0):
            yield f"{where(record, event)} was written before the claim of its epoch {epoch}"
        if record.timestamp > following.get(epoch, record.timestamp):
            yield f"{where(record, event)} of epoch {epoch} was written after the next owner's claim"


def _next_claims(claimed: dict[int, int]) -> dict[int, int]:
    """When each epoch ended: with the claim of the next one."""
    epochs = sorted(claimed)
    return {epoch: claimed[after] for epoch, after in pairwise(epochs)}


def _check_places(partitions: int, number: int, events: Events) -> Iterator[str]:
    right: set[str] = set()
    for record, event in events:
        if event.run_id in right:
            continue
        strange = isinstance(event.body, ev.CommandRejected) and event.body.code != "DUPLICATE"
        if record.key != event.run_id.encode() or (partition_of(record.key, partitions) != number and not strange):
            yield f"{where(record, event)} lies under the key {record.key!r} in a partition that is not that of its run"
        elif not strange:
            right.add(event.run_id)


def _check_seqs(events: Events) -> Iterator[str]:
    """The seq of every run is dense, under one identity, and a run says when another epoch goes on with it."""
    last: dict[str, Event] = {}
    for record, event in events:
        if event.seq is None:
            continue
        before = last.get(event.run_id)
        if before is None or isinstance(before.body, ev.RunExpired):
            if event.seq != 1:
                yield f"{where(record, event)} is the first one of its run"
        elif event.seq != (before.seq or 0) + 1:
            yield f"{where(record, event)} follows on seq {before.seq}"
        elif before.identity != event.identity:
            yield f"{where(record, event)} belongs to {event.identity}, and the run is {before.identity}"
        elif before.epoch != event.epoch and not isinstance(event.body, (ev.RunOwned, ev.RunExpired)):
            yield f"{where(record, event)} goes on under epoch {event.epoch} without run.owned"
        elif event.at < before.at:
            yield f"{where(record, event)} is older than the event before it"
        last[event.run_id] = event


# -- commands ----------------------------------------------------------------------------------------------------


def _check_commands(number: int, commands: list[Record], events: Events) -> Iterator[str]:
    """Every command has exactly one outcome, under its own run, in the order of the commands."""
    keys = {record.offset: record.key for record in commands}
    outcomes: dict[int, int] = {}
    highest = -1
    for record, event in events:
        offset = event.offset
        if offset is None or isinstance(event.body, ev.OutcomeLate):  # what a late reply said, beside its refusal
            continue
        if isinstance(event.body, ev.CommandRejected):
            yield from _check_refusal(record, event, event.body)
        if offset not in keys:
            yield f"{where(record, event)} is the outcome of command {offset}, which the topic does not hold"
        elif keys[offset] != record.key and keys[offset]:
            yield f"{where(record, event)} is the outcome of a command to another run: {keys[offset]!r}"
        if offset in outcomes:
            yield f"the command at {number}/{offset} has two outcomes, at {outcomes[offset]} and {record.offset}"
        elif offset < highest:
            yield f"{where(record, event)} is the outcome of command {offset}, after that of command {highest}"
        outcomes[offset] = record.offset
        highest = max(highest, offset)
    for lost in sorted(set(keys) - set(outcomes)):
        yield f"the command at {number}/{lost} ({keys[lost]!r}) has no outcome"


def _check_refusal(record: Record, event: Event, body: ev.CommandRejected) -> Iterator[str]:
    """A start with another input was refused as such, and not as a repeat."""
    if (body.command_id or "").endswith(CONFLICT) and body.code != "INPUT_CONFLICT":
        yield f"{where(record, event)} refuses a start with another input as {body.code}"


def _check_applied(number: int, events: Events, leases: Leases) -> Iterator[str]:
    """A command that a lease counts as applied had its outcome no later than the lease."""
    written = {event.offset: record.timestamp for record, event in events if event.offset is not None}
    done = sorted(written.items())
    at, latest = 0, 0
    for record, lease in leases:
        while at < len(done) and done[at][0] < lease.applied:
            latest = max(latest, done[at][1])
            at += 1
        if latest > record.timestamp:
            yield f"the lease at {number}/{record.offset} tells of outcomes up to {lease.applied} that came after it"
    if leases and done and leases[-1][1].applied > done[-1][0] + 1:
        yield f"the last lease of partition {number} has applied {leases[-1][1].applied}, after {done[-1][0]}"


def _check_accepted(history: History, world: Judged) -> Iterator[str]:
    """That a command has an outcome is checked of all; what the log has acknowledged is also there as it was sent."""
    known = {(r.partition, r.offset): r for records in history.commands for r in records}
    for run_id, type_, partition, offset, key, value in world.sent:
        record = known.get((partition, offset))
        if record is None:
            yield f"the accepted {type_} of run {run_id} at {partition}/{offset} is gone"
        elif (record.key, record.value) != (key, value):
            yield f"the accepted {type_} of run {run_id} at {partition}/{offset} is another record now"


def _check_letters(history: History, world: Judged) -> Iterator[str]:
    letters: Counter[tuple[int, int]] = Counter()
    for number, of_partition in enumerate(history.letters):
        for _, letter in of_partition:
            letters[number, letter.offset] += 1
            one = world.plans.get((letter.key or b"").decode())
            if one is None or one.kind != JUNK:
                yield f"the command at {number}/{letter.offset} is among the dead letters: {letter.reason}"
    for (number, offset), count in letters.items():
        if count > 1:
            yield f"the command at {number}/{offset} is among the dead letters {count} times"
    for run_id, _, partition, offset, _, _ in world.sent:
        if world.plans[run_id].kind == JUNK and (partition, offset) not in letters:
            yield f"the junk at {partition}/{offset} is not among the dead letters"


# -- effects -----------------------------------------------------------------------------------------------------


def _check_effects(history: History, number: int) -> Iterator[str]:
    """Each event of an effect or a request has a message with the same content, and each message has its event."""
    meant = _meant(history.topics, history.events[number])
    published: set[_Name] = set()
    for record, message in history.effects[number]:
        if is_sent_back(record):
            continue  # a person has made it of a dead letter
        name = (message.effect_id, message.attempt)
        published.add(name)
        if name not in meant:
            yield f"the effect {_called(name)} in partition {number} was emitted by no event"
        elif _said(record, message) != meant[name]:
            yield f"the message of effect {_called(name)} in partition {number} differs from its event"
    for name in sorted(set(meant) - published):
        yield f"effect {_called(name)} was emitted and never published"


_Name = tuple[str, int]
"""The id of an effect, and the attempt of a request; 0 for an effect that nobody waits for."""


def is_sent_back(record: Record) -> bool:
    """Whether a person has sent it again."""
    return any(header == SENT_BACK for header, _ in record.headers)


def _called(name: _Name) -> str:
    return f"{name[0]}, attempt {name[1]}," if name[1] else name[0]


def _said(record: Record, message: EffectMessage) -> tuple[object, ...]:
    parts = (message.run_id, message.effect, message.payload, message.idempotency_key, message.epoch, message.at)
    return (*parts, message.op, record.topic, record.key)


def _meant(topics: Topics, events: Events) -> dict[_Name, tuple[object, ...]]:
    """What the messages must say."""
    found: dict[_Name, tuple[object, ...]] = {}
    requests: dict[str, tuple[str, bytes, str]] = {}
    for _, event in events:
        body, attempt = event.body, 0
        if isinstance(body, ev.EffectEmitted):
            effect_id, parts = f"{event.identity}/{body.op}", (body.effect, body.payload, body.key)
        elif isinstance(body, ev.OpScheduled) and body.kind == "request":
            effect_id, attempt = f"{event.identity}/{body.op}", body.attempt
            parts = requests[effect_id] = (body.name, body.args or b"", body.key or "")
        elif isinstance(body, ev.AttemptStarted) and f"{event.identity}/{body.op}" in requests:
            effect_id, attempt = f"{event.identity}/{body.op}", body.attempt
            parts = requests[effect_id]
        else:
            continue
        place = (event.epoch, event.at, body.op, topics.effect(parts[0]), event.run_id.encode())
        found[effect_id, attempt] = (event.run_id, *parts, *place)
    return found


def _check_once(history: History) -> Iterator[str]:
    """Over all partitions: every effect id and attempt once, every business key once, unless the run says it twice."""
    found = [entry for of_partition in history.effects for entry in of_partition]
    messages = [message for record, message in found if not is_sent_back(record)]
    plain = [one for one in messages if not one.attempt and not one.run_id.startswith(CLASHING)]
    for what, counts in (
        ("effect id", Counter(_called((message.effect_id, message.attempt)) for message in messages)),
        ("idempotency key", Counter(message.idempotency_key for message in plain)),
    ):
        for id_, count in counts.items():
            if count > 1:
                yield f"the {what} {id_} was published {count} times"
