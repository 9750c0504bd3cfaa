"""Owning partitions of an effect's topic: beginning at the group's offset, giving up, and losing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from streams.deadline import Deadline
from streams.effects.subscriber.window import Window, WindowState
from streams.errors import Fenced, LogDamaged, LogError
from streams.log.port import GroupSnapshot

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station

__all__ = ["Owning"]

_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.005
_DRAIN_SHARE = 0.6
"""Of the budget, for handlers that still run; the rest is for the commit of those that have ended."""


class Owning:
    """Implements the `Ownership` port for the subscriber of one effect."""

    def __init__(self, station: Station, *, strict: bool) -> None:
        self.windows: dict[int, Window] = {}
        self._station = station
        self._strict = strict
        self._opening: dict[int, asyncio.Task[None]] = {}

    # -- what the group says -------------------------------------------------------------------------------------

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """Begin beside the poll, which has to go on answering the group."""
        del snapshot
        for number, incarnation in partitions.items():
            self._begin(Window(number, incarnation))

    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """Take nothing more, let what runs end within the budget, commit what is finished, let go."""
        station = self._station
        deadline = Deadline(station.parts.clock, station.parts.settings.drain_seconds)
        self._stop_opening(partitions)
        windows = [window for window in self._held(partitions) if window.open]
        for window in windows:
            window.move(WindowState.DRAINING)
        station.wake.set()
        patience = Deadline(station.parts.clock, station.parts.settings.drain_seconds * _DRAIN_SHARE)
        while any(window.asked for window in windows) and not patience.over:  # noqa: ASYNC110 - rare, and bounded
            await asyncio.sleep(_LOOK_SECONDS)
        try:
            await station.publishing.last(snapshot, windows, deadline.left())
        except (LogError, TimeoutError) as error:
            # The outcomes are in the ledger: the next owner publishes what is not noted there as published.
            reason = str(error) or f"it took longer than {station.parts.settings.drain_seconds:g} s"
            numbers = sorted(window.number for window in windows)
            station.parts.observer.message(
                f"effect {station.name}: giving up partitions {numbers} without a last commit: {reason}"
            )
        for window in self._held(partitions):
            self._close(window)

    async def lost(self, partitions: Mapping[int, int]) -> None:
        """Somebody else owns them: publish nothing, cancel what runs, forget everything."""
        self._stop_opening(partitions)
        for window in self._held(partitions):
            self._close(window)

    def _held(self, numbers: Iterable[int]) -> list[Window]:
        return [self.windows[number] for number in numbers if number in self.windows]

    def _close(self, window: Window) -> None:
        if window.closed:
            return
        window.move(WindowState.CLOSED)
        if self.windows.get(window.number) is window:
            del self.windows[window.number]
        self._station.close(window)
        self._observe(window, "")

    # -- beginning -----------------------------------------------------------------------------------------------

    def _begin(self, window: Window, refused: str = "") -> None:
        old = self.windows.get(window.number)
        if old is not None:
            self._close(old)
        self._stop_opening([window.number])
        self.windows[window.number] = window
        task = self._opening[window.number] = asyncio.create_task(self._open_until_done(window, refused))
        self._station.parts.watch(task)

    def _stop_opening(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            task = self._opening.pop(number, None)
            if task is not None:
                task.cancel()

    async def _open_until_done(self, window: Window, refused: str) -> None:
        while True:
            if refused:
                await self._refuse(window, refused)
            refused = ""
            self._observe(window, "")
            try:
                await self._open(window)
            except LogDamaged as error:
                refused = str(error)
            except Fenced:
                return  # it is being given up; the group says so in a moment
            else:
                self._observe(window, f"from offset {window.position}")
                return

    async def _refuse(self, window: Window, reason: str) -> None:
        if window.state is WindowState.OPENING:
            window.move(WindowState.REFUSED)
        self._observe(window, reason)
        if self._strict:
            self._station.parts.fail(LogDamaged(reason, window.number))
        await asyncio.sleep(self._station.parts.settings.retry_refused_seconds)
        window.move(WindowState.OPENING)

    async def _open(self, window: Window) -> None:
        station, number = self._station, window.number
        log = station.parts.log
        committed = await station.parts.ask_log(lambda: self._stable_offset(number), self._waits(number))
        span = await station.parts.ask_log(
            lambda: log.span(station.topic, number, "read_uncommitted"), self._waits(number)
        )
        start = span.start if committed is None else committed
        carried_out = f"effect {station.name}, partition {number}: the group has carried out everything below {start}, "
        if start < span.start:
            raise LogDamaged(
                f"{carried_out}but {station.topic} begins at {span.start}: messages between them were deleted before "
                "anybody took them. See what is missing in the histories of the runs; then move the group's offset on, "
                "or restore the topic"
            )
        if start > span.end:
            raise LogDamaged(
                f"{carried_out}but {station.topic} ends at {span.end}: it lost its end, or was deleted and made again. "
                "Move the group's offset back before the topic grows beyond it, or new messages are passed over: to "
                f"{span.start} where it was made again, as the ledger knows what was done"
            )
        window.begin(start)
        window.move(WindowState.OPEN)
        try:
            await station.parts.ask_log(lambda: station.member.resume(number, start), self._waits(number))
        except LogDamaged:
            window.move(WindowState.OPENING)
            raise

    async def _stable_offset(self, number: int) -> int | None:
        """The group's offset, which a pending transaction of the last owner withholds until it is over."""
        asked = asyncio.ensure_future(self._station.member.committed(number))
        try:
            done, _ = await asyncio.wait([asked], timeout=_PATIENCE_SECONDS)
            if not done:
                self._station.parts.observer.message(
                    f"{self._waits(number)}: its last owner left a transaction open, which ends by its time-out"
                )
            return await asked
        finally:
            asked.cancel()

    def _waits(self, number: int) -> str:
        return f"effect {self._station.name}, partition {number} waits for the log"

    # -- trouble -------------------------------------------------------------------------------------------------

    async def damaged(self, error: LogDamaged) -> None:
        """The log has lost the next message of a partition. Where it is not said of which, all look again."""
        number = error.partition
        self._station.parts.observer.message(str(error))
        for window in list(self.windows.values()):
            if window.open and number in (None, window.number):
                await self._station.member.pause(window.number)
                self._begin(Window(window.number, window.incarnation), str(error) if number is not None else "")

    async def end(self) -> None:
        """Forget what is still held."""
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for window in list(self.windows.values()):
            self._close(window)

    def _observe(self, window: Window, detail: str) -> None:
        self._station.parts.observer.effect_partition(self._station.name, window.number, window.state.value, detail)
