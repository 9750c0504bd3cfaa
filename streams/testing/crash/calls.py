"""Calls of user code: an app whose tasks and look-ups note each call, and pass a crash point at each of their waits."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

from streams.authoring.app import App
from streams.authoring.subscriber import BatchContext, EffectContext, Subscription
from streams.authoring.task import Task, TaskContext
from streams.runtime import crash

__all__ = ["Call", "watched"]


class Call:
    """A task was called, or the subscriber of an effect, or a look-up of one of them."""

    __slots__ = ("answer", "attempt", "coroutine", "effect", "key", "look_up", "run_id", "task")

    def __init__(self, ctx: TaskContext | EffectContext, task: str, *, look_up: bool, effect: str = "") -> None:
        self.run_id = ctx.run_id
        self.task = task
        self.effect = effect
        """The name of the effect, where it is a subscriber."""
        self.key = ctx.idempotency_key
        self.attempt = ctx.attempt
        self.look_up = look_up
        self.answer: object = None
        """What it has returned."""
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        """Held as long as the execution: collected, it would run its clean-up code, which a dead process never does."""

    def dispose(self) -> None:
        """Close the coroutine of one who died in it, once nobody looks any more at what its clean-up code does."""
        coroutine, self.coroutine = self.coroutine, None
        if coroutine is not None:
            try:
                coroutine.close()
            except BaseException:  # noqa: BLE001 - what it wants to say, nobody hears: its process is gone
                return


def watched(app: App, note: Callable[[Call], None], resources: Callable[[], Any] | None) -> App:
    """The same app, whose tasks and subscribers tell of each call. They see what `resources` gives, if it is given."""
    made = copy.copy(app)
    made._subscriptions = {name: _watched_one(one, note) for name, one in app._subscriptions.items()}  # noqa: SLF001
    made._tasks = {name: _watched(task, note) for name, task in app._tasks.items()}  # noqa: SLF001 - no user has a use for it
    if resources is not None:
        made.lifespan = _lifespan(resources)
    return made


def _watched(task: Task[Any, Any], note: Callable[[Call], None]) -> Task[Any, Any]:
    look_up = task.reconcile
    return replace(
        task,
        function=_noting(task.function, task.name, note, look_up=False),
        reconcile=None if look_up is None else _noting(look_up, task.name, note, look_up=True),
    )


def _watched_one(one: Subscription[Any, Any], note: Callable[[Call], None]) -> Subscription[Any, Any]:
    look_up, effect = one.reconcile, one.effect.name
    return replace(
        one,
        function=_noting(one.function, one.name, note, look_up=False, effect=effect),
        reconcile=None if look_up is None else _noting(look_up, one.name, note, look_up=True, effect=effect),
    )


def _noting(
    function: Callable[..., Any], task: str, note: Callable[[Call], None], *, look_up: bool, effect: str = ""
) -> Any:
    def begin(ctx: TaskContext | EffectContext | BatchContext) -> Call:
        """Of a batch each message is noted; the first call stands for them."""
        about = ctx.deliveries if isinstance(ctx, BatchContext) else (ctx,)
        calls = [Call(one, task, look_up=look_up, effect=effect) for one in about]
        for call in calls:
            note(call)
        return calls[0]

    if not inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        def plain(ctx: TaskContext | EffectContext | BatchContext, *args: Any, **kwargs: Any) -> Any:
            call = begin(ctx)
            call.answer = function(ctx, *args, **kwargs)
            return call.answer

        return plain

    @functools.wraps(function)
    async def stepping(ctx: TaskContext | EffectContext | BatchContext, *args: Any, **kwargs: Any) -> Any:
        call = begin(ctx)
        call.coroutine = function(ctx, *args, **kwargs)
        point = f"effect.waited/{effect}" if effect else f"task.waited/{task}"
        call.answer = await _Steps(call.coroutine, point)
        return call.answer

    return stepping


class _Steps(Awaitable[Any]):
    """Drives a coroutine, and passes a crash point wherever it has come back from a wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], point: str) -> None:
        self._coroutine = coroutine
        self._point = point

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        step: Callable[[], Any] = functools.partial(coroutine.send, None)
        while True:
            try:
                waited_for = step()
            except StopIteration as stop:
                return stop.value
            try:
                got = yield waited_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - goes to the coroutine, as it came
                step = functools.partial(coroutine.throw, error)
            else:
                step = functools.partial(coroutine.send, got)
            crash.passing(self._point)


def _lifespan(resources: Callable[[], Any]) -> Callable[[App], AbstractAsyncContextManager[Any]]:
    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[Any]:
        yield resources()

    return lifespan
