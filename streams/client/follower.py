"""Following the events of the partitions in which somebody in this process waits for something.

One reader serves all waits, and only events of runs that somebody waits for are decoded. The last records are kept as
they are, so that a wait which begins a little in the past does not have to read the log again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from streams.client.reading import StoredEvent, scan, stored_event
from streams.errors import StreamsError
from streams.log.port import Log, Reader, Record, TopicPartition

__all__ = ["Follower"]

T = TypeVar("T")
Judge = Callable[[StoredEvent], T | None]
"""Looks at each event of a run in order; gives what the wait was for, None to wait on, or raises a StreamsError."""

Marks = tuple[bytes, ...]

KEPT_BYTES_MAX = 2_000_000
"""What all partitions together keep of their last records, each an equal share."""
IDLE_SECONDS = 5.0
"""How long a partition is followed after the last wait."""
_RECORDS_MAX = 2_000
_RECORD_OVERHEAD_BYTES = 300


class _Wait(Generic[T]):
    """One wait: for which run, from where on, and the future that ends it."""

    __slots__ = ("future", "judge", "key", "marks", "next", "partition")

    def __init__(self, partition: int, key: bytes, start: int, judge: Judge[T], marks: Marks) -> None:
        self.partition = partition
        self.key = key
        self.next = start
        self.judge = judge
        self.marks = marks
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def feed(self, event: _Event) -> None:
        """Show it an event of its run, once."""
        offset = event.record.offset
        if offset < self.next or self.future.done():
            return
        self.next = offset + 1
        if self.marks and not event.has(self.marks):
            return
        try:
            found = self.judge(event.stored())
        except StreamsError as error:
            self.future.set_exception(error)
            return
        if found is not None:
            self.future.set_result(found)


class _Event:
    """A record that somebody waits for, decoded when the first one asks for it."""

    __slots__ = ("_stored", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self._stored: StoredEvent | None = None

    def has(self, marks: Marks) -> bool:
        """Whether its encoded form holds one of these."""
        value = self.record.value or b""
        for mark in marks:  # noqa: SIM110 - asked for every event of a run; `any` takes twice the time
            if mark in value:
                return True
        return False

    def stored(self) -> StoredEvent:
        """The event. Raises `WireError`."""
        if self._stored is None:
            self._stored = stored_event(self.record)
        return self._stored


class _Track:
    """A partition that is followed: how many wait there, and its last records, complete from `start` on."""

    __slots__ = ("_bytes", "_recent", "left_at", "start", "waits")

    def __init__(self, start: int) -> None:
        self.start = start
        self.waits = 0
        self.left_at = 0.0
        self._recent: deque[Record] = deque()
        self._bytes = 0

    def keep(self, record: Record) -> None:
        """Keep one more."""
        self._recent.append(record)
        self._bytes += len(record.value or b"") + _RECORD_OVERHEAD_BYTES

    def trim(self, bytes_max: int) -> None:
        """Let the oldest go when there are too many."""
        while self._bytes > bytes_max and self._recent:
            oldest = self._recent.popleft()
            self._bytes -= len(oldest.value or b"") + _RECORD_OVERHEAD_BYTES
            self.start = oldest.offset + 1

    def since(self, offset: int) -> Iterator[Record]:
        """What is kept from `offset` on, in order: little, for who waits has mostly just sent a command."""
        skipped = len(self._recent)
        for record in reversed(self._recent):
            if record.offset < offset:
                break
            skipped -= 1
        return islice(self._recent, skipped, None)


class Follower:
    """Follows partitions while somebody waits there, and a little longer."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._tracks: dict[int, _Track] = {}
        self._waits: dict[bytes | None, list[_Wait[Any]]] = {}
        self._late: list[_Wait[Any]] = []
        self._reader: Reader | None = None
        self._task: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None

    def position(self, partition: int) -> int | None:
        """How far it has read, or None while it does not read this partition."""
        if self._reader is None or partition not in self._tracks:
            return None
        return self._reader.position(TopicPartition(self._topic, partition))

    async def wait(self, partition: int, run_id: str, start: int, judge: Judge[T], marks: Marks = ()) -> T:
        """Wait until `judge` finds what it wants among the run's events from offset `start` on.

        With `marks`, it is only shown events whose encoded form holds one of them.
        """
        wait = _Wait(partition, run_id.encode(), start, judge, marks)
        track = self._tracks.get(partition) or self._begin(partition, start)
        track.waits += 1
        self._join(wait, track)
        try:
            return await wait.future
        finally:
            track.waits -= 1
            track.left_at = asyncio.get_running_loop().time()
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

    def _begin(self, partition: int, start: int) -> _Track:
        track = self._tracks[partition] = _Track(start)
        place = TopicPartition(self._topic, partition)
        if self._reader is None:
            self._reader = self._log.reader({place: start})
            self._task = asyncio.create_task(self._follow(self._reader))
        else:
            self._reader.add(place, start)
        return track

    def _join(self, wait: _Wait[Any], track: _Track) -> None:
        if wait.next >= track.start:
            for record in track.since(wait.next):
                if record.key == wait.key:
                    wait.feed(_Event(record))
            self._waits.setdefault(wait.key, []).append(wait)
            return
        self._late.append(wait)
        if self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up())

    def _leave(self, wait: _Wait[Any]) -> None:
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

    async def _follow(self, reader: Reader) -> None:
        try:
            while self._tracks:
                for record in await reader.read(_RECORDS_MAX, IDLE_SECONDS):
                    self._take(record)
                self._tidy(reader)
        except Exception as error:  # noqa: BLE001 - whatever stops the reader is what its waits end with
            self._fail(error)
        finally:
            # Before any await: a wait that comes now must find a follower that is not running, and start it anew.
            self._tracks, self._reader, self._task = {}, None, None
            await reader.close()

    def _take(self, record: Record) -> None:
        self._tracks[record.partition].keep(record)
        waits = self._waits.get(record.key)
        if waits is not None:
            event = _Event(record)
            for wait in waits:
                wait.feed(event)

    def _tidy(self, reader: Reader) -> None:
        """Bound what is kept, and give up partitions where nobody has waited for a while."""
        idle_since = asyncio.get_running_loop().time() - IDLE_SECONDS
        share = KEPT_BYTES_MAX // len(self._tracks)
        for partition, track in list(self._tracks.items()):
            track.trim(share)
            if not track.waits and track.left_at <= idle_since:
                del self._tracks[partition]
                reader.remove(TopicPartition(self._topic, partition))

    def _fail(self, error: Exception) -> None:
        for wait in self._everybody():
            if not wait.future.done():
                wait.future.set_exception(error)

    async def _catch_up(self) -> None:
        """Show what lies before the kept records to the waits that begin there, a partition in one pass."""
        try:
            while late := [wait for wait in self._late if not wait.future.done()]:
                partition = late[0].partition
                late = [wait for wait in late if wait.partition == partition]
                await self._read_for(partition, late)
                for wait in late:
                    if not wait.future.done():
                        self._late.remove(wait)
                        self._join(wait, self._tracks[partition])
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            self._catching_up = None

    async def _read_for(self, partition: int, late: list[_Wait[Any]]) -> None:
        by_key: dict[bytes | None, list[_Wait[Any]]] = {}
        for wait in late:
            by_key.setdefault(wait.key, []).append(wait)
        start = min(wait.next for wait in late)
        end = self._tracks[partition].start
        async for record in scan(self._log, self._topic, partition, start, end):
            if record.key in by_key:
                event = _Event(record)
                for wait in by_key[record.key]:
                    wait.feed(event)
        for wait in late:
            wait.next = max(wait.next, end)
