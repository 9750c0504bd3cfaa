"""The broker's side of the model: logs with markers that come late, transactions, and a group (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.explore import Edge
from tests.model.state import (
    ABORTED,
    ANSWERED,
    COMMITTED,
    COMMITTED_RECORD,
    ENDING,
    FAULTS,
    FRESH,
    GONE,
    HOLE,
    IDS,
    KEPT,
    LEASES,
    LOST_LEASE,
    NONE,
    OPEN,
    RUNNING,
    STALE,
    UNJOINED,
    WAITING,
    Checkpoint,
    Event,
    Lease,
    Part,
    State,
    Txn,
    Work,
    Worker,
)

# -- small changes of a state ------------------------------------------------------------------------------------


def put(state: State, number: int, worker: Worker) -> State:
    workers = state.workers
    return state._replace(workers=(*workers[:number], worker, *workers[number + 1 :]))


def put_part(worker: Worker, number: int, part: Part) -> Worker:
    return worker._replace(parts=(*worker.parts[:number], part, *worker.parts[number + 1 :]))


def put_txn(state: State, txn: Txn) -> State:
    """Keep a transaction until nothing of it is pending."""
    txns = tuple(t for t in state.txns if t.tid != txn.tid)
    pending = txn.status in (OPEN, ENDING) or txn.logs or txn.offsets
    return state._replace(txns=(*txns, txn) if pending else txns)


def txn_of(state: State, tid: int) -> Txn | None:
    for txn in state.txns:
        if txn.tid == tid:
            return txn
    return None


def spend(state: State, fault: str, count: int = 1) -> State | None:
    """The state with one fault less to come, if one is left."""
    at = FAULTS.index(fault)
    left = state.left
    if left[at] < count:
        return None
    return state._replace(left=(*left[:at], left[at] - count, *left[at + 1 :]))


def tid_of(number: int, worker: Worker) -> int:
    return number * IDS + worker.made


def stable_end(log: tuple) -> int:
    """The read_committed end: the first record whose transaction has no marker there yet (LSO)."""
    for at, record in enumerate(log):
        if record.tid >= 0:
            return at
    return len(log)


def forget(worker: Worker, number: int, owns: int, *, keep: bool = False) -> Worker:
    """The worker holds a partition no more: what it decided for it, it will not adopt."""
    part = worker.parts[number]
    kept = keep and part.stage in (KEPT, RUNNING)
    worker = put_part(worker, number, part._replace(owns=owns, stage=KEPT) if kept else Part(owns))
    if worker.sending:
        works = tuple(w._replace(live=0) if w.partition == number else w for w in worker.sending.works)
        worker = worker._replace(sending=worker.sending._replace(works=works))
    if worker.following and any(w.partition == number for w in worker.following.works):
        worker = worker._replace(following=())
    return worker


# -- transactions ------------------------------------------------------------------------------------------------


def produce(state: State, tid: int, works: tuple[Work, ...]) -> tuple[State, tuple[Work, ...]]:
    """Append the records of a transaction; they are pending."""
    logs, touched, placed = list(state.logs), set(), []
    for work in works:
        base = 3 * work.partition
        placed.append(work._replace(at=len(logs[base])))
        lots = (
            [Event(tid, *event, work.epoch, tid) for event in work.events],
            [Checkpoint(tid, *checkpoint, work.epoch) for checkpoint in work.checkpoints],
            [Lease(tid, work.lease[0], tid, *work.lease[1:])] if work.lease else [],
        )
        for log, records in enumerate(lots):
            if records:
                logs[base + log] += tuple(records)
                touched.add(base + log)
    txn = txn_of(state, tid) or Txn(tid, OPEN, frozenset(), ())
    txn = txn._replace(logs=txn.logs | touched)
    return put_txn(state._replace(logs=tuple(logs)), txn), tuple(placed)


def hold_offsets(state: State, tid: int, offsets: tuple[tuple[int, int], ...]) -> State:
    """Accept offsets into a transaction: pending, and withheld from a stable fetch, until it ends."""
    txn = txn_of(state, tid) or Txn(tid, OPEN, frozenset(), ())
    return put_txn(state, txn._replace(offsets=offsets))


def end(state: State, tid: int, status: int) -> State:
    """Decide a transaction or ask for it; nothing happens where it has ended."""
    txn = txn_of(state, tid)
    if txn is None or txn.status in (COMMITTED, ABORTED):
        return state
    return put_txn(state, txn._replace(status=status))


def initialise(state: State, tid: int) -> State:
    """Somebody takes an id: its open transaction is aborted, a request on its way is void, its holder is fenced."""
    state = end(state, tid, ABORTED)
    number = tid // IDS
    worker = state.workers[number]
    if worker.alive and worker.made == tid % IDS:
        state = put(state, number, worker._replace(fenced=1, late=0))
    return state


def transactions(state: State) -> Iterator[Edge[State]]:
    """What the coordinator does in its own time."""
    for txn in state.txns:
        number = txn.tid // IDS
        holder = state.workers[number]
        mine = holder.alive and holder.made == txn.tid % IDS
        if txn.status == ENDING:
            after = end(state, txn.tid, COMMITTED)
            if mine and holder.sending and holder.sending.phase == WAITING:
                after = put(after, number, holder._replace(sending=holder.sending._replace(phase=ANSWERED)))
            yield Edge(("commits", txn.tid), after, fault=False)
        if txn.status == OPEN and mine and holder.late:
            after = put(end(state, txn.tid, COMMITTED), number, holder._replace(late=0))
            yield Edge(("a late request arrives and commits", txn.tid), after, fault=False)
        if txn.status in (OPEN, ENDING):
            after = spend(state, "timeout") if mine else state
            if after is not None:
                yield Edge(("aborts after the time-out", txn.tid), initialise(after, txn.tid), fault=bool(mine))
        else:
            yield from _markers(state, txn)


def _markers(state: State, txn: Txn) -> Iterator[Edge[State]]:
    """Of each partition in its own time."""
    committed = txn.status == COMMITTED
    for log in sorted(txn.logs):
        logs = list(state.logs)
        tid = COMMITTED_RECORD if committed else HOLE
        logs[log] = tuple(_settled(record, tid) if record.tid == txn.tid else record for record in logs[log])
        after = put_txn(state._replace(logs=tuple(logs)), txn._replace(logs=txn.logs - {log}))
        yield Edge(("marker", txn.tid, committed, log), after, fault=False)
    if txn.offsets:
        offsets = list(state.offsets)
        for partition, offset in txn.offsets:
            if committed:
                offsets[partition] = offset
        after = put_txn(state._replace(offsets=tuple(offsets)), txn._replace(offsets=()))
        yield Edge(("marker of offsets", txn.tid, committed), after, fault=False)


def _settled(record, tid: int):
    if tid == COMMITTED_RECORD:
        return record._replace(tid=tid)
    return type(record)(HOLE, *(-1,) * (len(record) - 1))


# -- the group ---------------------------------------------------------------------------------------------------


def members(state: State) -> list[int]:
    return [n for n, worker in enumerate(state.workers) if worker.alive and worker.meta in (FRESH, STALE)]


def rebalance(state: State) -> State:
    """The next generation: whatever metadata was taken before is refused from now on."""
    return state._replace(workers=tuple(_outdated(worker) for worker in state.workers))


def _outdated(worker: Worker) -> Worker:
    sending = worker.sending
    if sending and sending.meta == FRESH:
        worker = worker._replace(sending=sending._replace(meta=STALE))
    return worker._replace(meta=STALE) if worker.meta == FRESH else worker


def assign(state: State, partition: int, number: int) -> State:
    """To be told at the next poll."""
    worker = state.workers[number]
    return put(state, number, put_part(worker, partition, worker.parts[partition]._replace(owns=2)))


def expel(state: State, number: int) -> State:
    """The session of a member has expired: its partitions go to the others, and it learns of it at its next poll."""
    worker = state.workers[number]
    owned = [p for p, part in enumerate(worker.parts) if part.owns]
    parts = tuple(part._replace(owns=0) for part in worker.parts)
    state = put(state, number, _outdated(worker)._replace(meta=GONE, parts=parts))
    others = members(state)
    for partition in owned:
        if others:
            state = assign(state, partition, others[partition % len(others)])
    return rebalance(state)


def unowned(state: State) -> list[int]:
    return [p for p in range(len(state.offsets)) if not any(w.parts[p].owns for w in state.workers)]


def group(state: State) -> Iterator[Edge[State]]:
    """Expulsions, crashes and restarts."""
    for number, worker in enumerate(state.workers):
        held = any(part.owns for part in worker.parts)
        if worker.meta in (FRESH, STALE) and held:
            after = spend(state, "expel") if worker.alive else state
            if after is not None:
                yield Edge(("the group expels", number), expel(after, number), fault=bool(worker.alive))
        if worker.alive and (worker.sending or any(part.stage != NONE for part in worker.parts)):
            after = spend(state, "crash")
            if after is not None:
                parts = tuple(Part(part.owns) for part in worker.parts)
                dead = Worker(0, worker.meta, 0, 0, 0, worker.made, parts)
                yield Edge(("crash", number), put(after, number, dead), fault=True)
        if not worker.alive and (not held or worker.meta == GONE):
            fresh = Worker(1, UNJOINED, 0, 0, 0, worker.made + 1, worker.parts)
            yield Edge(("restart", number), put(state, number, fresh), fault=False)


def misfortunes(state: State, commands: int) -> Iterator[Edge[State]]:
    """What happens to the group's offsets and to the leases from outside."""
    for partition, offset in enumerate(state.offsets):
        after = spend(state, "reset")
        if after is None:
            break
        for new in (-1, commands - 1):
            if new != offset:
                offsets = (*state.offsets[:partition], new, *state.offsets[partition + 1 :])
                yield Edge(("the group's offset is set", partition, new), after._replace(offsets=offsets), fault=True)
    for partition in range(len(state.offsets)):
        at = 3 * partition + LEASES
        if state.logs[at] and stable_end(state.logs[at]) == len(state.logs[at]):
            after = spend(state, "lose_leases")
            if after is not None:
                logs = (*state.logs[:at], tuple(LOST_LEASE for _ in state.logs[at]), *state.logs[at + 1 :])
                yield Edge(("the leases are lost", partition), after._replace(logs=logs), fault=True)
