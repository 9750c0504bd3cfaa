"""Runs whose effects are carried out by subscribers, or whose requests are answered, and what must become of them."""

# ruff: noqa: ARG001, ARG005 - the makers of inputs, and the judges, are all called in the same way

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from streams.testing.sim.app_served import BLIND, NOTES, PAYMENTS, ROWS, TICKETS
from streams.testing.sim.foreign import SAYINGS
from streams.testing.sim.model import CLASHING, JUDGE, Judged, Outcome, Plan, Send, answer_of, cancels, command, draw
from streams.testing.sim.model import judge as _judge
from streams.testing.sim.outside import receipt
from streams.testing.sim.services import ACTS, LOOKS, bare

__all__ = ["NOT_WANTED", "SERVED_KINDS", "draw_served", "judge"]

NOT_WANTED = "NOT_WANTED"
"""The code with which a person ends what nobody wants any more."""
_SHARE = 0.6
_UNDONE = ("raise", "later", "hang")
Drawn = tuple[Any, list[Send]]


def draw_served(rng: random.Random, number: int) -> Plan:
    """The next run of a history with subscribers. Its id tells its kind."""
    if rng.random() >= _SHARE:
        return draw(rng, number)
    kind = rng.choice(SERVED_KINDS)
    run_id = f"{kind}-{number}"
    input_, sends = _DRAW[kind](rng, run_id)
    start = command(run_id, "start", "start", workflow=kind, input=input_)
    if rng.random() < 0.15:
        sends.append(Send(rng.choice([0.0, 0.3, 2.0]), start))  # the same start again
    return Plan(run_id, kind, input_, start, tuple(sends))


