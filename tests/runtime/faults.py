"""Faults in the commits of a worker: a plan says what befalls each transaction, on any log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streams.errors import CommitAborted, Fenced, InDoubt, LogUnavailable, SendRefused
from streams.log.port import GroupSnapshot, Log, NewRecord, Producer

__all__ = ["KINDS", "Faults", "chance", "nth"]

KINDS = ["aborted", "in doubt, done", "in doubt, not done", "unavailable", "fenced"]
Plan = Callable[[int, Sequence[NewRecord]], str | int | None]


class Faults:
    """What befalls each commit. The plan is given its number and records; an index refuses that record."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.commits = 0
        self.struck: list[str] = []

    def into(self, log: Log) -> None:
        """Let the producers of this log handle fail as planned."""
        make = log.producer

        async def producer(transactional_id: str) -> Producer:
            return FaultyProducer(await make(transactional_id), self)

        log.producer = producer  # type: ignore[method-assign]

    def next(self, records: Sequence[NewRecord]) -> str | int | None:
        self.commits += 1
        kind = self.plan(self.commits, records)
        if kind is not None:
            self.struck.append(str(kind))
        return kind


class FaultyProducer:
    """A producer with faults. One that was fenced or in doubt is as useless afterwards as a real one."""

    def __init__(self, inner: Producer, faults: Faults) -> None:
        self.id = inner.id
        self._inner = inner
        self._faults = faults
        self._dead = ""

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        if self._dead == "fenced":
            raise Fenced("this producer was fenced")
        if self._dead:
            raise ValueError("this producer has a commit in doubt and must not be used again")
        kind = self._faults.next(records)
        if isinstance(kind, int):
            raise SendRefused("a record was refused", kind if kind >= 0 else None)
        if kind == "slow":
            await asyncio.sleep(1.5)
            kind = None
        if kind == "aborted":
            raise CommitAborted("planned")
        if kind == "unavailable":
            raise LogUnavailable("planned")
        if kind == "fenced":
            self._dead = "fenced"
            raise Fenced("planned")
        if kind is not None:
            self._dead = kind
            if kind == "in doubt, done":
                await self._inner.commit(snapshot, records, offsets)
            raise InDoubt("planned")
        return await self._inner.commit(snapshot, records, offsets)

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        await self._inner.settle(transactional_ids)

    async def close(self) -> None:
        await self._inner.close()


def nth(kind: str, *numbers: int) -> Plan:
    """The fault at these commits."""
    return lambda number, _: kind if number in numbers else None


def chance(seed: int, probability: float, until: int) -> Plan:
    """Any fault with some probability, during the first `until` commits."""
    dice = random.Random(seed)

    def plan(number: int, records: Sequence[NewRecord]) -> Any:
        del records
        return dice.choice(KINDS) if number < until and dice.random() < probability else None

    return plan
