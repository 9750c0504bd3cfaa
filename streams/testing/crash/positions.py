"""Where a worker can die: each passage of a crash point has a number, and at the chosen ones the probe strikes."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from streams.errors import UsageError
from streams.log.memory import End, Hooks
from streams.log.port import GroupSnapshot
from streams.testing.loop import current_actor

__all__ = ["DOUBTS", "EFFECT_HANDOVER", "HANDOVER", "HANDOVERS", "Plan", "Position", "Probe", "parse_plan"]

DOUBTS: dict[str, End] = {
    "doubt.committed": "in_doubt_committed",
    "doubt.aborted": "in_doubt_aborted",
    "doubt.open": "in_doubt_open",
}
"""Instead of a death: the answer to a commit is lost, and it was committed, was not, or is still open."""

HANDOVER = "handover"
EFFECT_HANDOVER = "effect.handover"
HANDOVERS = {HANDOVER: "turn.adopted", EFFECT_HANDOVER: "effect.committed"}
"""Instead of a death: once so many turns are adopted, the worker is stopped gracefully, and another one goes on. So is
a subscriber, once it has committed so often."""

_AFTER = {after: handover for handover, after in HANDOVERS.items()}
_FORM = re.compile(r"(?P<point>[a-z_.]+(/[^:+]+)?):(?P<number>[1-9][0-9]*)")


class Position(NamedTuple):
    """The `number`-th time that a worker passes a crash point, or the `number`-th commit or turn."""

    point: str
    number: int

    def __str__(self) -> str:
        return f"{self.point}:{self.number}"

    @property
    def kills(self) -> bool:
        """Whether the worker dies there."""
        return self.point not in (*DOUBTS, *HANDOVERS)


Plan = tuple[Position, ...]
"""What happens in one execution: the second position counts from the first one on."""


def parse_plan(text: str) -> Plan:
    """A plan as the report writes it, such as `commit.after:3` or `turn.taken:2+commit.begun:1`."""
    found = [_FORM.fullmatch(part.strip()) for part in text.split("+")]
    plan = tuple(Position(match["point"], int(match["number"])) for match in found if match is not None)
    if len(plan) != len(found):
        raise UsageError(f"only={text!r}: write POINT:N as a report does, such as 'commit.after:3'; two joined by '+'")
    return plan


class Probe(Hooks):
    """Counts the passages of an execution, and strikes at those of its plan.

    It is the hook of the runtime's crash points and of the memory log at once. In the log a coroutine that waits for
    ever is a death by kill -9: what it had begun stays open, as a broker knows it of a process that has gone.
    """

    def __init__(self, plan: Plan = ()) -> None:
        self.passed: list[list[Position]] = [[]]
        """What was passed before the first strike, and after each."""
        self.commits: list[int] = [0]
        """How many commits were on their way before the first strike, and after each."""
        self.turns: list[Counter[str]] = [Counter()]
        """The same of turns that were adopted, and of commits of a subscriber, by the kind of hand-over."""
        self.strike: Callable[[Position], None] = lambda _: None
        """Called in the code of whoever is about to die; it must only schedule what is to follow."""
        self._plan = list(plan)
        self._counts: Counter[str] = Counter()

    @property
    def left(self) -> Sequence[Position]:
        """What has not been reached."""
        return self._plan

    def passing(self, point: str) -> None:
        """The hook of `streams.runtime.crash`."""
        actor = current_actor()
        if actor is not None and (not actor.alive or self._strikes(point)):
            actor.die()

    # -- the memory log ------------------------------------------------------------------------------------------

    async def before_commit(self, producer: str, snapshot: GroupSnapshot) -> None:  # noqa: ARG002 - see Hooks
        """The transaction has begun, and nothing is written."""
        await self._passing("commit.begun")

    async def between(self, producer: str) -> None:  # noqa: ARG002
        """The records are written, the offsets are not sent."""
        await self._passing("commit.produced")

    async def before_end(self, producer: str) -> None:  # noqa: ARG002
        """Everything is written; the end of the transaction is not asked for."""
        await self._passing("commit.fenced")

    def end(self, producer: str) -> End:  # noqa: ARG002
        """How a transaction ends."""
        self.commits[-1] += 1
        wanted = self._plan[0] if self._plan else None
        if wanted is None or wanted.point not in DOUBTS or wanted.number != self.commits[-1]:
            return "commit"
        self._take()
        return DOUBTS[wanted.point]

    async def _passing(self, point: str) -> None:
        actor = current_actor()
        if actor is not None and self._strikes(point):
            actor.kill()
            never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            await never

    def _strikes(self, point: str) -> bool:
        self._counts[point] += 1
        position = Position(point, self._counts[point])
        self.passed[-1].append(position)
        if self._plan and self._plan[0] == position:
            self._take()
            return True
        handover = _AFTER.get(point.partition("/")[0])
        if handover is not None:
            turns = self.turns[-1]
            turns[handover] += 1
            if self._plan and self._plan[0] == Position(handover, turns[handover]):
                self._take()
        return False

    def _take(self) -> None:
        position = self._plan.pop(0)
        self._counts.clear()
        self.passed.append([])
        self.commits.append(0)
        self.turns.append(Counter())
        self.strike(position)
