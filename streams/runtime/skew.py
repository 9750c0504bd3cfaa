"""The worker's clock against the log's: deadlines and ages are wrong by as much as the two differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from streams.clock import Clock
from streams.errors import LogDamaged
from streams.log.port import Log, TopicPartition
from streams.observer import Observer
from streams.runtime.partition import Partition, Stamp
from streams.runtime.settings import WorkerSettings
from streams.wire.topics import Topics

__all__ = ["ClockGuard", "ahead_seconds"]

_CHUNK = 100
_READ_SECONDS = 0.02
_PATIENCE_SECONDS = 5.0


def ahead_seconds(stamp: Stamp, appended_ms: int) -> float:
    """How far our clock is surely ahead of the log's (negative: behind); 0 where a slow commit may explain it all.

    The record was appended between our two readings, so the true difference lies between the two of them and the
    append time; the smaller one counts. A process that was frozen, or a log that was away, makes no clock wrong.
    """
    least = (stamp.before - (appended_ms + 1) * 1000) / 1e6
    most = (stamp.after - appended_ms * 1000) / 1e6
    return max(0.0, least) if most > 0 else most


class ClockGuard:
    """Compares at each lease that this worker writes: the log gave it a time, which is told when it is read back."""

    def __init__(self, topics: Topics, settings: WorkerSettings, observer: Observer, clock: Clock) -> None:
        self._topics = topics
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._warned = -math.inf

    async def check(self, log: Log, partition: Partition) -> None:
        """Raise `LogDamaged` where `compare` refuses the partition."""
        for reason in (await self.compare(log, [partition])).values():
            raise LogDamaged(reason)

    async def compare(self, log: Log, partitions: Sequence[Partition]) -> dict[int, str]:
        """Warn of a clock that is off; return the partitions for which it is off by too much, with the reason."""
        stamps = {partition.number: partition.stamp for partition in partitions if partition.stamp is not None}
        for partition in partitions:
            partition.stamp = None
        appended = await self._appended(log, stamps)
        judged = {number: self._judge(number, ahead_seconds(stamps[number], at)) for number, at in appended.items()}
        return {number: reason for number, reason in judged.items() if reason}

    def _judge(self, number: int, ahead: float) -> str:
        settings = self._settings
        if abs(ahead) <= settings.clock_warn_seconds:
            return ""
        text = (
            f"the clock of this worker is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} the log's: "
            "deadlines of its runs are wrong by as much. Set the clock (NTP)"
        )
        if abs(ahead) > settings.clock_refuse_seconds:
            return f"partition {number}: {text}; over {settings.clock_refuse_seconds:g} s nothing is served"
        if self._clock.monotonic() > self._warned + settings.sweep_seconds / 2:
            # Partitions are claimed together, and one line is enough for all.
            self._warned = self._clock.monotonic()
            self._observer.message(text)
        return ""

    async def _appended(self, log: Log, stamps: dict[int, Stamp]) -> dict[int, int]:
        """The append times (ms) of our leases, as far as they can be read within some seconds."""
        wanted = {TopicPartition(self._topics.leases, number): stamp.offset for number, stamp in stamps.items()}
        found: dict[int, int] = {}
        if not wanted:
            return found
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        reader = log.reader(wanted)
        try:
            while any(reader.position(place) <= offset for place, offset in wanted.items()):
                if self._clock.monotonic() > deadline:
                    break
                for record in await reader.read(_CHUNK, _READ_SECONDS):
                    if record.offset == stamps[record.partition].offset:
                        found[record.partition] = record.timestamp
        finally:
            await reader.close()
        return found
