"""The world outside the log, as the tasks of the simulation see it: every call is noted, and a provider takes money.

It is one plain object of the simulation, so a crash of a worker changes nothing in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from streams.authoring.task import TaskContext

if TYPE_CHECKING:
    from streams.testing.sim.services import Services

__all__ = ["Call", "Outside", "receipt"]


class Call(NamedTuple):
    """A task was called, or a look-up; another one with `ended` tells that it came back.

    `order` counts all calls of the simulation; `at` is its true time in microseconds, whatever the worker's clock says.
    """

    order: int
    at: int
    worker: str
    run_id: str
    key: str
    attempt: int
    epoch: int
    what: str
    ended: bool = False


class Outside:
    """What tasks do to the world. `now_us` is the true time, `worker` names whoever is calling."""

    def __init__(self, now_us: Callable[[], int], worker: Callable[[], str]) -> None:
        self.calls: list[Call] = []
        self.payments: dict[str, int] = {}
        """What was paid under each key, by a provider that makes a payment once a key."""
        self.charges: dict[str, list[int]] = defaultdict(list)
        """What was paid under each key, by a provider that pays as often as it is asked."""
        self.services: Services | None = None
        """What subscribers call."""
        self._answers: dict[str, int] = defaultdict(int)
        self._now_us, self._worker = now_us, worker

    @contextmanager
    def call(self, ctx: TaskContext, what: str) -> Iterator[None]:
        """Note the beginning of a call and its end."""
        self._note(ctx, what, ended=False)
        try:
            yield
        finally:
            self._note(ctx, what, ended=True)

    def _note(self, ctx: TaskContext, what: str, *, ended: bool) -> None:
        key, epoch = ctx.idempotency_key, ctx.fencing_token.epoch
        place = (len(self.calls), self._now_us(), self._worker(), ctx.run_id)
        self.calls.append(Call(*place, key, ctx.attempt, epoch, what, ended))

    def pay(self, key: str, amount: int, lost: int) -> str:
        """Make the payment, or find it made. The first `lost` answers of this key do not arrive."""
        self.payments.setdefault(key, amount)
        self._answer(key, lost)
        return receipt(key, self.payments[key])

    def charge(self, key: str, amount: int, lost: int) -> str:
        """Pay, again and again. The first `lost` answers of this key do not arrive."""
        self.charges[key].append(amount)
        self._answer(key, lost)
        return receipt(key, amount)

    def find(self, key: str) -> str | None:
        """What was paid under this key."""
        if key in self.payments:
            return receipt(key, self.payments[key])
        return receipt(key, self.charges[key][0]) if self.charges.get(key) else None

    def _answer(self, key: str, lost: int) -> None:
        self._answers[key] += 1
        if self._answers[key] <= lost:
            raise ConnectionError("the answer of the provider was lost")


def receipt(key: str, amount: int) -> str:
    """What the provider answers."""
    return f"receipt for {key}: {amount}"
