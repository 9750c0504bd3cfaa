"""Turns and their commits, as in section 4 of the design; the numbers are its steps."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import broker
from tests.model.acquire import draining, tail_of
from tests.model.explore import Edge
from tests.model.rules import Rules
from tests.model.state import (
    ABORTED,
    BUILDING,
    CLAIM,
    CLAIMING,
    DRAINING,
    ENDING,
    FRESH,
    GONE,
    OPEN,
    RELEASE,
    RELEASED,
    RESTORE,
    RUNNING,
    STABLE,
    STALE,
    TURN,
    UNJOINED,
    WAITING,
    Part,
    Sending,
    State,
    Work,
    Worker,
)

Edges = Iterator[Edge[State]]


# -- 1, 2: take and decide ---------------------------------------------------------------------------------------


def decide(state: State, number: int, rules: Rules) -> Edges:
    """1, 2: take commands that have arrived and decide for them; or sweep."""
    worker = state.workers[number]
    if worker.sending or worker.following or worker.meta not in (FRESH, GONE, STALE) or draining(worker):
        return
    if worker.distrusted:
        yield from _trust(state, number, rules)
        return
    if worker.meta != FRESH and rules.snapshot_of_poll and rules.joined_metadata and rules.generation:
        return
    ready = [p for p, part in enumerate(worker.parts) if part.stage == RUNNING]
    works = {p: _work(worker.parts[p], p, worker.parts[p].applied, rules) for p in ready}
    choices = [(p,) for p in ready if works[p]] + ([tuple(ready)] if len(ready) > 1 and all(works.values()) else [])
    for choice in choices:
        for covered in (False, True) if rules.checkpoints else (False,):
            turn = [works[p] for p in choice]
            if covered:
                turn = [w._replace(checkpoints=((w.events[0][0], w.events[0][1]),)) for w in turn]
            sending = Sending(TURN, worker.meta, 0, 0, BUILDING, tuple(turn))
            label = (
                "1, 2: takes",
                number,
                tuple((w.partition, w.events) for w in turn),
                "checkpoint" if covered else "",
            )
            yield Edge(label, broker.put(state, number, worker._replace(sending=sending)), fault=False)
    for p in ready:
        after = broker.spend(state, "sweep")
        if after is None:
            break
        part = worker.parts[p]
        checkpoints = tuple((run, seq) for run, seq in enumerate(part.seqs) if seq) if part.uncovered >= 0 else ()
        lease = (part.epoch, part.applied, tail_of(part))
        work = Work(p, (), checkpoints, lease, part.applied, part.epoch)
        sending = Sending(TURN, worker.meta, 0, 0, BUILDING, (work,))
        after = broker.put(after, number, worker._replace(sending=sending))
        yield Edge(("sweeps", number, p, checkpoints, lease), after, fault=True)


def _work(part: Part, partition: int, applied: int, rules: Rules) -> Work | None:
    if applied >= len(rules.runs):
        return None
    run = rules.runs[applied]
    lease = () if part.claimed else (part.epoch, part.applied, part.tail)
    return Work(partition, ((run, part.seqs[run] + 1, applied),), (), lease, applied + 1, part.epoch)


def follow(state: State, number: int, rules: Rules) -> Edges:
    """While a turn commits, the next decides for a run that it does not touch (decision 0010)."""
    worker, sending = state.workers[number], state.workers[number].sending
    if not rules.overlap or not sending or sending.kind != TURN or worker.following or draining(worker):
        return
    busy = {(w.partition, event[0]) for w in sending.works for event in w.events}
    applied = {w.partition: w.offset for w in sending.works}
    for p, part in enumerate(worker.parts):
        if part.stage != RUNNING:
            continue
        first = applied.get(p, part.applied)
        # Without the rule of the prefix, a command overtakes the one before it, which is held because of its run.
        for command in (first,) if rules.prefix else (first, first + 1):
            work = _work(part, p, command, rules)
            if work is None or (rules.one_run and (p, work.events[0][0]) in busy):
                continue
            following = Sending(TURN, FRESH, 0, 0, BUILDING, (work,))
            after = broker.put(state, number, worker._replace(following=following))
            yield Edge(("2: decides meanwhile", number, p, work.events), after, fault=False)


# -- 3: the transaction ------------------------------------------------------------------------------------------


def commit(state: State, number: int, rules: Rules) -> Edges:
    """3: produce, send the offsets, end; each may meet trouble."""
    worker, sending = state.workers[number], state.workers[number].sending
    if not sending:
        return
    if sending.phase == BUILDING:
        if worker.fenced and (not sending.produced or not sending.fenced):
            yield Edge(("is fenced", number), _distrust(state, number, rules, doubt=False), fault=False)
            return
        after = broker.spend(state, "abort")
        if after is not None:
            yield Edge(("3: aborts", number), _abort(after, number, rules), fault=True)
        if not sending.produced:
            yield from _produce(state, number, rules)
        if not sending.fenced and (sending.produced or not rules.records_first):
            yield from _fence(state, number, rules)
        if sending.produced and (sending.fenced or not rules.offsets):
            after = broker.end(state, broker.tid_of(number, worker), ENDING)
            after = broker.put(after, number, worker._replace(sending=sending._replace(phase=WAITING)))
            yield Edge(("3: ends", number), after, fault=False)
    elif sending.phase == WAITING:
        yield from _wait(state, number, rules)
    else:
        yield Edge(("4: adopts", number), _landed(state, number, rules), fault=False)
        after = broker.spend(state, "doubt")
        if after is not None:
            yield Edge(("the answer is lost", number), _distrust(after, number, rules, doubt=True), fault=True)


def _is_free(state: State, number: int) -> bool:
    """Whether the last transaction of the id is complete; until then the coordinator takes no other."""
    txn = broker.txn_of(state, broker.tid_of(number, state.workers[number]))
    return txn is None or txn.status in (OPEN, ENDING)


def _produce(state: State, number: int, rules: Rules) -> Edges:
    worker, sending = state.workers[number], state.workers[number].sending
    if not _is_free(state, number):
        return
    tid = broker.tid_of(number, worker)
    after, works = broker.produce(state, tid, sending.works)
    if not rules.effects_inside:
        sent = tuple(event[2] for work in works for event in work.events)
        after = after._replace(effects=tuple(sorted(after.effects + sent)))
    worker = worker._replace(sending=sending._replace(produced=1, works=works))
    if not rules.adopt_after_commit:
        worker = _adopted(worker, works)
    elif not rules.tail_after_commit:
        for work in works:
            if work.checkpoints and work.live:
                worker = broker.put_part(worker, work.partition, worker.parts[work.partition]._replace(uncovered=-1))
    yield Edge(("3: produces", number), broker.put(after, number, worker), fault=False)


def _fence(state: State, number: int, rules: Rules) -> Edges:
    """The offsets with the group's metadata: refused unless it is of a member in the present generation."""
    worker, sending = state.workers[number], state.workers[number].sending
    if not _is_free(state, number) or not rules.offsets:
        return
    meta = sending.meta
    if not rules.snapshot_of_poll and worker.meta == FRESH:
        meta = FRESH
    if not rules.joined_metadata and worker.meta == GONE:
        meta = UNJOINED
    if meta in (FRESH, UNJOINED) or not rules.generation:
        named = sending.works if rules.offsets_of_each else sending.works[:1]
        offsets = tuple((work.partition, work.offset) for work in named)
        after = broker.hold_offsets(state, broker.tid_of(number, worker), offsets)
        worker = worker._replace(sending=sending._replace(fenced=1, meta=FRESH))
        yield Edge(("3: sends offsets", number, offsets), broker.put(after, number, worker), fault=False)
    else:
        yield Edge(("3: offsets are refused", number), _abort(state, number, rules), fault=False)


