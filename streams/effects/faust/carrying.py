"""One message of the outbox from its claim to its outcome, with the parts of the engine's own subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from streams.authoring.subscriber import Subscription
from streams.effects.asks import KEY_CONFLICT, Unreadable, read_ask
from streams.effects.port import Claim, Entry, Key, Outcome, Settlement, Status, Verdict, Word
from streams.effects.subscriber.call import Call
from streams.effects.subscriber.letters import Letters, outcome_of, owes
from streams.effects.subscriber.outcomes import End, is_over, settlement_of
from streams.effects.subscriber.parts import Parts
from streams.effects.subscriber.settings import LEASE_SHARE
from streams.effects.subscriber.window import Message, Window
from streams.kernel.bodies import Failure
from streams.log.port import NewRecord, Record
from streams.runtime import crash

__all__ = ["Carried", "Carrier"]

_SECOND_US = 1_000_000
_SOONEST_SECONDS = 0.05


class Carried(NamedTuple):
    """A message that is finished: what is to be written because of it, and what the ledger is to note then."""

    records: list[NewRecord] = []  # noqa: RUF012 - never changed
    outcome: Outcome | None = None


class Carrier:
    """Carries messages of one effect out, each once, for as long as it takes. `calls` bounds how many at once."""

    def __init__(self, parts: Parts, subscription: Subscription[Any, Any]) -> None:
        self._parts = parts
        self._subscription = subscription
        self._name = subscription.effect.name
        self._letters = Letters(parts.topics, self._name)
        slots = parts.settings.concurrency if subscription.is_async else parts.settings.threads
        self._slots = asyncio.Semaphore(slots)
        self._answered: set[str] = set()
        """Claims that the ledger has told of, until they are settled: others of this owner were lost on their way."""
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """One message of a key at a time: else one would take the claim of the other for an answer that was lost."""
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Begin no call any more, and wait for no later try."""
        self._closing.set()

    async def carry(self, record: Record, gone: Callable[[], bool]) -> Carried | None:
        """Return when the message is finished; None where `gone` says that it is somebody else's by now."""
        parts = self._parts
        message = Message(Window(record.partition, 0), record)
        crash.passing("effect.taken", self._name)
        try:
            message.effect, message.ask = read_ask(parts.app.name, self._name, record, parts.codec)
        except Unreadable as unreadable:
            return self._unreadable(record, unreadable)
        turn = self._turns.setdefault(message.ask.key, asyncio.Lock())
        while not gone() and not self._closing.is_set():
            async with turn, self._slots:
                found = await self._try(message, record)
            if isinstance(found, Carried):
                return found
            await self._pause(found)
        return None

    def _unreadable(self, record: Record, found: Unreadable) -> Carried:
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        run_id = found.message.run_id if found.message is not None else ""
        self._parts.observer.effect_refused(self._name, place, run_id, found.code, found.reason)
        return Carried(self._letters.refusal(record, found.message, found.code, found.reason, self._now()))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _try(self, message: Message, record: Record) -> Carried | float:
        """Claim, and do what the ledger says: the end of it, or the seconds until the next try."""
        parts = self._parts
        seconds, begin_until = parts.settings.lease_seconds, 0.0

        async def claim() -> list[Verdict]:
            nonlocal begin_until
            begin_until = parts.clock.monotonic() + seconds * LEASE_SHARE
            return await parts.ledger.claim([message.ask], parts.owner, seconds)

        (verdict,) = await parts.ask_ledger(claim)
        match verdict.word:
            case Word.CARRY_OUT | Word.LOOK_UP:
                return await self._granted(message, record, verdict, late=parts.clock.monotonic() > begin_until)
            case Word.WAIT:
                return await self._wait(verdict)
            case Word.CONFLICT:
                return self._conflict(message, record, verdict.entry)
            case Word.STALE:
                return Carried()
        parts.observer.effects_known(self._name, 1)
        entry = verdict.entry
        if not owes(message.ask, entry):
            return Carried()
        return self._finished(message, record, entry.status, entry.response, entry.error)

    async def _granted(self, message: Message, record: Record, verdict: Verdict, *, late: bool) -> Carried | float:
        entry = verdict.entry
        self._answered.add(entry.claim)
        if late or self._closing.is_set():
            await self._settle(_returned(entry))
            return 0.0
        crash.passing("effect.claimed", self._name)
        ended: asyncio.Future[End | None] = asyncio.get_running_loop().create_future()
        call = Call(self._parts, self._subscription, message, verdict, lambda _, end: _set(ended, end))
        call.start()
        async with self._lease(call):
            try:
                end = await ended
            except asyncio.CancelledError:
                call.leave()  # the claim stays: that it was begun is known
                raise
        if end is None or call.lost:
            return 0.0
        settlement = settlement_of(self._subscription, entry, end)
        if not await self._settle(settlement):
            self._parts.observer.claim_lost(self._name, message.ask.effect_id, message.ask.run_id)
            return 0.0
        crash.passing("effect.settled", self._name)
        self._parts.tell(message.ask, settlement, entry)
        if is_over(settlement):
            return self._finished(message, record, settlement.status, settlement.response, settlement.error)
        return max(_SOONEST_SECONDS, settlement.due_in or 0.0)

    async def _settle(self, settlement: Settlement) -> bool:
        parts = self._parts
        (held,) = await parts.ask_ledger(lambda: parts.ledger.settle([settlement]))
        self._answered.discard(settlement.claim)
        return held

    @asynccontextmanager
    async def _lease(self, call: Call) -> AsyncIterator[None]:
        """Keep the claim for as long as the call lives."""
        parts, claim = self._parts, Claim(call.entry.key, call.entry.claim)
        seconds = parts.settings.lease_seconds

        async def keep() -> None:
            while not call.lost:
                await asyncio.sleep(seconds / 3)
                (held,) = await parts.ask_ledger(lambda: parts.ledger.extend([claim], seconds))
                if not held:
                    parts.observer.claim_lost(self._name, call.message.ask.effect_id, call.message.ask.run_id)
                    call.lose()

        keeping = asyncio.ensure_future(keep())
        try:
            yield
        finally:
            keeping.cancel()

    async def _wait(self, verdict: Verdict) -> float:
        parts, entry = self._parts, verdict.entry
        if entry.status is Status.CLAIMED and entry.owner == parts.owner and entry.claim not in self._answered:
            # The answer to this claim was lost on its way, so nothing was begun under it.
            await self._settle(_returned(entry))
            return 0.0
        now = await parts.ask_ledger(parts.ledger.now_us)
        seconds = max(_SOONEST_SECONDS, (verdict.until - now) / _SECOND_US)
        # A claim may end before its lease does.
        return min(seconds, parts.settings.ask_again_seconds) if entry.status is Status.CLAIMED else seconds

    def _conflict(self, message: Message, record: Record, entry: Entry) -> Carried:
        ask = message.ask
        reason = (
            f"the idempotency key {ask.key.key!r} stands for another request already, made by {entry.effect_id}: this "
            "one is never carried out. Give each request its own key"
        )
        self._parts.observer.effect_refused(self._name, ask.effect_id, ask.run_id, KEY_CONFLICT, reason)
        return Carried(self._letters.refusal(record, message.effect, KEY_CONFLICT, reason, self._now()))

    def _finished(
        self, message: Message, record: Record, status: Status, response: bytes | None, error: Failure | None
    ) -> Carried:
        records = self._letters.of_outcome(record, message.effect, status, response, error, self._now())
        return Carried(records, outcome_of(message.ask, status) if records else None)

    def _now(self) -> int:
        return self._parts.clock.now_us()


def _returned(entry: Entry) -> Settlement:
    """It was not begun: whoever asks next may begin at once."""
    status = Status.UNCERTAIN if entry.looks else Status.FAILED
    return Settlement(entry.key, entry.claim, status, error=entry.error, due_in=0.0, returned=True)


def _set(future: asyncio.Future[End | None], end: End | None) -> None:
    if not future.done():
        future.set_result(end)
