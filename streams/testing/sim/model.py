"""What the simulation starts, and what must become of it: computed from the input alone, without the engine."""

# ruff: noqa: ARG005 - the makers of inputs, and the judges, are all called in the same way

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streams.kernel import commands as cmd
from streams.testing.sim.outside import receipt
from streams.wire.records import encode_command

__all__ = [
    "CLASHING",
    "CONFLICT",
    "JUDGE",
    "JUNK",
    "KINDS",
    "Judged",
    "Outcome",
    "Plan",
    "Send",
    "answer_of",
    "cancels",
    "command",
    "draw",
    "encode",
    "judge",
]

JUNK = "junk"
"""The kind of a record that is no command, or lies in the wrong partition: it ends among the dead letters."""

CLASHING = "clash"
"""The kind of runs that use one key for several effects."""

CONFLICT = "/conflict"
"""How the id of a start with another input ends."""


class Send(NamedTuple):
    """A command to send, `delay` seconds after the start; below 0 is before it."""

    delay: float
    command: dict[str, Any]


class Plan(NamedTuple):
    """One run: its start, and further commands."""

    run_id: str
    kind: str
    input: Any
    start: dict[str, Any]
    sends: tuple[Send, ...] = ()


class Outcome(NamedTuple):
    """How a run has ended; `effects` as (effect, idempotency key, payload) in the order of the log."""

    status: str
    value: Any
    """The result, or the code of the error."""
    effects: tuple[tuple[str, str, Any], ...]
    cancelled_early: bool = False
    """It was cancelled before it was started, so its code never ran."""
    parked: bool = False
    """An op of it was parked at some time."""


def answer_of(run_id: str, number: int) -> int:
    """The answer that question `number` of the run gets."""
    return int.from_bytes(hashlib.sha256(f"{run_id}/{number}".encode()).digest()[:3], "big")


def encode(said: dict[str, Any], *, as_json: bool) -> bytes:
    """A command as plain JSON, or as the Avro that clients of the engine send."""
    if as_json:
        return json.dumps(said).encode()
    fields = {name: value for name, value in said.items() if name not in ("type", "command_id")}
    for name in ("input", "value"):
        if name in fields:
            fields[name] = json.dumps(fields[name]).encode()
    return encode_command(_REQUESTS[said["type"]](**fields), command_id=said["command_id"])


_REQUESTS: dict[str, Any] = {cls: made for made, cls in cmd.COMMAND_TYPES.items()}


# -- drawing -----------------------------------------------------------------------------------------------------


def draw(rng: random.Random, number: int) -> Plan:
    """The next run. Its id tells its kind."""
    kind = rng.choice(_DRAWN)
    if kind == "chain" and number % 2:
        kind = "piped"  # the same with other tasks: it takes nothing more from the seed
    run_id = f"{kind}-{number}"
    input_, sends = _DRAW[kind](rng, run_id)
    start = command(run_id, "start", "start", workflow=kind, input=input_)
    if rng.random() < 0.15:
        sends.append(Send(rng.choice([0.0, 0.0, 0.3, 2.0]), start))  # the same start again
    if rng.random() < 0.05:
        other = {**start, "command_id": f"{run_id}{CONFLICT}", "input": {"another": "input"}}
        sends.append(Send(rng.choice([0.5, 3.0]), other))
    if kind != JUNK and rng.random() < 0.15:
        sends.append(_nonsense(rng, run_id))
    return Plan(run_id, kind, input_, start, tuple(sends))


def command(run_id: str, id_: str, type_: str, /, **fields: Any) -> dict[str, Any]:
    """A command to a run, under an id of its own."""
    return {"type": type_, "command_id": f"{run_id}/{id_}", **fields}


def _nonsense(rng: random.Random, run_id: str) -> Send:
    """A command that may be said and changes nothing: to a wrong id, or before there is anything to answer."""
    delay = rng.choice([-0.1, 0.0, 0.2, 1.0])
    wrong = [
        command(run_id, "x0", "resume", interrupt="99", value=1),
        command(run_id, "x1", "skip", op="99"),
        command(run_id, "x2", "complete", op="g7.1", value=1),
        command(run_id, "x3", "retry", op="99"),
        command(run_id, "x4", "signal", name="unheard", value=1),
    ]
    return Send(delay, rng.choice(wrong))


Sends = list[Send]


def _ms(rng: random.Random) -> int:
    return rng.choice([1, 5, 20, 60, 60, 200, 200, 1500])


def _signals(rng: random.Random, run_id: str, count: int) -> Sends:
    """Each signal once to three times under one command id, some before the start."""
    sends: Sends = []
    for number in range(count):
        signal = command(run_id, f"s{number}", "signal", name="word", value=number * 7)
        sends += [Send(rng.choice([-0.1, 0.0, 0.2, 1.0]), signal) for _ in range(rng.choice([1, 1, 2, 3]))]
    return sends


