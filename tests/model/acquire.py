"""Acquiring, giving up and losing a partition, as in section 5 of the design; the numbers are its steps."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import broker
from tests.model.explore import Edge
from tests.model.rules import Rules
from tests.model.state import (
    BUILDING,
    CHECKPOINTS,
    CLAIM,
    CLAIMING,
    COMMITTED_RECORD,
    DRAINING,
    ENDING,
    ENDS,
    EVENTS,
    FRESH,
    GONE,
    IDS,
    KEPT,
    LEASE,
    LEASES,
    NONE,
    OPEN,
    RELEASE,
    RELEASED,
    RESTORE,
    RUNNING,
    STABLE,
    STALE,
    UNJOINED,
    Lease,
    Part,
    Sending,
    State,
    Work,
    Worker,
)

Edges = Iterator[Edge[State]]


def acquire(state: State, number: int, rules: Rules) -> Edges:
    """One step of each partition that is being acquired."""
    worker = state.workers[number]
    for partition, part in enumerate(worker.parts):
        if part.stage == STABLE:
            yield from _stable(state, number, partition, rules)
        elif part.stage == ENDS:
            yield from _ends(state, number, partition, rules)
        elif part.stage == LEASE:
            yield from _lease(state, number, partition, rules)
        elif part.stage == CLAIM:
            yield from _claim(state, number, partition, rules)
        elif part.stage == RESTORE:
            yield from _restore(state, number, partition, rules)


def _to(state: State, number: int, partition: int, part: Part) -> State:
    return broker.put(state, number, broker.put_part(state.workers[number], partition, part))


def _stable(state: State, number: int, partition: int, rules: Rules) -> Edges:
    """1: the group's stable offset; a pending one of the last owner is waited for."""
    part = state.workers[number].parts[partition]
    pending = any(p == partition for txn in state.txns for p, _ in txn.offsets)
    early = () if rules.ends_after_stable else _captured(state, partition, rules)
    if early and not part.ends:
        yield Edge(
            ("2: ends", number, partition), _to(state, number, partition, part._replace(ends=early)), fault=False
        )
    elif not pending or not rules.stable_fetch:
        after = part._replace(group=state.offsets[partition], stage=LEASE if part.ends else ENDS)
        yield Edge(
            ("1: stable offset", number, partition, after.group), _to(state, number, partition, after), fault=False
        )
    else:
        yield from _settle(state, number, partition)


def _captured(state: State, partition: int, rules: Rules) -> tuple[int, ...]:
    logs = state.logs[3 * partition : 3 * partition + 3]
    return tuple(len(log) if rules.true_ends else broker.stable_end(log) for log in logs)


def _ends(state: State, number: int, partition: int, rules: Rules) -> Edges:
    """2: the read_uncommitted ends of the three logs."""
    ends = _captured(state, partition, rules)
    part = state.workers[number].parts[partition]._replace(ends=ends, stage=LEASE)
    yield Edge(("2: ends", number, partition, ends), _to(state, number, partition, part), fault=False)


def _seen(state: State, partition: int, log: int, end: int) -> bool:
    """Whether readers see up to a captured end."""
    return broker.stable_end(state.logs[3 * partition + log]) >= end


def _lease(state: State, number: int, partition: int, rules: Rules) -> Edges:
    """3: wait until readers see up to the ends; 4: read the lease."""
    part = state.workers[number].parts[partition]
    if rules.barrier and not all(_seen(state, partition, log, part.ends[log]) for log in range(3)):
        yield from _settle(state, number, partition)
        return
    if rules.position and not _seen(state, partition, LEASES, part.ends[LEASES]):
        yield from _settle(state, number, partition)
        return
    lease = _last_lease(state, partition, part.ends[LEASES])
    epoch = max(part.seen, lease.epoch if lease else 0) + 1
    applied = max(part.applied, lease.applied if lease else 0)
    stage = CLAIM if rules.claim and rules.claim_alone else RESTORE
    after = part._replace(epoch=epoch, applied=applied, tail=lease.tail if lease else 0, stage=stage)
    yield Edge(("3, 4: lease", number, partition, lease), _to(state, number, partition, after), fault=False)


