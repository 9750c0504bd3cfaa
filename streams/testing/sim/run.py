"""One seed, one history: run it, and say what came of it."""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from streams.log.memory.log import MemoryLog
from streams.testing.loop import Stuck, run_virtual
from streams.testing.sim.faults import Fault
from streams.testing.sim.story import Story
from streams.testing.sim.world import Options, World

__all__ = ["Check", "Result", "digest_of", "simulate"]

Check = Callable[[World], Awaitable[list[str]]]
_SECONDS_MAX = 10_000.0


class Result(NamedTuple):
    """What came of a seed. `digest` stands for all records of all topics."""

    seed: int
    violations: tuple[str, ...]
    digest: str
    hits: Counter[str]
    struck: tuple[Fault, ...]
    """The faults that hit something, in the order of their numbers."""
    runs: int
    records: int
    seconds: float
    """Virtual time."""


def simulate(
    seed: int,
    options: Options | None = None,
    *,
    check: Check,
    only: Collection[int] | None = None,
    story: Story | None = None,
) -> Result:
    """Run the history of a seed; `only` lets through the faults with these numbers."""
    options = options or Options()
    worlds: list[World] = []

    async def main() -> None:
        worlds.append(World(seed, options, only=only, story=story))
        await worlds[0].run(check)

    broken: list[str] = []
    try:
        run_virtual(main(), seed, seconds_max=_SECONDS_MAX)
    except Stuck as stuck:
        broken.append(f"the simulation is stuck: {stuck}")
    except Exception as error:  # noqa: BLE001 - whatever a seed leads to, the others are tried too
        where = "".join(traceback.format_exception(error)[-3:])
        broken.append(f"{type(error).__name__}: {error}\n{where}")
    world = worlds.pop()
    found = tuple(world.violations + broken)
    digest, records = digest_of(world.broker)
    struck = tuple(fault for fault in world.faults.all if fault.number in world.faults.struck)
    hits = world.faults.hits
    return Result(seed, found, digest, hits, struck, len(world.plans), records, world.loop.time())


def digest_of(log: MemoryLog) -> tuple[str, int]:
    """A hash over all records with their offsets and times, and their number."""
    digest = hashlib.sha256()
    count = 0
    for record in log.everything():
        digest.update(repr(tuple(record)).encode())
        count += 1
    return digest.hexdigest(), count
