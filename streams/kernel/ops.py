"""Ops: what workflow code awaits. An op starts when it is created and settles once.

    open ──▶ done (value | failure)

Leaves are settled by deliveries, branches by their coroutine, groups by their children.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from streams.errors import Cancelled, OpError, RequestFailed, TaskFailed, TimedOut, Withdrawn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from streams.kernel.bodies import Failure
    from streams.kernel.codec import Codec
    from streams.kernel.driver import Driver

__all__ = ["Branch", "Group", "Leaf", "Op", "failure_error"]

R_co = TypeVar("R_co", covariant=True)


class Op(Awaitable[R_co]):
    """Something a run waits for. `id` comes from its place in the program and never changes."""

    __slots__ = ("_driver", "_watchers", "done", "id", "order", "retrieved")

    def __init__(self, driver: Driver, id_: str) -> None:
        self._driver = driver
        self.id = id_
        self.done = False
        """Whether it has settled; awaiting it then does not wait."""
        self.retrieved = False
        """Whether its failure is known to the code, or of no interest to it; any other failure fails the run."""
        self.order = 0
        """Its place among the ops that have settled, in journal order."""
        self._watchers: list[Callable[[Op[Any]], None]] | None = None

    def __await__(self) -> Generator[Any, Any, R_co]:
        self._driver.check()
        while not self.done:
            yield self
        return self.take()

    def cancel(self) -> None:
        """Take the op back: a wait ends, a branch is cancelled, a task is asked to stop. A settled op stays."""
        self._driver.check()
        self._driver.withdraw(self)

    def take(self) -> R_co:
        """The value, or the failure raised. Only for an op that is done."""
        self.retrieved = True
        return self._take()

    def _take(self) -> R_co:
        message = "an op takes its value in its own way"
        raise AssertionError(message)

    def failed(self) -> BaseException | None:
        """The failure of a settled op, without taking it."""
        return None

    def watch(self, watcher: Callable[[Op[Any]], None]) -> None:
        """Call `watcher` once when the op settles; at once if it has."""
        if self.done:
            watcher(self)
        elif self._watchers is None:
            self._watchers = [watcher]
        else:
            self._watchers.append(watcher)

    def _settle(self, order: int | None = None) -> None:
        self.done = True
        self.order = self._driver.next_order() if order is None else order
        watchers = self._watchers
        if watchers is not None:
            self._watchers = None
            for watcher in watchers:
                watcher(self)


def failure_error(kind: str, error: Failure, codec: Codec) -> OpError:
    """The exception that stands for stored failure data in workflow code."""
    details = None if error.details is None else codec.decode(error.details)
    if error.kind == "cancelled" and error.code == "WITHDRAWN":
        return Withdrawn(error.code, error.message, details)
    if kind == "task":
        return TaskFailed(error.code, error.message, details)
    if kind == "request":
        return RequestFailed(error.code, error.message, details, kind=error.kind)
    if error.code == "TIMED_OUT":
        return TimedOut(error.code, error.message, details)
    return OpError(error.code, error.message, details)


class Leaf(Op[R_co]):
    """A task, timer, interrupt, receive or request. Its value is decoded afresh at each await."""

    __slots__ = ("_data", "_error", "_withdrawn", "answer", "kind", "name")

    def __init__(self, driver: Driver, id_: str, kind: str, name: str, answer: Any = None) -> None:
        super().__init__(driver, id_)
        self.kind = kind
        self.name = name
        self.answer = answer
        self._data: bytes | None = None
        self._error: Failure | None = None
        self._withdrawn = False

    def deliver(self, data: bytes | None, error: Failure | None) -> None:
        """Settle with the outcome; one that comes after a withdrawal changes nothing."""
        if not self.done:
            self._data, self._error = data, error
            self._settle()

    def mark_withdrawn(self) -> None:
        """Take the outcome of a withdrawal without telling anybody yet; `withdraw` tells."""
        self._withdrawn = self.done = self.retrieved = True

    def withdraw(self) -> None:
        """Settle as withdrawn."""
        self.mark_withdrawn()
        self._settle()

    def failed(self) -> BaseException | None:
        if self._withdrawn:
            return Withdrawn("WITHDRAWN", f"op {self.id} ({self.kind}) was withdrawn")
        if self._error is not None:
            return failure_error(self.kind, self._error, self._driver.codec)
        return None

    def _take(self) -> R_co:
        if self._withdrawn or self._error is not None:
            error = self.failed()
            assert error is not None
            raise error
        return self._driver.codec.decode(self._data) if self._data is not None else None  # type: ignore[return-value]


class Branch(Op[R_co]):
    """A coroutine of the workflow: the main one, or one that was spawned."""

    __slots__ = ("_exception", "asked", "coro", "counter", "draws", "owned", "prefix", "value", "waiting")

    def __init__(self, driver: Driver, id_: str, prefix: str, coro: Coroutine[Any, Any, Any]) -> None:
        super().__init__(driver, id_)
        self.prefix = prefix
        self.coro = coro
        self.counter = 0
        self.draws = 0
        self.asked = False
        """Whether it was cancelled; Cancelled is thrown once, so that clean-up is not broken off."""
        self.owned: list[Op[Any]] = []
        """The leaves and branches that it has created."""
        self.waiting: Op[Any] | None = None
        self.value: Any = None
        self._exception: BaseException | None = None

    def next_id(self) -> str:
        """The id of the next op of this branch, from its place in the program."""
        self.counter += 1
        return f"{self.prefix}{self.counter}"

    def end(self, value: Any, exception: BaseException | None) -> None:
        """Settle with what the coroutine returned or raised."""
        self.value, self._exception = value, exception
        self.waiting = None
        self._settle()

    def failed(self) -> BaseException | None:
        return self._exception

    def _take(self) -> R_co:
        if isinstance(self._exception, Cancelled):
            raise Withdrawn("WITHDRAWN", f"branch {self.id} was cancelled") from self._exception
        if self._exception is not None:
            raise self._exception
        return self.value  # type: ignore[no-any-return]


class Group(Op[R_co]):
    """Settles when `count` of its children have; counts down instead of scanning, so a wide fan-out stays cheap."""

    __slots__ = ("_finish", "_left", "_result", "children", "first_done")

    def __init__(
        self,
        driver: Driver,
        children: Sequence[Op[Any]],
        count: int,
        finish: Callable[[Group[Any]], Callable[[], Any]],
    ) -> None:
        super().__init__(driver, "")
        self.children = children
        self.first_done: Op[Any] | None = None
        self._finish = finish
        self._left = count
        self._result: Callable[[], Any] | None = None
        if count == 0:
            self._complete(None)
        # Of those that have settled already, the earliest in journal order comes first, whatever its argument's place.
        for child in sorted((child for child in children if child.done), key=lambda child: child.order):
            self._child_settled(child)
        for child in children:
            if not child.done:
                child.watch(self._child_settled)

    def _child_settled(self, child: Op[Any]) -> None:
        self._left -= 1
        if self.first_done is None:
            self.first_done = child
        if self._left == 0 and not self.done:
            self._complete(child.order)

    def _complete(self, order: int | None) -> None:
        self._result = self._finish(self)
        self._settle(order)

    def withdraw(self) -> None:
        """Settle as withdrawn; the driver has withdrawn the children."""
        if not self.done:
            self._result = self._withdrawn
            self._settle()

    def _withdrawn(self) -> Any:
        raise Withdrawn("WITHDRAWN", "the group of ops was withdrawn")

    def failed(self) -> BaseException | None:
        try:
            self._take()
        except OpError as error:
            return error
        return None

    def _take(self) -> R_co:
        assert self._result is not None
        return self._result()  # type: ignore[no-any-return]
