"""The end of a worker, within a bound: a log that takes no writes must not keep the process from ending."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streams.deadline import Deadline
from streams.errors import LogError

if TYPE_CHECKING:
    from streams.runtime.worker import Worker

__all__ = ["close_producer", "drain", "leave_group"]

_GRACE_SECONDS = 1.0
_PRODUCER_SECONDS = 1.0


async def drain(worker: Worker) -> None:
    """Let running tasks finish within the bound; what they bring is committed as usual."""
    for number in list(worker.owner.partitions):
        await worker.member.pause(number)
    deadline = Deadline(worker.engine.clock, worker.engine.settings.stop_seconds)
    while worker.busy and not deadline.over:  # noqa: ASYNC110 - only at a stop, and bounded
        await asyncio.sleep(0.005)


async def leave_group(worker: Worker, polling: asyncio.Task[None]) -> None:
    """Let the last poll end, then give up all partitions and leave, within `drain_seconds` and a little more."""
    seconds = worker.engine.settings.drain_seconds + _GRACE_SECONDS
    deadline = Deadline(worker.engine.clock, seconds)
    await asyncio.wait([polling], timeout=deadline.left())
    try:
        # A poll that is still under way may be in the middle of a hand-over: never leave beside it.
        if not polling.done():
            raise TimeoutError
        async with asyncio.timeout(deadline.left()):
            await worker.member.close()
    except TimeoutError:
        worker.engine.observer.message(
            f"ending without having left the group: it took longer than {seconds:g} s. "
            "The partitions move to other workers when the session of this one is over"
        )


async def close_producer(worker: Worker, doing: str = "ending") -> None:
    """Close the producer. A commit may still run in it: it is not waited for, and whoever needs its end settles it."""
    try:
        async with asyncio.timeout(_PRODUCER_SECONDS):
            await worker.producer.close()
    except (LogError, TimeoutError) as error:
        reason = str(error) or f"it took longer than {_PRODUCER_SECONDS:g} s"
        worker.engine.observer.message(f"{doing} without having closed the producer {worker.producer.id}: {reason}")
