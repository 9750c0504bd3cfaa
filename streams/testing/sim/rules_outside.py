"""Rules between the world outside and the log: which attempts were called, when, how often, and what was paid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from streams.kernel import bodies as ev
from streams.testing.sim.history import History, Judged
from streams.testing.sim.outside import Call
from streams.testing.sim.rules_early import Start, check_early
from streams.testing.sim.rules_fold import Folds

__all__ = ["check_outside"]

_LOOK_UPS = frozenset({"find_payment"})


class _Starts:
    """What the events tell of attempts. The key of an op is what its calls are known by."""

    def __init__(self, history: History) -> None:
        self.starts: dict[tuple[str, int], Start] = {}
        self.completed: set[tuple[str, int]] = set()
        self.counts: Counter[str] = Counter()
        self.workers: dict[tuple[int, int], set[str]] = defaultdict(set)
        keys: dict[tuple[str, str], str] = {}
        for number, events in enumerate(history.events):
            for record, event in events:
                body = event.body
                if isinstance(body, ev.OpScheduled) and body.kind == "task":
                    keys[event.identity, body.op] = body.key or ""
                elif not isinstance(body, (ev.AttemptStarted, ev.OpCompleted)):
                    continue
                key = keys.get((event.identity, body.op), "")
                if isinstance(body, ev.OpCompleted):
                    if key and body.operator is None:
                        self.completed.add((key, body.attempt))
                elif body.attempt:
                    self.starts[key, body.attempt] = Start(event.epoch, number, record.timestamp)
                    self.counts[key] += 1


def check_outside(history: History, folds: Folds, world: Judged) -> Iterator[str]:
    """All of them."""
    starts = _Starts(history)
    calls: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in world.outside.calls:
        if not call.ended:
            calls[call.key, call.attempt].append(call)
    early = {place: found for place, found in calls.items() if _is_early(world, found[0])}
    yield from check_early(history, starts.starts, early)
    yield from _check_calls(starts, {place: found for place, found in calls.items() if place not in early})
    for key, attempt in sorted(starts.completed - set(calls)):
        yield f"attempt {attempt} of {key} completed and was never called"
    yield from _check_slots(world)
    yield from _check_look_ups(calls)
    yield from _check_payments(starts, folds, world)


def _check_calls(starts: _Starts, calls: dict[tuple[str, int], list[Call]]) -> Iterator[str]:
    """Each attempt ran at most once, after its start was durable, under its token, on the worker of its epoch."""
    for (key, attempt), of_attempt in calls.items():
        name = f"attempt {attempt} of {key}"
        start = starts.starts.get((key, attempt))
        if start is None:
            yield f"{name} ran and its start is in no event"
            continue
        tokens = {call.epoch for call in of_attempt}
        if tokens != {start.epoch}:
            yield f"{name} ran under epochs {sorted(tokens)}, started under {start.epoch}"
        if of_attempt[0].at // 1000 < start.timestamp:
            yield f"{name} ran {start.timestamp - of_attempt[0].at // 1000} ms before its start was written"
        if len({call.worker for call in of_attempt}) > 1 or len({call.what for call in of_attempt}) < len(of_attempt):
            yield f"{name} ran more than once: {of_attempt}"
        for call in of_attempt:
            starts.workers[start.partition, call.epoch].add(call.worker)
    for (number, epoch), workers in starts.workers.items():
        if len(workers) > 1:
            yield f"tasks of partition {number} under epoch {epoch} ran on {sorted(workers)}"


def _is_early(world: Judged, call: Call) -> bool:
    """Whether it may have begun before its start was durable: all pure tasks here are those of a pipelined workflow."""
    task = world.app.task_named(call.what)
    return task is not None and task.pure


def _check_slots(world: Judged) -> Iterator[str]:
    """A worker begins no more than it has slots for, and what a turn under way hands out at the same moment."""
    slots = {"loop": world.settings.loop_slots, "thread": world.settings.thread_slots}
    running: Counter[tuple[str, str]] = Counter()
    told: set[tuple[str, str]] = set()
    for call in world.outside.calls:
        task = world.app.task_named(call.what)
        pool = "loop" if task is None else task.pool  # a look-up is no task, and waits in the loop
        place = (call.worker, pool)
        running[place] += -1 if call.ended else 1
        if running[place] > 2 * slots[pool] and place not in told:
            told.add(place)
            yield f"{running[place]} tasks run at once on {call.worker}, which has {slots[pool]} {pool} slots"


def _check_look_ups(calls: dict[tuple[str, int], list[Call]]) -> Iterator[str]:
    """A task with a look-up looks before it does again what may have happened."""
    for (key, attempt), of_attempt in calls.items():
        whats = [call.what for call in of_attempt]
        if attempt > 1 and "pay" in whats and (whats[0] not in _LOOK_UPS):
            yield f"attempt {attempt} of {key} paid without a look whether an earlier one had"


def _check_payments(starts: _Starts, folds: Folds, world: Judged) -> Iterator[str]:
    """Each order was paid under one key, with its amount, and never more often than attempts of it were begun."""
    wanted: dict[str, int] = {}
    for run_id, one in world.plans.items():
        run = folds.runs.get(run_id) or folds.forgotten.get(run_id, (None, None))[0]
        if one.kind in ("buy", "spend") and run is not None and run.workflow:
            key = f"{'pay' if one.kind == 'buy' else 'charge'}/{one.input['order']}"
            wanted[key] = one.input["amount"]
    done = dict(world.outside.payments) | {key: amounts[0] for key, amounts in world.outside.charges.items()}
    for key, amount in done.items():
        if wanted.get(key) != amount:
            yield f"{amount} was paid under {key}, and the order is for {wanted.get(key)}"
    for key, amounts in world.outside.charges.items():
        if len(amounts) > starts.counts[key]:
            yield f"{key} was charged {len(amounts)} times, with {starts.counts[key]} attempts begun"
    for run_id, one in world.plans.items():
        body = folds.bodies.get(run_id)
        if one.kind == "buy" and isinstance(body, ev.RunCompleted) and f"pay/{one.input['order']}" not in done:
            yield f"run {run_id} has completed, and its order was never paid"
