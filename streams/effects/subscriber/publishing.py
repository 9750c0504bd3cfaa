"""Commits: replies, dead letters and the group's offsets of one effect in one transaction, fenced by the group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streams.effects.port import Outcome
from streams.effects.subscriber.window import Message, Stage, Window
from streams.errors import CommitAborted, Fenced, InDoubt, LedgerUnavailable, LogError, SendRefused
from streams.log.port import GroupSnapshot, NewRecord, Producer
from streams.runtime import crash
from streams.runtime.commits import to_its_end

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station

__all__ = ["Publishing"]

_PAUSE_SECONDS = 0.05
_REFUSED_SECONDS = 1.0
_PRODUCER_SECONDS = 1.0
_NOTE_SECONDS = 2.0


class _Flight:
    """A transaction: messages with their records, and the group's offsets before and after."""

    def __init__(self, snapshot: GroupSnapshot) -> None:
        self.snapshot = snapshot
        self.messages: list[Message] = []
        self.windows: dict[Window, int] = {}
        self.bytes = 0

    @property
    def records(self) -> list[NewRecord]:
        return [record for message in self.messages for record in message.records]

    @property
    def offsets(self) -> dict[int, int]:
        return {window.number: offset for window, offset in self.windows.items()}

    def land(self) -> list[Outcome]:
        """It was committed; return what is to be noted in the ledger."""
        for message in self.messages:
            message.stage, message.records = Stage.GONE, ()
            message.window.bytes -= message.size
        for window, offset in self.windows.items():
            window.advance(offset)
        return [message.outcome for message in self.messages if message.outcome is not None]

    def undo(self) -> None:
        """Nothing of it was written."""
        for message in reversed(self.messages):
            message.stage = Stage.FINISHED
            message.window.finished.appendleft(message)


