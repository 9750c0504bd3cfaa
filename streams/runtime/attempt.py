"""One attempt of a task: look-up where the outcome may exist already, user code, and the outcome as stored data."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from streams.authoring.task import FencingToken, Found, NotFound, Task, TaskContext, Unknown
from streams.errors import ValueRefused
from streams.kernel.bodies import Failure, Policy
from streams.kernel.changes import decode_base
from streams.kernel.inputs import Outcome
from streams.kernel.retry import policy_of
from streams.kernel.run import OpState, Run
from streams.runtime import crash
from streams.runtime.early import Early
from streams.runtime.engine import Engine
from streams.runtime.failures import failure_of, plain_text
from streams.runtime.host import in_thread
from streams.runtime.partition import Partition

__all__ = ["Attempt"]


class Attempt:
    """A running attempt. `report` is called once with its outcome, `ended` once when its code has really ended."""

    def __init__(
        self,
        engine: Engine,
        partition: Partition,
        run: Run,
        op: OpState,
        task: Task[Any, Any],
        *,
        resources: Any,
        report: Callable[[Attempt, Outcome], None],
        ended: Callable[[Attempt], None],
        note: Callable[[Attempt, bytes], None],
    ) -> None:
        self.engine = engine
        self.partition = partition
        self.run_id = run.run_id
        self.op = op
        self.task = task
        self.policy: Policy = policy_of(op, task)
        self.early: Early | None = None
        """Where it was begun before its start was durable."""
        self._run = run
        self._report = report
        self._ended = ended
        self._note = note
        self._reported = False
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._asyncio_task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        codec = engine.codec
        self.context = TaskContext(
            run.run_id,
            attempt=op.attempt,
            idempotency_key=op.key or "",
            fencing_token=FencingToken(op.epoch, op.attempt),
            resources=resources,
            noted=None if op.noted is None else codec.decode(op.noted),
            heartbeat=self._heartbeat,
        )

    def start(self) -> None:
        """Begin; the time-out counts from here."""
        if self.policy.timeout is not None:
            self._expiry = self._loop.call_later(self.policy.timeout, self._expire)
        self._asyncio_task = self._loop.create_task(self._main())

    def ask_to_stop(self) -> None:
        """Tell the task that nobody needs it any more; it decides."""
        self.context.cancelled = True

    def abandon(self) -> None:
        """The run is somebody else's now: stop what can be stopped, and report nothing."""
        self._reported = True
        self.context.cancelled = True
        self._stop_expiry()
        if self._asyncio_task is not None:
            self._asyncio_task.cancel()

    # -- the course of an attempt --------------------------------------------------------------------------------

    async def _main(self) -> None:
        try:
            crash.passing("task.started", self.task.name)
            outcome = await self._outcome()
            crash.passing("task.returned", self.task.name)
            self._tell(outcome)
            crash.passing("task.told", self.task.name)
        finally:
            self._stop_expiry()
            self._asyncio_task = None
            self.context.end()
            self._ended(self)

    async def _outcome(self) -> Outcome:
        op = self.op
        try:
            args, kwargs = self._arguments()
            if op.maybe and self.task.reconcile is not None:
                crash.passing("task.looking_up", self.task.name)
                looked = await self._look_up(args, kwargs)
                crash.passing("task.looked_up", self.task.name)
                if looked is not None:
                    return looked
            value = await self._call(self.task.function, self.task.is_async, args, kwargs)
            data = self.engine.codec.encode(value)
        except ValueRefused as refused:
            message = f"the result of task {self.task.name!r} cannot be stored: {plain_text(refused)}"
            return Outcome(op.id, op.attempt, None, Failure("terminal", refused.code, message))
        except asyncio.CancelledError:
            return Outcome(op.id, op.attempt, None, Failure("unknown", "ATTEMPT_STOPPED", "the attempt was stopped"))
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is its outcome
            failure = failure_of(error, self.policy, self.engine.codec, self.engine.host.traceback)
            return Outcome(op.id, op.attempt, None, failure)
        return Outcome(op.id, op.attempt, data)

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        codec, op = self.engine.codec, self.op
        if op.ref == "state":
            definition = self.engine.app.find(self._run.workflow, self._run.version)
            state = definition.build(decode_base(self._run.base, codec)) if hasattr(definition, "build") else None  # type: ignore[union-attr]
            return ([state] if op.args is None else [state, codec.decode(op.args)]), {}
        decoded = codec.decode(op.args or b"[[]]")
        return decoded[0], decoded[1] if len(decoded) > 1 else {}

    async def _look_up(self, args: list[Any], kwargs: dict[str, Any]) -> Outcome | None:
        """The outcome that a look-up knows; None where the work was surely not done and may be done now."""
        op = self.op
        reconcile = self.task.reconcile
        assert reconcile is not None
        try:
            found = await self._call(reconcile, inspect.iscoroutinefunction(reconcile), args, kwargs)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a look-up that fails has told nothing
            text = f"the look-up failed with {type(error).__name__}: {plain_text(error)}"
            return Outcome(op.id, op.attempt, None, Failure("unknown", "RECONCILE_FAILED", text))
        if isinstance(found, Found):
            return Outcome(op.id, op.attempt, self.engine.codec.encode(found.value))
        if isinstance(found, NotFound):
            if op.spent > self.policy.max_attempts or op.asked:
                text = "the look-up says that the work was not done"
                return Outcome(op.id, op.attempt, None, Failure("exhausted", "NOT_DONE", text))
            return None
        reason = found.reason if isinstance(found, Unknown) else f"it returned {type(found).__name__}"
        return Outcome(
            op.id, op.attempt, None, Failure("unknown", "OUTCOME_UNKNOWN", f"the look-up cannot tell: {reason}")
        )

    async def _call(self, function: Callable[..., Any], is_async: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: FBT001
        if is_async:
            return await function(self.context, *args, **kwargs)
        call = partial(function, self.context, *args, **kwargs)
        return await in_thread(self.engine.host, call, f"task {self.task.name}")

    # -- ends ----------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """The time-out: the outcome is unknown from now on, whatever the code still does."""
        op = self.op
        text = f"attempt {op.attempt} of task {self.task.name!r} took longer than {self.policy.timeout:g} s"
        self._tell(Outcome(op.id, op.attempt, None, Failure("unknown", "ATTEMPT_TIMED_OUT", text)))
        self.context.cancelled = True
        if self._asyncio_task is not None and self.task.is_async:
            self._asyncio_task.cancel()

    def _tell(self, outcome: Outcome) -> None:
        if not self._reported:
            self._reported = True
            self._report(self, outcome)

    def _stop_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()

    def _heartbeat(self, details: Any) -> None:
        if details is None:
            return
        data = self.engine.codec.encode(details)
        if threading.get_ident() == self._loop_thread:
            self._note(self, data)  # at once: a call that is put off would come after the outcome
        else:
            with suppress(RuntimeError):  # the worker has ended meanwhile
                self._loop.call_soon_threadsafe(self._note, self, data)