def _payload(rng: random.Random, effect: str, wrong: tuple[str, ...] = ACTS) -> dict[str, Any]:
    acts = [rng.choice(wrong) for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3]))]
    looks = [rng.choice(LOOKS) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    ms = rng.choice([1, 5, 20, 60, 200])
    return {"effect": effect, "amount": rng.randint(1, 999), "ms": ms, "acts": acts, "looks": looks}


def _one(effect: str, wrong: tuple[str, ...] = ACTS) -> Callable[[random.Random, str], Drawn]:
    return lambda rng, run_id: ({"key": f"k/{run_id}", "payload": _payload(rng, effect, wrong)}, [])


def _timed(effect: str, *seconds: float) -> Callable[[random.Random, str], Drawn]:
    def drawn(rng: random.Random, run_id: str) -> Drawn:
        payload = _payload(rng, effect)
        return {"key": f"k/{run_id}", "payload": payload, "timeout": rng.choice(seconds)}, []

    return drawn


def _both(rng: random.Random, run_id: str) -> Drawn:
    row = _payload(rng, ROWS, ("raise", "later", "lost"))
    return {"key": f"k/{run_id}", "payload": _payload(rng, PAYMENTS), "row": row}, []


def _either(rng: random.Random, run_id: str) -> Drawn:
    return {"key": f"k/{run_id}", "payload": _payload(rng, PAYMENTS), "seconds": rng.choice([0.05, 0.3, 2.0])}, []


def _withdrawn(rng: random.Random, run_id: str) -> Drawn:
    return {"key": f"k/{run_id}", "payload": _payload(rng, PAYMENTS)}, cancels(rng, run_id)


def _refused(rng: random.Random, run_id: str) -> Drawn:
    payload = _payload(rng, PAYMENTS, _UNDONE)
    return {"key": f"k/{run_id}", "payload": {**payload, "acts": [*payload["acts"], "fail"]}}, []


def _quoted(rng: random.Random, run_id: str) -> Drawn:
    questions = rng.randint(1, 3)
    acts = [[rng.choice(SAYINGS) for _ in range(rng.choice([0, 1, 2, 4]))] for _ in range(questions)]
    return {"questions": questions, "acts": acts, "timeout": rng.choice([0.2, 0.7, 2.0])}, []


def _told(rng: random.Random, run_id: str) -> Drawn:
    payloads = [_payload(rng, NOTES, ("raise", "later", "lost")) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.3:
        payloads[0]["acts"] = ["lost"] * 6  # more than anybody tries
    if rng.random() < 0.2:
        payloads[-1]["acts"] = ["fail"]
    return {"key": f"k/{run_id}", "payloads": payloads}, []


def _booked(rng: random.Random, run_id: str) -> Drawn:
    return {"payloads": [_payload(rng, ROWS, ("raise", "later", "lost")) for _ in range(rng.randint(1, 5))]}, []


_DRAW: dict[str, Callable[[random.Random, str], Drawn]] = {
    "asked": _one(PAYMENTS),
    "impatient": _timed(PAYMENTS, 0.5, 1.0, 3.0),
    "ticket": _timed(TICKETS, 0.1, 0.3, 1.0, 3.0),
    "both": _both,
    "either": _either,
    "withdrawn": _withdrawn,
    "refused": _refused,
    "unseen": _one(BLIND),
    "quoted": _quoted,
    "told": _told,
    "booked": _booked,
    CLASHING: _one(PAYMENTS),
}
SERVED_KINDS = tuple(_DRAW)


# -- judging -----------------------------------------------------------------------------------------------------


def judge(plan: Plan, outcome: Outcome) -> list[str]:
    """What is wrong with the end of a run, of any kind; nothing where it is right."""
    if plan.kind in SERVED_KINDS:
        value = outcome.value
        outcome = outcome._replace(value=[bare(part) for part in value] if isinstance(value, list) else bare(value))
    return _judge(plan, outcome, _JUDGE, keys_differ=plan.kind != CLASHING)


def _receipt(plan: Plan) -> str:
    return receipt(plan.input["key"], plan.input["payload"]["amount"])


def _asked(plan: Plan, _: Outcome) -> Judged:
    return "completed", _receipt(plan), [("parcels", {"run": plan.run_id, "key": plan.input["key"]})]


def _ticket(plan: Plan, outcome: Outcome) -> Judged:
    """It may have waited in vain: its time is short, and a subscriber may be away for longer."""
    failed = ["failed", "unknown", "RETRIES_EXHAUSTED"]
    if outcome.value == failed:
        return "completed", failed, [("parcels", {"run": plan.run_id, "failed": failed[2]})]
    return "completed", ["done", _receipt(plan)], []


def _either_judged(plan: Plan, outcome: Outcome) -> Judged:
    late = isinstance(outcome.value, list) and outcome.value[0] == 1
    value = [1, None] if late else [0, _receipt(plan)]
    return "completed", value, [("parcels", {"run": plan.run_id, "winner": value[0]})]


def _unseen(plan: Plan, outcome: Outcome) -> Judged:
    """A person who is asked may also give it up."""
    if (outcome.status, outcome.value) == ("failed", NOT_WANTED):
        return "failed", NOT_WANTED, []
    return "completed", _receipt(plan), []


def _quoted_judged(plan: Plan, _: Outcome) -> Judged:
    return "completed", [answer_of(plan.run_id, number) for number in range(plan.input["questions"])], []


def _clash(plan: Plan, _: Outcome) -> Judged:
    payload = plan.input["payload"]
    return "completed", 3, [(PAYMENTS, payload), (PAYMENTS, payload), (PAYMENTS, {**payload, "amount": -1})]


_JUDGE: dict[str, Callable[[Plan, Outcome], Judged]] = {
    **JUDGE,
    "asked": _asked,
    "impatient": lambda plan, _: ("completed", _receipt(plan), []),
    "ticket": _ticket,
    "both": lambda plan, _: ("completed", [_receipt(plan), f"row row/{plan.input['key']}"], []),
    "either": _either_judged,
    "withdrawn": lambda plan, _: ("cancelled", None, []),
    "refused": lambda plan, _: ("completed", ["failed", "terminal", "REFUSED"], []),
    "unseen": _unseen,
    "quoted": _quoted_judged,
    "told": lambda plan, _: (
        "completed",
        len(plan.input["payloads"]),
        [(NOTES, payload) for payload in plan.input["payloads"]],
    ),
    "booked": lambda plan, _: (
        "completed",
        len(plan.input["payloads"]),
        [(ROWS, payload) for payload in plan.input["payloads"]],
    ),
    CLASHING: _clash,
}
