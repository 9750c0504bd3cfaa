"""Going past what a topic holds behind its last message: the markers of transactions, and what was aborted.

A group's offset that stayed in front of them would one day lie below the start of a log whose retention has taken them
with the last message, and would look as if messages had been lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streams.errors import LogDamaged, LogUnavailable
from streams.log.port import Reader, TopicPartition

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station
    from streams.effects.subscriber.window import Window

__all__ = ["Markers"]

_READ_SECONDS = 0.2


class Markers:
    """Moves the group's offset of idle partitions to the end of the log where no message lies between."""

    def __init__(self, station: Station) -> None:
        self._station = station

    async def run(self) -> None:
        """Look at the idle partitions, again and again."""
        while True:
            await asyncio.sleep(self._station.parts.settings.idle_seconds)
            await self.pass_over()

    async def pass_over(self) -> None:
        """Look once. A log that is away, or a partition that moves meanwhile, is looked at the next time."""
        log, topic = self._station.parts.log, self._station.topic
        try:
            places: dict[TopicPartition, tuple[Window, int]] = {}
            for window in [window for window in self._station.windows.values() if self._is_idle(window)]:
                end = (await log.span(topic, window.number)).end
                if window.position < end:
                    places[TopicPartition(topic, window.number)] = window, end
            if not places:
                return
            starts = {place: window.position for place, (window, _) in places.items()}
            reader = log.reader(starts)
            try:
                for place in await self._behind(reader, {place: end for place, (_, end) in places.items()}):
                    window, end = places[place]
                    if self._is_idle(window) and window.position == starts[place]:
                        window.position = end
            finally:
                await reader.close()
        except (LogUnavailable, LogDamaged):
            return
        self._station.publishing.wake.set()

    @staticmethod
    def _is_idle(window: Window) -> bool:
        return window.open and not window.messages

    @staticmethod
    async def _behind(reader: Reader, ends: dict[TopicPartition, int]) -> list[TopicPartition]:
        """The partitions in which no message comes before the end; one that does is on its way to the group too."""
        with_messages: set[TopicPartition] = set()
        while any(reader.position(place) < ends[place] for place in ends.keys() - with_messages):
            records = await reader.read(1_000, _READ_SECONDS)
            with_messages |= {TopicPartition(record.topic, record.partition) for record in records}
        return [place for place in ends if place not in with_messages]
