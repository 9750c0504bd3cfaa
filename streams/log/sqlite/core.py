"""What log, members, producers and readers of one open sqlite file share."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable

from streams.errors import UsageError
from streams.log.bell import Bell
from streams.log.port import TopicInfo
from streams.log.sqlite.lane import Lane
from streams.log.sqlite.patience import Patience
from streams.log.sqlite.place import Place
from streams.log.sqlite.pulse import Pulse
from streams.log.sqlite.rows import Topic

__all__ = ["Core", "topic_rows"]

_open: dict[str, list[Core]] = {}
"""All logs of this process by path: a commit through one at once wakes those who wait at another."""


class Core:
    """Two lanes (writing, reading), the pulse, the bell, and the topics seen so far."""

    def __init__(self, place: Place, clock: Callable[[], int], on_stall: Callable[[str], None]) -> None:
        self.place = place
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        patience = Patience(place.path, lambda message: self._on_loop(lambda: on_stall(message)))
        self.patience = patience
        self.writer = Lane(patience, "writer")
        self.looker = Lane(patience, "reader")
        self.bell = Bell(self._on_wait)
        self.pulse = Pulse(place, patience, self.bell, lambda: self._on_loop(self.bell.ring))
        self._topics: dict[str, Topic] = {}

    def start(self) -> None:
        """Begin heartbeats and watching, once the file has its tables."""
        _open.setdefault(self.place.path, []).append(self)
        self.pulse.start()

    async def stop(self) -> None:
        """End all threads."""
        self.patience.stop()
        self.pulse.stop()
        await self.writer.close()
        await self.looker.close()
        if self in _open.get(self.place.path, ()):
            _open[self.place.path].remove(self)
            self.bell.ring()
            await self.loop.run_in_executor(None, self.pulse.join)

    def ring(self) -> None:
        """Tell everybody in this process that something was written."""
        for other in _open.get(self.place.path, ()):
            if other.loop is self.loop:
                other.bell.ring()
            else:
                other._on_loop(other.bell.ring)  # noqa: SLF001 - another one of the same class

    async def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the named topics that exist."""
        wanted = set(names)
        missing = wanted.difference(self._topics)
        if missing:
            self._topics.update(await self.looker.run(lambda connection: topic_rows(connection, missing)))
        return {name: self._topics[name] for name in wanted if name in self._topics}

    async def topic(self, name: str) -> Topic:
        """A topic that must exist."""
        found = await self.topics([name])
        if name not in found:
            raise UsageError(f"there is no topic {name!r} in {self.place.url}: create the app's topics first")
        return found[name]

    async def pid(self, topic: str, partition: int) -> int:
        """The id of a partition that must exist."""
        pids = (await self.topic(topic)).pids
        if not 0 <= partition < len(pids):
            raise UsageError(f"there is no partition {partition} in {topic}: it has {len(pids)}")
        return pids[partition]

    def _on_wait(self) -> None:
        self.pulse.watch()

    def _on_loop(self, act: Callable[[], None]) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(act)


def topic_rows(connection: sqlite3.Connection, names: Iterable[str]) -> dict[str, Topic]:
    """Read topics with their partitions."""
    topics = {}
    for name in names:
        row = connection.execute("SELECT id, partitions, config FROM topics WHERE name = ?", (name,)).fetchone()
        if row is not None:
            pids = connection.execute("SELECT pid FROM partitions WHERE topic = ? ORDER BY partition", (name,))
            info = TopicInfo(name, row[0], row[1], json.loads(row[2]))
            topics[name] = Topic(info, [pid for (pid,) in pids])
    return topics
