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
from streams.testing.sim.invariants import check as check_invariants
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
    check: Check = check_invariants,
    only: Collection[int] | None = None,
    story: Story | None = None,
) -> Result:
    """Run the history of a seed; `only` lets through the faults with these numbers."""
    options = options or Options()
    broken: list[str] = []
    found: list[Result] = []

    async def main() -> None:
        world = World(seed, options, only=only, story=story)
        try:
            await world.run(check)
        except Exception as error:  # noqa: BLE001 - whatever a seed leads to, the others are tried too
            where = "".join(traceback.format_exception(error)[-3:])
            broken.append(f"{type(error).__name__}: {error}\n{where}")
        finally:
            # Here, because nothing of the world may outlive its loop: what is killed is collected with it.
            found.append(_result(world))

    try:
        run_virtual(main(), seed, seconds_max=_SECONDS_MAX)
    except Stuck as stuck:
        broken.append(f"the simulation is stuck: {stuck}")
    except Exception as error:  # noqa: BLE001 - a callback of the loop has raised it
        broken.append(f"{type(error).__name__} in a callback: {error}")
    return found[0]._replace(violations=(*found[0].violations, *broken))


def _result(world: World) -> Result:
    digest, records = digest_of(world.broker)
    faults = world.faults
    struck = tuple(fault for fault in faults.all if fault.number in faults.struck)
    runs, seconds = len(world.plans), world.loop.time()
    return Result(world.seed, tuple(world.violations), digest, faults.hits, struck, runs, records, seconds)


def digest_of(log: MemoryLog) -> tuple[str, int]:
    """A hash over all records with their offsets and times, and their number."""
    digest = hashlib.sha256()
    count = 0
    for record in log.everything():
        digest.update(repr(tuple(record)).encode())
        count += 1
    return digest.hexdigest(), count
