"""An event loop in virtual time, with actors in it that can be frozen, thawed, and killed as by kill -9.

Time moves only when nothing is ready, and then at once to the next timer: a sleep of a day takes no time at all.
Nothing runs in a thread, nothing waits for the machine, so what happens depends on the program and its seed alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import math
import random
import selectors
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Never, TypeVar

__all__ = ["Actor", "Dead", "Stuck", "VirtualLoop", "current_actor", "run_virtual"]

T = TypeVar("T")

_ACTOR: contextvars.ContextVar[Actor | None] = contextvars.ContextVar("streams_actor", default=None)
_SPINS_MAX = 200_000
_RESOLUTION = 1e-9
_CLOSE_TRIES = 100
_SHOWN_MAX = 10


class Stuck(Exception):
    """Nothing can ever happen again in the virtual loop, or nothing but the same at one and the same instant."""


class Dead(BaseException):
    """Raised in an actor that dies in the middle of its code; nothing that handles it has any effect outside."""


def current_actor() -> Actor | None:
    """The actor whose code runs now; None outside any."""
    return _ACTOR.get()


class Actor:
    """A process of the simulation: everything that is scheduled from its code belongs to it.

    alive ──▶ frozen ──▶ alive        killed is the end
      └─────────┴──────▶ killed
    """

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self._loop = loop
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 64
        self._held: list[tuple[_Tagged, tuple[Any, ...]]] = []

    def __repr__(self) -> str:
        return f"<actor {self.name}: {'killed' if not self.alive else 'frozen' if self.frozen else 'alive'}>"

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as part of this actor."""
        return self._loop.create_task(coroutine, context=self.context())

    def context(self) -> contextvars.Context:
        """A copy of the current context that belongs to this actor."""
        context = contextvars.copy_context()
        context.run(_ACTOR.set, self)
        return context

    def freeze(self) -> None:
        """Hold back everything, like a stopped process, until `thaw`. What is running goes on to its next wait."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on; what came meanwhile runs in its order."""
        self.frozen = False
        held, self._held = self._held, []
        for tagged, args in held:
            self._loop.again(tagged, args)

    def kill(self) -> None:
        """End like a process under kill -9: nothing of it ever runs again, no clean-up either.

        Code that is running goes on to its next wait; `die` ends it in the middle.
        """
        self.alive = False
        self._held.clear()

    def die(self) -> Never:
        """Kill this actor from within its own code, here and now."""
        self.kill()
        raise Dead(f"{self.name} was killed")

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Remember a task: without it, a killed one would be collected, and its clean-up code would run."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_max = max(64, 2 * len(self._tasks))

    def unfinished(self) -> list[asyncio.Task[Any]]:
        """Its tasks that have not ended."""
        return [task for task in self._tasks if not task.done()]

    def drop(self) -> None:
        """Forget its tasks, once nothing runs any more."""
        self._tasks.clear()
        self._held.clear()


class _Tagged:
    """A callback of an actor."""

    __slots__ = ("actor", "callback", "context", "handle", "held")

    def __init__(self, actor: Actor, callback: Callable[..., Any], context: contextvars.Context) -> None:
        self.actor = actor
        self.callback = callback
        self.context = context
        self.handle: asyncio.Handle | None = None
        self.held = False

    def __call__(self, *args: Any) -> None:
        actor, handle = self.actor, self.handle
        if actor.frozen and actor.alive:
            self.held = True
            actor._held.append((self, args))  # noqa: SLF001 - the other half of the same mechanism
            return
        self.handle = None  # they hold each other: thousands of them would wait for the collector
        # The loop does not call what was cancelled; but what was held may have been since.
        if actor.alive and not (self.held and handle is not None and handle.cancelled()):
            self.callback(*args)