def _wait(state: State, number: int, rules: Rules) -> Edges:
    worker = state.workers[number]
    if worker.fenced:
        yield Edge(("the end is refused", number), _distrust(state, number, rules, doubt=True), fault=False)
        return
    txn = broker.txn_of(state, broker.tid_of(number, worker))
    if txn is not None and txn.status == ENDING:
        after = broker.spend(state, "doubt")
        if after is not None:
            yield Edge(("the end is in doubt", number), _distrust(after, number, rules, doubt=True), fault=True)


# -- 4: adopt ----------------------------------------------------------------------------------------------------


def _adopted(worker: Worker, works: tuple[Work, ...]) -> Worker:
    for work in works:
        part = worker.parts[work.partition]
        if not work.live or part.stage not in (RUNNING, DRAINING):
            continue
        seqs, uncovered, end = list(part.seqs), part.uncovered, part.end
        for run, seq, _ in work.events:
            seqs[run], end = seq, work.at + 1
            uncovered = work.at if uncovered < 0 else uncovered
        if work.checkpoints:
            covered = dict(work.checkpoints)
            if all(covered.get(run, 0) >= seq for run, seq in enumerate(seqs)):
                uncovered = -1
        part = part._replace(seqs=tuple(seqs), uncovered=uncovered, end=end, applied=work.offset, claimed=1)
        worker = broker.put_part(worker, work.partition, part)
    return worker


