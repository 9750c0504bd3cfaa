"""Compares what happened outside the log with it: calls of tasks with their start records, payments with orders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from streams.kernel import bodies as ev
from tests.chaos.checker import Found
from tests.chaos.model import Plan
from tests.chaos.outside import Call

__all__ = ["check_outside"]


def check_outside(found: Found, calls: list[Call], payments: Mapping[str, int], plans: Mapping[str, Plan]) -> list[str]:
    """Every attempt ran once at most, after its start was durable and under its token; what completed was called."""
    return [*_check_calls(found, calls), *_check_payments(found, payments, plans)]


def _check_calls(found: Found, calls: list[Call]) -> Iterator[str]:
    keys: dict[tuple[str, str], str] = {}
    starts: dict[tuple[str, int], int] = {}
    completed: set[tuple[str, int]] = set()
    for *_, event in found.events:
        body, run_id = event.body, event.run_id
        if isinstance(body, ev.OpScheduled) and body.kind == "task":
            keys[run_id, body.op] = body.key or ""
            if body.attempt:
                starts[body.key or "", body.attempt] = event.epoch
        elif isinstance(body, ev.AttemptStarted):
            starts[keys.get((run_id, body.op), ""), body.attempt] = event.epoch
        elif isinstance(body, ev.OpCompleted):
            completed.add((keys.get((run_id, body.op), f"{run_id}, op {body.op}"), body.attempt))
    begun: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls:
        if not call.ended:
            begun[call.key, call.attempt].append(call)
    for (key, attempt), of_attempt in begun.items():
        tokens = {call.epoch for call in of_attempt}
        if (key, attempt) not in starts:
            yield f"attempt {attempt} of {key} ran and its start is in no event"
        elif tokens != {starts[key, attempt]}:
            yield f"attempt {attempt} of {key} ran under epochs {tokens}, started under {starts[key, attempt]}"
        names = Counter(call.what for call in of_attempt)
        if len({call.pid for call in of_attempt}) > 1 or any(count > 1 for count in names.values()):
            yield f"attempt {attempt} of {key} ran more than once: {of_attempt}"
    for key, attempt in sorted(completed - set(begun)):
        yield f"attempt {attempt} of {key} completed and was never called"


def _check_payments(found: Found, payments: Mapping[str, int], plans: Mapping[str, Plan]) -> Iterator[str]:
    wanted = {
        f"pay/{plan.input['order']}": plan.input["amount"]
        for plan in plans.values()
        if plan.kind == "buy" and plan.run_id in found.runs and found.runs[plan.run_id].workflow
    }
    if wanted != payments:
        odd = sorted(set(wanted.items()) ^ set(payments.items()))
        yield f"payments and orders differ: {odd[:10]}"
