"""Proves a log right by reading only the log: nothing lost, nothing doubled, one writer, checkpoints that fit.

It has no part in the engine's memory and shares with it only the record formats and `evolve`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.run import Run, is_terminal, stub_of
from streams.log.port import Log, Record, TopicPartition
from streams.wire.partitioner import partition_of
from streams.wire.records import (
    Damaged,
    DeadLetter,
    EffectMessage,
    Lease,
    decode_checkpoint,
    decode_dead_letter,
    decode_effect,
    decode_event,
    decode_lease,
)
from streams.wire.topics import Topics, topics_of

__all__ = ["Checked", "check_log", "records_of", "try_event"]


class Checked(NamedTuple):
    """What the log says, once it has been proven right."""

    runs: dict[str, Run]
    events: dict[str, list[Event]]
    effects: list[EffectMessage]
    letters: list[DeadLetter]
    checkpoints: dict[str, Run | Damaged]
    leases: dict[int, list[Lease]]

    def starts(self, run_id: str) -> set[tuple[str, int]]:
        """The start records (op, attempt) of a run's tasks."""
        found, requests = set(), set()
        for event in self.events.get(run_id, []):
            body = event.body
            if isinstance(body, ev.OpScheduled) and body.kind == "request":
                requests.add(body.op)
            elif isinstance(body, (ev.OpScheduled, ev.AttemptStarted)) and body.attempt and body.op not in requests:
                found.add((body.op, body.attempt))
        return found


async def records_of(log: Log, place: TopicPartition, start: int = 0) -> list[Record]:
    """All visible records of a partition."""
    first, end = await log.span(*place)
    start = max(start, first)
    if start >= end:
        return []
    reader = log.reader({place: start})
    records: list[Record] = []
    while reader.position(place) < end:
        records += await reader.read(10_000, 0.0)  # what is left may be a hole, for which nothing comes
    await reader.close()
    return records


def try_event(record: Record) -> Event | None:
    try:
        return decode_event(record.value or b"")
    except WireError:
        return None


async def check_log(
    log: Log, app: str, effects: Iterable[str] = (), *, partitions: int = 4, damaged: frozenset[str] = frozenset()
) -> Checked:
    """Raise AssertionError unless the log is right; `damaged` names runs that a test has damaged on purpose."""
    topics = topics_of(app, effects)
    checked = Checked({}, {}, [], [], {}, {})
    for number in range(partitions):
        await _check_partition(log, topics, number, partitions, checked, damaged)
    messages = [message for message in checked.effects if message.run_id not in damaged]  # nor are its events taken
    ids = Counter((message.effect_id, message.attempt) for message in messages)
    assert [id_ for id_, count in ids.items() if count > 1] == [], "an effect was published twice"
    emitted = {id_: what for events in checked.events.values() for id_, what in _emitted(events)}
    assert set(emitted) == set(ids), "effects and events differ"
    for message in messages:
        said = (message.effect, message.payload, message.idempotency_key, message.epoch, message.at)
        assert said == emitted[message.effect_id, message.attempt]
    return checked


def _emitted(events: list[Event]) -> Iterator[tuple[tuple[str, int], tuple[Any, ...]]]:
    """What the messages of a run should say, by id and attempt: of its effects, and of each attempt of a request."""
    requests: dict[str, tuple[Any, ...]] = {}
    for event in events:
        body = event.body
        if isinstance(body, ev.EffectEmitted):
            yield (f"{event.identity}/{body.op}", 0), (body.effect, body.payload, body.key, event.epoch, event.at)
        elif isinstance(body, ev.OpScheduled) and body.kind == "request":
            requests[body.op] = (body.name, body.args, body.key)
            yield (f"{event.identity}/{body.op}", 1), (*requests[body.op], event.epoch, event.at)
        elif isinstance(body, ev.AttemptStarted) and body.op in requests:
            yield (f"{event.identity}/{body.op}", body.attempt), (*requests[body.op], event.epoch, event.at)


async def _check_partition(
    log: Log, topics: Topics, number: int, partitions: int, checked: Checked, damaged: frozenset[str]
) -> None:
    async def read(topic: str) -> list[Record]:
        return await records_of(log, TopicPartition(topic, number))

    leases = [decode_lease(record.value or b"") for record in await read(topics.leases)]
    checked.leases[number] = leases
    for name in topics.effect_names:
        for record in await read(topics.effect(name)):
            message = decode_effect(record.value or b"")
            assert record.key == message.run_id.encode()
            assert partition_of(record.key, partitions) == number
            checked.effects.append(message)
    checked.letters.extend(decode_dead_letter(record.value or b"") for record in await read(topics.dead_letters))
    events = await read(topics.events)
    _check_owners(number, leases, events, checked, damaged)
    await _check_commands(log, topics, number, events, leases, damaged)
    _check_checkpoints(await read(topics.checkpoints), events, leases, checked, damaged)


