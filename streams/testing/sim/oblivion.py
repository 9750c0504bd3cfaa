"""Runs that are forgotten within one history, and late commands in the very turns that forget them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streams.log.port import NewRecord
from streams.testing.sim.model import encode
from streams.testing.sim.workload import Accepted

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["outlive"]

_STILL_SHARE = 0.5


async def outlive(world: World, seconds: float) -> int:
    """Let so much time pass after the end of the runs; return how many are forgotten by then.

    Again and again the workers stand still for a moment. What comes meanwhile, sweeps and commands, is one turn then.
    """
    before, end = len(_known(world)), world.loop.time() + seconds
    number = 0
    while world.loop.time() < end:
        number += 1
        for process in world.processes:
            world.frozen(process, world.settings.sweep_seconds * _STILL_SHARE)
        await _say_something_late(world, number)
        await asyncio.sleep(world.settings.sweep_seconds)
    return before - len(_known(world))


def _known(world: World) -> dict[str, int]:
    """The runs in the memory of workers, with their partitions."""
    served = (p for process in world.processes for p in process.worker.owner.partitions.values() if p.running)
    return {run_id: partition.number for partition in served for run_id in partition.runs}


async def _say_something_late(world: World, number: int) -> None:
    """A command for each run that changes nothing, whether the run has ended or is forgotten by now."""
    known = _known(world)
    records = []
    for run_id in sorted(known):
        command = {"type": "retry", "command_id": f"{run_id}/late{number}", "op": "99"}
        records.append(NewRecord(world.topics.commands, known[run_id], run_id.encode(), encode(command, as_json=True)))
    offsets = await world.log.append(records)
    for record, offset in zip(records, offsets, strict=True):
        run_id = (record.key or b"").decode()
        world.sent.append(Accepted(run_id, "retry", record.partition, offset, record.key, record.value))
