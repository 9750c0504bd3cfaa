"""Owning partitions: what a worker does when the group gives it one, takes one back, or it loses one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from streams.deadline import Deadline
from streams.errors import CommitAborted, Fenced, InDoubt, LogDamaged, LogError, LogUnavailable, SendRefused
from streams.log.port import GroupSnapshot, Span
from streams.runtime import crash
from streams.runtime.blame import blame
from streams.runtime.ends import pass_markers
from streams.runtime.inputs import Item, is_last
from streams.runtime.marks import check_keys, check_number, topic_id
from streams.runtime.mirroring import begin_mirror
from streams.runtime.outgoing import Stop
from streams.runtime.paging import attach, count_runs, forget, load_due
from streams.runtime.partition import Partition, PartitionState
from streams.runtime.recover import recover
from streams.runtime.restore import (
    Found,
    check_tail,
    find_ends,
    owner_ids,
    passed_over,
    read_lease,
    restore,
    shown_without_lease,
    stable_offset,
)
from streams.runtime.starting import patiently
from streams.runtime.telling import tell
from streams.runtime.turn import Turn

if TYPE_CHECKING:
    from streams.runtime.worker import Worker
    from streams.wire.records import Lease

__all__ = ["Owner", "check_applied"]

_PAUSE_SECONDS = 0.05


class Owner:
    """Implements the `Ownership` port for a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.partitions: dict[int, Partition] = {}
        self._acquiring: dict[int, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
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
        await asyncio.gather(*self._stop_acquiring(partitions), return_exceptions=True)
        try:
            async with asyncio.timeout(deadline.left()):
                await worker.turn_lock.acquire()
        except TimeoutError:
            # The turn in flight is refused once they belong to somebody else, or was committed before; who restores
            # them finds out. Nothing of it is adopted here.
            self._not_released(partitions, "a commit is still under way")
        else:
            try:
                running = [p for p in self._held(partitions) if p.running]
                for partition in running:
                    partition.move(PartitionState.DRAINING)
                crash.passing("release.before")
                await self._release(snapshot, running, deadline)
            finally:
                worker.turn_lock.release()
        for partition in self._held(partitions):
            self.close(partition)
        crash.passing("release.closed")

    async def lost(self, partitions: Mapping[int, int]) -> None:
        """Somebody else owns them: publish nothing, stop the tasks, forget everything."""
        stopped = self._stop_acquiring(partitions)
        for partition in self._held(partitions):
            self.close(partition)
        await asyncio.gather(*stopped, return_exceptions=True)

    def _held(self, numbers: Iterable[int]) -> list[Partition]:
        return [self.partitions[number] for number in numbers if number in self.partitions]

    # -- acquire -------------------------------------------------------------------------------------------------

    def _begin(self, number: int, incarnation: int, *, refused: str = "") -> None:
        old = self.partitions.get(number)
        if old is not None:
            self.close(old)
        partition = self.partitions[number] = Partition(number, incarnation)
        attach(partition, self._worker.pager)
        task = self._acquiring[number] = asyncio.create_task(self._acquire_until_done(partition, refused))
        self._tasks[task] = None
        task.add_done_callback(self._acquire_ended)

    def _acquire_ended(self, task: asyncio.Task[None]) -> None:
        """What no branch of an acquisition knows is a mistake in the program: silent, the partition would hang."""
        self._tasks.pop(task, None)
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

    async def all_again(self) -> None:
        """Acquire all running partitions anew. The turn lock is held."""
        owned = self._worker.member.snapshot().owned
        await self.again(
            {n: owned[n] for n, p in self.partitions.items() if p.running and owned.get(n) == p.incarnation}
        )

    async def refuse(self, number: int, reason: str) -> None:
        """The log has lost the next command of a partition that is served: that one is refused, the others go on."""
        async with self._worker.turn_lock:
            await self._worker.member.pause(number)
            incarnation = self._worker.member.snapshot().owned.get(number)
            if incarnation is not None:
                self._begin(number, incarnation, refused=reason)

    def _stop_acquiring(self, partitions: Mapping[int, int]) -> list[asyncio.Task[None]]:
        """Cancel what is being acquired of these; a commit under way still takes a moment."""
        tasks = [task for number, task in self._acquiring.items() if number in partitions]
        for task in tasks:
            task.cancel()
        return tasks

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
                await asyncio.sleep(_PAUSE_SECONDS if isinstance(error, LogUnavailable) else 0)  # it fails at once
                await worker.newer_snapshot(snapshot)
                if worker.member.snapshot().owned.get(partition.number) != partition.incarnation:
                    return
            except LogDamaged as error:
                if partition.running:
                    # Its commands went away after the checks. The diagram has no way back: begin another one, and
                    # not beside a commit that writes for this one.
                    async with worker.turn_lock:
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
            await worker.settle(number, await owner_ids(log, topics, number))

        committed = await stable_offset(worker.member, number, settle)
        crash.passing("acquire.stable")
        found = Found(0, 0, [])
        while True:
            ends = await find_ends(log, topics, number, settle)
            found, commands = await self._claim_and_restore(partition, ends, committed, found)
            if found.epoch_seen < partition.epoch:
                break
            partition.runs.clear()
        crash.passing("acquire.restored")
        await self._open(partition, found, committed, commands)

    async def _claim_and_restore(
        self, partition: Partition, ends: Mapping[str, Span], committed: int | None, before: Found
    ) -> tuple[Found, Span]:
        worker, number = self._worker, partition.number
        log, topics = worker.log, worker.engine.topics
        # 4, 5: the lease, then a claim of its own.
        lease = await read_lease(log, topics, number, ends[topics.leases], serving=True)
        crash.passing("acquire.lease_read")
        commands = await log.span(topics.commands, number)
        check_number(number, worker.engine.partitions)
        partition.topic_id = await topic_id(log, topics.commands)
        self.check_topic_id(partition, lease)
        check_applied(partition.number, lease.applied if lease is not None else 0, commands)
        noted = await begin_mirror(log, topics, partition, ends, lease, worker.engine)
        tail = max(noted.tail, lease.tail if lease is not None else 0)
        check_tail(topics, number, tail, ends[topics.events])
        applied = lease.applied if lease is not None else commands.start
        partition.applied = max(before.applied, noted.applied, applied)
        partition.events_end = tail
        unchanged = commands.start if committed is None else committed
        shown = before.epoch_seen if lease is None else max(before.epoch_seen, lease.epoch)
        if not shown:
            shown, applied, *_ = await shown_without_lease(log, topics, number, ends)
            partition.applied = max(partition.applied, applied)
        if shown and (lease is None or before.epoch_seen):
            worker.engine.observer.message(f"partition {number}: its leases were lost; claiming above epoch {shown}")
        await self._claim(partition, shown, unchanged)
        await worker.engine.skew.check(log, partition)
        # 6: state. The claim has moved the ends of leases only.
        found = await restore(log, topics, partition, tail, ends)
        partition.applied = max(partition.applied, found.applied)
        check_keys(partition, worker.engine.partitions)
        # The lease may be as old as a sweep, so only the events tell how far the commands must reach.
        after = await log.span(topics.commands, number)
        check_applied(number, partition.applied, after)
        partition.fresh_from = after.end
        return found, commands

    def check_topic_id(self, partition: Partition, lease: Lease | None) -> None:
        """Raise `LogDamaged` where the applied offset is one of another topic."""
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
            crash.passing("acquire.claiming")
            turn.stamp(await worker.commit(snapshot, turn))
        crash.passing("acquire.claimed")

    async def _open(self, partition: Partition, found: Found, committed: int | None, commands: Span) -> None:
        """7, 8: every unfinished op is waited for, tried again or looked up; then commands come in."""
        worker = self._worker
        start = commands.start if committed is None else max(committed, commands.start)
        if start > partition.applied:
            text = passed_over(partition, start, commands, worker.engine.topics.commands)
            worker.engine.observer.message(f"partition {partition.number}: {text}")
            start = max(partition.applied, commands.start)
        load_due(partition, worker.engine.clock.now_us())
        partition.move(PartitionState.RUNNING)
        worker.damaged(partition, found.damaged)
        for hot in partition.runs.values():
            if hot.damaged is None:
                recover(worker, partition, hot.run)
        crash.passing("acquire.recovered")
        await self._resume(partition, start)
        crash.passing("acquire.opened")
        self._acquiring.pop(partition.number, None)
        self._observe(partition, count_runs(partition, self._worker.pager))

    async def _resume(self, partition: Partition, start: int) -> None:
        """Let commands come in. What runs is not restored again only because the log is busy at this moment."""
        worker, number = self._worker, partition.number
        text = f"partition {number} waits for its commands"
        await patiently(worker.engine, lambda: worker.member.resume(number, start), text, pause=_PAUSE_SECONDS)

    # -- release -------------------------------------------------------------------------------------------------

    async def _release(self, snapshot: GroupSnapshot, partitions: list[Partition], deadline: Deadline) -> None:
        worker = self._worker
        if not partitions:
            return
        numbers = {partition.number for partition in partitions}
        # What is only due has not begun: started here, it would look like a lost attempt to the next owner.
        items = [item for item in worker.take_finished(numbers) if is_last(item)]
        crash.passing("release.taken")
        items += worker.dispatcher.hand_back(numbers, "the partition moves to another worker")
        crash.passing("release.handed_back")
        try:
            async with asyncio.timeout(deadline.left()):
                await self._last_turns(snapshot, partitions, items)
        except (LogError, TimeoutError) as error:
            # Outcomes that were not committed are lost. The next owner finds their attempts as started: it tries them
            # again, and those of a task that is not idempotent it looks up, or parks.
            self._not_released(numbers, str(error) or f"it took longer than {worker.engine.settings.drain_seconds:g} s")

    def _not_released(self, numbers: Iterable[int], reason: str) -> None:
        text = f"giving up partitions {sorted(numbers)} without a release record: {reason}"
        self._worker.engine.observer.message(text)

    async def _last_turns(self, snapshot: GroupSnapshot, partitions: list[Partition], items: list[Item]) -> None:
        """Commit what is finished, the leases with the last of it. A refused record blocks its run and no other."""
        worker = self._worker
        stopped: dict[tuple[int, str], Stop] = {}
        await worker.trust_producer()
        count = len(items)
        while True:
            turn = Turn(worker.engine, {})
            taken = items[: turn.take(items[:count], stopped=stopped)]
            try:
                await self._last_turn(snapshot, turn, partitions if len(taken) == len(items) else [])
            except SendRefused as error:
                worker.engine.observer.redo(str(error))
                blame(turn, taken, error, stopped)  # it leaves in `taken` what is tried next
                count = len(taken)
                continue
            del items[: len(taken)]
            count = len(items)
            if turn.leases:
                return

    async def _last_turn(self, snapshot: GroupSnapshot, turn: Turn, released: list[Partition]) -> None:
        worker = self._worker
        try:
            turn.finish()
            if released:
                await pass_markers(worker, released)
            for partition in released:
                turn.add_lease(partition, (), released=True)
            crash.passing("release.committing")
            offsets = await worker.commit(snapshot, turn)
        except (LogError, asyncio.CancelledError):
            turn.discard()
            raise
        crash.passing("release.committed")
        turn.adopt(offsets)
        tell(worker.engine.observer, turn)

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
        forget(partition, worker.pager)
        partition.runs = {}
        if self.partitions.get(partition.number) is partition:
            del self.partitions[partition.number]
        self._observe(partition, "")

    def _observe(self, partition: Partition, detail: str) -> None:
        self._worker.engine.observer.partition(partition.number, partition.state.value, partition.epoch, detail)


def check_applied(number: int, applied: int, commands: Span) -> None:
    """Raise `LogDamaged` where commands are gone that were applied."""
    if commands.end < applied:
        message = (
            f"partition {number}: commands up to offset {applied} were applied, but the topic ends "
            f"at {commands.end}: it has lost records"
        )
        raise LogDamaged(message)
