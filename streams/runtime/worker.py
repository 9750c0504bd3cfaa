"""The worker: reads commands, takes turns, commits them, runs tasks. One process owns each of its partitions alone."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

from streams.authoring.app import App
from streams.clock import Clock, SystemClock
from streams.errors import CommitAborted, Fenced, InDoubt, LogError, LogUnavailable, SendRefused, StreamsError
from streams.kernel.inputs import Due
from streams.kernel.run import OpPhase
from streams.log.port import GroupSnapshot, Log, Member, Producer
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.closing import close_producer, leave_group
from streams.runtime.dispatch import Dispatcher
from streams.runtime.engine import Engine
from streams.runtime.inputs import Arrived, Damage, Happened, Item, Sweep
from streams.runtime.owner import Owner
from streams.runtime.partition import Hot, Partition
from streams.runtime.settings import WorkerSettings
from streams.runtime.starting import at_start
from streams.runtime.telling import tell
from streams.runtime.timers import Timers
from streams.runtime.topics import ensure_topics
from streams.runtime.turn import Turn
from streams.wire.app_codec import make_codec
from streams.wire.topics import topics_of

__all__ = ["PartitionRefused", "Worker"]

_POLL_SECONDS = 0.2
_UNAVAILABLE_SECONDS = 0.05
_CUT_OFF_SECONDS = 5.0

T = TypeVar("T")


class PartitionRefused(StreamsError):
    """A partition was refused and the worker is strict about it."""


class Worker:
    """Runs an app on a log until it is stopped. `owner` names it in leases; it must differ between workers."""

    def __init__(
        self,
        app: App,
        log: Log,
        *,
        owner: str | None = None,
        settings: WorkerSettings | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        strict: bool = False,
    ) -> None:
        name = owner or f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
        self.log = log
        self.engine = Engine(
            app,
            topics_of(app.name, app.effects),
            make_codec(app.annotations, app.named_types),
            owner=name,
            settings=settings or WorkerSettings(),
            observer=observer or Observer(),
            clock=clock or SystemClock(),
        )
        self.turn_lock = asyncio.Lock()
        self.topic_ids: dict[str, str] = {}
        self.member: Member
        self.producer: Producer
        self.owner = Owner(self)
        self.dispatcher = Dispatcher(self.engine, self.put)
        self.timers = Timers(self.engine.clock, self._fire)
        self._strict = strict
        self._inbox: deque[Item] = deque()
        self._wake = asyncio.Event()
        self._polled = asyncio.Event()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._producers = 0
        self._distrusted = False
        self._polling = True

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop` is called; then finish or hand back what runs. Raises what no retry can mend."""
        engine = self.engine
        found = await at_start(engine, lambda: ensure_topics(self.log, engine.topics, engine.settings.partitions))
        self.topic_ids = {name: info.id for name, info in found.items()}
        engine.partitions = found[engine.topics.commands].partitions
        crash.install_from(os.environ)
        engine.guard.start()
        async with AsyncExitStack() as stack:
            stack.callback(engine.guard.close)
            if engine.app.lifespan is not None:
                self.dispatcher.resources = await stack.enter_async_context(engine.app.lifespan(engine.app))
            self.producer = await at_start(engine, self._new_producer)
            self.member = self.log.member(engine.topics.group, engine.topics.commands, client_id=engine.owner)
            await at_start(engine, lambda: self.member.join(self.owner))
            await self._work()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin a graceful stop. From the event loop's thread."""
        self._stopping.set()

    def fail(self, error: BaseException) -> None:
        """End the worker because of something that no retry can mend."""
        self._failure = self._failure or error
        self._stopping.set()

    async def _work(self) -> None:
        loops = [asyncio.create_task(run()) for run in (self._poll_loop, self._turn_loop, self._sweep_loop)]
        for loop in loops:
            loop.add_done_callback(self._loop_ended)
        try:
            await self._stopping.wait()
            self.dispatcher.close()
            if self._failure is None:
                await self._drain()
        finally:
            self._polling = False
            try:
                await leave_group(self, loops[0])
            finally:
                self.timers.close()
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                await self.owner.end()
                await close_producer(self)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception() or RuntimeError("a loop of the worker ended"))

    async def _drain(self) -> None:
        """Let running tasks finish within the bound; what they bring is committed as usual."""
        for number in list(self.owner.partitions):
            await self.member.pause(number)
        end = self.engine.clock.monotonic() + self.engine.settings.stop_seconds
        while (self.dispatcher.running or self._inbox) and self._failure is None:
            if self.engine.clock.monotonic() > end:
                return
            await asyncio.sleep(0.005)

    # -- inputs --------------------------------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Give the next turn an input."""
        self._inbox.append(item)
        self._wake.set()

    def take_finished(self, partitions: set[int]) -> list[Item]:
        """Remove and return what waits for turns of these partitions."""
        taken = [item for item in self._inbox if item.partition.number in partitions]
        self._inbox = deque(item for item in self._inbox if item.partition.number not in partitions)
        return taken

    def _fire(self, partition: Partition, run_id: str, op_id: str) -> None:
        hot = partition.runs.get(run_id)
        op = hot.run.ops.get(op_id) if hot is not None else None
        if op is None:
            return
        if op.kind == "task" and op.phase in (OpPhase.QUEUED, OpPhase.BACKOFF):
            self.dispatcher.queue(partition, run_id, op_id)
        else:
            self.put(Happened(partition, run_id, Due(op_id)))

    async def _poll_loop(self) -> None:
        settings = self.engine.settings
        while self._polling:
            while len(self._inbox) > settings.inbox_max and self._polling:  # noqa: ASYNC110 - rare, and any turn ends it
                await asyncio.sleep(0.005)
            try:
                batch = await self.member.poll(settings.turn_inputs_max, _POLL_SECONDS)
            except LogUnavailable as error:
                self.engine.observer.message(f"the log cannot be reached, trying again: {error}")
                await asyncio.sleep(0.5)
                continue
            self._polled.set()
            partitions = self.owner.partitions
            for record in batch.records:
                partition = partitions.get(record.partition)
                if partition is not None and partition.running:
                    self._inbox.append(Arrived(partition, record))
            if batch.records:
                self._wake.set()

    async def newer_snapshot(self, snapshot: GroupSnapshot) -> None:
        """Wait until a later poll has been made; after half a second go on with what there is."""
        for _ in range(2):
            if self.member.snapshot() is not snapshot:
                return
            self._polled.clear()
            try:
                # No wait_for: before Python 3.12 it swallows a cancellation that comes together with the event.
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._polled.wait()
            except TimeoutError:
                return

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(self.engine.settings.sweep_seconds)
            for partition in list(self.owner.partitions.values()):
                if partition.running:
                    self.put(Sweep(partition))

    # -- turns ---------------------------------------------------------------------------------------------------

    async def _turn_loop(self) -> None:
        while True:
            await self._wake.wait()
            redo = False
            async with self.turn_lock:
                snapshot = self.member.snapshot()
                items = self._next_items(snapshot)
                if items:
                    redo = await self._turn(snapshot, items)
            if redo:
                await self.newer_snapshot(snapshot)
            else:
                # Outcomes of what was just dispatched, and commands that came meanwhile, make the next turn larger.
                await asyncio.sleep(0)

    def _next_items(self, snapshot: GroupSnapshot) -> list[Item]:
        """What waits, without that of partitions which this worker does not own (any more): they begin anew."""
        self._wake.clear()
        items: list[Item] = []
        dropped: list[Item] = []
        while self._inbox and len(items) < self.engine.settings.turn_inputs_max:
            item = self._inbox.popleft()
            partition = item.partition
            owned = partition.running and snapshot.owned.get(partition.number) == partition.incarnation
            (items if owned else dropped).append(item)
        self.dispatcher.settle(dropped)
        self._put_back([])
        return items

    def _put_back(self, items: Sequence[Item]) -> None:
        self._inbox.extendleft(reversed(items))
        if self._inbox:
            self._wake.set()

    async def _turn(self, snapshot: GroupSnapshot, items: list[Item]) -> bool:
        """Decide, commit, adopt, dispatch. True means: not committed, the inputs are back in front, go on later."""
        stopped: dict[tuple[int, str], str] = {}
        await self._patiently(self.trust_producer)
        while True:
            crash.passing("turn.taken")
            began = self.engine.clock.monotonic()
            turn = Turn(self.engine, self.dispatcher.slots())
            taken = turn.take(items, stopped=stopped)
            self._put_back(items[taken:])
            del items[taken:]
            for item in items:
                if isinstance(item, Sweep):
                    turn.add_lease(item.partition, (self.producer.id,))
            crash.passing("turn.decided")
            try:
                offsets = [] if turn.empty else await self._commit(snapshot, turn)
            except SendRefused as error:
                turn.discard()
                self._blame(turn, items, error, stopped)
            except (CommitAborted, Fenced, InDoubt) as error:
                turn.discard()
                await self._not_committed(error, items)
                return True
            else:
                turn.adopt(offsets)
                self._after(turn, items)
                if offsets:
                    seconds = self.engine.clock.monotonic() - began
                    self.engine.observer.turn(len(turn.working), len(turn.records), seconds)
                return False

    async def _commit(self, snapshot: GroupSnapshot, turn: Turn) -> list[int]:
        crash.passing("commit.before")
        return await self._patiently(lambda: self.commit(snapshot, turn))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try until the log is there."""
        said = False
        while True:
            try:
                return await attempt()
            except LogUnavailable as error:
                if not said:
                    self.engine.observer.message(f"the log does not take a commit, trying again: {error}")
                    said = True
                await asyncio.sleep(_UNAVAILABLE_SECONDS)

    async def commit(self, snapshot: GroupSnapshot, turn: Turn) -> list[int]:
        """Commit a turn, with the turn lock held.

        It goes on to its end even when the caller is cancelled: one that is cut off leaves the producer in doubt.
        """
        task = asyncio.ensure_future(self.producer.commit(snapshot, turn.records, turn.offsets()))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([task], timeout=_CUT_OFF_SECONDS)
            finally:  # a second cancellation may end the wait
                if not task.done() or task.cancelled() or task.exception() is not None:
                    task.cancel()
                    self._distrusted = True
            raise
        except (Fenced, InDoubt):
            self._distrusted = True
            raise

    async def trust_producer(self) -> None:
        """Before a turn: throw away a producer that was fenced or left a commit in doubt.

        Initialising its id again settles what it left open; a new id goes on, for whoever fenced the old one may live.
        """
        if not self._distrusted:
            return
        await self.producer.close()
        fresh = await self._new_producer()
        await fresh.settle([self.producer.id])
        self.producer, self._distrusted = fresh, False

    def _blame(self, turn: Turn, items: list[Item], error: SendRefused, stopped: dict[tuple[int, str], str]) -> None:
        """A record can never be written: its run is blocked in the redo, its neighbours are unharmed.

        Where no record can be blamed, half of the inputs is redone, until a single one is left.
        """
        owner = turn.owners[error.index] if error.index is not None else None
        if owner is None and len(items) > 1:
            half = len(items) // 2
            self._put_back(items[half:])
            del items[half:]
        else:
            owner = owner or next(iter(turn.working.values()), None)
            key = (owner.partition.number, owner.run.run_id) if owner is not None else None
            if key is None or key in stopped:
                raise error
            stopped[key] = str(error)
        self.engine.observer.redo(str(error))

    async def _not_committed(self, error: LogError, items: list[Item]) -> None:
        self.engine.observer.redo(str(error))
        self._put_back(items)
        if isinstance(error, CommitAborted):
            return
        owned = self.member.snapshot().owned
        kept = {n: owned[n] for n, p in self.owner.partitions.items() if p.running and owned.get(n) == p.incarnation}
        await self.owner.again(kept)

    def _after(self, turn: Turn, items: Sequence[Item]) -> None:
        for start in turn.starts:
            self.dispatcher.start(*start)
        self.dispatcher.settle(items)
        for timer in turn.timers:
            self.timers.add(timer.due, timer.partition, timer.run_id, timer.op)
        for partition, run_id in turn.stops:
            self.dispatcher.stop_asked(partition, run_id)
        tell(self.engine.observer, turn)
        crash.passing("turn.adopted")

    # -- trouble -------------------------------------------------------------------------------------------------

    def refused(self, partition: Partition, reason: str) -> None:
        """A partition cannot be served; the others go on, unless the worker is strict."""
        self.engine.observer.partition(partition.number, "refused", partition.epoch, reason)
        if self._strict:
            self.fail(PartitionRefused(reason))

    def damaged(self, partition: Partition, found: Sequence[tuple[Hot, int]]) -> None:
        """Write down which runs cannot be folded, and tell of all that are damaged."""
        for hot, offset in found:
            self.put(Damage(partition, hot, offset))
        for hot in partition.runs.values():
            if hot.damaged is not None:
                self.engine.observer.run_blocked(hot.run.run_id, "RUN_DAMAGED", hot.damaged)

    async def _new_producer(self) -> Producer:
        self._producers += 1
        return await self.log.producer(f"{self.engine.topics.app}/{self.engine.owner}/{self._producers}")

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        """End what a dead owner left open."""
        self.engine.observer.message(f"ending the open transaction of {', '.join(transactional_ids) or 'nobody'}")
        await self.producer.settle(transactional_ids)
