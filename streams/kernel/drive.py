"""Deliveries: one step of workflow code, what it leads to, and how a run is blocked when code cannot go on."""

from __future__ import annotations

from typing import Any, NamedTuple

from streams.errors import Cancelled, Fail, OpError, Refused, ValueRefused
from streams.kernel import bodies as ev
from streams.kernel.definition import Advance
from streams.kernel.draft import Draft
from streams.kernel.driver import Driver
from streams.kernel.events import TYPES
from streams.kernel.fault import FAULTS, Fault, as_fault, text_of
from streams.kernel.run import OpPhase, is_out

__all__ = [
    "Delivery",
    "block",
    "cancel_body",
    "conform_answer",
    "conform_reply",
    "deliver",
    "follow",
    "next_signal",
    "unblock",
]

_JOINED = frozenset({"task", "request", "child"})
_DELIVERIES_MAX = 10_000


class Delivery(NamedTuple):
    """An event that moves the code, and the form in which it waits if it cannot; None where that follows from it.

    `is_held`: it waits already, or has no need to, because it will come about again.
    """

    body: ev.Body
    held: ev.InputHeld | None = None
    is_held: bool = False


def deliver(draft: Draft, body: ev.Body, held: ev.InputHeld | None = None) -> None:
    """Deliver to the code, and then whatever this makes possible; hold it while the run is blocked.

    `held` is the form in which it waits, where that does not follow from the body.
    """
    if draft.run.blocked is not None:
        draft.emit(held or _held_form(body))
        return
    _chain(draft, Delivery(body, held))


def _held_form(body: ev.Body) -> ev.InputHeld:
    """The form in which a delivery waits that brings what it carries."""
    op, attempt = getattr(body, "op", None), getattr(body, "attempt", 0)
    value, error = getattr(body, "value", None), getattr(body, "error", None)
    return ev.InputHeld(TYPES[type(body)], op, attempt, value, error, command_id=getattr(body, "command_id", None))


def follow(draft: Draft) -> None:
    """Go on where nothing new is delivered but something may have become possible, such as a signal for a receive."""
    mark = draft.mark()
    try:
        delivery = _next(draft, draft.driver())
    except FAULTS as error:
        draft.roll_back(mark)
        block(draft, as_fault(error))
        return
    _chain(draft, delivery)


def block(draft: Draft, fault: Fault) -> None:
    """Stop the run for an operator."""
    kind = "state" if fault.code.startswith("SCHEMA") else "code"
    draft.emit(ev.RunBlocked(ev.Failure(kind, fault.code, fault.message)))


def cancel_body(draft: Draft, command_id: str | None) -> ev.CancelRequested:
    """The request, with the ops that end at once: all but those somebody works on, and whose outcome is held."""
    ops = draft.run.ops.values()
    withdrawn = tuple(op.id for op in ops if not is_out(op) and op.phase is not OpPhase.HELD)
    return ev.CancelRequested(force=False, withdrawn=withdrawn, command_id=command_id)


def _chain(draft: Draft, delivery: Delivery | None) -> None:
    count = 0
    while delivery is not None:
        count += 1
        delivery = _one(draft, delivery, count)


def _one(draft: Draft, delivery: Delivery, count: int) -> Delivery | None:
    mark = draft.mark()
    try:
        if count > _DELIVERIES_MAX:
            message = f"{_DELIVERIES_MAX} steps in one go without waiting for anything; is there an endless loop?"
            raise Fault("WORKFLOW_BUG", message)
        driver = _drive(draft, delivery.body)
        draft.check_size()
        return _next(draft, driver)
    except FAULTS as error:
        draft.roll_back(mark)
        _hold_and_block(draft, delivery, as_fault(error))
        return None


def _drive(draft: Draft, body: ev.Body) -> Driver:
    if isinstance(body, ev.RunStarted):
        draft.emit(body, code=body.code)
        driver = draft.enter()
    elif isinstance(body, ev.StateAdvanced):
        _withdraw_open(draft)
        draft.emit(body, code=draft.definition().code)
        driver = draft.enter()
    else:
        driver = draft.driver()
        draft.emit(body, code=driver.code)
    entry = draft.run.journal[-1]
    cause = draft.run.seq
    for command in driver.deliver(entry):  # type: ignore[arg-type]
        draft.issue(command, cause)
    return driver


def _hold_and_block(draft: Draft, delivery: Delivery, fault: Fault) -> None:
    if isinstance(delivery.body, ev.RunStarted):
        draft.emit(delivery.body, code=delivery.body.code)
    if not delivery.is_held:
        draft.emit(delivery.held or _held_form(delivery.body))
    block(draft, fault)


def _next(draft: Draft, driver: Driver) -> Delivery | None:
    held = _next_held(draft) if draft.run.held else None
    if held is not None:
        return Delivery(held, is_held=True)
    run = draft.run
    if driver.finished:
        if any(op.kind in _JOINED for op in run.ops.values()):
            return None
        return _finish(draft, driver)
    if run.inbox:
        taken = next_signal(draft)
        if taken is not None:
            return taken
    if not run.ops:
        message = "the workflow waits for something that can never happen: no op is open"
        raise Fault("WORKFLOW_BUG", message)
    return None


