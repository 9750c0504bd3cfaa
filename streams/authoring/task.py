"""Tasks: user code that touches the world, with its rules for retries, time-outs and the unknown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    get_type_hints,
    overload,
)

from streams.authoring.durability import check_pure
from streams.kernel.bodies import Policy

__all__ = [
    "DEFAULT_TIMEOUT",
    "FencingToken",
    "Found",
    "NotFound",
    "Reconciled",
    "ReconciledTaskDecorator",
    "Retry",
    "Task",
    "TaskContext",
    "TaskDecorator",
    "Unknown",
    "annotations_of",
]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

DEFAULT_TIMEOUT = 60.0
"""Seconds that one attempt of a task may take where nothing else is said."""


class FencingToken(NamedTuple):
    """Tells an old attempt of one op from a newer one: compare within one (run, op) only."""

    epoch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Found(Generic[R_co]):
    """A look-up found the work done; `value` is what the task would have returned."""

    value: R_co


@dataclass(frozen=True, slots=True)
class NotFound:
    """A look-up is sure that the work was not done."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A look-up could not tell. It is asked again later, and at last a person is."""

    reason: str = ""


Reconciled = Found[R] | NotFound | Unknown
"""What a look-up tells."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a task is tried again.

    Backoff is min(max_delay, initial * factor^n) seconds with jitter. `terminal` lists exceptions after which a retry
    cannot help. `on_exhausted="park"` asks an operator instead of failing the op.
    """

    max_attempts: int = 5
    initial: float = 1.0
    factor: float = 2.0
    max_delay: float = 60.0
    on_exhausted: Literal["raise", "park"] = "raise"
    terminal: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            message = f"Retry(max_attempts={self.max_attempts}): at least one attempt is needed"
            raise ValueError(message)
        if self.initial < 0 or self.factor < 1 or self.max_delay < 0:
            message = f"Retry needs initial >= 0, factor >= 1 and max_delay >= 0, not {self}"
            raise ValueError(message)


class TaskContext:
    """What one attempt of a task knows of itself. The engine makes it; for a unit test of a task make one by hand."""

    def __init__(
        self,
        run_id: str = "test",
        *,
        attempt: int = 1,
        idempotency_key: str = "test/1",
        fencing_token: FencingToken = FencingToken(1, 1),  # noqa: B008 - a frozen value
        resources: Any = None,
        noted: Any = None,
        heartbeat: Callable[[Any], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.fencing_token = fencing_token
        self.resources = resources
        """What the app's lifespan yielded."""
        self.noted = noted
        """The details of the last heartbeat of an earlier attempt, such as an outside id."""
        self.cancelled = False
        """Set when the engine asks the task to stop; a task that does not look goes on to its end."""
        self._heartbeat = heartbeat

    def heartbeat(self, details: object = None) -> None:
        """Record `details` durably for a later attempt or look-up. From any thread; without details it does nothing."""
        if self._heartbeat is not None:
            self._heartbeat(details)

    def end(self) -> None:
        """The attempt has ended: what still calls records nothing."""
        self._heartbeat = None


@dataclass(frozen=True, slots=True)
class Task(Generic[P, R]):
    """A task of an app. Workflow code starts it with `ctx.run(task, …)`; called directly, it is the plain function."""

    name: str
    function: Callable[..., Any]
    policy: Policy
    idempotent: bool = True
    key: Callable[..., str] | None = None
    reconcile: Callable[..., Any] | None = None
    result: Any = Any
    parameters: inspect.Signature | None = field(default=None, repr=False)
    arity: range = field(default=range(0), init=False, repr=False)
    options: Policy | None = None
    pure: bool = False
    """Whether it only computes: in a pipelined workflow it may run before its start is durable."""
    is_async: bool = True
    """Whether the function runs on the event loop; others run in threads."""

    @property
    def reconciles(self) -> bool:
        """Whether the outcome of an attempt can be looked up."""
        return self.reconcile is not None

    def __post_init__(self) -> None:
        if self.pure:
            check_pure(self.name, key=self.key, reconcile=self.reconcile, **{"idempotent=False": not self.idempotent})
        if self.parameters is not None:
            object.__setattr__(self, "arity", _arity(self.parameters))

    def fits(self, count: int) -> bool:
        """Whether a call with `count` arguments by position, and none by name, surely fits the signature."""
        return count in self.arity

    def bind(self, *args: Any, **kwargs: Any) -> None:
        """Raise TypeError for arguments that do not fit the signature, where it is known."""
        if self.parameters is not None:
            self.parameters.bind(None, *args, **kwargs)

    @property
    def pool(self) -> str:
        """The kind of slot that an attempt takes."""
        return "loop" if self.is_async else "thread"

    def with_options(
        self,
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        key: Callable[P, str] | None = None,
    ) -> Task[P, R]:
        """The same task with other rules for the calls made through it."""
        policy = make_policy(retry, timeout, self.options or self.policy)
        return replace(self, key=key or self.key, options=policy)

    async def __call__(self, ctx: TaskContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, without the engine."""
        outcome = self.function(ctx, *args, **kwargs)
        return await outcome if inspect.isawaitable(outcome) else outcome  # type: ignore[no-any-return]


def _arity(signature: inspect.Signature) -> range:
    """How many arguments after the context fit by position alone; an empty range where names must be looked at."""
    needed = most = 0
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return range(0)
        most += 1
        needed += parameter.default is parameter.empty
    return range(needed, most + 1)


def make_policy(retry: Retry | None, timeout: float | timedelta | None, base: Policy | None = None) -> Policy:
    """The stored form of a retry and a time-out, on top of `base`."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not 0 < seconds < 1e9:
        message = f"timeout={timeout!r}: a time-out is a positive number of seconds"
        raise ValueError(message)
    if base is not None and retry is None:
        return base if seconds is None else base._replace(timeout=seconds)
    retry = retry or Retry()
    names = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in retry.terminal)
    if seconds is None:
        seconds = base.timeout if base is not None else DEFAULT_TIMEOUT
    return Policy(retry.max_attempts, retry.initial, retry.factor, retry.max_delay, retry.on_exhausted, names, seconds)


def annotations_of(function: Callable[..., Any], where: str) -> dict[str, Any]:
    """The resolved annotations of a function. Raises TypeError that names what cannot be resolved."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        message = f"{where}: its annotation names {error.name!r}, which is not defined where the function stands"
        raise TypeError(message) from error


class TaskDecorator(Protocol):
    """What `@app.task(…)` gives: takes an async or a plain function and makes a `Task` of it."""

    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...


class ReconciledTaskDecorator(Protocol[P, R]):
    """What `@app.task(reconcile=look_up)` gives: the task must take and return what the look-up does."""

    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...
