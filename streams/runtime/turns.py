"""The turn loop: decides for what has arrived, commits it, adopts it; decides further while a commit is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from streams.errors import CommitAborted, Fenced, InDoubt, LogUnavailable, SendRefused
from streams.log.port import GroupSnapshot
from streams.runtime import crash
from streams.runtime.blame import blame
from streams.runtime.inputs import Item, Sweep, is_dropped
from streams.runtime.outgoing import Stop
from streams.runtime.recover import recover
from streams.runtime.telling import tell
from streams.runtime.turn import Turn

if TYPE_CHECKING:
    from streams.runtime.worker import Worker

__all__ = ["TurnLock", "Turns"]

_UNAVAILABLE_SECONDS = 0.05
_CHUNK = 100
"""Inputs decided at one go while a commit is under way: its end must not wait long for the event loop."""

T = TypeVar("T")


class TurnLock(asyncio.Lock):
    """Held while turns are on their way; its holder sees whether somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting = 0

    async def acquire(self) -> Literal[True]:
        """Wait for the lock."""
        self._waiting += 1
        try:
            return await super().acquire()
        finally:
            self._waiting -= 1

    @property
    def wanted(self) -> bool:
        """Whether somebody waits."""
        return self._waiting > 0


class _Flight:
    """A turn on its way, with what it takes to do it again."""

    def __init__(self, turn: Turn, began: float, stopped: dict[tuple[int, str], Stop], *, alone: bool) -> None:
        self.turn = turn
        self.items: list[Item] = []
        self.began = began
        self.stopped = stopped
        self.alone = alone
        """Nothing is added to it: a record of it, or of the turn whose inputs it has, was refused."""
        self.snapshot: GroupSnapshot
        self.commit: asyncio.Future[list[int]]

    @property
    def sweeps(self) -> bool:
        return any(isinstance(item, Sweep) for item in self.items)