def next_signal(draft: Draft) -> Delivery | None:
    """The first open receive, in order of creation, for which a signal has come."""
    for op in draft.run.ops.values():
        if op.kind == "receive" and op.phase is OpPhase.WAITING:
            for item in draft.run.inbox:
                if item.name == op.name:
                    return Delivery(ev.SignalTaken(op.id, item.number))
    return None


def _finish(draft: Draft, driver: Driver) -> Delivery | None:
    """All branches have ended and all tasks have settled: advance to the next generation, or end the run."""
    value, error = driver.outcome()
    if error is None:
        error = driver.unawaited_failure()
    elif isinstance(error, Cancelled):
        error = driver.unawaited_failure(in_clean_up=True) or error
    if error is None and isinstance(value, Advance):
        if not draft.run.cancel_requested:
            return Delivery(ev.StateAdvanced(*value), is_held=True)
        error = Cancelled()  # it came between two steps; the next one would never hear of it
    try:
        body = _end_body(draft, value, error)
    except ValueRefused as refused:
        raise Fault(refused.code, f"the result of the run: {refused}") from refused
    _withdraw_open(draft)
    draft.emit(body)
    draft.drop_live()
    return None


def _withdraw_open(draft: Draft) -> None:
    for op in draft.run.ops:
        draft.emit(ev.OpWithdrawn(op))


def _end_body(draft: Draft, value: object, error: BaseException | None) -> ev.Body:
    requested = draft.run.cancel_requested
    if error is None:
        return ev.RunCompleted(draft.env.codec.encode(value), requested)
    if isinstance(error, Cancelled):
        return ev.RunCancelled()
    assert isinstance(error, (Fail, OpError))
    raised: Any = error  # user code made it: its code and message may be of any type
    details = None if raised.details is None else draft.env.codec.encode(raised.details)
    return ev.RunFailed(ev.Failure("terminal", text_of(raised.code), text_of(raised.message), details), requested)


# -- repair ------------------------------------------------------------------------------------------------------


def unblock(draft: Draft, operator: str) -> None:
    """Let a blocked run go on: rebuild its code, deliver what was held, first in, first out."""
    mark = draft.mark()
    try:
        definition = draft.definition()
        entry_held = bool(draft.run.held) and draft.run.held[0].delivery == "run.started"
        if not entry_held:
            draft.driver()
        draft.emit(ev.RunUnblocked(operator, definition.code, 0 if draft.run.version else definition.version))
        delivery = _enter_held(draft) if entry_held else _next(draft, draft.driver())
    except FAULTS as error:
        draft.roll_back(mark)
        block(draft, as_fault(error))
        return
    _chain(draft, delivery)


def _enter_held(draft: Draft) -> Delivery | None:
    driver = draft.enter()
    cause = draft.run.seq
    for command in driver.deliver(draft.run.journal[-1]):  # type: ignore[arg-type]
        draft.issue(command, cause)
    draft.check_size()
    return _next(draft, driver)


def _next_held(draft: Draft) -> ev.Body | None:
    """The first of the held inputs that still fits; those before it are dropped, on record."""
    while draft.run.held:
        held = draft.run.held[0]
        try:
            return _held_body(draft, held)
        except Refused as refused:
            draft.emit(ev.HeldDropped(refused.message))
    return None


def _held_body(draft: Draft, held: ev.InputHeld) -> ev.Body:
    if held.delivery == "cancel.requested":
        return cancel_body(draft, held.command_id)
    id_ = held.op or ""
    op = draft.run.ops.get(id_)
    if op is None:
        raise Refused("HELD_DROPPED", f"op {id_} is no longer open")
    if held.delivery == "op.completed":
        value = held.value or b""
        return ev.OpCompleted(
            id_, held.attempt, conform_reply(draft, op.name, value) if op.kind == "request" else value
        )
    if held.delivery == "op.failed":
        return ev.OpFailed(id_, held.attempt, held.error or ev.Failure("unknown", "UNKNOWN", "no error was held"))
    if held.delivery == "timer.fired":
        return ev.TimerFired(id_)
    if held.delivery == "signal.taken":
        item = next((item for item in draft.run.inbox if item.name == op.name), None)
        if item is None:
            raise Refused("HELD_DROPPED", f"another receive has taken the signal {op.name!r}")
        return ev.SignalTaken(id_, item.number)
    return ev.InterruptAnswered(id_, conform_answer(draft, id_, held.value or b""), held.command_id)


def conform_answer(draft: Draft, op: str, value: bytes) -> bytes:
    """The answer as the type that the interrupt asks for.

    Raises `Refused` where it does not fit, `Fault` where the code that asks cannot be rebuilt.
    """
    leaf = draft.driver().leaf(op)
    return value if leaf is None else draft.env.codec.conform(value, leaf.answer)


def conform_reply(draft: Draft, effect: str, value: bytes) -> bytes:
    """The value of a reply as the type that the effect declares; as it is where no such effect is loaded.

    Raises `Refused` where it does not fit. What is not loaded is no matter of the reply: the code blocks the run.
    """
    replies = draft.definitions.replies
    return draft.env.codec.conform(value, replies[effect]) if effect in replies else value
