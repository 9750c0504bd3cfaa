"""Following the events of one partition for everybody in this process who waits for some of them.

One reader serves all waits, and only events of runs that somebody waits for are decoded. The last events are kept
undecoded, so that a wait which begins a little in the past does not have to read the log again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from streams.client.reading import StoredEvent, scan, stored_event
from streams.errors import StreamsError
from streams.log.port import Log, Record, TopicPartition

__all__ = ["Follower"]

T = TypeVar("T")
Judge = Callable[[StoredEvent], T | None]
"""Looks at each event of a run in order; gives what the wait was for, None to wait on, or raises a StreamsError."""

Marks = tuple[bytes, ...]

KEPT_BYTES_MAX = 4_000_000
IDLE_SECONDS = 5.0
_RECORDS_MAX = 2_000
_RECORD_OVERHEAD_BYTES = 500


class _Wait(Generic[T]):
    """One wait: for which run, from where on, and the future that ends it."""

    __slots__ = ("future", "judge", "key", "marks", "next")

    def __init__(self, key: bytes, start: int, judge: Judge[T], marks: Marks) -> None:
        self.key = key
        self.next = start
        self.judge = judge
        self.marks = marks
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def feed(self, kept: _Kept) -> None:
        """Show it an event, once."""
        offset = kept.record.offset
        if offset < self.next or self.future.done():
            return
        self.next = offset + 1
        value = kept.record.value or b""
        if self.marks and not any(mark in value for mark in self.marks):
            return
        try:
            found = self.judge(kept.stored())
        except StreamsError as error:
            self.future.set_exception(error)
            return
        if found is not None:
            self.future.set_result(found)


class _Kept:
    """A record, decoded when the first one asks for it."""

    __slots__ = ("_stored", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self._stored: StoredEvent | None = None

    def stored(self) -> StoredEvent:
        """The event. Raises `WireError`."""
        if self._stored is None:
            self._stored = stored_event(self.record)
        return self._stored


class _Recent:
    """The last records of the partition by key, within a bound of bytes; complete from `start` on."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._order: deque[_Kept] = deque()
        self._by_key: dict[bytes, deque[_Kept]] = {}
        self._bytes = 0

    def add(self, kept: _Kept, key: bytes) -> None:
        """Keep one more; the oldest go when there are too many."""
        self._order.append(kept)
        self._by_key.setdefault(key, deque()).append(kept)
        self._bytes += _weight(kept.record)
        while self._bytes > KEPT_BYTES_MAX:
            self._drop_oldest()

    def of(self, key: bytes) -> list[_Kept]:
        """What is kept of one run, in order."""
        return list(self._by_key.get(key, ()))

    def _drop_oldest(self) -> None:
        record = self._order.popleft().record
        self._bytes -= _weight(record)
        self.start = record.offset + 1
        same = self._by_key[record.key or b""]
        same.popleft()
        if not same:
            del self._by_key[record.key or b""]


def _weight(record: Record) -> int:
    return len(record.value or b"") + _RECORD_OVERHEAD_BYTES


class Follower:
    """Follows one partition while somebody waits, and a little longer."""

    def __init__(self, log: Log, topic: str, partition: int) -> None:
        self._log = log
        self._place = TopicPartition(topic, partition)
        self._waits: dict[bytes, list[_Wait[Any]]] = {}
        self._late: list[_Wait[Any]] = []
        self._recent: _Recent | None = None
        self._position = 0
        self._left_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def position(self) -> int | None:
        """How far it has read, or None while it is not reading."""
        return self._position if self._recent is not None else None

    async def wait(self, run_id: str, start: int, judge: Judge[T], marks: Marks = ()) -> T:
        """Wait until `judge` finds what it wants among the run's events from offset `start` on.

        With `marks`, it is only shown events whose encoded form holds one of them.
        """
        wait = _Wait(run_id.encode(), start, judge, marks)
        self._join(wait)
        try:
            return await wait.future
        finally:
            self._leave(wait)

    async def close(self) -> None:
        """Stop reading; whoever still waits is cancelled."""
        for task in (self._task, self._catching_up):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        for wait in self._everybody():
            wait.future.cancel()

    # -- joining and leaving -------------------------------------------------------------------------------------

    def _join(self, wait: _Wait[Any]) -> None:
        if self._recent is None:
            self._recent = _Recent(wait.next)
            self._position = wait.next
            self._task = asyncio.create_task(self._follow(self._recent))
        if wait.next >= self._recent.start:
            self._attach(wait, self._recent)
            return
        self._late.append(wait)
        if self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up())

    def _attach(self, wait: _Wait[Any], recent: _Recent) -> None:
        for kept in recent.of(wait.key):
            wait.feed(kept)
        self._waits.setdefault(wait.key, []).append(wait)

    def _leave(self, wait: _Wait[Any]) -> None:
        self._left_at = asyncio.get_running_loop().time()
        if wait in self._late:
            self._late.remove(wait)
        same = self._waits.get(wait.key, [])
        if wait in same:
            same.remove(wait)
            if not same:
                del self._waits[wait.key]

    def _everybody(self) -> list[_Wait[Any]]:
        return [*self._late, *(wait for same in self._waits.values() for wait in same)]

    # -- reading -------------------------------------------------------------------------------------------------

    async def _follow(self, recent: _Recent) -> None:
        loop = asyncio.get_running_loop()
        reader = self._log.reader({self._place: self._position})
        try:
            while self._waits or self._late or loop.time() - self._left_at < IDLE_SECONDS:
                for record in await reader.read(_RECORDS_MAX, IDLE_SECONDS):
                    self._take(record, recent)
                self._position = reader.position(self._place)
        except Exception as error:  # noqa: BLE001 - whatever stops the reader is what its waits end with
            self._fail(error)
        finally:
            # Before any await: a wait that comes now must find a follower that is not running, and start it anew.
            self._recent = self._task = None
            await reader.close()

    def _take(self, record: Record, recent: _Recent) -> None:
        if record.key is None:
            return
        kept = _Kept(record)
        recent.add(kept, record.key)
        for wait in self._waits.get(record.key, ()):
            wait.feed(kept)

    def _fail(self, error: Exception) -> None:
        for wait in self._everybody():
            if not wait.future.done():
                wait.future.set_exception(error)

    async def _catch_up(self) -> None:
        """Show what lies before the kept records to the waits that begin there, all of them in one pass."""
        try:
            while self._late:
                late = tuple(self._late)
                await self._read_for(late)
                for wait in late:
                    if wait in self._late:
                        self._late.remove(wait)
                        self._join(wait)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            self._catching_up = None

    async def _read_for(self, late: tuple[_Wait[Any], ...]) -> None:
        by_key: dict[bytes, list[_Wait[Any]]] = {}
        for wait in late:
            by_key.setdefault(wait.key, []).append(wait)
        start = min(wait.next for wait in late)
        end = self._position
        async for record in scan(self._log, *self._place, start, end):
            if record.key in by_key:
                kept = _Kept(record)
                for wait in by_key[record.key or b""]:
                    wait.feed(kept)
        for wait in late:
            wait.next = max(wait.next, end)
