"""One poll of the worker's member, and what the worker does where the log is away or has lost the next command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streams.errors import LogDamaged, LogUnavailable
from streams.log.port import Record

if TYPE_CHECKING:
    from streams.runtime.worker import Worker

__all__ = ["Poller", "is_crowded", "room"]

_AWAY_SECONDS = 0.5
_CROWDED_SECONDS = 1.0
"""How long a poll waits for turns, before the group is answered without taking commands."""
_LOOK_SECONDS = 0.005
_PAUSE_SECONDS = 0.05


def is_crowded(worker: Worker) -> bool:
    """Whether so much waits for turns that nothing more is taken."""
    inbox, settings = worker.inbox, worker.engine.settings
    return len(inbox) > settings.inbox_max or inbox.bytes > settings.inbox_bytes_max


async def room(worker: Worker) -> int:
    """How many commands the next poll may take, once there is room for any; 0 where the group has to be answered first.

    What user code does never stops commands altogether: a cancel, or the signal that a task waits for, may be among
    them. Only turns do, and a turn waits for the log and nothing else.
    """
    settings = worker.engine.settings
    crowded = 0.0
    while is_crowded(worker) and worker.polls:
        if worker.snapshot_wanted or crowded >= _CROWDED_SECONDS:
            await asyncio.sleep(_PAUSE_SECONDS)
            return 0
        await asyncio.sleep(_LOOK_SECONDS)
        crowded += _LOOK_SECONDS
    if worker.dispatcher.queued > settings.queued_max:
        await asyncio.sleep(settings.backlog_seconds)
        return settings.backlog_inputs
    return settings.turn_inputs_max


class Poller:
    """Says once that the log is away, and once that it is back, however many polls lie between."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._away = False

    async def poll(self, records_max: int, seconds: float) -> Sequence[Record] | None:
        """The records of one poll; None where it failed in a way that the next one may mend."""
        worker = self._worker
        try:
            batch = await worker.member.poll(records_max, seconds)
        except LogUnavailable as error:
            if not self._away:
                worker.engine.observer.message(f"the log cannot be reached, trying again: {error}")
            self._away = True
            await asyncio.sleep(_AWAY_SECONDS)
            return None
        except LogDamaged as error:
            if error.partition is not None:
                await worker.owner.refuse(error.partition, str(error))
                return None
            # Nobody says of which partition the next command is gone: all look again where they go on.
            worker.engine.observer.message(str(error))
            async with worker.turn_lock:
                await worker.owner.all_again()
            return None
        if self._away:
            worker.engine.observer.message("the log answers again")
        self._away = False
        return batch.records