def cancels(rng: random.Random, run_id: str) -> Sends:
    """Early, twice, or both. Never by force: the clean-up is part of what is proven."""
    cancel = command(run_id, "cancel", "cancel")
    sends: Sends = [Send(rng.choice([-0.1, 0.0, 0.1, 0.5, 2.0]), cancel)]
    if rng.random() < 0.5:
        sends.append(Send(rng.choice([0.2, 1.0]), cancel))
    if rng.random() < 0.3:
        sends.append(Send(rng.choice([0.2, 1.0]), command(run_id, "cancel-again", "cancel")))
    return sends


def _listened(rng: random.Random, run_id: str) -> tuple[Any, Sends]:
    count = rng.randint(1, 4)
    return {"count": count}, _signals(rng, run_id, count)


def _rounded(rng: random.Random, run_id: str) -> tuple[Any, Sends]:
    left = rng.randint(2, 3)
    return {"left": left, "found": []}, _signals(rng, run_id, left)


def _chained(rng: random.Random, _: str) -> tuple[Any, Sends]:
    return {"number": rng.randint(0, 99), "ms": [_ms(rng) for _ in range(rng.randint(3, 5))]}, []


def _bought(rng: random.Random, run_id: str) -> tuple[Any, Sends]:
    lost = rng.choice([0, 0, 1, 2])
    return {"order": f"o-{run_id}", "amount": rng.randint(1, 999), "ms": _ms(rng), "lost": lost}, []


_DRAW: dict[str, Callable[[random.Random, str], tuple[Any, Sends]]] = {
    "chain": _chained,
    "piped": _chained,
    "fan": lambda rng, _: ({"ms": [_ms(rng) for _ in range(rng.randint(2, 6))]}, []),
    "race": lambda rng, _: ({"ms": [rng.randint(1, 30) for _ in range(3)]}, []),
    "nap": lambda rng, _: ({"seconds": [rng.choice([0.05, 0.2, 1.0, 7.0]) for _ in range(rng.randint(1, 3))]}, []),
    "ask": lambda rng, _: ({"questions": rng.randint(1, 3)}, []),
    "ask_both": lambda rng, _: ({}, []),
    "listen": _listened,
    "rounds": _rounded,
    "stopped": lambda rng, run_id: ({"number": rng.randint(0, 99), "ms": _ms(rng)}, cancels(rng, run_id)),
    "buy": _bought,
    "spend": _bought,
    "flaky": lambda rng, _: ({}, []),
    "frail": lambda rng, _: ({"number": rng.randint(0, 99), "ms": rng.choice([5, 200, 800])}, []),
    "slow": lambda rng, _: ({"number": rng.randint(0, 99)}, []),
    "crowd": lambda rng, _: ({"width": rng.randint(3, 8), "ms": rng.choice([5, 60, 200])}, []),
    "helped": lambda rng, _: ({"ms": _ms(rng)}, []),
    "doomed": lambda rng, _: ({"how": rng.choice(["task", "code"])}, []),
    "buggy": lambda rng, _: ({"number": rng.randint(0, 99), "force": rng.random() < 0.7}, []),
    "late": lambda rng, _: ({"seconds": rng.choice([0.05, 0.3, 6.0])}, []),
    "story": lambda rng, _: ({"rounds": rng.randint(1, 2), "width": rng.randint(1, 4), "done": 0, "lines": []}, []),
    "survey": lambda rng, _: ({"number": rng.randint(0, 99), "lines": []}, []),
    JUNK: lambda rng, _: (rng.randrange(7), []),
}
KINDS = tuple(_DRAW)
_DRAWN = [kind for kind in KINDS if kind != "piped" for _ in range(1 if kind == JUNK else 2)] + [
    "buy",
    "spend",
    "chain",
    "chain",
] * 2


# -- judging -----------------------------------------------------------------------------------------------------


Judged = tuple[str, Any, list[tuple[str, Any]]]
Judge = Callable[[Plan, Outcome], Judged]


def judge(
    plan: Plan, outcome: Outcome, judges: Mapping[str, Judge] | None = None, *, keys_differ: bool = True
) -> list[str]:
    """What is wrong with the end of a run; nothing where it is right."""
    status, value, effects = (judges or JUDGE)[plan.kind](plan, outcome)
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
    if keys_differ and len(set(keys)) != len(keys):
        wrong.append(f"its effects do not differ in their idempotency keys: {keys}")
    return wrong


_EXHAUSTED = "RETRIES_EXHAUSTED"


