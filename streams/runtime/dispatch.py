"""Dispatch: begins attempts that are durably started, bounds how many run, and stops them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from streams.kernel.bodies import Failure
from streams.kernel.inputs import Due, Noted, Outcome, Returned
from streams.kernel.run import OpPhase, OpState, Run
from streams.runtime import crash
from streams.runtime.attempt import Attempt
from streams.runtime.early import Early
from streams.runtime.engine import Engine
from streams.runtime.inputs import Happened, Item
from streams.runtime.partition import Partition

if TYPE_CHECKING:
    from streams.authoring.task import Task
    from streams.runtime.turn import Turn

__all__ = ["Dispatcher"]

RunKey = tuple[int, str]
Key = tuple[int, str, str]


class Dispatcher:
    """The running attempts of a worker, and the slots that they take.

    A slot is free, promised to a queued op whose start is being recorded, or taken by code that has not ended yet.
    """

    def __init__(self, engine: Engine, put: Callable[[Happened], None]) -> None:
        self.resources: Any = None
        self._engine = engine
        self._put = put
        self._attempts: dict[RunKey, dict[str, Attempt]] = {}
        self._promised: dict[Key, str] = {}
        self._waiting: dict[str, deque[Happened]] = {"loop": deque(), "thread": deque()}
        self._free = {"loop": engine.settings.loop_slots, "thread": engine.settings.thread_slots}
        self._closed = False

    def slots(self) -> dict[str, int]:
        """Free slots, for a turn to hand out; none once the worker is stopping."""
        return {pool: 0 if self._closed else max(0, free) for pool, free in self._free.items()}

    def start(self, partition: Partition, run_id: str, op_id: str, attempt_number: int) -> None:
        """Begin an attempt whose start is committed; one that was overtaken in the same turn is not begun."""
        hot = partition.runs.get(run_id)
        op = hot.run.ops.get(op_id) if hot is not None else None
        if hot is None or op is None or op.phase is not OpPhase.RUNNING or op.attempt != attempt_number:
            return
        if self._closed:
            # Its start was decided before the worker began to stop. It has not run: whoever comes next begins it.
            self._put(Happened(partition, run_id, Returned(op.id, op.attempt, "the worker is stopping")))
            return
        task = self._engine.app.task_named(op.name)
        if task is None:
            text = f"no task {op.name!r} is loaded here; deploy it, then retry the op"
            failure = Failure("code", "TASK_UNKNOWN", text)
            self._put(Happened(partition, run_id, Outcome(op.id, op.attempt, None, failure)))
            return
        if self._promised.pop((partition.number, run_id, op_id), None) is None:
            self._free[task.pool] -= 1
        self._begin(partition, hot.run, op, task)

    def _begin(self, partition: Partition, run: Run, op: OpState, task: Task[Any, Any]) -> Attempt:
        attempt = Attempt(
            self._engine,
            partition,
            run,
            op,
            task,
            resources=self.resources,
            report=self._report,
            ended=self._ended,
            note=self._note,
        )
        self._attempts.setdefault((partition.number, run.run_id), {})[op.id] = attempt
        if op.asked:
            attempt.ask_to_stop()
        attempt.start()
        return attempt

    # -- attempts begun early ------------------------------------------------------------------------------------

    def begin_early(self, turn: Turn) -> None:
        """Begin what a turn on its way has decided on and may begin before its commit. Each takes its slot now."""
        for start in turn.early.wanted:
            run = turn.working[start.partition.number, start.run_id].run
            op = run.ops.get(start.op)
            if op is None or op.phase is not OpPhase.RUNNING or op.attempt != start.attempt or op.asked or self._closed:
                turn.starts.append(start)
                continue
            task = self._engine.app.task_named(op.name)
            assert task is not None
            turn.used[task.pool] -= 1
            self._free[task.pool] -= 1
            attempt = self._begin(start.partition, run, op, task)
            attempt.early = Early()
            turn.early.begun.append(attempt)
            crash.passing("task.begun_early", op.name)
        turn.early.wanted.clear()

    def land(self, turn: Turn) -> None:
        """The turn is committed, and so are the starts of what it has begun early."""
        for attempt in turn.early.begun:
            if attempt.early is not None:
                attempt.early.land()

    def drop(self, turn: Turn) -> None:
        """The turn is not committed: what it has begun early never was, and whatever it tells counts for nothing."""
        for attempt in turn.early.begun:
            if attempt.early is not None:
                attempt.early.drop()
            self._remove(attempt)
            attempt.abandon()
        turn.early.begun.clear()

    # -- queued ops ----------------------------------------------------------------------------------------------

    def queue(self, partition: Partition, run_id: str, op_id: str) -> None:
        """Begin an attempt when a slot is free: its start is recorded then, not now."""
        hot = partition.runs.get(run_id)
        op = hot.run.ops.get(op_id) if hot is not None else None
        if op is None or (partition.number, run_id, op_id) in self._promised:
            return
        task = self._engine.app.task_named(op.name)
        pool = task.pool if task is not None else "loop"
        self._waiting[pool].append(Happened(partition, run_id, Due(op_id)))
        self._hand_out(pool)

    def settle(self, items: Iterable[Item]) -> None:
        """A turn has taken these inputs: what was promised to an op that did not start after all is free again."""
        for item in items:
            if isinstance(item, Happened) and isinstance(item.input, Due):
                self._take_back((item.partition.number, item.run_id, item.input.op))

    def _take_back(self, key: Key) -> None:
        pool = self._promised.pop(key, None)
        if pool is not None:
            self._give(pool)

    def _give(self, pool: str) -> None:
        self._free[pool] += 1
        self._hand_out(pool)

    def _hand_out(self, pool: str) -> None:
        """Promise free slots to those who wait, so that not many more starts are recorded than there are slots.

        What a turn under way hands out is not counted yet; such starts make `_free` negative for a while.
        """
        waiting = self._waiting[pool]
        while waiting and self._free[pool] > 0 and not self._closed:
            item = waiting.popleft()
            assert isinstance(item.input, Due)
            key = (item.partition.number, item.run_id, item.input.op)
            if item.partition.running and key not in self._promised:
                self._free[pool] -= 1
                self._promised[key] = pool
                self._put(item)

    # -- stopping ------------------------------------------------------------------------------------------------

    def stop_asked(self, partition: Partition, run_id: str) -> None:
        """Pass stop requests on to the attempts of a run; all of them where the run has ended."""
        hot = partition.runs.get(run_id)
        for op_id, attempt in self._attempts.get((partition.number, run_id), {}).items():
            op = hot.run.ops.get(op_id) if hot is not None else None
            if (op is None or op.asked) and not (attempt.early is not None and attempt.early.pending):
                attempt.ask_to_stop()

    def forget(self, partition: Partition, run_id: str) -> None:
        """Nothing that still runs for a run which has expired may end in a later run of its name."""
        for attempt in self._attempts.pop((partition.number, run_id), {}).values():
            attempt.abandon()

    def hand_back(self, partitions: set[int], reason: str) -> list[Happened]:
        """Break off what still runs in these partitions; what comes back goes into their last turn."""
        items: list[Happened] = []
        for attempt in self._break_off(partitions):
            returned = Returned(attempt.op.id, attempt.op.attempt, reason)
            items.append(Happened(attempt.partition, attempt.run_id, returned))
        return items

    def abandon(self, partitions: set[int]) -> None:
        """Forget the attempts and promises of partitions that are somebody else's now."""
        for _ in self._break_off(partitions):
            pass
        for key in [key for key in self._promised if key[0] in partitions]:
            self._take_back(key)

    def _break_off(self, partitions: set[int]) -> Iterator[Attempt]:
        for key in [key for key in self._attempts if key[0] in partitions]:
            for attempt in self._attempts.pop(key).values():
                attempt.abandon()
                yield attempt

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True

    @property
    def running(self) -> int:
        """Attempts whose outcome is still awaited."""
        return sum(map(len, self._attempts.values()))

    # -- what attempts tell --------------------------------------------------------------------------------------

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        self._remove(attempt)
        self._put(Happened(attempt.partition, attempt.run_id, outcome, attempt.early))

    def _remove(self, attempt: Attempt) -> None:
        key = (attempt.partition.number, attempt.run_id)
        of_run = self._attempts.get(key, {})
        if of_run.get(attempt.op.id) is attempt:
            del of_run[attempt.op.id]
            if not of_run:
                del self._attempts[key]

    def _note(self, attempt: Attempt, details: bytes) -> None:
        noted = Noted(attempt.op.id, attempt.op.attempt, details)
        self._put(Happened(attempt.partition, attempt.run_id, noted, attempt.early))

    def _ended(self, attempt: Attempt) -> None:
        self._give(attempt.task.pool)
