"""The protocol as a system to explore: all steps together, and what must never be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.model import acquire, broker, turn
from tests.model.explore import Edge, System
from tests.model.rules import Rules
from tests.model.state import (
    COMMITTED,
    COMMITTED_RECORD,
    FRESH,
    LOST_LEASE,
    RUNNING,
    STABLE,
    Lease,
    Part,
    State,
    Worker,
    canonical,
)


def system(rules: Rules, *, workers: int, partitions: int, left: tuple[int, ...], owned: bool) -> System[State]:
    """Everything that can happen under some rules within some bounds."""
    first = Worker(1, FRESH, 0, 0, 0, 0, tuple(Part(1, STABLE) for _ in range(partitions)))
    logs: tuple[tuple, ...] = ((),) * 3 * partitions
    if owned:
        part = Part(1, RUNNING, epoch=1, seqs=(0,) * rules.runs_count, claimed=1)
        first = first._replace(parts=(part,) * partitions)
        logs = ((), (), (Lease(COMMITTED_RECORD, 1, 0, 0, 0),)) * partitions
    others = Worker(1, FRESH, 0, 0, 0, 0, tuple(Part(0) for _ in range(partitions)))
    initial = State((first, *[others] * (workers - 1)), logs, (), (-1,) * partitions, (), left)
    return System(initial, partial(steps, rules), partial(violation, rules), partial(is_done, rules), canonical)


def steps(rules: Rules, state: State) -> Iterator[Edge[State]]:
    """All that may happen next."""
    yield from broker.transactions(state)
    yield from broker.group(state)
    yield from broker.misfortunes(state, len(rules.runs))
    for number, worker in enumerate(state.workers):
        if worker.alive:
            yield from acquire.poll(state, number, rules)
            yield from acquire.revoke(state, number, rules)
            yield from acquire.acquire(state, number, rules)
            yield from turn.decide(state, number, rules)
            yield from turn.follow(state, number, rules)
            yield from turn.commit(state, number, rules)


def is_done(rules: Rules, state: State) -> bool:
    """Every command is applied."""
    committed = _committed_ids(state)
    logs = state.logs[::3]
    return all(any(e.command == len(rules.runs) - 1 and _counts(e, committed) for e in log) for log in logs)


def _committed_ids(state: State) -> set[int]:
    return {txn.tid for txn in state.txns if txn.status == COMMITTED}


def _counts(record: tuple, committed: set[int]) -> bool:
    return record[0] == COMMITTED_RECORD or record[0] in committed


def violation(rules: Rules, state: State) -> str:
    """Why a state must not be; empty where it may."""
    committed = _committed_ids(state)
    lost = _leases_lost(state)
    for number in range(len(state.offsets)):
        events, checkpoints, leases = (
            [(at, r) for at, r in enumerate(log) if _counts(r, committed)]
            for log in state.logs[3 * number : 3 * number + 3]
        )
        complaint = (
            _commands(events)
            or _seqs(events)
            or _epochs(events, leases, lost=lost)
            or _tail(events, checkpoints, leases)
        )
        if complaint:
            return complaint
    return _effects(state, committed)


def _leases_lost(state: State) -> bool:
    """Whether leases were lost: nobody's name is in them any more."""
    return any(LOST_LEASE in log for log in state.logs[2::3])


def _commands(events: list) -> str:
    """I1, I2: at most once, and never one before those below it."""
    for expected, (_, event) in enumerate(events):
        if event.command < expected:
            return f"I1: command {event.command} was applied twice"
        if event.command > expected:
            return f"I2: command {expected} was skipped"
    return ""


def _seqs(events: list) -> str:
    """I3: dense; a state was computed from the committed prefix and nothing else."""
    last: dict[int, int] = {}
    for _, event in events:
        if event.seq != last.get(event.run, 0) + 1:
            return f"I3: run {event.run} has event {event.seq} after {last.get(event.run, 0)}"
        last[event.run] = event.seq
    return ""


def _epochs(events: list, leases: list, *, lost: bool) -> str:
    """I4: epochs grow along the log; I5: one writer each, who holds its lease."""
    epochs = [event.epoch for _, event in events]
    if epochs != sorted(epochs):
        return f"I4: epochs go back along the log: {epochs}"
    writers: dict[int, int] = {}
    for _, event in events:
        if writers.setdefault(event.epoch, event.writer) != event.writer:
            return f"I5: two writers under epoch {event.epoch}"
    owners: dict[int, int] = {}
    for before, (_, lease) in zip([None, *leases], leases, strict=False):
        if before is not None and lease.epoch < before[1].epoch:
            return "I4: the epochs of leases go back"
        if owners.setdefault(lease.epoch, lease.owner) != lease.owner:
            return f"I5: two owners claimed epoch {lease.epoch}"
    if not lost:
        for epoch, writer in writers.items():
            if owners.get(epoch) != writer:
                return f"I5: an event of epoch {epoch}, whose writer has no lease of it"
    return ""


def _tail(events: list, checkpoints: list, leases: list) -> str:
    """I6: every event below the tail is covered by a committed checkpoint."""
    if leases:
        covered: dict[int, int] = {}
        for _, checkpoint in checkpoints:
            covered[checkpoint.run] = checkpoint.seq
        for at, event in events:
            if at < leases[-1][1].tail and event.seq > covered.get(event.run, 0):
                return f"I6: event {event.seq} of run {event.run} is below the tail, and no checkpoint covers it"
    return ""


def _effects(state: State, committed: set[int]) -> str:
    """I7: an effect for each event, and one only. What is inside a transaction is so by itself."""
    alive = {event.command for log in state.logs[::3] for event in log if event.tid != -2}
    for command in state.effects:
        if state.effects.count(command) > 1:
            return f"I7: two effects for command {command}"
        if command not in alive:
            return f"I7: an effect for command {command}, whose event does not exist"
    return ""
