"""What the outside does in an execution: start runs, answer questions, send signals, wait for what becomes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from streams.authoring.declared import Signal
from streams.authoring.graph import Graph
from streams.authoring.workflow import Workflow
from streams.client import Sent
from streams.errors import RunCancelled
from streams.kernel.run import OpPhase, OpState, Phase, Run, Status, is_terminal, status_of

if TYPE_CHECKING:
    from streams.testing.crash.world import World

__all__ = ["Scenario", "Script"]

I = TypeVar("I")  # noqa: E741 - input
T = TypeVar("T")


class Scenario:
    """The hands and eyes of a script. Every command is waited for until a worker has decided on it.

    Its calls raise what those of `streams.client.Client` raise, such as `Refused`.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = world.client
        self._runs = 0

    @property
    def resources(self) -> Any:
        """What the tasks of this execution see as `ctx.resources`, where `resources=` was given."""
        return self._world.resources

    # -- commands ------------------------------------------------------------------------------------------------

    @overload
    async def start(
        self,
        workflow: Workflow[I, Any],
        input: I,
        /,
        *,
        run_id: str = ...,
        attributes: Mapping[str, str] | None = ...,
    ) -> str: ...
    @overload
    async def start(
        self,
        workflow: Graph[Any] | str,
        input: Any,
        /,
        *,
        run_id: str = ...,
        attributes: Mapping[str, str] | None = ...,
    ) -> str: ...
    async def start(
        self,
        workflow: Any,
        input: Any,
        /,
        *,
        run_id: str = "",
        attributes: Mapping[str, str] | None = None,
    ) -> str:
        """Start a run and return its id: `run-1`, `run-2` and so on, unless one is given."""
        self._runs += 1
        run_id = run_id or f"run-{self._runs}"
        await self._taken(await self._client.start(workflow, input, run_id=run_id, attributes=attributes))
        return run_id

    async def resume(self, run_id: str, value: Any, /, *, interrupt: str | None = None) -> None:
        """Answer an open interrupt, named by its key or id; without a name, the only one."""
        await self._taken(await self._client.resume(run_id, value, interrupt=interrupt))

    @overload
    async def signal(self, run_id: str, signal: Signal[T], value: T, /) -> None: ...
    @overload
    async def signal(self, run_id: str, signal: str, value: Any, /) -> None: ...
    async def signal(self, run_id: str, signal: Any, value: Any, /) -> None:
        """Send a signal."""
        await self._taken(await self._client.signal(run_id, signal, value))

    async def cancel(self, run_id: str, /, *, force: bool = False) -> None:
        """Ask a run to end."""
        await self._taken(await self._client.cancel(run_id, force=force))

    async def retry(self, run_id: str, /, *, op: str | None = None) -> None:
        """Let a blocked run or a parked op go on, as an operator does."""
        await self._taken(await self._client.retry(run_id, op=op))

    async def skip(self, run_id: str, op: str, /) -> None:
        """Fail a parked op, as an operator does."""
        await self._taken(await self._client.skip(run_id, op))

    async def complete(self, run_id: str, op: str, value: Any, /) -> None:
        """Complete a task with a value, as an operator does."""
        await self._taken(await self._client.complete(run_id, op, value))

    async def _taken(self, sent: Sent) -> None:
        await self._client.accepted(sent, timeout=None)

    # -- waiting -------------------------------------------------------------------------------------------------

    async def waiting(self, run_id: str, what: str = "interrupt", /) -> str:
        """Wait until the run waits for this, and return the id of the op.

        `what` is the key of an interrupt, the name of a signal, the id of an op, or a kind: `interrupt`, `receive`,
        `timer`, or `parked` for a task that needs an operator.
        """
        found: OpState = await self._world.eyes.until(
            lambda runs: _waits(runs.get(run_id), what), f"{run_id} to wait for {what!r}"
        )
        return found.id

    async def ended(self, run_id: str, /) -> Status:
        """Wait for the end of a run; return how it has ended."""
        run: Run = await self._world.eyes.until(lambda runs: _ended(runs.get(run_id)), f"the end of {run_id}")
        return status_of(run)

    async def result(self, run_id: str, /) -> Any:
        """Wait for the end of a run and return its result. Raises `RunFailed` or `RunCancelled` for another end."""
        run: Run = await self._world.eyes.until(lambda runs: _ended(runs.get(run_id)), f"the end of {run_id}")
        if run.phase is Phase.COMPLETED:
            return self._client.values.decode(run.result or b"")
        if run.error is not None:
            raise self._client.values.failure(run.error)
        raise RunCancelled(f"run {run_id!r} was cancelled")

    async def sleep(self, delay: float | timedelta, /) -> None:
        """Let time pass: seconds or a timedelta. No real time does."""
        await self._world.sleep(delay.total_seconds() if isinstance(delay, timedelta) else delay)


Script = Callable[[Scenario], Awaitable[None]]
"""An async function of a `Scenario`; a fresh execution calls it anew."""


def _waits(run: Run | None, what: str) -> OpState | None:
    for op in run.ops.values() if run is not None else ():
        if op.phase is OpPhase.PARKED:
            if what in ("parked", op.name, op.id):
                return op
        elif op.phase is OpPhase.WAITING and what in (op.kind, op.name, op.id):
            return op
    return None


def _ended(run: Run | None) -> Run | None:
    return run if run is not None and is_terminal(run) else None