class Publishing:
    """The transactions of one effect, one after another."""

    def __init__(self, station: Station) -> None:
        self.wake = asyncio.Event()
        """Something has finished."""
        self.pending: set[Outcome] = set()
        """What is on its way into the log, or into the ledger's note of it: not to be published a second time."""
        self._station = station
        self._lock = asyncio.Lock()
        self._made: Producer | None = None
        self._producers = 0
        self._distrusted = False
        self._refused = ""
        """What was last said of records that cannot be written."""
        self._notes: deque[Outcome] = deque()
        self._noting = 0
        self._to_note = asyncio.Event()

    async def open(self) -> None:
        """Make the producer."""
        self._made = await self._new_producer()

    async def close(self, doing: str = "ending") -> None:
        """Close the producer. A commit may still run in it: whoever needs its end waits for it, or settles it."""
        if self._made is None:  # stopped before it began
            return
        try:
            async with asyncio.timeout(_PRODUCER_SECONDS):
                await self._made.close()
        except (LogError, TimeoutError) as error:
            reason = str(error) or f"it took longer than {_PRODUCER_SECONDS:g} s"
            self._say(f"{doing} without having closed the producer {self._made.id}: {reason}")

    @property
    def _producer(self) -> Producer:
        assert self._made is not None, "commits come after the start"
        return self._made

    @property
    def busy(self) -> bool:
        """Whether something is to be committed or noted."""
        windows = [window for window in self._station.windows.values() if window.commits]
        unsent = any(window.finished or window.prefix() > window.committed for window in windows)
        return bool(unsent or self._lock.locked() or self._notes or self._noting)

    # -- the loops -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Commit for ever, what has finished meanwhile each time."""
        station = self._station
        while True:
            await self.wake.wait()
            self.wake.clear()
            aborted: GroupSnapshot | None = None
            async with self._lock:
                while aborted is None:
                    flight = self._collect(station.member.snapshot(), station.windows.values())
                    if flight is None:
                        break
                    if not await self._commit(flight):
                        aborted = flight.snapshot
            if aborted is not None:
                self.wake.set()
                await station.polling.newer_snapshot(aborted)

    async def note(self) -> None:
        """Note in the ledger what is in the log, for ever."""
        parts = self._station.parts
        while True:
            await self._to_note.wait()
            self._to_note.clear()
            while self._notes:
                self._noting = min(len(self._notes), parts.settings.claims_max)
                batch = [self._notes.popleft() for _ in range(self._noting)]
                await parts.ask_ledger(lambda: parts.ledger.note_published(batch))  # noqa: B023 - awaited here
                self.pending.difference_update(batch)
                self._noting = 0

    async def note_last(self) -> None:
        """Note what the last commit has brought. Within a bound: without it a reply may be told once more."""
        parts, batch = self._station.parts, list(self._notes)
        self._notes.clear()
        if batch:
            try:
                async with asyncio.timeout(_NOTE_SECONDS):
                    await parts.ledger.note_published(batch)
            except (LedgerUnavailable, TimeoutError) as error:
                self._say(f"effect {self._station.name}: ending without a note of {len(batch)} replies: {error}")

    async def last(self, snapshot: GroupSnapshot, windows: Iterable[Window], seconds: float) -> None:
        """Commit what is finished of partitions that are given up. Raises TimeoutError, or a `LogError`."""
        windows = list(windows)
        async with asyncio.timeout(seconds), self._lock:
            while (flight := self._collect(snapshot, windows)) is not None:
                try:
                    await self._trust()
                    await self._send(flight)
                except (LogError, asyncio.CancelledError):
                    flight.undo()
                    raise
                self._landed(flight)

    # -- one commit ----------------------------------------------------------------------------------------------

    def _collect(self, snapshot: GroupSnapshot, windows: Iterable[Window]) -> _Flight | None:
        settings = self._station.parts.settings
        flight = _Flight(snapshot)
        for window in windows:
            if not window.commits or snapshot.owned.get(window.number) != window.incarnation:
                continue
            begun = len(flight.messages)
            while window.finished and len(flight.messages) < settings.commit_records:
                message = window.finished[0]
                size = sum(len(record.value or b"") for record in message.records)
                if flight.messages and flight.bytes + size > settings.commit_bytes:
                    break
                window.finished.popleft()
                message.stage = Stage.LEAVING
                flight.messages.append(message)
                flight.bytes += size
            offset = window.prefix()
            if offset > window.committed or len(flight.messages) > begun:
                flight.windows[window] = offset
        return flight if flight.windows else None

    async def _commit(self, flight: _Flight) -> bool:
        """Whether it was committed, or is taken back to be done again at once; False: after the next poll."""
        try:
            await self._station.parts.ask_log(self._trust, "the log takes no producer, trying again")
            await self._station.parts.ask_log(
                lambda: self._send(flight), "the log does not take a commit, trying again", pause=_PAUSE_SECONDS
            )
        except InDoubt as error:
            self._redo(error)
            await self._station.parts.ask_log(self._trust, "the log takes no producer, trying again")
            if await self._was_committed(flight):
                self._landed(flight)
                return True
            flight.undo()
            return False
        except (CommitAborted, Fenced) as error:
            self._redo(error)
            flight.undo()
            return False
        except SendRefused as error:
            # A topic is not there any more. Nothing is dropped for that: it is made again, or the subscriber stopped.
            text = f"effect {self._station.name}: replies and dead letters cannot be written, trying again: {error}"
            if text != self._refused:
                self._refused = text
                self._say(text)
            flight.undo()
            await asyncio.sleep(_REFUSED_SECONDS)
            return False
        except asyncio.CancelledError:
            flight.undo()
            raise
        self._landed(flight)
        return True

    def _landed(self, flight: _Flight) -> None:
        crash.passing("effect.committed", self._station.name)
        self._notes.extend(flight.land())
        if self._notes:
            self._to_note.set()

    async def _was_committed(self, flight: _Flight) -> bool:
        """Whether a commit in doubt has happened: the group's offsets tell, where they were to move.

        All of them: one alone may have been moved by another subscriber that has taken its partition over meanwhile.
        Where none was to move, nothing tells, and the records are written once more: a run takes the first reply and
        records the second, and a dead letter names its message.
        """
        station = self._station
        moving = [(window, offset) for window, offset in flight.windows.items() if offset > window.committed]
        told = False
        for window, offset in moving:
            if not window.commits:
                continue
            found = await station.parts.ask_log(
                lambda: station.member.committed(window.number),  # noqa: B023 - awaited here
                "the log does not tell the group's offset, trying again",
            )
            if (found or 0) < offset:
                return False
            told = True
        return told

    async def _send(self, flight: _Flight) -> None:
        """It goes on to its end even when the caller is cancelled: one that is cut off leaves the producer in doubt."""
        commit = self._producer.commit(flight.snapshot, flight.records, flight.offsets)
        try:
            await to_its_end(commit, self._distrust)
        except (Fenced, InDoubt):
            self._distrusted = True
            raise

    # -- the producer --------------------------------------------------------------------------------------------

    def _distrust(self) -> None:
        self._distrusted = True

    async def _trust(self) -> None:
        """Throw away a producer that was fenced or left a commit in doubt; one of a new id settles it and goes on."""
        if not self._distrusted:
            return
        await self.close("going on")
        fresh = await self._new_producer()
        try:
            await fresh.settle([self._producer.id])
        except BaseException:
            await fresh.close()
            raise
        self._made, self._distrusted = fresh, False

    async def _new_producer(self) -> Producer:
        self._producers += 1
        parts = self._station.parts
        return await parts.log.producer(f"{parts.app.name}/{parts.owner}/{self._station.name}/{self._producers}")

    def _redo(self, error: LogError) -> None:
        self._station.parts.observer.redo(f"effect {self._station.name}: {error}")

    def _say(self, text: str) -> None:
        self._station.parts.observer.message(text)
