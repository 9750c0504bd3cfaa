"""What log, members, producers and readers of one open sqlite file share."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from streams.errors import UsageError
from streams.log.news import News
from streams.log.port import Record, TopicInfo, TopicPartition
from streams.log.sqlite.lane import Lane
from streams.log.sqlite.patience import Patience
from streams.log.sqlite.place import Place
from streams.log.sqlite.pulse import Pulse
from streams.log.sqlite.rows import Fetched, Topic, Wanted, Written

__all__ = ["Core", "topic_rows"]

_open: dict[str, list[Core]] = {}
"""All logs of this process by path: a commit through one at once wakes those who wait for it at another."""


class Core:
    """Two lanes (writing, reading), the pulse, the news, and the topics seen so far.

    News are of partitions by pid, told as their ends, and of groups by (group, topic), told as a count of changes.
    """

    def __init__(self, place: Place, clock: Callable[[], int], on_stall: Callable[[str], None]) -> None:
        self.place = place
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        patience = Patience(place.path, lambda message: self._on_loop(lambda: on_stall(message)))
        self.patience = patience
        self.writer = Lane(patience, "writer")
        self.looker = Lane(patience, "reader")
        self.news = News(self._on_wait)
        self.pulse = Pulse(place, patience, self.news, lambda found: self._on_loop(partial(self.news.tell, found)))
        self._topics: dict[str, Topic] = {}
        self._fresh: Mapping[int, Sequence[Record]] = {}

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
            self.news.wake_all()
            await self.loop.run_in_executor(None, self.pulse.join)

    def wrote(self, written: Written) -> None:
        """Tell everybody in this process what was written."""
        self._everywhere(lambda core: core._take_note(written))  # noqa: SLF001 - another one of the same class

    def group_changed(self, group: str, topic: str) -> None:
        """Tell everybody in this process that a group is not as it was."""
        self._everywhere(lambda core: core.news.add((group, topic)))

    def _everywhere(self, tell: Callable[[Core], None]) -> None:
        for core in _open.get(self.place.path, ()):
            if core.loop is self.loop:
                tell(core)
            else:
                core._on_loop(partial(tell, core))  # noqa: SLF001 - another one of the same class

    def _take_note(self, written: Written) -> None:
        self._fresh = written.fresh
        self.news.tell(written.ends)

    def at_hand(self, wanted: Sequence[Wanted], records_max: int) -> Fetched | None:
        """What `fetch` would bring, where this process itself wrote all of it just now, and None elsewhere."""
        records: list[Record] = []
        positions: dict[TopicPartition, int] = {}
        for place, pid, position in wanted:
            stretch = self._fresh.get(pid, ())
            if not stretch or position < stretch[0].offset or stretch[-1].offset + 1 != self.news.number(pid):
                return None
            records += stretch[position - stretch[0].offset :]
            positions[place] = stretch[-1].offset + 1
        return Fetched(records, positions, {}) if records and len(records) <= records_max else None

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
