"""The subscriber of an execution: the production one, on a ledger in memory, a process that dies where a plan says."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from streams.authoring.app import App
from streams.effects.memory import MemoryLedger
from streams.effects.port import Entry, Key, Query, Status
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.log.memory import MemoryLog
from streams.log.port import Isolation
from streams.runtime.host import Host
from streams.testing.clock import VirtualClock
from streams.testing.ledger import GatedLedger, When
from streams.testing.loop import Actor, VirtualLoop
from streams.wire.records import decode_dead_letter, decode_effect
from streams.wire.topics import Topics

__all__ = ["NOTHING_SERVED", "Given", "Served", "Serving", "is_subscriber"]

T = TypeVar("T")
_PREFIX = "subscriber-"
_ENTRIES_MAX = 1_000_000
_VIEWS: tuple[Isolation, Isolation] = ("read_committed", "read_uncommitted")


class Given(NamedTuple):
    """What subscribers gave up on: the run, the key, and why."""

    effect: str
    run_id: str
    key: str
    code: str


class Served(NamedTuple):
    """What has come of the effects of an execution."""

    entries: Mapping[Key, Entry]
    tables: Mapping[Any, Any]
    """What transactional handlers have written."""
    given_up: frozenset[Given]


NOTHING_SERVED = Served({}, {}, frozenset())


def is_subscriber(name: str) -> bool:
    """Whether this process is a subscriber."""
    return name.startswith(_PREFIX)


class _Gate:
    """Nothing goes wrong between a subscriber and its ledger but that the subscriber dies."""

    def __init__(self, loop: VirtualLoop, context: contextvars.Context, actor: Actor) -> None:
        self._loop, self._context, self._actor = loop, context, actor
        self.died: asyncio.Future[None] = loop.create_future()

    async def ledger(self, name: str, when: When) -> None:
        """It is on its way, and others may act meanwhile."""
        del name, when
        await asyncio.sleep(0)

    def serve(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In the database's own name."""
        return self._loop.create_task(call, context=self._context.copy())

    async def while_alive(self, body: Coroutine[Any, Any, T]) -> T:
        """In the name of the subscriber; what it leaves open when it dies is rolled back."""
        working = self._actor.start(body)
        both: list[asyncio.Future[Any]] = [working, self.died]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ConnectionError(f"{self._actor.name} has gone")
        return working.result()


class Serving:
    """One subscriber at a time, for an app that has any. `ended` is told of each that ends."""

    def __init__(
        self,
        app: App,
        log: MemoryLog,
        clock: VirtualClock,
        *,
        topics: Topics,
        partitions: int,
        host: Callable[[int], Host],
        ended: Callable[[asyncio.Task[None]], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.ledger = MemoryLedger(clock)
        self.number = 0
        """How many there have been."""
        self.task: asyncio.Task[None]
        self._app, self._log, self._clock, self._topics, self._partitions = app, log, clock, topics, partitions
        self._host, self._ended = host, ended
        self._loop, self._context = loop, contextvars.copy_context()
        self._subscriber: Subscriber
        self._gate: _Gate

    @property
    def needed(self) -> bool:
        """Whether the app has a subscriber at all."""
        return bool(self._app.subscriptions)

    def begin(self) -> None:
        """Start the next one."""
        self.number += 1
        name = f"{_PREFIX}{self.number}"
        actor = self._loop.actor(name)
        self._gate = _Gate(self._loop, self._context, actor)
        self._subscriber = Subscriber(
            self._app,
            self._log.share(),
            GatedLedger(self.ledger, self._gate),
            settings=SubscriberSettings(partitions=self._partitions),
            clock=self._clock,
            host=self._host(self.number),
            owner=name,
            strict=True,
        )
        self.task = actor.start(self._subscriber.run())
        self.task.add_done_callback(self._ended)

    def take_over(self, victim: str) -> None:
        """Another one takes the place of one that is dead."""
        if not self._gate.died.done():
            self._gate.died.set_result(None)
        for name in self._app.subscriptions:
            self._log.expire(self._topics.subscribers(name), self._topics.effect(name), victim)
        self.begin()

    async def hand_over(self) -> None:
        """Stop it gracefully, and let another one go on."""
        number = self.number
        self._subscriber.stop()
        await asyncio.wait([self.task])
        if self.number == number:  # one that is stopped may be struck again before it has ended
            self.begin()

    def stop(self) -> None:
        """Let it end in order."""
        self._subscriber.stop()

    async def idle(self) -> bool:
        """Whether it has passed every message, and nothing of it is on its way."""
        stations = self._subscriber.stations
        if len(stations) < len(self._app.subscriptions) or any(station.busy for station in stations.values()):
            return False
        for name in self._app.subscriptions:
            offsets = await self._log.group_offsets(self._topics.subscribers(name), self._topics.effect(name))
            for number in range(self._partitions):
                if offsets.get(number, 0) <= self._last(self._topics.effect(name), number):
                    return False
        return await self._all_visible()

    async def _all_visible(self) -> bool:
        """Whether no reply lies behind a transaction that a dead process has left open."""
        for number in range(self._partitions):
            ends = [await self._log.span(self._topics.commands, number, view) for view in _VIEWS]
            if ends[0].end < ends[1].end:
                return False
        return True

    def done(self) -> frozenset[Key]:
        """What the ledger has for done at this moment."""
        return frozenset(key for key, entry in self.ledger._entries.items() if entry.status is Status.DONE)  # noqa: SLF001

    async def served(self) -> Served:
        """What has come of everything."""
        entries = {entry.key: entry for entry in await self.ledger.entries(Query(limit=_ENTRIES_MAX))}
        return Served(entries, dict(self.ledger.tables), frozenset(self._given_up()))

    def _given_up(self) -> list[Given]:
        found = []
        dead = {self._topics.effect_dead(name): name for name in self._app.subscriptions}
        for record in self._log.everything("read_committed"):
            if record.topic in dead:
                letter = decode_dead_letter(record.value or b"")
                message = decode_effect(letter.value or b"")
                found.append(Given(dead[record.topic], message.run_id, message.idempotency_key, letter.code))
        return found

    def _last(self, topic: str, number: int) -> int:
        """The offset of the last message; ends of transactions may follow on it."""
        places = ((record.topic, record.partition, record.offset) for record in self._log.everything("read_committed"))
        return max((offset for name, partition, offset in places if (name, partition) == (topic, number)), default=-1)
