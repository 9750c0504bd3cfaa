"""One call of a handler or of its look-up: user code under its time-out, and its end as plain data."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from streams.authoring.subscriber import EffectContext, Subscription
from streams.authoring.task import FencingToken, Found, NotFound, Unknown
from streams.effects.asks import VALUE_UNREADABLE
from streams.effects.port import Entry, Verdict, Word
from streams.effects.subscriber.outcomes import End, How
from streams.errors import Fail, Refused, TryAgain, ValueRefused, ValueUnreadable
from streams.kernel.bodies import Failure
from streams.runtime import crash
from streams.runtime.failures import failure_of, plain_text
from streams.runtime.host import in_thread
from streams.wire.headers import read_headers

if TYPE_CHECKING:
    from streams.effects.subscriber.parts import Parts
    from streams.effects.subscriber.window import Message

__all__ = ["Call", "context_of", "encoded", "end_of", "payload_of", "results_of"]

_REPLY_INVALID = "REPLY_INVALID"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def context_of(parts: Parts, message: Message, entry: Entry, connection: Any = None) -> EffectContext:
    """What a handler is told of this delivery."""
    effect, record = message.effect, message.record
    return EffectContext(
        effect.effect_id,
        idempotency_key=effect.idempotency_key,
        run_id=effect.run_id,
        workflow=effect.workflow,
        version=effect.version,
        fencing_token=FencingToken(effect.epoch, effect.attempt),
        delivery=entry.deliveries,
        headers=read_headers(record.headers) if record is not None else {},
        at=_EPOCH + timedelta(microseconds=effect.at),
        resources=parts.resources,
        connection=connection,
    )


def payload_of(parts: Parts, subscription: Subscription[Any, Any], message: Message) -> Any:
    """The payload as the effect's type. Raises `ValueUnreadable` or `Refused`."""
    data, type_ = message.effect.payload, subscription.effect.type
    value = parts.codec.decode(data)
    if type(value) is type_:
        return value
    return parts.codec.decode(parts.codec.conform(data, type_))


def encoded(parts: Parts, subscription: Subscription[Any, Any], message: Message, value: Any) -> End:
    """The result as stored data. What cannot be stored, or be no reply, was carried out all the same.

    A reply of another type than the effect's would be refused by the run, which then waited for a better one.
    """
    reply = subscription.effect.reply
    try:
        data = parts.codec.encode(value)
        if message.ask.attempt >= 1 and type(value) is not reply and not (value is None and reply is None):
            data = parts.codec.conform(data, reply)
    except ValueRefused as refused:
        code, reason = refused.code, f"cannot be stored: {plain_text(refused)}"
    except Refused as refused:
        code, reason = _REPLY_INVALID, f"is no reply of effect {subscription.effect.name!r}: {plain_text(refused)}"
    else:
        return End(How.DONE, data)
    text = f"the result of subscriber {subscription.name!r} {reason}"
    if not subscription.transactional:
        text = f"carried out, but {text}"
    return End(How.PARK, failure=Failure("terminal", code, text))


def results_of(subscription: Subscription[Any, Any], value: Any, count: int) -> Sequence[Any] | Failure:
    """What a handler of many has returned, for each of its messages; a failure where it does not say that."""
    if value is None and subscription.effect.reply in (None, type(None)):
        return (None,) * count
    counted = isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
    if counted and len(value) == count:
        return value  # type: ignore[no-any-return]
    given = f"{len(value)} results" if counted else f"{type(value).__name__}"
    text = (
        f"subscriber {subscription.name!r} takes many: it was given {count} payloads and returned {given}. Return a "
        "list with the result of each, in their order; None stands for all where the effect has no reply"
    )
    return Failure("terminal", _REPLY_INVALID, text)


def end_of(parts: Parts, subscription: Subscription[Any, Any], error: BaseException) -> End:
    """What an exception of a handler says."""
    if isinstance(error, TryAgain):
        return End(How.NOT_DONE, failure=Failure("retryable", "TRY_AGAIN", plain_text(error)), after=error.after)
    if isinstance(error, asyncio.CancelledError):
        return End(How.MAYBE, failure=Failure("unknown", "HANDLER_STOPPED", "the handler was stopped"))
    failure = failure_of(error, subscription.policy, parts.codec, parts.host.traceback)
    if isinstance(error, ValueRefused):  # raised by code of the handler: it says nothing of the effect
        failure = failure._replace(kind="unknown")
    if isinstance(error, Fail) or failure.kind == "terminal":
        return End(How.NEVER, failure=failure)
    return End(How.MAYBE, failure=failure)


