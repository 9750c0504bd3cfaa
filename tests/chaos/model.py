"""What the chaos test starts, and what must become of it: computed from the input alone, without the engine."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from streams.kernel import commands as cmd
from streams.wire.records import encode_command
from tests.chaos.outside import receipt

__all__ = ["JUNK", "KINDS", "Outcome", "Plan", "answer_of", "draw", "encode", "judge"]

JUNK = "junk"
"""The kind of a record that is no command: it ends among the dead letters."""


class Plan(NamedTuple):
    """One run. `sends` are further commands, each with a delay in seconds after the start; below 0 is before it."""

    run_id: str
    kind: str
    input: Any
    start: dict[str, Any]
    sends: tuple[tuple[float, dict[str, Any]], ...] = ()


class Outcome(NamedTuple):
    """How a run has ended: effects as (topic's effect, idempotency key, payload) in the order of the log."""

    status: str
    value: Any
    """The result, or the code of the error."""
    effects: tuple[tuple[str, str, Any], ...]
    cancelled_early: bool = False
    """It was cancelled before it was started, so its code never ran."""


def answer_of(run_id: str, number: int) -> int:
    """The answer that question `number` of the run gets."""
    return int.from_bytes(hashlib.sha256(f"{run_id}/{number}".encode()).digest()[:3], "big")


def encode(command: dict[str, Any], *, as_json: bool) -> bytes:
    """A command as plain JSON, or as the Avro that clients of the engine send."""
    if as_json:
        return json.dumps(command).encode()
    fields = {name: value for name, value in command.items() if name not in ("type", "command_id")}
    for name in ("input", "value"):
        if name in fields:
            fields[name] = json.dumps(fields[name]).encode()
    make = {"start": cmd.Start, "resume": cmd.Resume, "signal": cmd.Signal, "cancel": cmd.Cancel}[command["type"]]
    return encode_command(make(**fields), command_id=command["command_id"])


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw(rng: random.Random, number: int) -> Plan:
    """The next run."""
    kind = rng.choice(_DRAWN)
    run_id = f"{kind}-{number}"
    input_, sends = _DRAW[kind](rng, run_id)
    start = {"type": "start", "command_id": f"{run_id}/start", "workflow": kind, "input": input_}
    if kind == "grown":
        version = input_["version"]
        start |= {"version": version} if version else {}
    if rng.random() < 0.1:
        sends.append((rng.choice([0.0, 0.0, 0.3, 2.0]), start))  # the same start again
    if rng.random() < 0.03:
        other = {**start, "command_id": f"{run_id}/conflict", "input": {"another": "input"}}
        sends.append((rng.choice([0.5, 3.0]), other))
    return Plan(run_id, kind, input_, start, tuple(sends))


Sends = list[tuple[float, dict[str, Any]]]


def _ms(rng: random.Random) -> int:
    return rng.choice([1, 5, 20, 60, 60, 200, 200, 1500])


def _signals(rng: random.Random, run_id: str, count: int) -> Sends:
    """Each signal once to three times under one command id, some before the start."""
    sends: Sends = []
    for number in range(count):
        command = {"type": "signal", "command_id": f"{run_id}/s{number}", "name": "word", "value": number * 7}
        sends += [(rng.choice([-0.1, 0.0, 0.2, 1.0]), command) for _ in range(rng.choice([1, 1, 2, 3]))]
    return sends


def _cancels(rng: random.Random, run_id: str) -> Sends:
    """Early, twice, or both. Never by force: the clean-up is part of what is proven."""
    cancel = {"type": "cancel", "command_id": f"{run_id}/cancel"}
    sends: Sends = [(rng.choice([-0.1, 0.0, 0.1, 0.5, 2.0]), cancel)]
    if rng.random() < 0.5:
        sends.append((rng.choice([0.2, 1.0]), cancel))
    if rng.random() < 0.3:
        sends.append((rng.choice([0.2, 1.0]), {"type": "cancel", "command_id": f"{run_id}/cancel-again"}))
    return sends


def _listened(rng: random.Random, run_id: str) -> tuple[Any, Sends]:
    count = rng.randint(1, 4)
    return {"count": count}, _signals(rng, run_id, count)


_DRAW: dict[str, Callable[[random.Random, str], tuple[Any, Sends]]] = {
    "chain": lambda rng, _: ({"number": rng.randint(0, 99), "ms": [_ms(rng) for _ in range(rng.randint(1, 4))]}, []),
    "fan": lambda rng, _: ({"ms": [_ms(rng) for _ in range(rng.randint(2, 6))]}, []),
    "race": lambda rng, _: ({"ms": [rng.randint(1, 30) for _ in range(3)]}, []),
    "nap": lambda rng, _: ({"seconds": [rng.choice([0.05, 0.2, 1.0]) for _ in range(rng.randint(1, 3))]}, []),
    "ask": lambda rng, _: ({"questions": rng.randint(1, 3)}, []),
    "ask_both": lambda rng, _: ({}, []),
    "listen": _listened,
    "stopped": lambda rng, run_id: ({"number": rng.randint(0, 99), "ms": _ms(rng)}, _cancels(rng, run_id)),
    "buy": lambda rng, run_id: ({"order": f"o-{run_id}", "amount": rng.randint(1, 999), "ms": _ms(rng)}, []),
    "flaky": lambda rng, _: ({}, []),
    "doomed": lambda rng, _: ({"how": rng.choice(["task", "code"])}, []),
    "late": lambda rng, _: ({"seconds": rng.choice([0.05, 0.3])}, []),
    "grown": lambda rng, _: ({"version": rng.choice([0, 1, 2])}, []),
    "story": lambda rng, _: ({"rounds": rng.randint(1, 2), "width": rng.randint(1, 4), "done": 0, "lines": []}, []),
    JUNK: lambda rng, _: (None, []),
}
KINDS = tuple(_DRAW)
_DRAWN = [kind for kind in KINDS for _ in range(1 if kind == JUNK else 6)] + ["buy"] * 6 + ["chain"] * 6


# -- judging ---------------------------------------------------------------------------------------------------------


def judge(plan: Plan, outcome: Outcome) -> list[str]:
    """What is wrong with the end of a run; nothing where it is right."""
    status, value, effects = _JUDGE[plan.kind](plan, outcome)
    wrong = []
    if outcome.status != status:
        wrong.append(f"it ended as {outcome.status} ({outcome.value!r}) instead of {status}")
    elif outcome.value != value:
        wrong.append(f"it ended with {outcome.value!r} instead of {value!r}")
    found = [(name, payload) for name, _, payload in outcome.effects]
    wrong += [f"its effect {effect!r} was not expected" for effect in found if effect not in effects]
    wrong += [f"its effect {effect!r} is missing" for effect in effects if effect not in found]
    if len(found) != len(effects) and not wrong:
        wrong.append(f"it has {len(found)} effects instead of {len(effects)}")
    keys = [key for _, key, _ in outcome.effects]
    if len(set(keys)) != len(keys):
        wrong.append(f"its effects do not differ in their idempotency keys: {keys}")
    return wrong


Judged = tuple[str, Any, list[tuple[str, Any]]]


def _chain(plan: Plan, _: Outcome) -> Judged:
    run, number = plan.run_id, plan.input["number"]
    steps = range(1, len(plan.input["ms"]) + 1)
    return "completed", number + len(steps), [("mails", {"run": run, "number": number + i}) for i in steps]


def _fan(plan: Plan, _: Outcome) -> Judged:
    found = [i + 1 if i % 2 else i * 2 for i in range(len(plan.input["ms"]))]
    return "completed", found, [("parcels", {"run": plan.run_id, "found": found})]


def _race(plan: Plan, outcome: Outcome) -> Judged:
    """Any may win, but the result and the effect must tell of one and the same."""
    won = outcome.value[0] if isinstance(outcome.value, list) and outcome.value[0] in (0, 1, 2) else 0
    return "completed", [won, (won + 1) * 10 + 1], [("parcels", {"run": plan.run_id, "winner": won})]


def _nap(plan: Plan, _: Outcome) -> Judged:
    numbers = range(len(plan.input["seconds"]))
    return "completed", [i + 1 for i in numbers], [("mails", {"run": plan.run_id, "woke": i}) for i in numbers]


def _ask(plan: Plan, _: Outcome) -> Judged:
    answers = [answer_of(plan.run_id, i) for i in range(plan.input["questions"])]
    return "completed", answers, [("parcels", {"run": plan.run_id, "answer": answer}) for answer in answers]


def _ask_both(plan: Plan, _: Outcome) -> Judged:
    answers = [answer_of(plan.run_id, i) for i in range(2)]
    return "completed", answers, [("mails", {"run": plan.run_id, "answers": answers})]


def _listen(plan: Plan, _: Outcome) -> Judged:
    heard = [i * 7 for i in range(plan.input["count"])]
    return "completed", heard, [("mails", {"run": plan.run_id, "heard": heard})]


def _stopped(plan: Plan, outcome: Outcome) -> Judged:
    cleaned = [("parcels", {"run": plan.run_id, "cleaned": plan.input["number"] + 1})]
    return "cancelled", None, [] if outcome.cancelled_early else cleaned


def _buy(plan: Plan, _: Outcome) -> Judged:
    found = receipt(f"pay/{plan.input['order']}", plan.input["amount"])
    return "completed", found, [("parcels", {"run": plan.run_id, "receipt": found})]


def _doomed(plan: Plan, _: Outcome) -> Judged:
    code = "DOOMED" if plan.input["how"] == "code" else "RETRIES_EXHAUSTED"
    return "failed", code, [("mails", {"run": plan.run_id, "number": 2})]


def _late(plan: Plan, _: Outcome) -> Judged:
    found = ["late", "timed out"]
    return "completed", found, [("mails", {"run": plan.run_id, "found": found})]


def _story(plan: Plan, _: Outcome) -> Judged:
    rounds, width = plan.input["rounds"], plan.input["width"]
    lines = [[f"{done}.{i}" for i in range(width)] for done in range(rounds)]
    so_far = [[line for of_round in lines[: done + 1] for line in of_round] for done in range(rounds)]
    result = {"rounds": rounds, "width": width, "done": rounds, "lines": so_far[-1]}
    return "completed", result, [("parcels", {"run": plan.run_id, "lines": found}) for found in so_far]


_JUDGE: dict[str, Callable[[Plan, Outcome], Judged]] = {
    "chain": _chain,
    "fan": _fan,
    "race": _race,
    "nap": _nap,
    "ask": _ask,
    "ask_both": _ask_both,
    "listen": _listen,
    "stopped": _stopped,
    "buy": _buy,
    "flaky": lambda plan, _: ("completed", 3, []),
    "doomed": _doomed,
    "late": _late,
    "grown": lambda plan, _: ("completed", f"version {plan.input['version'] or 2}", []),
    "story": _story,
}
