"""The state of the model: a broker with logs, transactions and a group, and workers; all of it plain tuples."""

from __future__ import annotations

from typing import NamedTuple

# The logs of a partition.
EVENTS, CHECKPOINTS, LEASES = 0, 1, 2

# Where a record stands: under the id of a transaction while no marker is written, then one of these.
COMMITTED_RECORD, HOLE = -1, -2

# Transactions, as their coordinator sees them. ENDING: the request to commit is on its way.
OPEN, ENDING, COMMITTED, ABORTED = 0, 1, 2, 3

# The group metadata a worker holds. STALE: the group has moved on since its last poll. GONE: the group has put it out.
UNJOINED, FRESH, STALE, GONE = 0, 1, 2, 3

# Where a worker stands with a partition; the numbers of the steps are those of section 5 of the design.
NONE, STABLE, ENDS, LEASE, CLAIM, RESTORE, RUNNING, DRAINING, RELEASED, KEPT = range(10)

# What a transaction of a worker is for, and how far it has come.
CLAIMING, TURN, RELEASE = 0, 1, 2
BUILDING, WAITING, ANSWERED = 0, 1, 2

IDS = 8
"""Transactional ids of one worker; id = worker * IDS + how many producers it has made."""


class Event(NamedTuple):
    tid: int
    run: int
    seq: int
    command: int
    epoch: int
    writer: int


class Checkpoint(NamedTuple):
    tid: int
    run: int
    seq: int
    epoch: int


class Lease(NamedTuple):
    tid: int
    epoch: int
    owner: int
    applied: int
    tail: int


LOST_LEASE = Lease(HOLE, -9, -1, -1, -1)


class Txn(NamedTuple):
    """`logs`: those (3 * partition + log) where its marker is not written. `offsets`: pending in the group."""

    tid: int
    status: int
    logs: frozenset[int]
    offsets: tuple[tuple[int, int], ...]


class Work(NamedTuple):
    """What a transaction writes for one partition. `live`: the worker still holds it, so it may adopt."""

    partition: int
    events: tuple[tuple[int, int, int], ...]
    checkpoints: tuple[tuple[int, int], ...]
    lease: tuple[int, ...]
    offset: int
    epoch: int
    live: int = 1
    at: int = 0


class Sending(NamedTuple):
    """A transaction as its worker sees it; `meta` is the group snapshot that it was made with."""

    kind: int
    meta: int
    produced: int
    fenced: int
    phase: int
    works: tuple[Work, ...]


class Part(NamedTuple):
    """A worker and a partition. `owns` is the group's word: 0 no, 1 yes, 2 yes, of which the next poll will tell."""

    owns: int
    stage: int = NONE
    ends: tuple[int, ...] = ()
    group: int = -1
    seen: int = 0
    epoch: int = 0
    tail: int = 0
    applied: int = 0
    seqs: tuple[int, ...] = ()
    uncovered: int = -1
    end: int = 0
    claimed: int = 0


class Worker(NamedTuple):
    """`fenced` is the broker's word about its producer; `late` a request to commit that may still arrive."""

    alive: int
    meta: int
    fenced: int
    distrusted: int
    late: int
    made: int
    parts: tuple[Part, ...]
    sending: tuple | Sending = ()
    following: tuple | Sending = ()


class State(NamedTuple):
    workers: tuple[Worker, ...]
    logs: tuple[tuple, ...]
    """3 * partition + log."""
    txns: tuple[Txn, ...]
    offsets: tuple[int, ...]
    """The group's, committed; -1 where there is none."""
    effects: tuple[int, ...]
    """Commands whose effect went out beside the transaction."""
    left: tuple[int, ...]
    """How many faults of each kind may still happen."""


FAULTS = ("move", "expel", "crash", "doubt", "timeout", "abort", "reset", "lose_leases", "sweep", "settle")


def budget(**counts: int) -> tuple[int, ...]:
    """How often each fault may happen."""
    assert set(counts) <= set(FAULTS)
    return tuple(counts.get(name, 0) for name in FAULTS)


def canonical(state: State) -> State:
    """Workers are alike: the same state for every way to number them (nearly: ties are left as they are)."""
    workers = state.workers
    order = sorted(range(len(workers)), key=workers.__getitem__)
    txns = tuple(sorted(state.txns, key=lambda t: t.tid))
    if order == list(range(len(workers))):
        return state if txns == state.txns else state._replace(txns=txns)
    place = {old: new for new, old in enumerate(order)}

    def name(tid: int) -> int:
        return tid if tid < 0 else place[tid // IDS] * IDS + tid % IDS

    logs = tuple(tuple(_renamed(record, name) for record in log) for log in state.logs)
    renamed = sorted((txn._replace(tid=name(txn.tid)) for txn in state.txns), key=lambda t: t.tid)
    return state._replace(workers=tuple(workers[old] for old in order), logs=logs, txns=tuple(renamed))


def _renamed(record: tuple, name) -> tuple:
    if isinstance(record, Event):
        return record._replace(tid=name(record.tid), writer=name(record.writer))
    if isinstance(record, Lease):
        return record._replace(tid=name(record.tid), owner=name(record.owner))
    return record._replace(tid=name(record.tid))
