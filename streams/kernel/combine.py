"""How groups of ops end: `all`, `first`, `wait`, `timeout`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from streams.errors import TimedOut
from streams.kernel.ops import Group, Op
from streams.kernel.won import Won

if TYPE_CHECKING:
    from streams.kernel.driver import Driver

__all__ = ["MISSING", "Finish", "all_of", "first_of", "timeout_of", "wait_for"]

Finish = Callable[[Group[Any]], Callable[[], Any]]

MISSING: Any = object()
"""Stands for a default that was not given."""


def all_of(driver: Driver, ops: Sequence[Op[Any]], *, as_list: bool) -> Group[Any]:
    """Wait until all have settled; then the values in argument order, or the first failure in argument order.

    Failing fast would abandon what the others are doing, such as a payment.
    """

    def values() -> Any:
        for op in ops:
            op.retrieved = True
        taken = [op.take() for op in ops]
        return taken if as_list else tuple(taken)

    return driver.group(ops, len(ops), lambda _: values)


def first_of(driver: Driver, ops: Sequence[Op[Any]]) -> Group[Any]:
    """The earliest to settle, in journal order; the others are withdrawn."""
    if not ops:
        message = "ctx.first needs at least one op"
        raise ValueError(message)

    def finish(group: Group[Any]) -> Callable[[], Any]:
        winner = group.first_done
        assert winner is not None
        for op in ops:
            if op is not winner:
                driver.withdraw(op)
        index = next(place for place, op in enumerate(ops) if op is winner)
        return lambda: Won(index, winner, winner.take())

    return driver.group(ops, 1, finish)


def wait_for(driver: Driver, ops: Sequence[Op[Any]], count: int) -> Group[Any]:
    """Wait until `count` have settled; all of them go on. Gives (done, pending) as they are at that moment."""
    if not 0 <= count <= len(ops):
        message = f"ctx.wait cannot wait for {count} of {len(ops)} ops"
        raise ValueError(message)

    def finish(_: Group[Any]) -> Callable[[], Any]:
        done = [op for op in ops if op.done]
        pending = [op for op in ops if not op.done]
        return lambda: (list(done), list(pending))

    return driver.group(ops, count, finish)


def timeout_of(driver: Driver, op: Op[Any], due_us: int, default: Any) -> Group[Any]:
    """The value of `op`; where `due_us` comes first, `op` is withdrawn, and `default` given or `TimedOut` raised."""
    timer = driver.timer(due_us)

    def expired() -> Any:
        timer.take()
        if default is MISSING:
            raise TimedOut("TIMED_OUT", f"op {op.id or 'group'} took longer than its timeout")
        return default

    def finish(group: Group[Any]) -> Callable[[], Any]:
        if group.first_done is op:
            driver.withdraw(timer)
            return op.take
        driver.withdraw(op)
        timer.retrieved = True
        return expired

    return driver.group((op, timer), 1, finish)