def _exhausted(outcome: Outcome) -> bool:
    """Whether it has run out of attempts. That it has used them up is checked of each op."""
    return (outcome.status, outcome.value) == ("failed", _EXHAUSTED)


def _chain(plan: Plan, _: Outcome) -> Judged:
    run, number = plan.run_id, plan.input["number"]
    steps = range(1, len(plan.input["ms"]) + 1)
    return "completed", number + len(steps), [("mails", {"run": run, "number": number + i}) for i in steps]


def _piped(plan: Plan, outcome: Outcome) -> Judged:
    status, number, effects = _chain(plan, outcome)
    return status, 4 * number + 2, effects


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


def _rounds(plan: Plan, outcome: Outcome) -> Judged:
    left = plan.input["left"]
    heard = outcome.value["found"] if isinstance(outcome.value, dict) else []
    numbers = [i * 7 + 1 for i in range(left)]
    found = heard if sorted(heard) == numbers else numbers  # in whatever order the signals came
    return (
        "completed",
        {"left": 0, "found": found},
        [("mails", {"run": plan.run_id, "round": i}) for i in range(left, 0, -1)],
    )


def _stopped(plan: Plan, outcome: Outcome) -> Judged:
    cleaned = [("parcels", {"run": plan.run_id, "cleaned": plan.input["number"] + 1})]
    return "cancelled", None, [] if outcome.cancelled_early else cleaned


def _buy(plan: Plan, _: Outcome) -> Judged:
    found = receipt(f"pay/{plan.input['order']}", plan.input["amount"])
    return "completed", found, [("parcels", {"run": plan.run_id, "receipt": found})]


def _spend(plan: Plan, outcome: Outcome) -> Judged:
    """An operator who is asked may also give it up; nobody else may."""
    if outcome.parked and (outcome.status, outcome.value) == ("failed", "SKIPPED"):
        return "failed", "SKIPPED", []
    found = receipt(f"charge/{plan.input['order']}", plan.input["amount"])
    return "completed", found, [("parcels", {"run": plan.run_id, "receipt": found})]


def _frail(plan: Plan, outcome: Outcome) -> Judged:
    if _exhausted(outcome):
        return "failed", _EXHAUSTED, []
    number = plan.input["number"]
    return "completed", number, [("mails", {"run": plan.run_id, "number": number})]


def _crowd(plan: Plan, outcome: Outcome) -> Judged:
    return ("failed", _EXHAUSTED, []) if _exhausted(outcome) else ("completed", sum(range(plan.input["width"])), [])


def _doomed(plan: Plan, _: Outcome) -> Judged:
    code = "DOOMED" if plan.input["how"] == "code" else _EXHAUSTED
    return "failed", code, [("mails", {"run": plan.run_id, "number": 2})]


def _buggy(plan: Plan, _: Outcome) -> Judged:
    return ("cancelled", None, []) if plan.input["force"] else ("blocked", "WORKFLOW_BUG", [])


def _late(plan: Plan, _: Outcome) -> Judged:
    found = ["late", "timed out"]
    return "completed", found, [("mails", {"run": plan.run_id, "found": found})]


def _story(plan: Plan, _: Outcome) -> Judged:
    rounds, width = plan.input["rounds"], plan.input["width"]
    lines = [[f"{done}.{i}" for i in range(width)] for done in range(rounds)]
    so_far = [[line for of_round in lines[: done + 1] for line in of_round] for done in range(rounds)]
    result = {"rounds": rounds, "width": width, "done": rounds, "lines": so_far[-1]}
    return "completed", result, [("parcels", {"run": plan.run_id, "lines": found}) for found in so_far]


def _survey(plan: Plan, _: Outcome) -> Judged:
    number = plan.input["number"]
    lines = [f"begin {number}", "near", f"far {answer_of(plan.run_id, 0)}", "report"]
    return "completed", {"number": number, "lines": lines}, []


JUDGE: dict[str, Judge] = {
    "chain": _chain,
    "piped": _piped,
    "fan": _fan,
    "race": _race,
    "nap": _nap,
    "ask": _ask,
    "ask_both": _ask_both,
    "listen": _listen,
    "rounds": _rounds,
    "stopped": _stopped,
    "buy": _buy,
    "spend": _spend,
    "flaky": lambda plan, _: ("completed", 3, []),
    "frail": _frail,
    "slow": lambda plan, _: ("completed", plan.input["number"], []),
    "crowd": _crowd,
    "helped": lambda plan, _: ("completed", "2", [("mails", {"run": plan.run_id, "code": _EXHAUSTED})]),
    "doomed": _doomed,
    "buggy": _buggy,
    "late": _late,
    "story": _story,
    "survey": _survey,
}