def _last_lease(state: State, partition: int, end: int) -> Lease | None:
    log = state.logs[3 * partition + LEASES]
    seen = [record for record in log[: min(end, broker.stable_end(log))] if record.tid == COMMITTED_RECORD]
    return seen[-1] if seen else None


def _settle(state: State, number: int, partition: int) -> Edges:
    """1 or 3 takes long: initialise under the ids that the last lease names, and a pending one."""
    log = state.logs[3 * partition + LEASES]
    visible = _last_lease(state, partition, len(log))
    owners = {record.owner for record in log if record.tid >= 0} | ({visible.owner} if visible else set())
    for tid in sorted(owners - {broker.tid_of(number, state.workers[number])}):
        txn = broker.txn_of(state, tid)
        if txn is not None and txn.status in (OPEN, ENDING):
            holder = state.workers[tid // IDS]
            live = holder.alive and holder.made == tid % IDS
            after = broker.spend(state, "settle") if live else state
            if after is not None:
                yield Edge(("settles", number, tid), broker.initialise(after, tid), fault=bool(live))


def _claim(state: State, number: int, partition: int, rules: Rules) -> Edges:
    """5: a claim of its own; the group's offset goes with it as the fence, and stays what it was."""
    worker = state.workers[number]
    if worker.sending or worker.following or worker.distrusted or worker.meta != FRESH or draining(worker):
        return
    part = worker.parts[partition]
    offset = max(part.group, 0)
    work = Work(partition, (), (), (part.epoch, part.applied, part.tail), offset, part.epoch)
    sending = Sending(CLAIMING, FRESH, 0, 0, BUILDING, (work,))
    label = ("5: claims", number, partition, part.epoch)
    yield Edge(label, broker.put(state, number, worker._replace(sending=sending)), fault=False)


def draining(worker: Worker) -> bool:
    """Whether it is inside the revoke callback, which holds the turn lock and the poll."""
    return any(part.stage in (DRAINING, RELEASED) for part in worker.parts)


def _restore(state: State, number: int, partition: int, rules: Rules) -> Edges:
    """6: checkpoints, then events from the tail on, up to the ends; 7, 8: open."""
    part = state.workers[number].parts[partition]
    ends = part.ends
    if rules.position and not all(_seen(state, partition, log, ends[log]) for log in (EVENTS, CHECKPOINTS)):
        yield from _settle(state, number, partition)
        return
    seqs = [0] * rules.runs_count
    epoch, applied, uncovered = 0, part.applied, -1
    log = state.logs[3 * partition + CHECKPOINTS]
    for checkpoint in log[: min(ends[CHECKPOINTS], broker.stable_end(log))]:
        if checkpoint.tid == COMMITTED_RECORD:
            seqs[checkpoint.run], epoch = checkpoint.seq, max(epoch, checkpoint.epoch)
    log = state.logs[3 * partition + EVENTS]
    for at, event in enumerate(log[: min(ends[EVENTS], broker.stable_end(log))]):
        if event.tid == COMMITTED_RECORD and at >= part.tail:
            epoch = max(epoch, event.epoch)
            if rules.applied_from_events:
                applied = max(applied, event.command + 1)
            if event.seq > seqs[event.run]:
                seqs[event.run] = event.seq
                uncovered = at if uncovered < 0 else uncovered
    if epoch >= part.epoch and rules.epoch_check:
        again = Part(part.owns, ENDS, group=part.group, seen=epoch, applied=applied)
        yield Edge(
            ("6: its leases were lost", number, partition, epoch), _to(state, number, partition, again), fault=False
        )
        return
    if not rules.forward_reset:
        applied = max(applied, part.group)
    if not rules.start_applied:
        applied = max(part.group, 0)
    after = Part(
        part.owns,
        RUNNING,
        epoch=part.epoch,
        applied=applied,
        seqs=tuple(seqs),
        uncovered=uncovered,
        end=ends[EVENTS],
        claimed=int(rules.claim_alone),
    )
    label = ("6-8: restored", number, partition, tuple(seqs), applied)
    yield Edge(label, _to(state, number, partition, after), fault=False)


# -- polling, revoked, lost --------------------------------------------------------------------------------------


def poll(state: State, number: int, rules: Rules) -> Edges:
    """A poll follows the group: what was lost is forgotten, what is new is begun, the metadata is taken."""
    worker = state.workers[number]
    if worker.meta == FRESH or draining(worker):
        return
    joins = worker.meta in (UNJOINED, GONE)
    for partition, part in enumerate(worker.parts):
        held = part.stage not in (NONE, KEPT)
        if held and part.owns != 1:
            worker = broker.forget(worker, partition, part.owns, keep=not rules.forget_when_lost)
    free = broker.unowned(state) if joins else []
    for partition in free:
        worker = broker.put_part(worker, partition, worker.parts[partition]._replace(owns=2))
    for partition, part in enumerate(worker.parts):
        if part.owns == 2:
            begun = part._replace(owns=1, stage=RUNNING) if part.stage == KEPT else Part(1, STABLE)
            worker = broker.put_part(worker, partition, begun)
    if free:
        state = broker.rebalance(state)
    after = broker.put(state, number, worker._replace(meta=FRESH))
    yield Edge(("polls", number, "joins" if joins else ""), after, fault=False)


def revoke(state: State, number: int, rules: Rules) -> Edges:
    """The group takes a partition back: settle what is under way, write the lease as released, then give it away."""
    worker = state.workers[number]
    if worker.meta in (FRESH, STALE):
        others = [n for n in broker.members(state) if n != number]
        for partition, part in enumerate(worker.parts):
            if part.stage in (DRAINING, RELEASED) and worker.meta in (FRESH, STALE):
                yield from _give(state, number, partition, others, rules)
    if worker.meta != FRESH:
        return
    for partition, part in enumerate(worker.parts):
        if part.stage == DRAINING and not worker.sending and not worker.distrusted:
            yield _release(state, number, partition)
        if part.stage not in (NONE, KEPT, DRAINING, RELEASED) and part.owns == 1 and not draining(worker):
            others = [n for n in broker.members(state) if n != number]
            after = spend(state) if others else None
            if after is None:
                continue
            if part.stage == RUNNING:
                left = broker.put_part(worker, partition, part._replace(stage=DRAINING))._replace(following=())
                yield Edge(("is to give up", number, partition), broker.put(after, number, left), fault=True)
            else:
                yield from (e._replace(fault=True) for e in _give(after, number, partition, others, rules))


def spend(state: State) -> State | None:
    return broker.spend(state, "move")


def _give(state: State, number: int, partition: int, others: list[int], rules: Rules) -> Edges:
    """Give it away, also where the deadline has passed with a commit still under way."""
    for other in others:
        worker = broker.forget(state.workers[number], partition, 0, keep=False)
        part = state.workers[number].parts[partition]
        if not rules.forget_when_revoked and part.stage in (DRAINING, RELEASED):
            worker = broker.put_part(worker, partition, part._replace(owns=0, stage=KEPT))
        after = broker.assign(broker.put(state, number, worker), partition, other)
        yield Edge(("gives up", number, partition, other), broker.rebalance(after), fault=False)
    if not others:
        part = state.workers[number].parts[partition]
        worker = broker.forget(state.workers[number], partition, 2)
        del part
        yield Edge(
            ("gets it back", number, partition), broker.rebalance(broker.put(state, number, worker)), fault=False
        )


def _release(state: State, number: int, partition: int) -> Edge[State]:
    worker = state.workers[number]
    part = worker.parts[partition]
    work = Work(partition, (), (), (part.epoch, part.applied, tail_of(part)), part.applied, part.epoch)
    sending = Sending(RELEASE, FRESH, 0, 0, BUILDING, (work,))
    return Edge(
        ("releases", number, partition), broker.put(state, number, worker._replace(sending=sending)), fault=False
    )


def tail_of(part: Part) -> int:
    """Every event below is covered by a committed checkpoint."""
    return part.uncovered if part.uncovered >= 0 else part.end