def _check_owners(
    number: int, leases: list[Lease], records: list[Record], checked: Checked, damaged: frozenset[str]
) -> None:
    owners: dict[int, str] = {}
    for lease in leases:
        assert lease.partition == number
        assert owners.setdefault(lease.epoch, lease.owner) == lease.owner, f"two owners under epoch {lease.epoch}"
    assert [lease.epoch for lease in leases] == sorted(lease.epoch for lease in leases), "lease epochs went back"
    assert [lease.applied for lease in leases] == sorted(lease.applied for lease in leases), "applied went back"
    assert [lease.tail for lease in leases] == sorted(lease.tail for lease in leases), "the tail went back"
    last = 0
    seqs: dict[str, int] = defaultdict(int)
    owned: dict[str, int] = {}
    for record in records:
        event = try_event(record)
        if event is None or event.run_id in damaged:
            continue
        assert last <= event.epoch, f"epoch {event.epoch} after {last} at offset {record.offset} of partition {number}"
        last = event.epoch
        assert event.epoch in owners, f"epoch {event.epoch} was never claimed"
        checked.events.setdefault(event.run_id, []).append(event)
        if event.seq is None:
            continue
        run_id, body = event.run_id, event.body
        assert record.key == run_id.encode()
        assert event.seq == seqs[run_id] + 1, f"event {event.seq} of run {run_id} follows on {seqs[run_id]}"
        seqs[run_id] = 0 if isinstance(body, ev.RunExpired) else event.seq
        if isinstance(body, ev.RunOwned):
            assert owners[event.epoch] == body.owner
            assert owned[run_id] < event.epoch, "a run was taken over twice under one epoch"
        elif isinstance(body, ev.RunStarted) and body.owner:
            assert owners[event.epoch] == body.owner
        if event.seq > 1 and not isinstance(body, (ev.RunOwned, ev.RunExpired)):
            assert owned[run_id] == event.epoch, f"event {event.seq} of {run_id} under an epoch without run.owned"
        owned[run_id] = event.epoch


async def _check_commands(
    log: Log, topics: Topics, number: int, records: list[Record], leases: list[Lease], damaged: frozenset[str]
) -> None:
    """Every command below the applied offset has led to exactly one record that carries its offset."""
    commands = await records_of(log, TopicPartition(topics.commands, number))
    events = [event for event in map(try_event, records) if event is not None and event.offset is not None]
    events = [event for event in events if not isinstance(event.body, ev.OutcomeLate)]  # beside a refusal
    offsets = [event.offset for event in events if event.run_id not in damaged]
    offsets += {event.offset for event in events if event.run_id in damaged}  # a test may have copied them
    twice = [offset for offset, count in Counter(offsets).items() if count > 1]
    assert twice == [], f"commands {twice} of partition {number} were applied twice"
    assert sorted(offsets) == [record.offset for record in commands][: len(offsets)], "a command was passed over"
    if leases and leases[-1].released:
        assert leases[-1].applied == (max(offsets, default=-1) + 1), "the released lease does not tell what was applied"


def _check_checkpoints(
    checkpoints: list[Record],
    records: list[Record],
    leases: list[Lease],
    checked: Checked,
    damaged: frozenset[str],
) -> None:
    folded: dict[str, Run] = {}
    states: dict[tuple[str, str, int], Run] = {}
    ends: dict[str, tuple[int, int]] = {}
    for record in records:
        event = try_event(record)
        if event is None or event.seq is None or event.run_id in damaged:
            continue
        if isinstance(event.body, ev.RunExpired):
            del folded[event.run_id]
            del ends[event.run_id]
            continue
        before = folded.get(event.run_id) or Run(event.run_id, event.identity)
        assert before.identity == event.identity, "the identity of a run changed"
        run = folded[event.run_id] = evolve(before, event)
        states[event.run_id, run.identity, run.seq] = run
        ends[event.run_id] = (record.offset, run.seq)
    latest: dict[str, Run | Damaged] = {}
    for record in checkpoints:
        run_id = (record.key or b"").decode()
        if record.value is None:
            latest.pop(run_id, None)
            continue
        if run_id in damaged:
            continue
        state = latest[run_id] = decode_checkpoint(record.value)
        assert isinstance(state, Run), state
        fold = states[run_id, state.identity, state.seq]
        left = is_terminal(fold) and state == stub_of(fold)
        assert state == fold or left, f"the checkpoint of {run_id} is not its fold, nor what is left of it"
    checked.runs.update(folded)
    checked.checkpoints.update(latest)
    _check_tail(records, leases, latest, damaged)


def _check_tail(
    records: list[Record], leases: list[Lease], latest: dict[str, Run | Damaged], damaged: frozenset[str]
) -> None:
    """Every event below the tail is covered by a checkpoint."""
    tail = leases[-1].tail if leases else 0
    expired = {e.identity for e in map(try_event, records) if e is not None and isinstance(e.body, ev.RunExpired)}
    for record in records:
        event = try_event(record)
        if record.offset >= tail or event is None or event.seq is None:
            continue
        if event.run_id in damaged or event.identity in expired:
            continue
        state = latest.get(event.run_id)
        assert isinstance(state, Run), f"event {event.seq} of {event.run_id} lies below the tail without a checkpoint"
        assert state.seq >= event.seq, f"event {event.seq} of {event.run_id} lies below the tail and in no checkpoint"
