"""Reading an effect's topic: polls go on whatever handlers do, and the windows bound what they bring."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streams.errors import Fenced, LogDamaged, LogUnavailable
from streams.log.port import GroupSnapshot

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station
    from streams.effects.subscriber.window import Window

__all__ = ["Polling"]

_AWAY_SECONDS = 0.5


class Polling:
    """The poll loop of one effect."""

    def __init__(self, station: Station) -> None:
        self.on = True
        self._station = station
        self._away = False
        self._polled = asyncio.Event()

    async def run(self) -> None:
        """Poll until `on` is false."""
        station, settings = self._station, self._station.parts.settings
        while self.on:
            try:
                count = 1 if station.closing else await self._room()
                batch = await station.member.poll(count, settings.poll_seconds)
            except LogUnavailable as error:
                if not self._away:
                    station.parts.observer.message(f"the log cannot be reached, trying again: {error}")
                self._away = True
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            except LogDamaged as error:
                await station.owning.damaged(error)
                continue
            if self._away:
                station.parts.observer.message("the log answers again")
                self._away = False
            self._polled.set()
            if not station.closing:
                station.accept(batch.records)
            await asyncio.sleep(0)  # a log in memory may answer without ever waiting

    async def newer_snapshot(self, snapshot: GroupSnapshot) -> None:
        """Wait until a later poll has been made; after a moment go on with what there is."""
        try:
            async with asyncio.timeout(2 * self._station.parts.settings.poll_seconds):
                while self._station.member.snapshot() is snapshot:
                    self._polled.clear()
                    await self._polled.wait()
        except TimeoutError:
            return

    async def _room(self) -> int:
        """Pause what is full, go on with what has room again; return how many messages may come."""
        settings = self._station.parts.settings
        windows = [window for window in self._station.windows.values() if window.open]
        held = sum(window.bytes for window in windows)
        count = min(settings.poll_records, settings.window)  # one may be opened while the poll is under way
        for window in windows:
            room = settings.window - len(window.messages)
            if window.paused and room >= (settings.window + 1) // 2 and held <= settings.bytes_max // 2:
                await self._resume(window)
            elif not window.paused and (room < max(1, settings.window // 8) or held > settings.bytes_max):
                await self._station.member.pause(window.number)
                window.paused = True
                self._tell_full(window)
            if not window.paused:
                count = min(count, room)
        return max(1, count)

    async def _resume(self, window: Window) -> None:
        try:
            await self._station.member.resume(window.number, window.position)
        except Fenced:
            return  # it is being given up
        except LogDamaged as error:
            await self._station.owning.damaged(LogDamaged(str(error), window.number))
            return
        window.paused = False

    def _tell_full(self, window: Window) -> None:
        if window.messages and not window.asked and not self._station.ready:
            self._station.parts.observer.message(
                f"effect {self._station.name}, partition {window.number}: {len(window.messages)} messages wait for the "
                f"one at offset {window.messages[0].offset}, so no more are read"
            )
