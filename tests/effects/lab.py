"""Subscribers of an app inside the test's process, on a memory log and a memory ledger, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from streams import App
from streams.clock import SystemClock
from streams.effects.memory import MemoryLedger
from streams.effects.port import Entry, Key
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.kernel.commands import Command, Reply
from streams.log.memory import Hooks, MemoryLog
from streams.log.port import Log, NewRecord, Record
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.topics import ensure_topics
from streams.testing.clock import VirtualClock
from streams.testing.loop import VirtualLoop, current_actor, run_virtual
from streams.wire.app_codec import make_codec
from streams.wire.headers import headers_of
from streams.wire.partitioner import partition_of
from streams.wire.records import DeadLetter, EffectMessage, decode_command, decode_dead_letter, encode_effect
from streams.wire.topics import topics_of

__all__ = ["PARTITIONS", "Lab", "Recorder", "Running", "virtual"]

PARTITIONS = 2
SECONDS_MAX = 600.0
"""Virtual seconds after which a test gives up waiting."""


class Recorder(Observer):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in Observer.__dict__ and not name.startswith("_"):
            return lambda *what: self.told.append((name, *what))
        return super().__getattribute__(name)

    def heard(self, *begin: Any) -> list[tuple[Any, ...]]:
        return [what for what in self.told if what[: len(begin)] == begin]

    def messages(self, part: str) -> list[str]:
        return [what[1] for what in self.heard("message") if part in what[1]]


class Sent(NamedTuple):
    """A message that a test has put on an effect's topic."""

    effect: str
    partition: int
    offset: int
    effect_id: str
    key: str


class Running:
    """A subscriber at work, as a process of its own."""

    def __init__(self, subscriber: Subscriber, told: Recorder, log: Log) -> None:
        self.subscriber = subscriber
        self.told = told
        self.log = log
        loop = asyncio.get_running_loop()
        self.actor: Any = loop.actor(subscriber.parts.owner) if isinstance(loop, VirtualLoop) else _Thread()
        self.task = self.actor.start(subscriber.run())
        self.expected = False
        """It ends with an error that the test has looked at."""

    @property
    def over(self) -> bool:
        return self.task.done() or not self.actor.alive

    def windows(self, effect: str) -> dict[int, Any]:
        station = self.subscriber.stations.get(effect)
        return {} if station is None else station.windows

    async def stop(self) -> None:
        """Stop gracefully."""
        self.subscriber.stop()
        await asyncio.wait_for(self.task, SECONDS_MAX)

    def kill(self) -> None:
        """End like a process under kill -9; the group throws it out."""
        self.actor.kill()
        self.vanish()

    def vanish(self) -> None:
        """The group throws it out, as after a crash or a long freeze."""
        for station in self.subscriber.stations.values():
            station.member.vanish()


class _Thread:
    """In real time nobody is killed or frozen."""

    alive = True

    def start(self, work: Any) -> Any:
        return asyncio.ensure_future(work)


