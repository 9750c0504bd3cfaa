"""The context of workflow code: everything that it may wait for or do."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from uuid import UUID

from streams.authoring.declared import Effect, Signal
from streams.authoring.task import Task, make_policy
from streams.kernel.combine import MISSING, all_of, first_of, timeout_of, wait_for
from streams.kernel.ops import Op
from streams.kernel.won import Won

if TYPE_CHECKING:
    from streams.kernel.driver import Driver

__all__ = ["Context"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")
A = TypeVar("A")
E = TypeVar("E")
Y = TypeVar("Y")
Seconds = float | timedelta


class Context:
    """Handed to workflow code and graph flows. An op starts when it is created, whether or not it is awaited.

    Code that uses it is pure: it is run again from recorded outcomes, so I/O belongs into tasks. A bare `except:`
    swallows `Cancelled`; `finally` also runs when the run leaves memory, where ops raise `Evicted`.
    """

    __slots__ = ("_driver",)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._driver.run_id

    @property
    def version(self) -> int:
        """The version of the workflow that the run was started with."""
        return self._driver.version

    def run(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Op[R]:
        """Start a task. Its failure is raised as `TaskFailed` where the op is awaited."""
        if not isinstance(task, Task):
            message = f"ctx.run takes a task made by @app.task, not {task!r}"
            raise TypeError(message)
        if kwargs or not task.fits(len(args)):
            task.bind(*args, **kwargs)
        encoded = self._driver.codec.encode([list(args), kwargs] if kwargs else [list(args)])
        key = task.key(*args, **kwargs) if task.key is not None else None
        if key is not None and not isinstance(key, str):
            message = (
                f"the key of task {task.name!r} gave {key!r}; a business key is a str, such as f'pay/{{order_id}}'"
            )
            raise TypeError(message)
        return self._driver.task(task, encoded, key=key, policy=task.options)

    @overload
    def interrupt(self, question: object, /, *, key: str | None = ..., timeout: Seconds | None = ...) -> Op[Any]: ...
    @overload
    def interrupt(
        self, question: object, /, *, answer: type[T], key: str | None = ..., timeout: Seconds | None = ...
    ) -> Op[T]: ...
    def interrupt(
        self, question: object, /, *, answer: Any = Any, key: str | None = None, timeout: Seconds | None = None
    ) -> Op[Any]:
        """Ask a person or system. The run waits and holds no worker; an answer that is no `answer` is refused.

        `key` is a name to answer by, besides the id. After `timeout` the op raises `TimedOut`.
        """
        driver = self._driver
        due = None if timeout is None else driver.due_after(timeout)
        return driver.interrupt(driver.codec.encode(question), answer, key, due)

    def receive(self, signal: Signal[T], /) -> Op[T]:
        """Wait for the next signal of this name; those that came before, even before the start, are kept in order."""
        return self._driver.receive(signal.name)

    def sleep(self, delay: Seconds, /) -> Op[None]:
        """Wait for `delay` seconds from now; the deadline is fixed here and survives every restart."""
        return self._driver.timer(self._driver.due_after(delay))

    def sleep_until(self, when: datetime, /) -> Op[None]:
        """Wait until an aware datetime; one that has passed does not wait."""
        if when.tzinfo is None:
            message = f"ctx.sleep_until({when!r}): give an aware datetime, such as datetime(…, tzinfo=UTC)"
            raise ValueError(message)
        return self._driver.timer(round(when.astimezone(UTC).timestamp() * 1_000_000))

    def emit(self, effect: Effect[E, Any], payload: E, /, *, idempotency_key: str | None = None) -> None:
        """Publish a message on the effect's topic, in the same transaction as the state change that this step makes."""
        _check_message("emit", effect, idempotency_key)
        self._driver.emit(effect.name, self._driver.codec.encode(payload), idempotency_key)

    def request(
        self,
        effect: Effect[E, Y],
        payload: E,
        /,
        *,
        idempotency_key: str | None = None,
        timeout: Seconds | None = None,
    ) -> Op[Y]:
        """Publish a message on the effect's topic, and wait for the reply of whoever carries it out.

        Without `timeout` it waits for ever. With it, an attempt that has no reply by then is made again by the effect's
        `retry`, under the same key. Its failure is raised as `RequestFailed` where the op is awaited.
        """
        _check_message("request", effect, idempotency_key)
        policy = effect.policy or make_policy(None, None)
        seconds = make_policy(None, timeout).timeout if timeout is not None else None
        encoded = self._driver.codec.encode(payload)
        return self._driver.request(effect.name, encoded, idempotency_key, policy._replace(timeout=seconds))

    def spawn(self, body: Coroutine[Any, Any, T], /) -> Op[T]:
        """Run a coroutine of the workflow concurrently. The run ends only when all of them have."""
        return self._driver.spawn(body)

    @overload
    def all(self, a: Op[T1], b: Op[T2], /) -> Op[tuple[T1, T2]]: ...
    @overload
    def all(self, a: Op[T1], b: Op[T2], c: Op[T3], /) -> Op[tuple[T1, T2, T3]]: ...
    @overload
    def all(self, a: Op[T1], b: Op[T2], c: Op[T3], d: Op[T4], /) -> Op[tuple[T1, T2, T3, T4]]: ...
    @overload
    def all(self, ops: Iterable[Op[T]], /) -> Op[list[T]]: ...
    def all(self, *ops: Any) -> Op[Any]:
        """Wait for all to settle; then their values, or the first failure in argument order."""
        as_list = _is_iterable(ops)
        return all_of(self._driver, list(ops[0]) if as_list else ops, as_list=as_list)

    @overload
    def first(self, a: Op[T1], b: Op[T2], /) -> Op[Won[T1] | Won[T2]]: ...
    @overload
    def first(self, a: Op[T1], b: Op[T2], c: Op[T3], /) -> Op[Won[T1] | Won[T2] | Won[T3]]: ...
    @overload
    def first(self, ops: Iterable[Op[T]], /) -> Op[Won[T]]: ...
    def first(self, *ops: Any) -> Op[Any]:
        """The earliest to settle wins; the others are withdrawn. To keep them, use `wait`."""
        return first_of(self._driver, list(ops[0]) if _is_iterable(ops) else ops)

    def wait(self, ops: Sequence[Op[T]], /, *, count: int = 1) -> Op[tuple[list[Op[T]], list[Op[T]]]]:
        """Wait until `count` have settled; gives (done, pending), and all of them go on."""
        return wait_for(self._driver, list(ops), count)

    @overload
    def timeout(self, op: Op[T], delay: Seconds, /) -> Op[T]: ...
    @overload
    def timeout(self, op: Op[T], delay: Seconds, /, *, default: A) -> Op[T | A]: ...
    def timeout(self, op: Any, delay: Any, /, *, default: Any = MISSING) -> Op[Any]:
        """The value of `op`; if `delay` passes first, `op` is withdrawn and `default` given, or `TimedOut` raised."""
        return timeout_of(self._driver, op, self._driver.due_after(delay), default)

    def now(self) -> datetime:
        """The time in UTC, the same at every replay; it stands still between awaits."""
        return self._driver.now()

    def random(self) -> float:
        """A number from 0 up to 1, the same at every replay."""
        return (int.from_bytes(self._driver.draw(8), "big") >> 11) / (1 << 53)

    def uuid(self) -> UUID:
        """A random UUID, the same at every replay."""
        return self._driver.uuid()


def _check_message(call: str, effect: object, key: object) -> None:
    if not isinstance(effect, Effect):
        message = f"ctx.{call} takes an effect made by app.effect, not {effect!r}"
        raise TypeError(message)
    if key is not None and not isinstance(key, str):
        message = f"effect {effect.name!r}: idempotency_key={key!r}; a key is a str, such as f'pay/{{order_id}}'"
        raise TypeError(message)


def _is_iterable(ops: tuple[Any, ...]) -> bool:
    return len(ops) == 1 and not isinstance(ops[0], Op)
