"""What must hold after any history of the simulator: `check` tells what does not, in clear words.

The rules share with the engine the formats of records, `evolve`, and the replay of journals. They read the topics
through the port of the log, and know besides what clients have sent and what tasks have done outside.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from streams.authoring.app import AppDefinitions
from streams.kernel import bodies as ev
from streams.kernel.driver import Driver
from streams.kernel.ops import Group, Op
from streams.kernel.run import Run, is_terminal, status_of, stub_of
from streams.runtime.partition import Hot, Partition
from streams.runtime.worker import Worker
from streams.testing.sim.history import History, Judged, read_history, remember
from streams.testing.sim.model import JUNK, Outcome
from streams.testing.sim.model_served import judge
from streams.testing.sim.rules_effects import check_effects
from streams.testing.sim.rules_fold import Folds, replayed
from streams.testing.sim.rules_log import check_log, is_sent_back
from streams.testing.sim.rules_outside import check_outside
from streams.testing.sim.rules_requests import check_requests

__all__ = ["check", "check_lives", "remember"]


async def check(world: Judged) -> list[str]:
    """All invariants, at the end of a history: the faults are off, and nobody has anything left to do."""
    history = await read_history(world)
    folds = Folds(history, world)
    wrong = [*history.wrong, *check_log(history, world), *folds.check()]
    wrong += check_outside(history, folds, world)
    wrong += _check_ends(history, folds, world)
    wrong += check_effects(history, world)
    wrong += check_requests(history)
    for worker in world.workers:
        wrong += _check_memory(history, folds, worker)
        wrong += check_lives(worker)
    return wrong


# -- ends --------------------------------------------------------------------------------------------------------


def _check_ends(history: History, folds: Folds, world: Judged) -> Iterator[str]:
    """Every run that was started, or whose start was accepted, has come to the end that the model predicts."""
    wanted = {sent.run_id for sent in world.sent if sent.type == "start" and world.plans[sent.run_id].kind != JUNK}
    early, parked = _told(history)
    effects = defaultdict(list)
    for of_partition in history.effects:
        for record, message in of_partition:
            if message.attempt or is_sent_back(record):
                continue  # requests are told apart from effects by what they give
            effects[message.run_id].append((message.effect, message.idempotency_key, json.loads(message.payload)))
    ended = {run_id: (run, folds.bodies[run_id]) for run_id, run in folds.runs.items()}
    ended = folds.forgotten | {run_id: entry for run_id, entry in ended.items() if entry[0].workflow}
    for run_id in sorted(wanted | ended.keys()):
        run, body = ended.get(run_id, (None, None))
        if run_id not in world.plans or world.plans[run_id].kind == JUNK:
            yield f"run {run_id} was started, and nobody has asked for it"
        elif run is None or body is None:
            yield f"run {run_id} was accepted and never started"
        elif not is_terminal(run) and run.blocked is None:
            waiting = ", ".join(f"{op.id} {op.name} {op.phase}" for op in run.ops.values())
            yield f"run {run_id} ({status_of(run)}, seq {run.seq}) has not come to its end: it waits for {waiting}"
        else:
            outcome = Outcome(
                status_of(run).value,
                _value(run, body),
                tuple(effects[run_id]),
                run_id in early,
                run_id in parked,
            )
            yield from (f"run {run_id}: {complaint}" for complaint in judge(world.plans[run_id], outcome))
    for run_id, run in folds.runs.items():
        if not run.workflow and run_id in world.plans and not is_terminal(run) and run.ops:
            yield f"run {run_id} was never started and has ops"


def _told(history: History) -> tuple[set[str], set[str]]:
    """Runs that were cancelled before their start, and runs of which an op was parked."""
    asked, early, parked = set(), set(), set()
    for events in history.events:
        for _, event in events:
            if isinstance(event.body, ev.CancelRequested):
                asked.add(event.run_id)
            elif isinstance(event.body, ev.RunStarted) and event.run_id in asked:
                early.add(event.run_id)
            elif isinstance(event.body, ev.OpParked):
                parked.add(event.run_id)
    return early, parked


def _value(run: Run, body: ev.Body) -> object:
    if run.blocked is not None:
        return run.blocked.code
    if isinstance(body, ev.RunCompleted):
        return json.loads(body.result)
    return body.error.code if isinstance(body, ev.RunFailed) else None


# -- memory ------------------------------------------------------------------------------------------------------


def _check_memory(history: History, folds: Folds, worker: Worker) -> Iterator[str]:
    """What a worker holds of the partitions that it serves is the fold, with the first events that are not covered."""
    if worker.turn_lock.locked():
        return
    for partition in worker.owner.partitions.values():
        if not partition.running:
            continue
        name = f"worker {worker.engine.owner}, partition {partition.number}"
        ids = {event.run_id for _, event in history.events[partition.number] if event.seq is not None}
        for run_id in sorted(ids & set(folds.runs) | set(partition.runs)):
            hot, run = partition.runs.get(run_id), folds.runs.get(run_id)
            if hot is None or run is None:
                yield f"{name}: run {run_id} is {'not ' if hot is None else ''}in memory, against the log"
            else:
                yield from (f"{name}, run {run_id}: {what}" for what in _compare(hot, run, folds.first.get(run_id)))
        yield from _check_places(name, history, partition)


def _compare(hot: Hot, run: Run, first: int | None) -> Iterator[str]:
    if hot.damaged is not None:
        yield f"it is taken for damaged: {hot.damaged}"
    elif hot.run not in (run, stub_of(run) if is_terminal(run) else run):
        fields = [name for name in Run._fields if getattr(hot.run, name) != getattr(run, name)]
        yield f"memory is not the fold: {', '.join(fields)} differ"
    if first is not None and (hot.first_offset is None or hot.first_offset > first):
        yield f"the event at offset {first} is in no checkpoint, and memory takes {hot.first_offset} for the first one"


def _check_places(name: str, history: History, partition: Partition) -> Iterator[str]:
    events = history.events[partition.number]
    done = max((event.offset for _, event in events if event.offset is not None), default=-1)
    if partition.applied <= done:
        yield f"{name}: command {done} has its outcome, and {partition.applied} is taken for the next one"
    known = {record.offset for record in history.commands[partition.number]}
    if any(offset < partition.applied for offset in known if offset > done):
        yield f"{name}: {partition.applied} is taken for the next command, and the last outcome is that of {done}"
    epochs = [lease.epoch for _, lease in history.leases[partition.number]]
    if epochs and partition.epoch != epochs[-1]:
        yield f"{name}: it works under epoch {partition.epoch}, and the lease has {epochs[-1]}"


def check_lives(worker: Worker) -> Iterator[str]:
    """Each live coroutine waits for what a dry replay of its journal waits for. At any time; costs a replay a run."""
    definitions = AppDefinitions(worker.engine.app)
    if worker.turn_lock.locked():
        return  # a turn under way has moved coroutines on, beyond what is committed
    for partition in worker.owner.partitions.values():
        for run_id, hot in partition.runs.items():
            if hot.live is None or not partition.running:
                continue
            driver, fault = replayed(definitions, hot.run, worker.engine.codec)
            if driver is None:
                yield f"run {run_id} is live, and its journal cannot be replayed: {fault}"
                continue
            mine, other = _standing(hot.live), _standing(driver)
            if mine != other:
                yield f"run {run_id} is live and stands at {mine}, and the replay of its journal at {other}"
            driver.close()


def _standing(driver: Driver) -> list[object]:
    """Where each branch stands and which leaves have settled: two drivers that agree will issue the same."""
    standing: list[object] = [
        (branch.id, branch.done, branch.counter, branch.draws, branch.asked, _name(branch.waiting))
        for branch in driver._branches  # noqa: SLF001 - the cache itself is what is looked at
    ]
    settled = {id_: leaf.done for id_, leaf in driver._leaves.items()}  # noqa: SLF001
    return [*standing, settled]


def _name(op: Op[Any] | None) -> object:
    if isinstance(op, Group):
        return [_name(child) for child in op.children]
    return None if op is None else (op.id, op.done)
