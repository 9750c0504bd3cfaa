"""Reads the histories of a partition's runs, each in one piece, in bounded memory.

The events of many runs lie mixed in one topic. A run is handed out and dropped at its end; those under way are kept
until the end of the partition. Where they would take more than the bound, half of them, by a hash of their ids, are
left for another pass over the partition.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from streams.client.reading import Progress, scan
from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.log.port import Log, Record
from streams.wire.records import decode_event
from streams.wire.schemas import SchemaUnknown

__all__ = ["MEMORY_BYTES_MAX", "Filter", "History", "read_histories"]

MEMORY_BYTES_MAX = 256_000_000
"""The bound of what is kept of runs under way, in encoded bytes."""

_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
_PLACES = 1 << 32
_RUN_BYTES = 300
"""What a run under way takes besides its events."""


@dataclass(slots=True)
class History:
    """The encoded events of one run in order. `flaw` says why they are not all that happened to it."""

    run_id: str
    place: int
    identity: str = ""
    events: list[bytes] = field(default_factory=list)
    size: int = _RUN_BYTES
    flaw: str = ""
    passed_over: bool = False
    """Whether it is of no interest: kept in mind, so that its later events are not taken for another run."""

    def decoded(self) -> list[Event]:
        """The events."""
        return [decode_event(data) for data in self.events]

    def drop(self, flaw: str) -> None:
        """Keep no more than the first event."""
        self.flaw = self.flaw or flaw
        del self.events[1:]
        self.size = _RUN_BYTES + sum(map(len, self.events))


class Filter(NamedTuple):
    """Which histories are wanted: of these run ids (all where there are none), begun at or after `since_us`."""

    keys: Collection[bytes] = ()
    since_us: int = 0


class _Slice(NamedTuple):
    """A part of the runs, by the hash of their ids. Those that ended before the offset `told` have been handed out."""

    low: int
    high: int
    told: int


async def read_histories(
    log: Log,
    topic: str,
    partition: int,
    wanted: Filter,
    *,
    bytes_max: int = MEMORY_BYTES_MAX,
    progress: Progress | None = None,
) -> AsyncGenerator[History, None]:
    """The histories of all wanted runs of a partition; those that have ended as they end, the others at last."""
    span = await log.span(topic, partition)
    slices = [_Slice(0, _PLACES, 0)]
    while slices:
        one = _Pass(slices.pop(), wanted, bytes_max)
        async for record in scan(log, topic, partition, span.start, span.end, progress=progress):
            for history in one.take(record):
                yield history
        for history in one.rest():
            yield history
        slices += one.left


class _Pass:
    """One pass over a partition, for one slice of its runs."""

    def __init__(self, part: _Slice, wanted: Filter, bytes_max: int) -> None:
        self._slice = part
        self._wanted = wanted
        self._bytes_max = bytes_max
        self._open: dict[bytes, History] = {}
        self._size = 0
        self.left: list[_Slice] = []
        """Slices that were put off."""

    def take(self, record: Record) -> list[History]:
        """Keep an event; return the histories that end with it."""
        key = record.key or b""
        place = zlib.crc32(key)
        if not self._slice.low <= place < self._slice.high or (self._wanted.keys and key not in self._wanted.keys):
            return []
        try:
            event = decode_event(record.value or b"")
        except WireError as error:
            self._unreadable(key, place, error)
            return []
        if event.seq is None:
            return []
        ended = self._add(key, place, event, record)
        if self._size > self._bytes_max:
            self._put_off(record.offset + 1)
        return ended if record.offset >= self._slice.told else []

    def rest(self) -> list[History]:
        """The runs that have not ended."""
        return [history for history in self._open.values() if not history.passed_over]

    def _add(self, key: bytes, place: int, event: Event, record: Record) -> list[History]:
        found: list[History] = []
        history = self._open.get(key)
        if history is not None and history.identity not in ("", event.identity):
            history.flaw = history.flaw or "another run of the same id began before its end"
            found += self._close(key)
            history = None
        if history is None:
            if isinstance(event.body, ev.RunExpired):
                return found
            history = self._begin(key, place, event)
        history.identity = event.identity
        if not history.flaw and not history.passed_over:
            history.events.append(record.value or b"")
            history.size += len(record.value or b"")
            self._size += len(record.value or b"")
        elif not history.events and not history.passed_over:
            history.events.append(record.value or b"")
        return found + (self._close(key) if isinstance(event.body, (*_ENDS, ev.RunExpired)) else [])

    def _begin(self, key: bytes, place: int, event: Event) -> History:
        history = self._open[key] = History(event.run_id, place, event.identity)
        history.passed_over = event.at < self._wanted.since_us
        self._size += history.size
        return history

    def _close(self, key: bytes) -> list[History]:
        history = self._open.pop(key)
        self._size -= history.size
        return [] if history.passed_over else [history]

    def _unreadable(self, key: bytes, place: int, error: WireError) -> None:
        run_id = key.decode("utf-8", "backslashreplace")
        history = self._open.get(key)
        if history is None:
            history = self._open[key] = History(run_id, place)
            self._size += history.size
        newer = isinstance(error, SchemaUnknown)
        what = "was written by a newer release of streams" if newer else f"cannot be read: {error}"
        self._size -= history.size
        history.drop(f"an event of it {what}")
        self._size += history.size

    def _put_off(self, offset: int) -> None:
        """Leave half of the runs for another pass; a run that is alone and too large is given up."""
        places = sorted({history.place for history in self._open.values()})
        if len(places) > 1:
            middle = places[len(places) // 2]
            self.left.append(_Slice(middle, self._slice.high, max(offset, self._slice.told)))
            self._slice = self._slice._replace(high=middle)
            for key in [key for key, history in self._open.items() if history.place >= middle]:
                self._size -= self._open.pop(key).size
            return
        for history in self._open.values():
            self._size -= history.size
            history.drop(f"its history is larger than the {self._bytes_max:,} bytes that may be kept")
            self._size += history.size
