"""The simulator: how many histories of runs one core lives through in a second, faults and invariants included."""

from __future__ import annotations

import asyncio
import time

from streams.testing.sim.run import simulate
from streams.testing.sim.world import Options

__all__ = ["simulated"]


async def simulated(runs: int) -> dict[str, float]:
    """So many runs, twenty a seed, in a thread: a virtual loop cannot run inside another one."""
    return await asyncio.to_thread(_simulated, -(-runs // Options().runs))


def _simulated(seeds: int) -> dict[str, float]:
    simulate(0)  # imports and compiled codecs
    began, cpu = time.perf_counter(), time.process_time()
    results = [simulate(seed) for seed in range(1, seeds + 1)]
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    failed = [result.seed for result in results if result.violations]
    if failed:
        raise AssertionError(f"seeds {failed} violate invariants: python -m streams.testing.sim --seed {failed[0]}")
    histories = sum(result.runs for result in results)
    return {
        "histories_per_s": histories / wall,
        "cpu_us_per_history": cpu / histories * 1e6,
        "seeds_per_s": seeds / wall,
    }
