"""The worker: reads commands, takes turns, commits them, runs tasks. One process owns each of its partitions alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

from streams.authoring.app import App
from streams.clock import Clock, SystemClock
from streams.errors import (
    Fenced,
    InDoubt,
    StreamsError,
)
from streams.kernel.inputs import Due
from streams.kernel.run import OpPhase
from streams.log.port import GroupSnapshot, Log, Member, Producer
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.closing import close_producer, drain, leave_group
from streams.runtime.commits import to_its_end
from streams.runtime.dispatch import Dispatcher
from streams.runtime.engine import Engine
from streams.runtime.host import Host
from streams.runtime.inbox import Inbox
from streams.runtime.inputs import Arrived, Damage, Happened, Item, Sweep
from streams.runtime.owner import Owner
from streams.runtime.paging import Pager
from streams.runtime.partition import Hot, Partition
from streams.runtime.polling import Poller, is_crowded, room
from streams.runtime.sendback import SendBacks
from streams.runtime.settings import WorkerSettings
from streams.runtime.starting import at_start
from streams.runtime.timers import Timers
from streams.runtime.turn import Turn
from streams.runtime.turns import TurnLock, Turns
from streams.runtime.waking import Waker
from streams.runtime.watch import Watch, prepare_topics
from streams.store.port import Store
from streams.wire.app_codec import make_codec
from streams.wire.topics import topics_of

__all__ = ["PartitionRefused", "Worker"]


class PartitionRefused(StreamsError):
    """A partition was refused and the worker is strict about it."""


class Worker:
    """Runs an app on a log until it is stopped. `owner` names it in leases; it must differ between workers.

    With a `store`, runs that wait need no memory, and a restart reads only what is new. Who opened it closes it.
    """

    def __init__(
        self,
        app: App,
        log: Log,
        *,
        owner: str | None = None,
        settings: WorkerSettings | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        host: Host | None = None,
        strict: bool = False,
        store: Store | None = None,
    ) -> None:
        host = host or Host()
        self.log = log
        self.engine = Engine(
            app,
            topics_of(app.name, app.effects),
            make_codec(app.annotations, app.named_types),
            owner=owner or f"{host.name}/{host.pid}/{host.random_bytes(3).hex()}",
            settings=settings or WorkerSettings(),
            observer=observer or Observer(),
            clock=clock or SystemClock(),
            host=host,
        )
        self.inbox = Inbox()
        self.turn_lock = TurnLock()
        self.topic_ids: dict[str, str] = {}
        self.member: Member
        self.producer: Producer
        self.owner = Owner(self)
        self.dispatcher = Dispatcher(self.engine, self.put)
        self.timers = Timers(self.engine.clock, self._fire, lambda: not is_crowded(self))
        self.send_backs = SendBacks(self)
        self.pager: Pager | None = None
        self._store = store
        self.engine.mirrored = store is not None
        self._strict = strict
        self._polled = asyncio.Event()
        self._snapshots_wanted = 0
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._producers = 0
        self._distrusted = False
        self._polling = True

    # -- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop` is called; then finish or hand back what runs. Raises what no retry can mend."""
        engine = self.engine
        if self._store is not None:
            self.pager = Pager(self._store, engine, self.timers)
        await at_start(engine, lambda: prepare_topics(self))
        crash.install_from(os.environ)
        if engine.host.watched:
            engine.guard.start()
        async with AsyncExitStack() as stack:
            stack.callback(engine.guard.close)
            if engine.app.lifespan is not None:
                self.dispatcher.resources = await stack.enter_async_context(engine.app.lifespan(engine.app))
            self.producer = await at_start(engine, self._new_producer)
            self.member = self.log.member(engine.topics.group, engine.topics.commands, client_id=engine.owner)
            await at_start(engine, lambda: self.member.join(self.owner))
            engine.observer.joined(engine.partitions)
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
        runs = [self._poll_loop, Turns(self).run, self._sweep_loop, Watch(self).run]
        if self.pager is not None:
            runs.append(Waker(self, self.pager).run)
        loops = [asyncio.create_task(run()) for run in runs]
        for loop in loops:
            loop.add_done_callback(self._loop_ended)
        try:
            await self._stopping.wait()
            self.dispatcher.close()
            if self._failure is None:
                await drain(self)
            crash.passing("stop.drained")
        finally:
            self._polling = False
            try:
                await leave_group(self, loops[0])
                crash.passing("stop.left")
            finally:
                self.timers.close()
                for loop in loops:
                    loop.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
                await self.send_backs.end()
                await self.owner.end()
                await close_producer(self)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.fail(task.exception() or RuntimeError("a loop of the worker ended"))

    # -- inputs --------------------------------------------------------------------------------------------------

    def put(self, item: Item) -> None:
        """Give the next turn an input."""
        self.inbox.put([item])

    def take_finished(self, partitions: set[int]) -> list[Item]:
        """Remove and return what waits for turns of these partitions."""
        return self.inbox.take_of(partitions)

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
        poller = Poller(self)
        while self._polling:
            records_max = await room(self)
            records = await poller.poll(records_max, self.engine.settings.poll_seconds if records_max else 0.0)
            if records is None:
                continue
            self._polled.set()
            places = ((self.owner.partitions.get(record.partition), record) for record in records)
            self.inbox.put([Arrived(place, record) for place, record in places if place and place.running])

    @property
    def polls(self) -> bool:
        """Whether commands may still come."""
        return self._polling

    @property
    def snapshot_wanted(self) -> bool:
        """Whether a turn waits for a poll: a poll that waited for a turn would never come."""
        return self._snapshots_wanted > 0

    @property
    def busy(self) -> bool:
        """Whether tasks run, inputs wait for a turn, or a turn is under way."""
        return bool(self.dispatcher.running or self.inbox or self.turn_lock.locked()) and self._failure is None

    async def newer_snapshot(self, snapshot: GroupSnapshot) -> None:
        """Wait until a later poll has been made; after half a second go on with what there is."""
        self._snapshots_wanted += 1
        try:
            # No wait_for: before Python 3.12 it swallows a cancellation that comes together with the event.
            async with asyncio.timeout(2 * self.engine.settings.poll_seconds):
                while self.member.snapshot() is snapshot:
                    self._polled.clear()
                    await self._polled.wait()
        except TimeoutError:
            return
        finally:
            self._snapshots_wanted -= 1

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(self.engine.settings.sweep_seconds)
            for partition in list(self.owner.partitions.values()):
                if partition.running:
                    self.put(Sweep(partition))

    # -- turns ---------------------------------------------------------------------------------------------------

    async def commit(self, snapshot: GroupSnapshot, turn: Turn) -> list[int]:
        """Commit a turn, with the turn lock held.

        It goes on to its end even when the caller is cancelled: one that is cut off leaves the producer in doubt.
        """
        commit = self.producer.commit(snapshot, turn.records, turn.offsets())
        try:
            return await to_its_end(commit, self._distrust)
        except (Fenced, InDoubt):
            self._distrusted = True
            raise

    def _distrust(self) -> None:
        self._distrusted = True

    async def trust_producer(self) -> None:
        """Before a turn: throw away a producer that was fenced or left a commit in doubt. The turn lock is held.

        Initialising its id again settles what it left open; a new id goes on, for whoever fenced the old one may live.
        Kept partitions are claimed again, because their leases must name the id that a successor may have to settle.
        """
        if not self._distrusted:
            return
        crash.passing("producer.distrusted")
        await close_producer(self, "going on")
        crash.passing("producer.closed")
        fresh = await self._new_producer()
        crash.passing("producer.made")
        try:
            await fresh.settle([self.producer.id])
        except BaseException:
            await fresh.close()
            raise
        crash.passing("producer.settled")
        self.producer, self._distrusted = fresh, False
        await self.owner.all_again()
        crash.passing("producer.replaced")

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

    async def settle(self, partition: int, transactional_ids: Sequence[str]) -> None:
        """End what a dead owner left open, and what this worker did, where it has a commit in doubt.

        A producer in good order is not among it: taking its id would fence this worker.
        """
        own = self.producer.id
        ids = [id for id in transactional_ids if id != own]
        open_ids = [*ids, own] if self._distrusted else ids
        text = f"ending the open transaction of {', '.join(open_ids)}"
        if not open_ids:
            text = "its lease names no producer that could be ended, so it is waited for"
        self.engine.observer.message(f"partition {partition} waits for what its last owner left open: {text}")
        if self._distrusted:
            async with self.turn_lock:
                await self.trust_producer()
        crash.passing("settle.before")
        await self.producer.settle(ids)
        crash.passing("settle.after")
