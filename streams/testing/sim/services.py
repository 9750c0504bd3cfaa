"""What subscribers call outside: providers that do as a payload says, note each call, and survive every crash."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from streams.authoring.subscriber import EffectContext
from streams.errors import Fail, TryAgain
from streams.testing.ledger import When
from streams.testing.sim.outside import receipt

__all__ = ["ACTS", "LONG_SECONDS", "LOOKS", "Handled", "Services", "Work", "after_work", "bare", "before_work"]

LONG_SECONDS = 3.0
"""Longer than any handler may take."""
ACTS = ("raise", "later", "lost", "hang", "hang late")
"""What may go wrong in a call, beside `fail`: before the work, before it with a promise, after it, at either side."""
LOOKS = ("unknown", "raise")
"""What may go wrong in a look-up."""


class Handled(NamedTuple):
    """A handler was called, or a look-up; another one with `ended` tells that it came back."""

    order: int
    at: int
    process: str
    effect: str
    effect_id: str
    run_id: str
    key: str
    delivery: int
    attempt: int
    look: bool
    act: str
    """What goes wrong in it."""
    ended: bool = False


class Work(NamedTuple):
    """A provider has done something under a key. `order` is that of the calls."""

    order: int
    at: int
    process: str
    amount: int
    receipt: str


class Services:
    """All providers as one. `gate` lets a call pass, and `away` tells whether nobody answers."""

    def __init__(
        self,
        now_us: Callable[[], int],
        process: Callable[[], str],
        gate: Callable[[When], Awaitable[None]],
    ) -> None:
        self.calls: list[Handled] = []
        self.works: dict[str, list[Work]] = defaultdict(list)
        """What was done under each key, as often as it was."""
        self._begun: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        self._now_us, self._process, self._gate = now_us, process, gate

    @contextmanager
    def call(self, effect: str, ctx: EffectContext, acts: Sequence[str], *, look: bool = False) -> Iterator[str]:
        """Note the beginning of a call and its end. Gives what goes wrong in it: each of `acts` once, in order."""
        begun = self._begun[look]
        number = begun[ctx.idempotency_key]
        begun[ctx.idempotency_key] += 1
        act = acts[number] if number < len(acts) else "fail" if "fail" in acts else ""  # a provider sticks to its no
        self._note(effect, ctx, look=look, act=act)
        try:
            yield act
        finally:
            self._note(effect, ctx, look=look, act=act, ended=True)

    def _note(self, effect: str, ctx: EffectContext, *, look: bool, act: str, ended: bool = False) -> None:
        place = (len(self.calls), self._now_us(), self._process(), effect, ctx.effect_id, ctx.run_id)
        self.calls.append(Handled(*place, ctx.idempotency_key, ctx.delivery, ctx.attempt, look, act, ended))

    # -- what is done --------------------------------------------------------------------------------------------

    def do(self, key: str, amount: int, *, once: bool = False) -> str:
        """Do it, again and again; with `once` what was done before is found instead. Return the receipt."""
        done = self.works[key]
        if not (once and done):
            text = f"{receipt(key, amount)} #{len(done) + 1}"
            done.append(Work(len(self.calls), self._now_us(), self._process(), amount, text))
        return done[0 if once else -1].receipt

    def find(self, key: str) -> str | None:
        """What was done under this key."""
        done = self.works.get(key)
        return done[0].receipt if done else None

    async def passes(self, when: When) -> None:
        """A call is on its way to a provider, or its answer back."""
        await self._gate(when)


def bare(text: object) -> object:
    """A receipt without its number: what it is expected to say, however often it was done."""
    return text.partition(" #")[0] if isinstance(text, str) else text


def before_work(act: str) -> None:
    """Raise what a provider answers that has done nothing."""
    if act == "fail":
        raise Fail("REFUSED", "the provider does not want it")
    if act == "later":
        raise TryAgain("the provider is busy")
    if act == "raise":
        raise RuntimeError("the provider cannot be reached")


def after_work(act: str) -> None:
    """Raise what is seen of a provider that has done its work."""
    if act == "lost":
        raise ConnectionError("the answer of the provider was lost")