class Turns:
    """Takes the turns of a worker, one transaction each.

        inputs ──▶ decide ──▶ commit ──▶ adopt, dispatch

    While one turn commits, the next decides for runs that the first does not touch. It is committed after the first,
    and dropped with it: an applied offset stands for every command below it, also those of the turn before.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inbox = worker.inbox
        self._sent: list[_Flight] = []
        """Neither adopted nor known to have failed."""

    async def run(self) -> None:
        """Take turns for ever."""
        while True:
            await self._inbox.filled.wait()
            async with self._worker.turn_lock:
                aborted = await self._until_idle()
            if aborted is not None:
                await self._worker.newer_snapshot(aborted)
            else:
                # Outcomes of what was just dispatched, and commands that came meanwhile, make the next turn larger.
                await asyncio.sleep(0)

    async def _until_idle(self) -> GroupSnapshot | None:
        """Turns one after another, until nothing waits or somebody wants the lock.

        Returns the snapshot with which a turn was not committed; its inputs are back in front, to go on later.
        """
        flying: _Flight | None = None
        following: _Flight | None = None
        await self._patiently(self._worker.trust_producer)
        try:
            while True:
                following = self._extend(following, flying)
                if flying is None:
                    if following is None:
                        return None
                    flying, following = self._send(following), None
                elif not flying.commit.done():
                    await self._inbox.filled.wait()
                    await asyncio.sleep(0)
                else:
                    landed, flying = flying, None
                    error = landed.commit.exception()
                    if error is None:
                        if following is not None and not following.sweeps:
                            flying, following = self._send(following), None
                            await asyncio.sleep(0)  # the client's thread begins before this one adopts
                        self._adopt(landed)
                    else:
                        undone, following = following, None
                        self._give_back(undone)
                        self._sent.remove(landed)
                        self._undo(landed)
                        crash.passing("turn.undone")
                        following = await self._again(landed, error)
                        if following is None:
                            return landed.snapshot
        finally:
            await self._end_sent()
            self._give_back(following)
            self._inbox.release()

    # -- steps ---------------------------------------------------------------------------------------------------

    def _extend(self, following: _Flight | None, flying: _Flight | None) -> _Flight | None:
        """Decide for what waits. Nothing new is begun while somebody wants the lock; only a search is gone on with."""
        worker, settings = self._worker, self._worker.engine.settings
        if worker.turn_lock.wanted and (following is None or not following.alone):
            self._give_back(following)
            self._inbox.filled.clear()
            return None
        self._inbox.filled.clear()
        room = settings.turn_inputs_max - (len(following.items) if following is not None else 0)
        if following is not None and (following.alone or room <= 0 or following.turn.full):
            return following
        alone = self._inbox.suspects > 0
        if alone and (flying is not None or following is not None):
            return following
        count = room if flying is None else min(room, _CHUNK)
        busy = flying.turn.working if flying is not None else ()
        items, dropped = self._inbox.take(count, worker.member.snapshot().owned, busy)
        worker.dispatcher.settle(dropped)
        if not items:
            return following
        if following is None:
            crash.passing("turn.taken")
            following = self._new(flying.turn if flying is not None else None, {}, alone=alone)
        elif following.turn.early.begun:
            # What has ended since has left its slot, and the next step of its run needs one.
            following.turn.slots.update(self._slots(flying.turn if flying is not None else None, following.turn))
        self._take(following, items)
        return following

    def _new(self, before: Turn | None, stopped: dict[tuple[int, str], Stop], *, alone: bool) -> _Flight:
        engine = self._worker.engine
        turn = Turn(engine, self._slots(before), before)
        turn.early.allowed = not alone
        return _Flight(turn, engine.clock.monotonic(), stopped, alone=alone)

    def _slots(self, *turns: Turn | None) -> dict[str, int]:
        """Slots that are free, and that none of these turns has handed out."""
        slots = self._worker.dispatcher.slots()
        for turn in turns:
            if turn is not None:
                slots = {pool: max(0, free - turn.used.get(pool, 0)) for pool, free in slots.items()}
        return slots

    def _take(self, flight: _Flight, items: list[Item]) -> None:
        taken = flight.turn.take(items, stopped=flight.stopped)
        flight.items += items[:taken]
        self._worker.dispatcher.begin_early(flight.turn)
        if taken < len(items):
            rest = items[taken:]
            self._inbox.put_back(rest, suspects=self._inbox.suspects + len(rest) if flight.alone else None)

    def _send(self, flight: _Flight) -> _Flight:
        """Close the turn and begin its commit."""
        turn = flight.turn
        turn.finish()
        if self._worker.pager is not None:
            self._worker.pager.page(turn)
        crash.passing("turn.finished")
        for partition in turn.swept.done:
            turn.add_lease(partition, (self._worker.producer.id,))
        crash.passing("turn.decided")
        # The newest one: where each partition of the turn has kept its incarnation, it was owned all the time.
        flight.snapshot = self._worker.member.snapshot()
        flight.commit = asyncio.ensure_future(self._commit(flight))
        flight.commit.add_done_callback(lambda _: self._inbox.filled.set())
        self._sent.append(flight)
        return flight

    async def _commit(self, flight: _Flight) -> list[int]:
        if flight.turn.empty:
            return []
        owned = flight.snapshot.owned
        for partition in flight.turn.partitions.values():
            if not partition.running or owned.get(partition.number) != partition.incarnation:
                raise CommitAborted(f"partition {partition.number} was given up before the turn was sent")
        crash.passing("commit.before")
        return await self._patiently(lambda: self._worker.commit(flight.snapshot, flight.turn))

    def _adopt(self, flight: _Flight) -> None:
        worker, turn = self._worker, flight.turn
        offsets = flight.commit.result()
        turn.adopt(offsets)
        crash.passing("turn.states_adopted")
        self._sent.remove(flight)
        worker.dispatcher.land(turn)
        for start in turn.starts:
            worker.dispatcher.start(*start)
        worker.dispatcher.settle(flight.items)
        crash.passing("turn.dispatched")
        for timer in turn.timers:
            worker.timers.add(timer.due, timer.partition, timer.run_id, timer.op)
        crash.passing("turn.timers_armed")
        for partition, run_id in turn.stops:
            worker.dispatcher.stop_asked(partition, run_id)
        for partition, run_id in turn.repaired:
            hot = partition.runs.get(run_id)
            if hot is not None:
                recover(worker, partition, hot.run)
        for partition, run_id in turn.swept.gone:
            worker.dispatcher.forget(partition, run_id)
        self._inbox.put(turn.swept.more)
        if worker.pager is not None:
            worker.pager.landed(turn)
        tell(worker.engine.observer, turn)
        crash.passing("turn.adopted")
        if offsets:
            seconds = worker.engine.clock.monotonic() - flight.began
            worker.engine.observer.turn(len(turn.working), len(turn.records), seconds)
        self._inbox.release()

    # -- trouble -------------------------------------------------------------------------------------------------

    def _give_back(self, flight: _Flight | None) -> None:
        """Undo a turn that was not sent; its inputs wait again, before those that were held because of another."""
        self._inbox.release()
        if flight is not None:
            self._undo(flight)
            self._wait_again(flight)

    def _undo(self, flight: _Flight) -> None:
        """Nothing of a turn counts; what it has begun early is dropped, and all that this has led to."""
        flight.turn.discard()
        self._worker.dispatcher.drop(flight.turn)
        flight.items = [item for item in flight.items if not is_dropped(item)]

    def _wait_again(self, flight: _Flight) -> None:
        suspects = self._inbox.suspects + len(flight.items) if flight.alone else None
        self._inbox.put_back(flight.items, suspects=suspects)

    async def _end_sent(self) -> None:
        """Turns that nobody will adopt, of a worker that ends: what it knows of their partitions is out of date."""
        for flight in self._sent:
            flight.commit.cancel()
            await asyncio.wait([flight.commit])
            self._undo(flight)
            for partition in flight.turn.partitions.values():
                self._worker.owner.close(partition)
        self._sent.clear()

    async def _again(self, landed: _Flight, error: BaseException) -> _Flight | None:
        """What to send instead of a turn that was not committed; None where a later snapshot has to come first."""
        worker = self._worker
        if isinstance(error, SendRefused):
            rest = blame(landed.turn, landed.items, error, landed.stopped)
            self._inbox.put_back(rest, suspects=len(rest))
            worker.engine.observer.redo(str(error))
            flight = self._new(None, landed.stopped, alone=True)
            # One may have been lost between two tries.
            self._take(flight, [item for item in landed.items if item.partition.running])
            return flight
        if not isinstance(error, (CommitAborted, Fenced, InDoubt)):
            raise error
        worker.engine.observer.redo(str(error))
        self._wait_again(landed)
        if not isinstance(error, CommitAborted):
            await worker.owner.all_again()
        return None

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the log is there."""
        said = False
        while True:
            try:
                return await attempt()
            except LogUnavailable as error:
                if not said:
                    self._worker.engine.observer.message(f"the log does not take a commit, trying again: {error}")
                    said = True
                await asyncio.sleep(_UNAVAILABLE_SECONDS)