class _Selector(selectors.SelectSelector):
    """Reports no file ever; the time that it is told to wait passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let virtual time pass."""
        self.loop.pass_time(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. `errors` holds what callbacks raised; a test ends with it empty.

    `random` is the one source of chance. Sockets, subprocesses and signals do not work here.
    """

    def __init__(self, seed: int | str = 0, *, seconds_max: float = 1e9) -> None:
        selector = _Selector()
        selector.loop = self
        self._now = 0.0
        self._seconds_max = seconds_max
        self._spins = 0
        self._outside = Actor(self, "outside")
        self._actors: list[Actor] = []
        self.random = random.Random(seed)  # noqa: S311 - a seed decides everything; no secret
        self.errors: list[BaseException] = []
        super().__init__(selector)
        self.set_exception_handler(_note_error)

    # -- time ----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def pass_time(self, seconds: float | None) -> None:
        """Called when the loop has looked at all that is ready. Raises `Stuck` where nothing will ever be."""
        if seconds is None:
            raise Stuck(f"nothing is ready and no timer is set: {self._waiting()}")
        if seconds > 0:
            self._now += seconds
            if self._now + _RESOLUTION == self._now:
                # After half a year the loop's comparison with its resolution would not see that a timer is due.
                self._now = math.nextafter(self._now, math.inf)
            self._spins = 0
            if self._now > self._seconds_max:
                raise Stuck(f"{self._seconds_max:g} virtual seconds were not enough: {self._waiting()}")
            return
        self._spins += 1
        if self._spins > _SPINS_MAX:
            raise Stuck(f"something spins without letting time pass: {self._waiting()}")

    def _waiting(self) -> str:
        lines = [f"{actor.name}: {task!r}" for actor in (self._outside, *self._actors) for task in actor.unfinished()]
        more = f"\n... and {len(lines) - _SHOWN_MAX} more" if len(lines) > _SHOWN_MAX else ""
        return "\n".join(["unfinished tasks are", *lines[:_SHOWN_MAX]]) + more

    # -- actors --------------------------------------------------------------------------------------------------

    def actor(self, name: str) -> Actor:
        """A new actor."""
        actor = Actor(self, name)
        self._actors.append(actor)
        return actor

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As in asyncio; the callback belongs to the actor of its context."""
        actor = _ACTOR.get() if context is None else context.get(_ACTOR)
        if actor is None:
            return super().call_soon(callback, *args, context=context)
        tagged = _Tagged(actor, callback, contextvars.copy_context() if context is None else context)
        tagged.handle = handle = super().call_soon(tagged, *args, context=tagged.context)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """The same as `call_soon`: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; the callback belongs to the actor of its context."""
        actor = _ACTOR.get() if context is None else context.get(_ACTOR)
        if actor is None:
            return super().call_at(when, callback, *args, context=context)
        tagged = _Tagged(actor, callback, contextvars.copy_context() if context is None else context)
        handle = super().call_at(when, tagged, *args, context=tagged.context)
        tagged.handle = handle
        if not actor.alive:
            handle.cancel()
        return handle

    def again(self, tagged: _Tagged, args: tuple[Any, ...]) -> None:
        """Schedule what was held back."""
        super().call_soon(tagged, *args, context=tagged.context)

    def create_task(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **kwargs: Any) -> asyncio.Task[T]:
        """As in asyncio; the task belongs to the actor of its context."""
        task = super().create_task(coro, **kwargs)
        context = kwargs.get("context")
        actor = _ACTOR.get() if context is None else context.get(_ACTOR)
        (actor or self._outside).keep(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the function at once, in place of a thread."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            value = func(*args)
        except Exception as error:  # noqa: BLE001 - goes to whoever awaits it, as from a thread
            future.set_exception(error)
        else:
            future.set_result(value)
        return future

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Close the loop and dispose of what has not ended, killed or not. Nothing is alive any more by then."""
        self.set_exception_handler(lambda _, __: None)
        everybody = [self._outside, *self._actors]
        for actor in everybody:
            actor.kill()
        self.close()
        for actor in everybody:
            for task in actor.unfinished():
                _dispose(task.get_coro())
            actor.drop()


def _dispose(coroutine: Any) -> None:
    """Close a coroutine, whatever its clean-up code waits for or raises; what it does now, nobody sees."""
    last: BaseException | None = None
    for _ in range(_CLOSE_TRIES):
        try:
            coroutine.close()
        except BaseException as error:  # noqa: BLE001 - it wants to wait, or to say something; its process is gone
            last = error
        else:
            return
    raise RuntimeError(f"the clean-up code of {coroutine!r} does not end") from last


def _note_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What a callback raised; not what an exception in a future that nobody asked for says."""
    error = context.get("exception")
    assert isinstance(loop, VirtualLoop)
    if "handle" in context and error is not None and not isinstance(error, Dead):
        loop.errors.append(error)


def run_virtual(coroutine: Coroutine[Any, Any, T], seed: int | str = 0, *, seconds_max: float = 1e9) -> T:
    """Run a coroutine to its end in a loop of its own, and return what it returns.

    Python's shared source of chance is seeded as well, and put back afterwards. Raises `Stuck` instead of hanging,
    and what a callback raised, for nobody else would see it.
    """
    before = random.getstate()
    random.seed(seed)
    with _quiet_collector():
        loop = VirtualLoop(seed, seconds_max=seconds_max)
        try:
            value = loop.run_until_complete(coroutine)
            if loop.errors:
                raise loop.errors[0]
        finally:
            random.setstate(before)
            with _silent_finalisers():
                loop.end()
                del loop
                gc.collect()
    return value


@contextmanager
def _silent_finalisers() -> Iterator[None]:
    """What the clean-up code of a killed process raises when it is collected is nobody's concern."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Collect nothing by itself, for a finaliser runs code at an instant that no seed decides."""
    enabled, own = gc.isenabled(), gc.get_freeze_count() == 0
    gc.disable()
    gc.freeze()  # what was there before need not be looked through for each of a thousand seeds
    try:
        yield
    finally:
        if own:
            gc.unfreeze()
        if enabled:
            gc.enable()
