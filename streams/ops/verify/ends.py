"""Captures how far a partition is verified, in an order that makes sense beside workers that go on writing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from streams.errors import LogUnavailable
from streams.log.port import Log, Span
from streams.wire.topics import Topics

__all__ = ["Ends", "capture", "later"]

_PAUSE_SECONDS = 0.01
_PATIENCE_SECONDS = 60.0
"""A transaction that is left open is ended by the broker after its time-out of 10 s and up to 10 s more."""
_NONE = Span(0, 0)


class Ends(NamedTuple):
    """Where each topic of a partition begins, and where it is read to.

    What stands in a checkpoint, a lease or a message below its `sure` end is in the events below theirs. What an event
    has led to is below the end of its topic.
    """

    events: Span
    checkpoints: Span
    commands: Span
    letters: Span
    leases: Span
    leases_sure: int
    effects: Mapping[str, Span]
    effects_sure: Mapping[str, int]

    @property
    def offsets(self) -> int:
        """How many offsets a pass reads of events and checkpoints, which is what takes its time."""
        return sum(span.end - span.start for span in (self.events, self.checkpoints))


async def capture(log: Log, topics: Topics, number: int, existing: Collection[str]) -> Ends:
    """Capture the ends of a partition. Each step waits until what is below its ends is decided on.

    A transaction reaches its partitions one after another, and its markers appear there with a delay. Once all
    transactions that have a checkpoint or a message below the first ends have ended, their events are below an end that
    is captured then; once those are visible, so is what they have led to. Raises `LogUnavailable` where one hangs.
    """

    async def settled(name: str) -> Span:
        return await _settled(log, name, number) if name in existing else _NONE

    names = {name: topics.effect(name) for name in topics.effect_names}
    leases_sure = (await settled(topics.leases)).end
    checkpoints, letters, *sure = await asyncio.gather(
        settled(topics.checkpoints), settled(topics.dead_letters), *map(settled, names.values())
    )
    events = await settled(topics.events)
    leases, *effects = await asyncio.gather(settled(topics.leases), *map(settled, names.values()))
    commands = await log.span(topics.commands, number) if topics.commands in existing else _NONE
    return Ends(
        events,
        checkpoints,
        commands,
        letters,
        leases,
        leases_sure,
        dict(zip(names, effects, strict=True)),
        {name: span.end for name, span in zip(names, sure, strict=True)},
    )


async def later(log: Log, topics: Topics, number: int, ends: Ends) -> Ends:
    """The same ends, with what retention has deleted at the beginnings since."""

    async def moved(topic: str, span: Span) -> Span:
        if span.start == span.end:
            return span
        start = (await log.span(topic, number)).start
        return span._replace(start=min(max(span.start, start), span.end))

    return ends._replace(
        events=await moved(topics.events, ends.events),
        checkpoints=await moved(topics.checkpoints, ends.checkpoints),
        commands=await moved(topics.commands, ends.commands),
        letters=await moved(topics.dead_letters, ends.letters),
        leases=await moved(topics.leases, ends.leases),
        effects={name: await moved(topics.effect(name), span) for name, span in ends.effects.items()},
    )


async def _settled(log: Log, topic: str, number: int) -> Span:
    """The end with pending records, once readers of committed records see up to it."""
    end = (await log.span(topic, number, "read_uncommitted")).end
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while True:
        span = await log.span(topic, number)
        if span.end >= end:
            return Span(min(span.start, end), end)
        if loop.time() > deadline:
            raise LogUnavailable(
                f"a transaction hangs in {topic}[{number}] below offset {end}: what is behind it cannot be read. The "
                "broker ends it after its time-out, or the next owner of the partition does; try again then"
            )
        await asyncio.sleep(_PAUSE_SECONDS)
