"""When subscribers have nothing left to do, and what must not follow when their groups begin again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streams.effects.asks import KEY_CONFLICT
from streams.effects.port import Entry, Key, Query, Status
from streams.effects.rules import is_final
from streams.testing.sim.faults import SUBSCRIBER
from streams.testing.sim.history import Served
from streams.testing.sim.subscribing import overlaps
from streams.wire.records import decode_dead_letter

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["all_visible", "last_command", "rewind", "served_of", "unfinished"]

_EVERYTHING = 1_000_000
_STILL_SECONDS = 0.5
"""Until the ledger has noted what was committed."""


async def entries_of(world: World) -> dict[Key, Entry]:
    """All that the ledger knows."""
    return {entry.key: entry for entry in await world.ledger.entries(Query(limit=_EVERYTHING))}


async def served_of(world: World) -> Served | None:
    """What the invariants are told of subscribers."""
    if world.services is None:
        return None
    struck = [fault for fault in world.faults.all if fault.number in world.faults.struck]
    overlap = overlaps(world.subscriber_settings, struck)
    troubles = sum(fault.kind.startswith(SUBSCRIBER) for fault in struck)
    return Served(world.app.name, world.services, await entries_of(world), world.ledger.tables, overlap, troubles)


def last_command(world: World, number: int) -> int:
    """The offset of the last command of a partition; ends of transactions may follow on it where subscribers reply."""
    places = ((record.topic, record.partition, record.offset) for record in world.broker.everything("read_committed"))
    wanted = (world.topics.commands, number)
    return max((offset for topic, partition, offset in places if (topic, partition) == wanted), default=-1)


async def unfinished(world: World) -> str:
    """Which message a group has not passed, or what waits for somebody; empty where there is nothing."""
    topics = world.topics
    places = {topics.effect(name): topics.subscribers(name) for name in world.app.subscriptions}
    last: dict[tuple[str, int], int] = {}
    for record in world.broker.everything("read_committed"):
        if record.topic in places:
            last[record.topic, record.partition] = record.offset
    for topic, group in places.items():
        offsets = await world.broker.group_offsets(group, topic)
        for (name, number), offset in last.items():
            if name == topic and offsets.get(number, 0) <= offset:
                return (
                    f"the group's offset of {topic}/{number} is {offsets.get(number)}, and there is a message {offset}"
                )
    left = [entry for entry in (await entries_of(world)).values() if not is_final(entry)]
    return f"{left[0].key.operation} {left[0].key.key} is {left[0].status}" if left else ""


async def rewind(world: World, settle: Callable[[], Awaitable[None]]) -> list[str]:
    """Begin again at offset 0, with everything known: no handler is called, and nothing is published again.

    Only what was refused because its key stands for something else may be told again: the ledger has no outcome.
    """
    assert world.services is not None
    calls, before, known = len(world.services.calls), _written(world), await entries_of(world)
    world.told("world", lambda: "the groups of all subscribers begin again")
    for process in world.subscribers:
        world.expire(process)
    topics = world.topics
    for name in world.app.subscriptions:
        for number in range(world.partitions):
            world.broker.move_offset(topics.subscribers(name), topics.effect(name), number, 0)
    await settle()
    await all_visible(world)
    found = [f"{call.effect} {call.key} was called again for a rewind" for call in world.services.calls[calls:]]
    for key, entry in (await entries_of(world)).items():
        if entry._replace(published=True) != known[key]._replace(published=True):
            found.append(f"the rewind has changed the entry of {key.operation} {key.key} from {known[key]} to {entry}")
    owed = sum(_owes(entry) for entry in known.values())
    more = {place: what for place, what in _written(world).items() if place not in before and what != KEY_CONFLICT}
    if len(more) > owed:
        found.append(f"the rewind has published {more}, and only {owed} outcomes were not known as published")
    return found


async def all_visible(world: World) -> None:
    """Wait until no transaction is open, such as that of a killed process, and what was committed can be read."""
    topics = world.topics
    watched = [topics.commands, *(topics.effect_dead(name) for name in world.app.subscriptions)]
    for topic in watched:
        for number in range(world.partitions):
            end = (await world.broker.span(topic, number, "read_uncommitted")).end
            while (await world.broker.span(topic, number)).end < end:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(_STILL_SECONDS)
    await asyncio.sleep(_STILL_SECONDS)


def _owes(entry: Entry) -> int:
    """How many replies and dead letters may still have to be published for it."""
    return 0 if entry.published else (entry.attempt > 0) + (entry.status is not Status.DONE)


def _written(world: World) -> dict[tuple[str, int, int], str]:
    """What there is of what subscribers publish: the code of each dead letter, or `command`."""
    topics = world.topics
    dead = {topics.effect_dead(name) for name in world.app.subscriptions}
    found = {}
    for record in world.broker.everything("read_committed"):
        place = (record.topic, record.partition, record.offset)
        if record.topic in dead:
            found[place] = decode_dead_letter(record.value or b"").code
        elif record.topic == topics.commands:
            found[place] = "command"
    return found
