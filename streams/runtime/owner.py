"""Owning partitions: what a worker does when the group gives it one, takes one back, or it loses one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streams.deadline import Deadline
from streams.errors import CommitAborted, Fenced, InDoubt, LogDamaged, LogError, LogUnavailable
from streams.kernel.inputs import Due, Recover
from streams.kernel.run import OpPhase, Run, is_terminal
from streams.log.port import GroupSnapshot, Span
from streams.runtime import crash
from streams.runtime.inputs import Damage, Happened, Item
from streams.runtime.partition import Partition, PartitionState
from streams.runtime.restore import Found, check_tail, find_ends, read_lease, restore, stable_offset
from streams.runtime.turn import Turn

if TYPE_CHECKING:
    from streams.runtime.worker import Worker
    from streams.wire.records import Lease

__all__ = ["Owner"]

_PAUSE_SECONDS = 0.05


class Owner:
    """Implements the `Ownership` port for a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.partitions: dict[int, Partition] = {}
        self._acquiring: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Also of partitions that are closed already: a commit under way outlives the cancellation for a while."""

    # -- what the group says -------------------------------------------------------------------------------------

    async def assigned(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """Begin to acquire, beside the poll: restoring must not keep the member from answering its group."""
        del snapshot
        for number, incarnation in partitions.items():
            self._begin(number, incarnation)

    async def revoked(self, snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
        """Settle the turn in flight, write what is finished and the lease as released, then let go."""
        worker = self._worker
        deadline = Deadline(worker.engine.clock, worker.engine.settings.drain_seconds)
        await self._stop_acquiring(partitions)
        async with worker.turn_lock:
            leaving = [self.partitions[n] for n in partitions if n in self.partitions]
            running = [partition for partition in leaving if partition.running]
            for partition in running:
                partition.move(PartitionState.DRAINING)
            crash.passing("release.before")
            await self._release(snapshot, running, deadline)
            for partition in leaving:
                self.close(partition)

    async def lost(self, partitions: Mapping[int, int]) -> None:
        """Somebody else owns them: publish nothing, stop the tasks, forget everything."""
        await self._stop_acquiring(partitions)
        async with self._worker.turn_lock:
            for number in partitions:
                if number in self.partitions:
                    self.close(self.partitions[number])

    # -- acquire -------------------------------------------------------------------------------------------------

    def _begin(self, number: int, incarnation: int, *, refused: str = "") -> None:
        old = self.partitions.get(number)
        if old is not None:
            self.close(old)
        partition = self.partitions[number] = Partition(number, incarnation)
        task = self._acquiring[number] = asyncio.create_task(self._acquire_until_done(partition, refused))
        self._tasks.add(task)
        task.add_done_callback(self._acquire_ended)

    def _acquire_ended(self, task: asyncio.Task[None]) -> None:
        """What no branch of an acquisition knows is a mistake in the program: silent, the partition would hang."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._worker.fail(error)

    async def end(self) -> None:
        """Stop what is still being acquired and forget what is still held, before the log is closed."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition in list(self.partitions.values()):
            self.close(partition)

    async def again(self, partitions: Mapping[int, int]) -> None:
        """Drop the memory of partitions and acquire them anew, where the group still gives them to this worker."""
        for number, incarnation in partitions.items():
            partition = self.partitions.get(number)
            if partition is not None:
                self.close(partition)
            await self._worker.member.pause(number)
            self._begin(number, incarnation)

    async def _stop_acquiring(self, partitions: Mapping[int, int]) -> None:
        tasks = [task for number, task in self._acquiring.items() if number in partitions]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire_until_done(self, partition: Partition, refused: str = "") -> None:
        worker = self._worker
        if refused:
            partition.move(PartitionState.RESTORING)
            await self._refuse(partition, refused)
        while partition.state is not PartitionState.CLOSED:
            snapshot = worker.member.snapshot()
            try:
                await self._acquire(partition)
            except (CommitAborted, Fenced, InDoubt, LogUnavailable) as error:
                worker.engine.observer.redo(f"acquiring partition {partition.number}: {error}")
                partition.runs.clear()
                await worker.newer_snapshot(snapshot)
                if worker.member.snapshot().owned.get(partition.number) != partition.incarnation:
                    return
                if partition.running:
                    self._begin(partition.number, partition.incarnation)
                    return
            except LogDamaged as error:
                if partition.running:
                    # Its commands went away after the checks. The diagram has no way back: begin another one.
                    self._begin(partition.number, partition.incarnation, refused=str(error))
                    return
                await self._refuse(partition, str(error))
            except LogError as error:
                worker.fail(error)
                return
            else:
                return

    async def _refuse(self, partition: Partition, reason: str) -> None:
        """Tell of it, and wait until it is to be tried again."""
        partition.runs.clear()
        if partition.state is PartitionState.RESTORING:
            partition.move(PartitionState.REFUSED)
        self._worker.refused(partition, reason)
        await asyncio.sleep(self._worker.engine.settings.retry_refused_seconds)

    async def _acquire(self, partition: Partition) -> None:
        worker, engine = self._worker, self._worker.engine
        log, topics, number = worker.log, engine.topics, partition.number
        if partition.state is not PartitionState.RESTORING:
            partition.move(PartitionState.RESTORING)
        self._observe(partition, "")

        # 1-3: the stable offset, the true ends, and readers that see up to them.
        async def settle() -> None:
            last = await read_lease(log, topics, number, await log.span(topics.leases, number))
            if last is not None:
                await worker.settle(last.transactional_ids)

        committed = await stable_offset(worker.member, number, settle)
        ends = await find_ends(log, topics, number, settle)
        # 4, 5: the lease, then a claim of its own.
        lease = await read_lease(log, topics, number, ends[topics.leases])
        commands = await log.span(topics.commands, number)
        partition.topic_id = worker.topic_ids[topics.commands]
        self._check_topic_id(partition, lease)
        _check_applied(partition.number, lease.applied if lease is not None else 0, commands)
        tail = lease.tail if lease is not None else 0
        check_tail(topics, number, tail, ends[topics.events])
        partition.applied = lease.applied if lease is not None else commands.start
        partition.events_end = tail
        unchanged = commands.start if committed is None else committed
        await self._claim(partition, lease.epoch if lease is not None else 0, unchanged)
        # 6: state. The claim has moved the ends of leases only.
        found = await restore(log, topics, partition, tail, ends)
        partition.applied = max(partition.applied, found.applied)
        # The lease may be as old as a sweep, so only the events tell how far the commands must reach.
        _check_applied(number, partition.applied, await log.span(topics.commands, number))
        while found.epoch_seen >= partition.epoch:
            engine.observer.message(
                f"partition {number}: its leases were lost; claiming above epoch {found.epoch_seen}"
            )
            await self._claim(partition, found.epoch_seen, unchanged)
            found = found._replace(epoch_seen=0)
        crash.passing("acquire.restored")
        await self._open(partition, found, committed, commands)

    def _check_topic_id(self, partition: Partition, lease: Lease | None) -> None:
        if lease is not None and lease.topic_id and lease.topic_id != partition.topic_id:
            message = (
                f"partition {partition.number}: the commands topic was deleted and created again since the last owner; "
                "new commands would be taken for old ones. Move the app to a new name, or restore the topic"
            )
            raise LogDamaged(message)

    async def _claim(self, partition: Partition, epoch_seen: int, unchanged: int) -> None:
        """Commit the lease alone. The group's offset goes with it as the fence, and stays what it was."""
        worker = self._worker
        async with worker.turn_lock:
            if partition.state is PartitionState.CLOSED:
                raise Fenced(f"partition {partition.number} was given up while it was being acquired")
            await worker.trust_producer()
            partition.epoch = epoch_seen + 1
            turn = Turn(worker.engine, {})
            turn.add_lease(partition, (worker.producer.id,))
            turn.applied[partition.number] = unchanged
            snapshot = worker.member.snapshot()
            if snapshot.owned.get(partition.number) != partition.incarnation:
                raise CommitAborted(f"partition {partition.number} is not owned any more as it was assigned")
            await worker.commit(snapshot, turn)
        crash.passing("acquire.claimed")

    async def _open(self, partition: Partition, found: Found, committed: int | None, commands: Span) -> None:
        """7, 8: every unfinished op is waited for, tried again or looked up; then commands come in."""
        worker = self._worker
        start = commands.start if committed is None else max(committed, commands.start)
        if start > partition.applied:
            text = (
                f"partition {partition.number}: the group's offset {start} was moved ahead; {partition.applied} is next"
            )
            worker.engine.observer.message(text)
            start = max(partition.applied, commands.start)
        partition.move(PartitionState.RUNNING)
        worker.damaged(partition, found.damaged)
        for hot in partition.runs.values():
            if hot.damaged is None:
                self._recover(partition, hot.run)
        await self._resume(partition, start)
        self._acquiring.pop(partition.number, None)
        self._observe(partition, f"{len(partition.runs)} runs")

    async def _resume(self, partition: Partition, start: int) -> None:
        """Let commands come in. What runs is not restored again only because the log is busy at this moment."""
        worker = self._worker
        while True:
            try:
                await worker.member.resume(partition.number, start)
            except LogUnavailable as error:
                worker.engine.observer.message(f"partition {partition.number} waits for its commands: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    def _recover(self, partition: Partition, run: Run) -> None:
        worker = self._worker
        if is_terminal(run):
            return
        if any(op.phase is OpPhase.RUNNING for op in run.ops.values()):
            worker.put(Happened(partition, run.run_id, Recover()))
        for op in run.ops.values():
            if op.phase is OpPhase.QUEUED:
                worker.timers.add(0, partition, run.run_id, op.id)
            elif op.due is not None and op.phase in (OpPhase.WAITING, OpPhase.BACKOFF):
                worker.timers.add(op.due, partition, run.run_id, op.id)

    # -- release -------------------------------------------------------------------------------------------------

    async def _release(self, snapshot: GroupSnapshot, partitions: list[Partition], deadline: Deadline) -> None:
        worker = self._worker
        if not partitions:
            return
        numbers = {partition.number for partition in partitions}
        # What is only due has not begun: started here, it would look like a lost attempt to the next owner.
        items = [item for item in worker.take_finished(numbers) if _is_last(item)]
        items += worker.dispatcher.hand_back(numbers, "the partition moves to another worker")
        try:
            async with asyncio.timeout(deadline.left()):
                await self._last_turns(snapshot, partitions, items)
        except (LogError, TimeoutError) as error:
            # Nothing is lost by it: the next owner finds the attempts as started, and looks them up or tries again.
            reason = str(error) or f"it took longer than {worker.engine.settings.drain_seconds:g} s"
            worker.engine.observer.message(f"giving up partitions {sorted(numbers)} without a release record: {reason}")

    async def _last_turns(self, snapshot: GroupSnapshot, partitions: list[Partition], items: list[Item]) -> None:
        worker = self._worker
        await worker.trust_producer()
        while True:
            turn = Turn(worker.engine, {})
            del items[: turn.take(items)]
            turn.finish()
            if not items:
                for partition in partitions:
                    turn.add_lease(partition, (), released=True)
            try:
                turn.adopt(await worker.commit(snapshot, turn))
            except LogError:
                turn.discard()
                raise
            if not items:
                return

    def close(self, partition: Partition) -> None:
        """Forget a partition: its tasks are stopped, its coroutines dropped."""
        worker = self._worker
        task = self._acquiring.pop(partition.number, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if partition.state is not PartitionState.CLOSED:
            partition.move(PartitionState.CLOSED)
        worker.take_finished({partition.number})
        worker.dispatcher.abandon({partition.number})
        for hot in partition.runs.values():
            worker.engine.evict(hot)
        partition.runs = {}
        if self.partitions.get(partition.number) is partition:
            del self.partitions[partition.number]
        self._observe(partition, "")

    def _observe(self, partition: Partition, detail: str) -> None:
        self._worker.engine.observer.partition(partition.number, partition.state.value, partition.epoch, detail)


def _check_applied(number: int, applied: int, commands: Span) -> None:
    if commands.end < applied:
        message = (
            f"partition {number}: commands up to offset {applied} were applied, but the topic ends "
            f"at {commands.end}: it has lost records"
        )
        raise LogDamaged(message)


def _is_last(item: Item) -> bool:
    """Whether an input belongs into the last turn of a partition."""
    return isinstance(item, Damage) or (isinstance(item, Happened) and not isinstance(item.input, Due))
