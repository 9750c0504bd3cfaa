"""Plays the scenes of a test, at the same time, each on a stage of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.effects.real.stage import Pair, Stage, stage

__all__ = ["Scene", "play"]

Scene = Callable[[Stage], Awaitable[None]]


def play(folder: Path, pair: Pair, *scenes: Scene) -> None:
    """Scenes of one test share the database of the pair, and nothing else."""

    async def one(number: int, scene: Scene) -> None:
        async with stage(folders[number], pair) as s:
            await scene(s)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for number, scene in enumerate(scenes):
                group.create_task(one(number, scene))

    folders = [folder / str(number) for number in range(len(scenes))]
    for each in folders:
        each.mkdir()
    asyncio.run(all_of_them())
