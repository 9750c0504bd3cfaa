"""How far the events of a partition are known to be covered, when nothing new is written there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.runtime.partition import Partition
    from streams.runtime.worker import Worker

__all__ = ["pass_markers"]


async def pass_markers(worker: Worker, partitions: Sequence[Partition]) -> None:
    """Move the known end of events past what is no event. With the turn lock held and no commit under way.

    After the last event lies the marker of its transaction. In a partition that is quiet for longer than events are
    kept, the log begins behind that marker: a tail before it would look as if events were lost.
    """
    log, topic = worker.log, worker.engine.topics.events
    spans = await asyncio.gather(*(log.span(topic, partition.number) for partition in partitions))
    for partition, span in zip(partitions, spans, strict=True):
        partition.events_end = max(partition.events_end, span.end)