def _landed(state: State, number: int, rules: Rules) -> State:
    """4: only now the states count; the turn decided meanwhile is sent."""
    worker, sending = state.workers[number], state.workers[number].sending
    for work in sending.works:
        part = worker.parts[work.partition]
        if not work.live:
            continue
        if sending.kind == CLAIMING and part.stage == CLAIM:
            worker = broker.put_part(worker, work.partition, part._replace(stage=RESTORE))
        elif sending.kind == RELEASE and part.stage == DRAINING:
            worker = broker.put_part(
                worker, work.partition, Part(part.owns, RELEASED, applied=part.applied, seqs=part.seqs)
            )
    if sending.kind == TURN and rules.adopt_after_commit:
        worker = _adopted(worker, sending.works)
    return broker.put(state, number, _next(worker, rules))


def _next(worker: Worker, rules: Rules) -> Worker:
    """What was decided meanwhile is sent with the newest snapshot, if all of it is still owned."""
    following = worker.following
    if following and (worker.meta == FRESH or not rules.generation):
        return worker._replace(sending=following, following=())
    return worker._replace(sending=(), following=())


# -- trouble -----------------------------------------------------------------------------------------------------


def _abort(state: State, number: int, rules: Rules) -> State:
    """Nothing was written: drop the decisions; the committed states are as they were."""
    worker, sending = state.workers[number], state.workers[number].sending
    state = broker.end(state, broker.tid_of(number, worker), ABORTED)
    if not rules.abort_drops and sending.kind == TURN:
        worker = _adopted(worker, sending.works)
    for work in sending.works:
        part = worker.parts[work.partition]
        if work.live and part.stage == CLAIM:
            worker = broker.put_part(worker, work.partition, Part(part.owns, STABLE))
        elif work.live and sending.kind == RELEASE and part.stage == DRAINING:
            worker = broker.put_part(worker, work.partition, part._replace(stage=RELEASED))
    if not rules.second_falls and worker.following:
        return broker.put(state, number, _next(worker, rules))
    return broker.put(state, number, worker._replace(sending=(), following=()))


def _distrust(state: State, number: int, rules: Rules, *, doubt: bool) -> State:
    """Fenced or in doubt: drop the producer and the memory of its partitions, and acquire them anew."""
    worker, sending = state.workers[number], state.workers[number].sending
    txn = broker.txn_of(state, broker.tid_of(number, worker))
    keep = (doubt and not (rules.doubt_is_no_failure and rules.doubt_is_no_success)) or (
        not doubt and not rules.fence_forgets
    )
    if doubt and not rules.doubt_is_no_success:
        worker = _adopted(worker, sending.works)
    claimed = {work.partition for work in sending.works if work.live}
    parts = list(worker.parts)
    for partition, part in enumerate(worker.parts):
        begins_anew = (part.stage == RUNNING and not keep) or (part.stage == CLAIM and partition in claimed)
        if begins_anew:
            parts[partition] = Part(part.owns, STABLE)
        elif part.stage == DRAINING:
            parts[partition] = part._replace(stage=RELEASED)
    worker = worker._replace(sending=(), following=(), parts=tuple(parts), distrusted=1)
    if doubt and not rules.fresh_producer and not worker.fenced:
        # The producer goes on; what it has asked for may still arrive.
        late = int(txn is not None and txn.status == ENDING)
        state = broker.end(state, broker.tid_of(number, worker), ABORTED)
        worker = worker._replace(distrusted=0, late=late)
    return broker.put(state, number, worker)


def _trust(state: State, number: int, rules: Rules) -> Edges:
    """Initialise the same id, which settles what it left open; then go on with a new one, and claim again."""
    worker = state.workers[number]
    tid = broker.tid_of(number, worker)
    txn = broker.txn_of(state, tid)
    if rules.same_id and txn is not None:
        if txn.status in (OPEN, ENDING):
            after = broker.put(broker.end(state, tid, ABORTED), number, worker._replace(fenced=1))
            yield Edge(("settles its own id", number), after, fault=False)
        return  # until all its markers are there
    keep = not (rules.doubt_is_no_failure and rules.doubt_is_no_success and rules.fence_forgets)
    parts = tuple(Part(p.owns, STABLE) if p.stage == RUNNING and not keep else p for p in worker.parts)
    fresh = worker._replace(made=worker.made + 1, fenced=0, distrusted=0, late=0, parts=parts)
    yield Edge(("makes a new producer", number), broker.put(state, number, fresh), fault=False)
