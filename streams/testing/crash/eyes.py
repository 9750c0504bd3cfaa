"""What the outside sees of an execution: the committed events, the runs that they fold to, and the effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from streams.client.reading import scan
from streams.kernel.bodies import OpCompleted, OpFailed, OpScheduled
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.run import OpPhase, Phase, Run
from streams.log.port import Log, TopicPartition
from streams.wire.records import EffectMessage, decode_effect, decode_event
from streams.wire.topics import Topics

__all__ = ["Eyes"]

Look = Callable[[Mapping[str, Run]], Any]

_READ_SECONDS = 5.0
_BUSY = (OpPhase.RUNNING, OpPhase.QUEUED, OpPhase.BACKOFF)
_TIMED = (OpPhase.WAITING, OpPhase.BACKOFF)


class Eyes:
    """Reads the log as anybody can, and shares nothing with the workers."""

    def __init__(self, log: Log, topics: Topics, partitions: int) -> None:
        self.runs: dict[str, Run] = {}
        self.events: dict[str, list[Event]] = {}
        self.heard = 0
        self.last = "nothing"
        """The last event in words."""
        self._log, self._topics, self._partitions = log, topics, partitions
        self._places = [TopicPartition(topics.events, number) for number in range(partitions)]
        self._reader = log.reader(dict.fromkeys(self._places, 0))
        self._names: dict[tuple[str, str], str] = {}
        self._waits: list[tuple[Look, str, asyncio.Future[Any]]] = []

    async def follow(self) -> None:
        """Take in what is committed, for ever, and end the waits that it is good for."""
        while True:
            for record in await self._reader.read(1_000, _READ_SECONDS):
                self._take(decode_event(record.value or b""))
            waits, self._waits = self._waits, []
            for look, what, future in waits:
                found = look(self.runs)
                if found is None:
                    self._waits.append((look, what, future))
                elif not future.done():
                    future.set_result(found)

    async def until(self, look: Look, what: str) -> Any:
        """Wait until `look` finds something in the committed states of the runs."""
        found = look(self.runs)
        if found is not None:
            return found
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waits.append((look, what, future))
        return await future

    async def catch_up(self) -> None:
        """Wait until everything that is committed now has been seen."""
        for place in self._places:
            end = (await self._log.span(*place)).end
            while self._reader.position(place) < end:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(0.001)

    def has_seen(self, partition: int, end: int) -> bool:
        """Whether all events below `end` have been seen."""
        return self._reader.position(self._places[partition]) >= end

    # -- what it comes to ----------------------------------------------------------------------------------------

    @property
    def waited_for(self) -> str:
        """What is waited for."""
        return "; ".join(what for _, what, _ in self._waits)

    @property
    def moving(self) -> bool:
        """Whether a run has something under way."""
        return any(op.phase in _BUSY for run in self._open() for op in run.ops.values())

    def dues(self) -> list[int]:
        """The times that runs wait for, in microseconds."""
        ops = (op for run in self._open() for op in run.ops.values())
        return [op.due for op in ops if op.due is not None and op.phase in _TIMED]

    def settled(self) -> frozenset[tuple[str, str]]:
        """The ops (run, op) of tasks whose outcome is committed."""
        return frozenset(
            (run_id, event.body.op)
            for run_id, events in self.events.items()
            for event in events
            if isinstance(event.body, (OpCompleted, OpFailed))
        )

    async def effects(self) -> dict[str, list[EffectMessage]]:
        """The messages of each run in the order of their topic."""
        found: dict[str, list[EffectMessage]] = {}
        for name in self._topics.effect_names:
            topic = self._topics.effect(name)
            for number in range(self._partitions):
                span = await self._log.span(topic, number)
                async for record in scan(self._log, topic, number, span.start, span.end):
                    message = decode_effect(record.value or b"")
                    found.setdefault(message.run_id, []).append(message)
        return found

    def _open(self) -> list[Run]:
        return [run for run in self.runs.values() if run.phase is Phase.ACTIVE and run.blocked is None]

    def _take(self, event: Event) -> None:
        self.events.setdefault(event.run_id, []).append(event)
        self.heard += 1
        if event.seq is not None:
            before = self.runs.get(event.run_id) or Run(event.run_id, event.identity)
            self.runs[event.run_id] = evolve(before, event)
            self.last = self._words(event)

    def _words(self, event: Event) -> str:
        """An event for people: its run, its type, and the name of what it is about."""
        body, run_id = event.body, event.run_id
        if isinstance(body, OpScheduled):
            self._names[run_id, body.op] = body.name
        name = self._names.get((run_id, str(getattr(body, "op", ""))), getattr(body, "name", ""))
        return " ".join(part for part in (run_id, event.type, name) if part)
