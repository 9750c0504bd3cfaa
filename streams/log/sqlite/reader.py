"""A plain reader of a sqlite log."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from streams.log.holding import rotated
from streams.log.port import Record, TopicPartition
from streams.log.sqlite.core import Core
from streams.log.sqlite.rows import Wanted, fetch, in_snapshot

__all__ = ["SqliteReader"]


class SqliteReader:
    """See `streams.log.port.Reader`. Nothing is visible before its commit, so both isolations are the same."""

    def __init__(self, core: Core, start: Mapping[TopicPartition, int]) -> None:
        self._core = core
        self._positions = dict(start)
        self._pids: dict[TopicPartition, int] = {}
        self._turns = 0

    async def read(self, records_max: int, timeout: float) -> list[Record]:
        """The next records of all partitions."""
        deadline = self._core.loop.time() + timeout
        for place in self._positions:
            if place not in self._pids:
                self._pids[place] = await self._core.pid(*place)
        while True:
            rings = self._core.bell.rings
            records = await self._take(records_max)
            left = deadline - self._core.loop.time()
            if records or left <= 0:
                return records
            await self._core.bell.wait(rings, left)

    def position(self, partition: TopicPartition) -> int:
        """One past everything passed so far."""
        return self._positions[partition]

    async def close(self) -> None:
        """Nothing is held."""

    async def _take(self, records_max: int) -> list[Record]:
        self._turns += 1
        places = rotated(list(self._positions), self._turns)
        wanted = [Wanted(place, self._pids[place], self._positions[place]) for place in places]
        job = partial(fetch, wanted=wanted, records_max=records_max)
        records, positions = await self._core.looker.run(partial(in_snapshot, look=job))
        self._positions.update(positions)
        return records
