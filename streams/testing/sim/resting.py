"""When subscribers have nothing left to do, and what must not follow when their groups begin again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streams.effects.port import Entry, Key, Query
from streams.effects.rules import is_final
from streams.log.port import Record

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["entries_of", "finished", "rewind"]

_EVERYTHING = 1_000_000


async def entries_of(world: World) -> dict[Key, Entry]:
    """All that the ledger knows."""
    return {entry.key: entry for entry in await world.ledger.entries(Query(limit=_EVERYTHING))}


async def finished(world: World) -> bool:
    """Whether the groups have passed every message, and nothing waits for anybody."""
    topics = world.topics
    places = {topics.effect(name): topics.subscribers(name) for name in world.app.subscriptions}
    last: dict[tuple[str, int], int] = {}
    for record in world.broker.everything("read_committed"):
        if record.topic in places:
            last[record.topic, record.partition] = record.offset
    for topic, group in places.items():
        offsets = await world.broker.group_offsets(group, topic)
        if any(offsets.get(number, 0) <= offset for (name, number), offset in last.items() if name == topic):
            return False
    return all(is_final(entry) for entry in (await entries_of(world)).values())


async def rewind(world: World, settle: Callable[[], Awaitable[None]]) -> list[str]:
    """Begin again at offset 0, with everything known: no handler is called, and nothing is written that was before."""
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
    found = [f"{call.effect} {call.key} was called again for a rewind" for call in world.services.calls[calls:]]
    for key, entry in (await entries_of(world)).items():
        if entry._replace(published=True) != known[key]._replace(published=True):
            found.append(f"the rewind has changed the entry of {key.operation} {key.key} from {known[key]} to {entry}")
    owed = sum(not entry.published for entry in known.values())
    more = _written(world) - before
    if more.total() > owed:
        found.append(f"the rewind has published {dict(more)}, and only {owed} outcomes were not known as published")
    return found


def _written(world: World) -> Counter[str]:
    """How many records there are of what subscribers write."""
    topics = world.topics
    watched = {topics.commands, *(topics.effect_dead(name) for name in world.app.subscriptions)}
    records: list[Record] = [r for r in world.broker.everything("read_committed") if r.topic in watched]
    return Counter(record.topic for record in records)
