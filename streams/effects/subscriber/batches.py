"""Transactional handlers: many messages in one transaction of the ledger, and the bad one found and set apart."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from streams.authoring.subscriber import BatchContext, EffectContext
from streams.effects.asks import VALUE_UNREADABLE
from streams.effects.batch import GRANTED
from streams.effects.port import Entry, Settlement, Status, Verdict, Word
from streams.effects.subscriber.ahead import Ahead, with_followers
from streams.effects.subscriber.call import context_of, encoded, end_of, payload_of, results_of
from streams.effects.subscriber.outcomes import End, How, settlement_of
from streams.errors import LedgerMismatch, Refused, UsageError, ValueUnreadable
from streams.kernel.bodies import Failure
from streams.runtime import crash
from streams.runtime.failures import plain_text

if TYPE_CHECKING:
    from streams.effects.subscriber.station import Station
    from streams.effects.subscriber.window import Message, Window

__all__ = ["Batches"]

_SECOND_US = 1_000_000
_SOONEST_SECONDS = 0.05


class _RolledBack(Exception):
    """Ends a transaction where the handler itself raised nothing that could: the body says what it comes to."""


class _Call(NamedTuple):
    """One call of the handler: with a message, or with all of them where it takes many."""

    context: EffectContext | BatchContext
    payload: Any
    turns: Sequence[tuple[int, Entry]]
    """Place and entry of each message it is for."""


class _Body:
    """What happens inside the ledger's transaction: the handler's calls, in the order of the messages."""

    def __init__(self, station: Station, batch: Sequence[Message]) -> None:
        self._station = station
        self._batch = batch
        self._settlements: list[Settlement] = []
        self.bad: tuple[int, End] | None = None
        """The message that has ended in a way that rolls back all of the batch, and how; None where nobody knows it."""

    def __call__(self, connection: Any, verdicts: Sequence[Verdict]) -> Any:
        """An awaitable for an async handler; for a plain one the outcomes themselves."""
        self._settlements, self.bad = [], None  # a ledger may begin its transaction once more
        run = self._with_async if self._station.subscription.is_async else self._with_plain
        return run(connection, verdicts)

    async def _with_async(self, connection: Any, verdicts: Sequence[Verdict]) -> list[Settlement]:
        subscription = self._station.subscription
        for call in self._calls(connection, verdicts):
            try:
                async with asyncio.timeout(subscription.policy.timeout):
                    value = await subscription.function(call.context, call.payload)
            except BaseException as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                self._blame(call, error)
                raise
            self._done(call, value)
        return self._settlements

    def _with_plain(self, connection: Any, verdicts: Sequence[Verdict]) -> list[Settlement]:
        for call in self._calls(connection, verdicts):
            try:
                value = self._station.subscription.function(call.context, call.payload)
            except BaseException as error:
                self._blame(call, error)
                raise
            self._done(call, value)
        return self._settlements

    def _calls(self, connection: Any, verdicts: Sequence[Verdict]) -> Iterator[_Call]:
        parts = self._station.parts
        single = (
            (context_of(parts, message, entry, connection), self._payload(index, message), (index, entry))
            for index, message, entry in self._turns(verdicts)
        )
        if not self._station.subscription.many:
            for context, payload, turn in single:
                yield _Call(context, payload, (turn,))
        elif found := tuple(single):
            deliveries, payloads, turns = zip(*found, strict=True)
            yield _Call(BatchContext(deliveries, resources=parts.resources, connection=connection), payloads, turns)

    def _turns(self, verdicts: Sequence[Verdict]) -> Iterator[tuple[int, Message, Entry]]:
        """Those to call the handler for. Behind one that has to wait no later one of its run is carried out."""
        stuck: set[int] = set()
        for index, (message, verdict) in enumerate(zip(self._batch, verdicts, strict=True)):
            queue = id(message.window.queue_of(message))
            if verdict.word is Word.WAIT:
                stuck.add(queue)
            elif queue in stuck:
                continue
            elif verdict.word is Word.CARRY_OUT:
                crash.passing("effect.claimed", self._station.name)
                yield index, message, verdict.entry
            elif verdict.word is Word.LOOK_UP:
                self._settlements.append(_never_looked_up(self._station, verdict.entry))

    def _payload(self, index: int, message: Message) -> Any:
        try:
            return payload_of(self._station.parts, self._station.subscription, message)
        except (Refused, ValueUnreadable) as error:
            failure = Failure("terminal", VALUE_UNREADABLE, plain_text(error))
            self.bad = index, End(How.NEVER, failure=failure)
            raise _RolledBack from error

    def _blame(self, call: _Call, error: BaseException) -> None:
        """Remember what the handler has raised. It goes on as it is: a ledger knows errors of its database."""
        crash.passing("effect.called", self._station.name)
        if len(call.turns) == 1:
            self.bad = call.turns[0][0], end_of(self._station.parts, self._station.subscription, error)
        if not isinstance(error, Exception):
            raise _RolledBack from error

    def _done(self, call: _Call, value: Any) -> None:
        crash.passing("effect.called", self._station.name)
        parts, subscription = self._station.parts, self._station.subscription
        values = results_of(subscription, value, len(call.turns)) if subscription.many else (value,)
        if isinstance(values, Failure):
            self._refuse(call.turns, values)
        for turn, result in zip(call.turns, values, strict=True):
            index, entry = turn
            end = encoded(parts, subscription, self._batch[index], result)
            if end.how is How.PARK:  # here it is rolled back, and so surely not done
                self._refuse([turn], end.failure)
            self._settlements.append(settlement_of(subscription, entry, end))

    def _refuse(self, turns: Sequence[tuple[int, Entry]], failure: Failure | None) -> NoReturn:
        """Roll back what the handler has done because of its result."""
        if len(turns) == 1:
            self.bad = turns[0][0], End(How.NEVER, failure=failure)
        raise _RolledBack


def _never_looked_up(station: Station, entry: Entry) -> Settlement:
    """A claim that is over: the transaction that is open now cannot tell what became of it."""
    text = (
        f"it was begun, and subscriber {station.subscription.name!r} was not transactional then, or its handler ended "
        "the transaction by itself; look it up"
    )
    return Settlement(entry.key, entry.claim, Status.PARKED, error=Failure("unknown", "OUTCOME_UNKNOWN", text))


class Batches:
    """Carries out what is ready in transactions of the ledger; nothing is ever claimed outside one."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._busy = 0
        self._ahead = Ahead(station)

    def loops(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """More transactions beside the first: while one waits for the database, another one works.

        Outcomes are in the ledger when a transaction ends, and no lease outlives one.
        """
        return (self.run,) * (self._station.parts.settings.transactions - 1)

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return self._busy > 0

    def close(self, window: Window) -> None:
        """A transaction under way goes on to its end: what it commits is true, whoever owns the partition."""

    async def end(self) -> None:
        """Nothing is left: a transaction is broken off with its loop, and rolled back."""

    async def run(self) -> None:
        """Carry out for ever. A batch is what is there: nothing waits for it to become full."""
        station = self._station
        while True:
            await station.wake.wait()
            batch = self._take()
            if not batch:
                station.wake.clear()
                continue
            self._busy += 1
            await self._carry_out(batch)
            self._busy -= 1
            await asyncio.sleep(0)

    def _take(self) -> list[Message]:
        """What is ready, and behind each what follows under the same key."""
        station = self._station
        limit = station.subscription.batch
        batch: list[Message] = []
        while station.ready and len(batch) < limit and not station.closing:
            first = station.ready.popleft()
            if not first.window.open or first.asked or not station.hold(first):
                continue
            batch += with_followers(station, first, limit - len(batch) - 1)
        return batch

    async def _carry_out(self, batch: list[Message]) -> None:
        to_do = deque([await self._ahead.without_known(batch) if self._ahead.rewinding else batch])
        while to_do:
            part = self._in_order(to_do.popleft())
            if not part:
                continue
            body = _Body(self._station, part)
            try:
                verdicts = await self._transact(part, body)
            except (LedgerMismatch, UsageError):
                raise
            except Exception as error:  # noqa: BLE001 - what a handler has raised, or what a commit says of its writes
                if len(part) == 1:
                    end = end_of(self._station.parts, self._station.subscription, error)
                    await self._set_apart(part[0], body.bad[1] if body.bad is not None else end)
                else:
                    to_do.extendleft(reversed(_split(part, body.bad)))
            else:
                await self._adopt(part, verdicts)

    def _in_order(self, part: list[Message]) -> list[Message]:
        """Without those that have an earlier one of their key before them which is not in this part."""
        station = self._station
        found: list[Message] = []
        before: dict[int, int] = {}
        for message in part:
            if message.window.open:
                queue = message.window.queue_of(message)
                place = before.get(id(queue), 0)
                if queue[place] is message:
                    before[id(queue)] = place + 1
                    found.append(message)
                    continue
            station.release(message)
            station.again(message, 0.0)
        return found

    async def _transact(self, part: list[Message], body: Any) -> list[Verdict]:
        parts = self._station.parts
        asks = [message.ask for message in part]

        async def transact() -> list[Verdict]:
            timeout = self._station.subscription.policy.timeout
            if self._station.subscription.is_async or timeout is None:
                return await parts.ledger.transact(asks, parts.owner, body)
            late = asyncio.get_running_loop().call_later(timeout, self._tell_late, part, timeout)
            try:
                return await parts.ledger.transact(asks, parts.owner, body)
            finally:
                late.cancel()

        return await parts.ask_ledger(transact)

    def _tell_late(self, part: list[Message], seconds: float) -> None:
        """An async handler is cancelled; a plain one runs in the ledger's thread, and all else waits for it."""
        self._station.parts.observer.message(
            f"effect {self._station.name}: a transaction of {len(part)} messages, the first of them "
            f"{part[0].ask.effect_id}, has taken longer than {seconds:g} s. Its handler is a plain function, which "
            "cannot be stopped: everything that uses this ledger waits until it ends"
        )

    async def _set_apart(self, message: Message, end: End) -> None:
        """Everything of it was rolled back: its outcome is written alone."""
        subscription = self._station.subscription

        def settle(_: Any, verdicts: Sequence[Verdict]) -> list[Settlement]:
            (verdict,) = verdicts
            if verdict.word is Word.CARRY_OUT:
                return [settlement_of(subscription, verdict.entry, end)]
            return [_never_looked_up(self._station, verdict.entry)] if verdict.word is Word.LOOK_UP else []

        async def settle_async(connection: Any, verdicts: Sequence[Verdict]) -> list[Settlement]:
            return settle(connection, verdicts)

        body = settle_async if subscription.is_async else settle  # as its ledger calls handlers
        await self._adopt([message], await self._transact([message], body))

    async def _adopt(self, part: list[Message], verdicts: list[Verdict]) -> None:
        station, parts = self._station, self._station.parts
        known, now = 0, 0
        if any(_waits(verdict) or verdict.entry.due for verdict in verdicts):
            now = await parts.ask_ledger(parts.ledger.now_us)
        for message, verdict in zip(part, verdicts, strict=True):
            entry = verdict.entry
            if verdict.word in GRANTED:
                if entry.status is Status.CLAIMED:  # it stood behind one that has to wait
                    station.release(message)
                    station.again(message, 0.0)
                    continue
                due_in = None if entry.due is None else max(0.0, (entry.due - now) / _SECOND_US)
                settlement = Settlement(
                    entry.key, "", entry.status, response=entry.response, error=entry.error, due_in=due_in
                )
                station.settled(message, settlement, entry)
            elif _waits(verdict):
                station.release(message)
                seconds = max(_SOONEST_SECONDS, (verdict.until - now) / _SECOND_US)
                claimed = entry.status is Status.CLAIMED
                station.again(message, min(seconds, parts.settings.ask_again_seconds) if claimed else seconds)
            else:
                known += verdict.word is not Word.CONFLICT
                station.known(message, verdict)
        self._ahead.told(len(part), known)


def _split(part: list[Message], bad: tuple[int, End] | None) -> list[list[Message]]:
    """The bad one alone, and those before and after it; two halves where nobody says which it is.

    So it is where the commit failed, and where a handler that was given many has raised.
    """
    if bad is None:
        half = len(part) // 2
        return [part[:half], part[half:]]
    index = bad[0]
    return [some for some in (part[:index], [part[index]], part[index + 1 :]) if some]


def _waits(verdict: Verdict) -> bool:
    return verdict.word is Word.WAIT