class Lab:
    """One log, one ledger, one app, and any number of subscribers."""

    def __init__(self, app: App, hooks: Hooks | None = None) -> None:
        self.app = app
        loop = asyncio.get_running_loop()
        self.clock: Any = VirtualClock(loop) if isinstance(loop, VirtualLoop) else SystemClock()
        self.log = MemoryLog(clock=lambda: self.clock.now_us() // 1000, hooks=hooks)
        self.ledger = MemoryLedger(self.clock)
        self.topics = topics_of(app.name, app.effects)
        self.codec = make_codec(app.annotations, app.named_types)
        self.running: list[Running] = []
        self._sent = 0

    async def open(self) -> None:
        await ensure_topics(self.log, self.topics, PARTITIONS)

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(
        self,
        effect: str,
        payload: Any,
        *,
        run: str = "r1",
        key: str | None = None,
        effect_id: str | None = None,
        attempt: int = 0,
        epoch: int = 1,
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> Sent:
        """Put a message on the effect's topic, as a committed turn does."""
        self._sent += 1
        effect_id = effect_id or f"{run}@0/{effect}.{self._sent}"
        op = effect_id.rpartition("/")[2]
        key = key or effect_id
        message = EffectMessage(
            effect_id, run, effect, self.codec.encode(payload), key, epoch, self.clock.now_us(), "w", 1, op, attempt
        )
        data = encode_effect(message)
        return await self.put(effect, run.encode(), data, (*headers_of("effect", data), *headers), effect_id, key)

    async def put(
        self, effect: str, run: bytes | None, value: bytes | None, headers: Any = (), effect_id: str = "", key: str = ""
    ) -> Sent:
        """Put any bytes there."""
        partition = partition_of(run or b"", PARTITIONS)
        (offset,) = await self.log.append([NewRecord(self.topics.effect(effect), partition, run, value, headers)])
        return Sent(effect, partition, offset, effect_id, key)

    # -- subscribers ---------------------------------------------------------------------------------------------

    def subscriber(
        self,
        *,
        app: App | None = None,
        ledger: Any = None,
        only: Any = None,
        strict: bool = False,
        log: Any = None,
        host: Any = None,
        **settings: Any,
    ) -> Running:
        chosen = {"partitions": PARTITIONS, "poll_seconds": 0.02, **settings}
        told = Recorder()
        log = log or self.log.share()
        subscriber = Subscriber(
            app or self.app,
            log,
            ledger or self.ledger,
            settings=SubscriberSettings(**chosen),
            observer=told,
            clock=self.clock,
            owner=f"s{len(self.running) + 1}",
            only=only,
            strict=strict,
            host=host,
        )
        running = Running(subscriber, told, log)
        self.running.append(running)
        return running

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while not condition():
            await self._raise()
            assert asyncio.get_running_loop().time() < deadline, what or "did not come about"
            await asyncio.sleep(0.01)

    async def finished(self, effect: str) -> None:
        """Wait until the group's offsets stand at the ends of the effect's topic."""
        topic = self.topics.effect(effect)
        deadline = asyncio.get_running_loop().time() + SECONDS_MAX
        while True:
            offsets = await self.offsets(effect)
            ends = [(await self.log.span(topic, number)).end for number in range(PARTITIONS)]
            if all(end == offsets.get(number, 0) for number, end in enumerate(ends)):
                return
            await self._raise()
            assert asyncio.get_running_loop().time() < deadline, (offsets, ends)
            await asyncio.sleep(0.01)

    async def _raise(self) -> None:
        for running in self.running:
            if running.task.done() and not running.expected and not running.task.cancelled():
                await running.task

    # -- what there is -------------------------------------------------------------------------------------------

    async def offsets(self, effect: str) -> dict[int, int]:
        return await self.log.group_offsets(self.topics.subscribers(effect), self.topics.effect(effect))

    async def rewind(self, effect: str) -> None:
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        await self.log.rewind_group(self.topics.subscribers(effect), self.topics.effect(effect), offsets)

    async def records(self, topic: str) -> list[Record]:
        found: list[Record] = []
        for number in range(PARTITIONS):
            span = await self.log.span(topic, number)
            found += self.log._store.partition(topic, number).read(span.start, 1_000_000, "read_committed")[0]
        return found

    async def letters(self, effect: str) -> list[DeadLetter]:
        return [decode_dead_letter(r.value or b"") for r in await self.records(self.topics.effect_dead(effect))]

    async def replies(self) -> list[Reply]:
        return [command.request for command in await self.commands() if isinstance(command.request, Reply)]

    async def commands(self) -> list[Command]:
        records = await self.records(self.topics.commands)
        return [decode_command(r.key, r.value, default_id="x", offset=r.offset) for r in records]

    async def entry(self, effect: str, key: str) -> Entry:
        found = Key(self.app.name, effect, key)
        return (await self.ledger.look([found]))[found]

    async def end(self) -> None:
        left = [running for running in self.running if not running.over]
        for running in left:
            running.subscriber.stop()
        for running in left:
            await asyncio.wait([running.task], timeout=SECONDS_MAX)
            assert running.over, "a subscriber does not stop"

    def crash_at(self, place: str, count: int = 1) -> None:
        """Kill the subscriber that passes this point for the `count`-th time, in the middle of its code."""
        left = count

        def hook(point: str) -> None:
            nonlocal left
            actor = current_actor()
            if point.partition("/")[0] != place or actor is None:
                return
            left -= 1
            if left == 0:
                (dying,) = [running for running in self.running if running.actor is actor]
                dying.vanish()
                actor.die()

        crash.install(hook)


def virtual(
    make_app: Callable[[], App], *, hooks: Callable[[], Hooks] | None = None, real: bool = False
) -> Callable[..., Any]:
    """Make a test of a coroutine function that takes a `Lab`; it runs in virtual time, on a fresh app.

    `real`: in real time, where threads are threads.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        def run() -> None:
            async def scenario() -> None:
                lab = Lab(make_app(), hooks() if hooks is not None else None)
                await lab.open()
                try:
                    await function(lab)
                finally:
                    crash.install(None)
                    await lab.end()
                for running in lab.running:
                    if running.actor.alive and not running.expected:
                        await running.task

            if real:
                asyncio.run(scenario())
            else:
                run_virtual(scenario())

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        return run

    return decorate
