"""The faults of a seed: a numbered list that is drawn before the history begins, and what of it has struck.

What is drawn does not depend on what happens. So a fault keeps its number when others are left out, and a story can be
told with as few of them as it takes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from streams.runtime.crash import LOG_POINTS, POINTS

__all__ = [
    "CONSEQUENCES",
    "EVICTED",
    "EXPIRED",
    "KINDS",
    "LEFT_OPEN",
    "OF_SUBSCRIBERS",
    "STAGES",
    "SUBSCRIBER",
    "ZOMBIE",
    "Fault",
    "Faults",
    "draw_faults",
    "faults_of",
]

STAGES = ("begun", "written", "fenced", "ended")
"""Where a commit can be interrupted: nothing is sent, one half, both halves, or only the answer is missing."""


ZOMBIE = "a frozen worker comes back after others were given its partitions"
LEFT_OPEN = "a killed worker leaves a transaction open"
EVICTED = "the coroutine of a run was evicted"
EXPIRED = "a run was forgotten long after its end"
CONSEQUENCES = (ZOMBIE, LEFT_OPEN, EVICTED, EXPIRED)
"""What is not drawn but follows, and is counted as well."""


SUBSCRIBER = "subscriber: "
"""How the kinds begin that strike subscribers alone."""
_OF_EFFECTS = "effect."
_POINTS = sorted(point for point in POINTS - LOG_POINTS if not point.startswith(_OF_EFFECTS))
"""Those of the runtime: the log has stages of its own here."""
_EFFECT_POINTS = sorted(point for point in POINTS if point.startswith(_OF_EFFECTS))
_CALLS = ("before", "after")


class Fault(NamedTuple):
    """Something that goes wrong at a time, or at the `nth` occasion of its kind from then on."""

    number: int
    kind: str
    at: float
    slot: int
    """The worker that it is for, by its place in the cluster."""
    nth: int
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        """One line of it."""
        more = f" ({self.detail})" if self.detail else ""
        return f"#{self.number} {self.kind}{more}"

    @property
    def what(self) -> str:
        """What it does, to whatever kind of process."""
        return self.kind.removeprefix(SUBSCRIBER)


class _Kind(NamedTuple):
    weight: int
    nth: int
    seconds: tuple[float, ...]
    details: Callable[[random.Random], str] = lambda _: ""


def _stage(rng: random.Random) -> str:
    return rng.choice(STAGES)


def _point(rng: random.Random) -> str:
    return rng.choice(_POINTS)


KINDS: dict[str, _Kind] = {
    # crashes
    "kill at a random instant": _Kind(4, 1, (0.1, 0.5, 3.0)),
    "kill at an operation of the log": _Kind(5, 40, (0.1, 0.5, 3.0)),
    "kill at a crash point": _Kind(8, 3, (0.1, 0.5, 3.0), _point),
    "kill in a commit": _Kind(6, 8, (0.1, 0.5, 3.0), _stage),
    "graceful stop": _Kind(4, 1, (0.0, 0.5, 2.0)),
    # processes that stand still
    "freeze at a random instant": _Kind(3, 1, (0.3, 1.0, 3.0, 6.0)),
    "freeze in a commit": _Kind(5, 8, (0.3, 2.5, 3.0, 3.5, 6.0), _stage),
    # ownership
    "membership lost": _Kind(3, 1, (0.0,)),
    "needless rebalance": _Kind(3, 1, (0.0,)),
    "late poll": _Kind(2, 1, (0.3, 1.0, 3.0)),
    # commits
    "commit aborted": _Kind(3, 6, (0.0,)),
    "commit in doubt, done": _Kind(3, 6, (0.0,)),
    "commit in doubt, not done": _Kind(3, 6, (0.0,)),
    "commit in doubt, left open": _Kind(3, 6, (0.0,)),
    "producer fenced": _Kind(2, 6, (0.0,)),
    "queue full": _Kind(3, 6, (0.1, 0.4)),
    # the log and the network
    "log away": _Kind(2, 1, (0.2, 1.0, 2.5)),
    "operation refused": _Kind(3, 30, (0.0,)),
    "operation delayed": _Kind(3, 30, (0.05, 0.5, 2.0)),
    "delivery delayed": _Kind(2, 1, (0.2, 1.0)),
    "delivery duplicated": _Kind(3, 3, (0.0,)),
    "late markers": _Kind(3, 1, (0.2, 1.0, 2.5)),
    "command delayed": _Kind(2, 4, (0.1, 1.0)),
    "command duplicated": _Kind(2, 4, (0.0,)),
    "group offset moved back": _Kind(2, 1, (0.0,)),
    "group offset moved ahead": _Kind(2, 1, (0.0,)),
    "compaction": _Kind(2, 1, (0.0,)),
    # clocks
    "clock forward": _Kind(2, 1, (0.3, 5.0, 50.0)),
    "clock back": _Kind(2, 1, (0.3, 5.0, 50.0)),
}


_KILL_SECONDS = (0.1, 0.5, 3.0)
_FREEZE_SECONDS = (0.3, 1.0, 3.0, 6.0)


def _effect_point(rng: random.Random) -> str:
    return rng.choice(_EFFECT_POINTS)


def _call(rng: random.Random) -> str:
    return rng.choice(_CALLS)


_STRUCK_SUBSCRIBERS: dict[str, _Kind] = {
    # crashes
    "kill at a random instant": _Kind(3, 1, _KILL_SECONDS),
    "kill at an operation of the log": _Kind(3, 10, _KILL_SECONDS),
    "kill at a crash point": _Kind(8, 4, _KILL_SECONDS, _effect_point),
    "kill in a commit": _Kind(5, 3, _KILL_SECONDS, _stage),
    "kill at a call of the ledger": _Kind(6, 6, _KILL_SECONDS, _call),
    "kill at a call of a provider": _Kind(6, 3, _KILL_SECONDS, _call),
    "graceful stop": _Kind(4, 1, (0.0, 0.5, 2.0)),
    # processes that stand still
    "freeze at a random instant": _Kind(3, 1, _FREEZE_SECONDS),
    "freeze in a commit": _Kind(3, 3, _FREEZE_SECONDS, _stage),
    "freeze at a call of the ledger": _Kind(3, 6, _FREEZE_SECONDS, _call),
    "freeze at a call of a provider": _Kind(3, 3, _FREEZE_SECONDS, _call),
    # ownership
    "membership lost": _Kind(3, 1, (0.0,)),
    "needless rebalance": _Kind(3, 1, (0.0,)),
    "late poll": _Kind(2, 1, (0.3, 1.0, 3.0)),
    # commits
    "commit aborted": _Kind(2, 3, (0.0,)),
    "commit in doubt, done": _Kind(2, 3, (0.0,)),
    "commit in doubt, not done": _Kind(2, 3, (0.0,)),
    "commit in doubt, left open": _Kind(2, 3, (0.0,)),
    "producer fenced": _Kind(2, 3, (0.0,)),
    "queue full": _Kind(2, 3, (0.1, 0.4)),
    # the log
    "operation refused": _Kind(3, 20, (0.0,)),
    "operation delayed": _Kind(2, 20, (0.05, 0.5, 2.0)),
    "delivery duplicated": _Kind(4, 2, (0.0,)),
    "group offset moved back": _Kind(4, 1, (0.0,)),
    # the ledger, and what is outside
    "ledger away": _Kind(3, 1, (0.2, 1.0, 4.0)),
    "ledger refuses a call": _Kind(4, 6, (0.0,)),
    "answer of the ledger lost": _Kind(5, 6, (0.0,)),
    "call of the ledger delayed": _Kind(3, 6, (0.05, 0.5, 3.0)),
    "providers away": _Kind(3, 1, (0.2, 1.0, 3.0)),
}
OF_SUBSCRIBERS: dict[str, _Kind] = {f"{SUBSCRIBER}{name}": kind for name, kind in _STRUCK_SUBSCRIBERS.items()}
"""What strikes where there are subscribers."""


def draw_faults(
    rng: random.Random, *, workers: int, seconds: float, kinds: Mapping[str, _Kind] = KINDS, first: int = 1
) -> list[Fault]:
    """The faults of a history, in the order of their times, for so many processes, with numbers from `first` on."""
    names = list(kinds)
    weights = [kind.weight for kind in kinds.values()]
    chosen = rng.choices(names, weights, k=rng.randint(4, 14))
    times = sorted(rng.random() * seconds for _ in chosen)
    faults = []
    for number, (name, at) in enumerate(zip(chosen, times, strict=True), first):
        kind = kinds[name]
        slot, nth = rng.randrange(workers), rng.randint(1, kind.nth)
        faults.append(Fault(number, name, at, slot, nth, rng.choice(kind.seconds), kind.details(rng)))
    return faults


def faults_of(seed: int, *, workers: int, seconds: float, subscribers: int = 0) -> list[Fault]:
    """All faults that a seed draws, whether they will hit something or not. Subscribers come after the workers."""
    drawn = draw_faults(random.Random(f"{seed}/faults"), workers=workers, seconds=seconds)  # noqa: S311 - as a seed has it
    if not subscribers:
        return drawn
    rng = random.Random(f"{seed}/faults of subscribers")  # noqa: S311
    more = draw_faults(rng, workers=subscribers, seconds=seconds, kinds=OF_SUBSCRIBERS, first=len(drawn) + 1)
    return drawn + [fault._replace(slot=workers + fault.slot) for fault in more]


class Faults:
    """The faults of one history: which are let through, which lie in wait, and which have struck."""

    def __init__(self, drawn: Collection[Fault], only: Collection[int] | None = None) -> None:
        self.all = [fault for fault in drawn if only is None or fault.number in only]
        self.hits: Counter[str] = Counter()
        self.struck: dict[int, float] = {}
        """When each has struck first, by its number."""
        self.waiting: dict[int, list[_Waiting]] = {}

    def arm(self, fault: Fault) -> None:
        """Let it strike at its occasion."""
        self.waiting.setdefault(fault.slot, []).append(_Waiting(fault))

    def strike(self, fault: Fault, now: float) -> None:
        """Note that it has hit something."""
        self.hits[fault.kind] += 1
        self.struck.setdefault(fault.number, now)

    def due(self, slot: int, *kinds: str, detail: str = "") -> Fault | None:
        """Count an occasion; the fault that strikes at it, which lies in wait no more."""
        waiting = self.waiting.get(slot)
        if not waiting:
            return None
        for one in waiting:
            fault = one.fault
            if fault.kind in kinds and fault.detail in ("", detail):
                one.left -= 1
                if one.left <= 0:
                    waiting.remove(one)
                    if not waiting:
                        del self.waiting[slot]
                    return fault
        return None

    def calm(self) -> None:
        """Nothing strikes any more."""
        self.waiting.clear()


class _Waiting:
    __slots__ = ("fault", "left")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.left = fault.nth
