"""What a log says of an app's runs, read by tests: an own follower of events, and an own sender of commands."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import Request
from streams.kernel.events import Event
from streams.log.port import Log, NewRecord, TopicPartition
from streams.wire.partitioner import partition_of
from streams.wire.records import encode_command
from streams.wire.topics import topics_of
from tests.runtime.checker import records_of, try_event

__all__ = ["HANG_SECONDS", "History", "send_raw", "until"]

HANG_SECONDS = float(os.environ.get("STREAMS_HANG_SECONDS", "60"))
"""A guard against hangs: no test measures time with it, so a slow machine fails nothing."""

ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)


async def until(condition: Callable[[], Any], what: str = "", pause: float = 0.01) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"did not come about: {what or condition}"
        await asyncio.sleep(pause)


async def send_raw(
    log: Log, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Any = ()
) -> int:
    """Append one record as any foreign producer could; return its offset."""
    return (await log.append([NewRecord(topic, partition, key, value, headers)]))[0]


class History:
    """Sends commands and follows what becomes of them."""

    def __init__(self, log: Log, app: str, effects: tuple[str, ...] = (), partitions: int = 4) -> None:
        self.log = log
        self.topics = topics_of(app, effects)
        self.partitions = partitions
        self.events: dict[str, list[Event]] = {}
        self._at: dict[int, int] = {}
        self._reading = asyncio.Lock()

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(self, run_id: str, request: Request, command_id: str | None = None) -> int:
        """Send a command; return its offset."""
        return (await self.send_all([(run_id, request)], command_id))[0]

    async def send_all(self, requests: list[tuple[str, Request]], command_id: str | None = None) -> list[int]:
        """Send commands with one append, so that they come in one batch."""
        records = []
        for run_id, request in requests:
            value = encode_command(request, command_id=command_id or uuid4().hex)
            key = run_id.encode()
            records.append(NewRecord(self.topics.commands, partition_of(key, self.partitions), key, value))
        return await self.log.append(records)

    async def start(self, workflow: str, run_id: str, value: Any = None, **more: Any) -> int:
        return await self.send(run_id, start(workflow, value), **more)

    def partition(self, run_id: str) -> int:
        return partition_of(run_id.encode(), self.partitions)

    # -- reading -------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """Take in what has been committed since."""
        async with self._reading:
            for number in range(self.partitions):
                place = TopicPartition(self.topics.events, number)
                records = await records_of(self.log, place, self._at.get(number, 0))
                for record in records:
                    self._at[number] = record.offset + 1
                    event = try_event(record)
                    if event is not None:
                        self.events.setdefault(event.run_id, []).append(event)

    async def until(self, condition: Callable[[History], Any], what: str = "") -> None:
        """Read until the condition holds."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            await self.read()
            if condition(self):
                return
            assert time.monotonic() < deadline, f"did not come about: {what or condition}\n{self}"
            await asyncio.sleep(0.01)

    async def ended(self, *run_ids: str) -> None:
        """Wait until these runs have ended."""
        await self.until(lambda h: all(h.end(run_id) is not None for run_id in run_ids), f"the end of {run_ids}")

    async def result(self, run_id: str) -> Any:
        """Wait for the result of a run, as plain JSON."""
        await self.ended(run_id)
        end = self.end(run_id)
        assert isinstance(end, ev.RunCompleted), end
        return json.loads(end.result)

    async def seen(self, run_id: str, body: type, count: int = 1) -> list[Any]:
        """Wait for so many events of a type; return their bodies."""
        await self.until(lambda h: len(h.bodies(run_id, body)) >= count, f"{count} {body.__name__} of {run_id}")
        return self.bodies(run_id, body)

    async def answered(self, offset: int, run_id: str) -> Any:
        """Wait for the first event that a command led to."""
        await self.until(lambda h: any(e.offset == offset for e in h.events.get(run_id, [])), f"command {offset}")
        return next(e.body for e in self.events[run_id] if e.offset == offset)

    def bodies(self, run_id: str, body: type) -> list[Any]:
        return [event.body for event in self.events.get(run_id, []) if isinstance(event.body, body)]

    def end(self, run_id: str) -> ev.Body | None:
        return next((event.body for event in self.events.get(run_id, []) if isinstance(event.body, ENDS)), None)

    def error(self, run_id: str) -> ev.Failure:
        end = self.end(run_id)
        assert isinstance(end, ev.RunFailed), end
        return end.error

    def blocked(self, run_id: str) -> ev.Failure | None:
        found: ev.Failure | None = None
        for event in self.events.get(run_id, []):
            if isinstance(event.body, ev.RunBlocked):
                found = event.body.error
            elif isinstance(event.body, ev.RunUnblocked):
                found = None
        return found

    def __str__(self) -> str:
        lines = []
        for run_id, events in self.events.items():
            if self.end(run_id) is None:
                lines += [f"{run_id}:"] + [f"  {e.seq} e{e.epoch} {str(e.body)[:160]}" for e in events[-12:]]
        return "\n".join(lines[:200])


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def start(workflow: str, value: Any = None) -> cmd.Start:
    return cmd.Start(workflow, encoded(value))


def resume(value: Any, interrupt: str | None = None) -> cmd.Resume:
    return cmd.Resume(encoded(value), interrupt)


def signal(name: str, value: Any = None) -> cmd.Signal:
    return cmd.Signal(name, encoded(value))