class Call:
    """A handler or look-up at work. `ended` is called once, when the code has really ended.

    An async handler that is late is cancelled; code in a thread cannot be, nor can what swallows the cancellation. Its
    claim is kept for as long as it lives, and what it brings then counts.
    """

    def __init__(
        self,
        parts: Parts,
        subscription: Subscription[Any, Any],
        message: Message,
        verdict: Verdict,
        ended: Callable[[Call, End | None], None],
    ) -> None:
        self.message = message
        self.entry = verdict.entry
        self.looking = verdict.word is Word.LOOK_UP
        self.lost = False
        """The claim is somebody else's: what this brings is not written."""
        self.began = parts.clock.monotonic()
        self._parts = parts
        self._subscription = subscription
        self._ended = ended
        self._begun = False
        self._late = False
        self._left = False
        self._context = context_of(parts, message, self.entry)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._async = subscription.is_async
        if self.looking and subscription.reconcile is not None:
            self._async = inspect.iscoroutinefunction(subscription.reconcile)

    @property
    def stopping(self) -> asyncio.Task[None] | None:
        """What comes to its end soon because it was told to; nothing where that helps nothing, as with a thread."""
        return self._task if self._async and self._context.cancelled else None

    def start(self) -> None:
        """Begin; the time-out counts from here."""
        timeout = (self._subscription.looks if self.looking else self._subscription.policy).timeout
        if timeout is not None:
            self._expiry = self._loop.call_later(timeout, self._expire, timeout)
        self._task = self._loop.create_task(self._main())
        self._parts.watch(self._task)

    def lose(self) -> None:
        """The claim is gone."""
        self.lost = True
        self._stop()

    def leave(self) -> None:
        """The partition is somebody else's: the claim is left as it is, unless the code comes to an end by itself.

        Code in a thread goes on whatever is said here, so it keeps its claim: a look-up beside it would find nothing.
        """
        self._left = self._async
        self._stop()

    def _expire(self, seconds: float) -> None:
        self._late = True
        if not self._async:
            what = "look-up" if self.looking else "handler"
            self._parts.observer.message(
                f"effect {self._subscription.effect.name}: the {what} of {self.message.ask.effect_id} has taken longer "
                f"than {seconds:g} s. It runs in a thread, which cannot be stopped: its key waits until it ends"
            )
        self._stop()

    def _stop(self) -> None:
        self._context.cancelled = True
        if self._async and self._task is not None and self._begun:
            self._task.cancel()  # a task that is cancelled before its first step would never tell of its end

    async def _main(self) -> None:
        self._begun = True
        end: End | None = None
        try:
            if self._context.cancelled:
                # Nobody need look up what was never begun; after an earlier call, the look-up is still to come.
                failure = Failure("retryable", "NOT_BEGUN", "the subscriber stopped before it began")
                end = End(How.UNCLEAR if self.looking else How.NOT_DONE, failure=failure, after=0.0)
                return
            end = await (self._look_up() if self.looking else self._carry_out())
        except asyncio.CancelledError as error:
            if self._late and not self._left:
                text = f"it took longer than {self._subscription.policy.timeout:g} s"
                end = End(How.MAYBE, failure=Failure("unknown", "HANDLER_TIMED_OUT", text))
            elif not self._left:
                end = end_of(self._parts, self._subscription, error)
            if self.looking and end is not None:
                end = end._replace(how=How.UNCLEAR)
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            self._ended(self, end)

    async def _carry_out(self) -> End:
        parts, subscription = self._parts, self._subscription
        try:
            payload = payload_of(parts, subscription, self.message)
        except (Refused, ValueUnreadable) as error:
            return End(How.NEVER, failure=Failure("terminal", VALUE_UNREADABLE, plain_text(error)))
        try:
            value = await self._user_code(subscription.function, payload)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is its outcome
            end = end_of(parts, subscription, error)
        else:
            end = encoded(parts, subscription, self.message, value)
        crash.passing("effect.called", subscription.effect.name)
        return end

    async def _look_up(self) -> End:
        parts, subscription = self._parts, self._subscription
        reconcile = subscription.reconcile
        lost = Failure("unknown", "SUBSCRIBER_LOST", "a subscriber ended in the middle of it")
        if reconcile is None:  # nothing but a claim that is over leads here
            return End(How.MAYBE, failure=lost)
        try:
            payload = payload_of(parts, subscription, self.message)
        except (Refused, ValueUnreadable) as error:
            return End(How.PARK, failure=Failure("unknown", VALUE_UNREADABLE, plain_text(error)))
        crash.passing("effect.looking_up", subscription.effect.name)
        try:
            found = await self._user_code(reconcile, payload)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a look-up that fails has told nothing
            text = f"the look-up failed with {type(error).__name__}: {plain_text(error)}"
            return End(How.UNCLEAR, failure=Failure("unknown", "RECONCILE_FAILED", text))
        crash.passing("effect.looked_up", subscription.effect.name)
        if isinstance(found, Found):
            return encoded(parts, subscription, self.message, found.value)
        if isinstance(found, NotFound):
            return End(How.NOT_FOUND, failure=self.entry.error or lost)
        reason = found.reason if isinstance(found, Unknown) else f"it returned {type(found).__name__}"
        return End(How.UNCLEAR, failure=Failure("unknown", "OUTCOME_UNKNOWN", f"the look-up cannot tell: {reason}"))

    async def _user_code(self, function: Callable[..., Any], payload: Any) -> Any:
        if self._async:
            return await function(self._context, payload)
        call = partial(function, self._context, payload)
        return await in_thread(self._parts.host, call, f"subscriber {self._subscription.name}")
