"""One poll of the worker's member, and what the worker does where the log is away or has lost the next command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streams.errors import LogDamaged, LogUnavailable
from streams.log.port import Record

if TYPE_CHECKING:
    from streams.runtime.worker import Worker

__all__ = ["Poller"]

_AWAY_SECONDS = 0.5


class Poller:
    """Says once that the log is away, and once that it is back, however many polls lie between."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._away = False

    async def poll(self, seconds: float) -> Sequence[Record] | None:
        """The records of one poll; None where it failed in a way that the next one may mend."""
        worker = self._worker
        try:
            batch = await worker.member.poll(worker.engine.settings.turn_inputs_max, seconds)
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
