"""What the topics of a simulated app hold, read through the port of the log and decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from streams.authoring.app import App
from streams.effects.port import Entry, Key
from streams.errors import WireError
from streams.kernel.commands import Reply
from streams.kernel.events import Event
from streams.kernel.run import Run
from streams.log.port import Log, Record, TopicPartition
from streams.runtime.settings import WorkerSettings
from streams.runtime.worker import Worker
from streams.testing.sim.model import Plan
from streams.testing.sim.outside import Outside
from streams.testing.sim.services import Services
from streams.testing.sim.workload import Accepted
from streams.wire.records import (
    Damaged,
    DeadLetter,
    EffectMessage,
    Lease,
    decode_checkpoint,
    decode_command,
    decode_dead_letter,
    decode_effect,
    decode_event,
    decode_lease,
)
from streams.wire.topics import Topics

__all__ = ["History", "Judged", "Place", "Served", "read_history", "remember"]

T = TypeVar("T")


class Served(NamedTuple):
    """What is known of subscribers beside the topics."""

    app: str
    services: Services
    """What they have done outside; it survives every crash."""
    entries: Mapping[Key, Entry]
    """What the ledger holds at the end."""
    tables: Mapping[str, int]
    """How often transactional handlers have written under each key."""
    overlaps: bool
    """A process may have come back to a call after its claim was over."""
    troubles: int
    """How many faults may have kept a subscriber from noting what it had published."""


Place = tuple[str, int]

_PATIENCE_SECONDS = 60.0
_CHUNK = 10_000


class Judged(Protocol):
    """What the invariants need of a world."""

    log: Log
    topics: Topics
    partitions: int
    app: App
    settings: WorkerSettings
    outside: Outside
    plans: dict[str, Plan]
    sent: list[Accepted]
    kept: dict[Place, dict[int, Record]]
    """Records of compacted topics as `remember` has met them before a compaction took them away."""

    served: Served | None
    """What is known of subscribers, where there are any."""
    calm_us: int | None
    """The true time from which on nothing went wrong any more."""

    @property
    def workers(self) -> Sequence[Worker]:
        """Those that are alive."""


class History(NamedTuple):
    """All committed records by partition, in the order of their offsets."""

    topics: Topics
    partitions: int
    events: list[list[tuple[Record, Event]]]
    leases: list[list[tuple[Record, Lease]]]
    checkpoints: list[list[tuple[Record, Run | Damaged | None]]]
    commands: list[list[Record]]
    letters: list[list[tuple[Record, DeadLetter]]]
    effects: list[list[tuple[Record, EffectMessage]]]
    effect_letters: list[list[tuple[Record, DeadLetter]]]
    """What subscribers gave up on."""
    replies: list[tuple[Record, Reply, bool]]
    """The answers to requests among the commands, and whether they are a subscriber's."""
    wrong: list[str]
    """What could not be read."""


async def remember(world: Judged) -> None:
    """Keep what the compacted topics hold. Before a compaction, or the invariants know less of what was before it."""
    found = await _read(world, [world.topics.leases, world.topics.checkpoints], [])
    for place, records in found.items():
        world.kept.setdefault(place, {}).update((record.offset, record) for record in records)


async def read_history(world: Judged) -> History:
    """Read every topic up to the end of this moment, also what is pending."""
    topics = world.topics
    wrong: list[str] = []
    effects = [topics.effect(name) for name in topics.effect_names]
    dead = [topics.effect_dead(name) for name in topics.effect_names if world.served is not None]
    plain = [topics.events, topics.commands, topics.dead_letters, *effects, *dead]
    found = await _read(world, [*plain, topics.leases, topics.checkpoints], wrong)

    def of(topic: str, decode: Callable[[bytes], T]) -> list[list[tuple[Record, T]]]:
        return [_decoded(found[topic, number], decode, wrong) for number in range(world.partitions)]

    def kept(topic: str, decode: Callable[[bytes], T]) -> list[list[tuple[Record, T]]]:
        for number in range(world.partitions):
            known = world.kept.get((topic, number), {})
            known = known | {record.offset: record for record in found[topic, number]}
            found[topic, number] = [known[offset] for offset in sorted(known)]
        return of(topic, decode)

    messages = [of(topic, decode_effect) for topic in effects]
    effect_letters = [of(topic, decode_dead_letter) for topic in dead]
    commands = [found[topics.commands, number] for number in range(world.partitions)]
    return History(
        topics,
        world.partitions,
        of(topics.events, decode_event),
        kept(topics.leases, decode_lease),
        kept(topics.checkpoints, _checkpoint),
        commands,
        of(topics.dead_letters, decode_dead_letter),
        [[entry for topic in messages for entry in topic[number]] for number in range(world.partitions)],
        [[entry for topic in effect_letters for entry in topic[number]] for number in range(world.partitions)],
        list(_replies(commands)) if world.served is not None else [],
        wrong,
    )


def _replies(commands: list[list[Record]]) -> Iterator[tuple[Record, Reply, bool]]:
    for of_partition in commands:
        for record in of_partition:
            try:
                command = decode_command(record.key, record.value, default_id="", offset=record.offset)
            except WireError:
                continue  # junk, whose fate is checked elsewhere
            if isinstance(command.request, Reply):
                yield record, command.request, not command.command_id  # all others name their commands


def _checkpoint(value: bytes) -> Run | Damaged | None:
    return decode_checkpoint(value) if value else None


def _decoded(records: list[Record], decode: Callable[[bytes], T], wrong: list[str]) -> list[tuple[Record, T]]:
    found = []
    for record in records:
        try:
            found.append((record, decode(record.value or b"")))
        except WireError as error:
            wrong.append(f"the record at {record.topic}/{record.partition}/{record.offset} cannot be read: {error}")
    return found


async def _read(world: Judged, names: Sequence[str], wrong: list[str]) -> dict[Place, list[Record]]:
    log = world.log
    places = [TopicPartition(name, number) for name in names for number in range(world.partitions)]
    starts, ends = {}, {}
    for place in places:
        starts[place], ends[place] = await log.span(*place, "read_uncommitted")
    found: dict[Place, list[Record]] = {place: [] for place in places}
    reader = log.reader(starts)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    try:
        while any(reader.position(place) < end for place, end in ends.items()):
            for record in await reader.read(_CHUNK, 0.1):
                found[record.topic, record.partition].append(record)
            if loop.time() > deadline:
                wrong += [
                    f"a transaction hangs in {place.topic}/{place.partition} below the end {end}"
                    for place, end in ends.items()
                    if reader.position(place) < end
                ]
                break
    finally:
        await reader.close()
    return found
