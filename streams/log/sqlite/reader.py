"""A plain reader of a sqlite log."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial

from streams.log.holding import rotated
from streams.log.port import Record, TopicPartition
from streams.log.sqlite.core import Core
from streams.log.sqlite.rows import Wanted, fetch

__all__ = ["SqliteReader"]


class SqliteReader:
    """See `streams.log.port.Reader`. Nothing is visible before its commit, so both isolations are the same."""

    def __init__(self, core: Core, start: Mapping[TopicPartition, int]) -> None:
        self._core = core
        self._positions = dict(start)
        self._pids: dict[TopicPartition, int] = {}
        self._turns = 0

    def add(self, partition: TopicPartition, offset: int) -> None:
        """Read this partition too."""
        self._positions[partition] = offset
        self._core.news.wake(self)

    def remove(self, partition: TopicPartition) -> None:
        """Read this partition no more."""
        del self._positions[partition]
        self._pids.pop(partition, None)

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        """The next records of all partitions. What is known to have none is not looked at until the time is over."""
        deadline = self._core.loop.time() + timeout
        while True:
            await self._core.news.wait(self._seen(), deadline - self._core.loop.time())
            over = self._core.loop.time() >= deadline
            records = await self._take(records_max, whole=over)
            if records or over:
                return records

    def position(self, partition: TopicPartition) -> int:
        """One past everything passed so far."""
        return self._positions[partition]

    async def close(self) -> None:
        """Nothing is held."""

    def _seen(self) -> dict[Hashable, int]:
        """How far each partition was looked at, and this reader itself, for `add` to wake it."""
        return {self: 0 if len(self._pids) == len(self._positions) else -1} | {
            pid: self._positions[place] for place, pid in self._pids.items()
        }

    async def _take(self, records_max: int, *, whole: bool) -> list[Record]:
        self._turns += 1
        wanted = []
        for place, position in rotated(list(self._positions.items()), self._turns):
            pid = self._pids.get(place)
            if pid is None:
                wanted.append(Wanted(place, await self._core.pid(*place), position))
            elif whole or self._core.news.number(pid) > position:
                wanted.append(Wanted(place, pid, position))
        fetched = None if whole else self._core.at_hand(wanted, records_max)
        if fetched is None:
            fetched = await self._core.looker.run(partial(fetch, wanted=wanted, records_max=records_max))
            self._core.news.tell(fetched.ends)
        self._pids.update({w.place: w.pid for w in wanted})
        self._positions.update(fetched.positions)
        return fetched.records
