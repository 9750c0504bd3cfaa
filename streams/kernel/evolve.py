"""The fold: `evolve(run, event)` is the only way a run's state changes, and it runs no user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.kernel import bodies as ev
from streams.kernel.changes import apply_changes, base_bytes, fresh_base
from streams.kernel.events import DELIVERIES, TYPES, Event
from streams.kernel.restate import STATE_FIELDS, run_of
from streams.kernel.retry import reply_due
from streams.kernel.run import (
    SEEN_MAX,
    WORKED_ON,
    Delivered,
    InboxItem,
    Issued,
    OpPhase,
    OpState,
    Phase,
    Run,
    is_out,
    is_terminal,
)
from streams.kernel.vector import Vector

__all__ = ["UnknownEvent", "evolve"]

_WITHDRAWN = ev.Failure("cancelled", "WITHDRAWN", "it was withdrawn while no attempt was running")
_ENTRY_BYTES = 64
_FRESH = Run("", "")
"""Its empty collections are shared: a million runs that have ended need no dict each."""

State = list[Any]
"""The fields of a run by their places, while an event is folded into them.

A run has many fields, and most events change few: a list is copied at a fifth of the cost of `_replace`, and read at a
third of that of a named field. It never leaves this module. What most events make is made by `tuple.__new__` for the
same reason: a named tuple's own constructor calls it in Python. Every field must be there, for it fills in no defaults.
"""

_UNTOUCHED = (False, False, None, None)
"""The last fields of an op that is new: `maybe`, `asked`, `error`, `noted`."""

_RUN_ID, _WORKFLOW, _VERSION, _CODE, _PHASE, _SEQ, _AT, _STARTED_AT, _EPOCH = (
    Run._fields.index(name)
    for name in ("run_id", "workflow", "version", "code", "phase", "seq", "at", "started_at", "epoch")
)
_OFFSET, _SEED, _INPUT_HASH, _GENERATION, _BASE, _ACTIVE, _ARRIVED, _JOURNAL = (
    Run._fields.index(name)
    for name in ("offset", "seed", "input_hash", "generation", "base", "active", "arrived", "journal")
)
_OPS, _INBOX, _SIGNALS, _SEEN, _HELD, _CANCEL_REQUESTED, _BLOCKED = (
    Run._fields.index(name) for name in ("ops", "inbox", "signals", "seen", "held", "cancel_requested", "blocked")
)
_RESULT, _ERROR, _ATTRIBUTES, _PARENT, _SIZE = (
    Run._fields.index(name) for name in ("result", "error", "attributes", "parent", "size")
)


class UnknownEvent(ValueError):
    """An event that a newer release of streams wrote. It is no damage: that release can fold it."""


def evolve(run: Run, event: Event) -> Run:
    """Return the state after `event`.

    Raises ValueError when the event does not follow on the state: a gap or a repeat in seq, or an event after the
    end. Whoever folds a log treats that as damage of this run, unless it is an `UnknownEvent`. A `run.repaired` follows
    on everything that is not later: it holds the whole state, so what could not be folded before it counts no more.
    """
    if event.seq is None:
        return run
    if event.seq != run.seq + 1 and not (isinstance(event.body, ev.RunRepaired) and event.seq > run.seq):
        message = f"event {event.seq} of run {run.run_id!r} does not follow on {run.seq}"
        raise ValueError(message)
    if is_terminal(run) and not isinstance(event.body, ev.RunExpired):
        message = f"event {event.seq} ({event.type}) of run {run.run_id!r} comes after its end"
        raise ValueError(message)
    fold = _FOLDS.get(type(event.body))
    if fold is None:
        message = f"event {event.seq} ({event.type}) of run {run.run_id!r} is not known to this version of streams"
        raise UnknownEvent(message)
    state: State = list(run)
    try:
        fold(state, event, event.body)
    except (KeyError, IndexError, StopIteration) as error:
        message = (
            f"event {event.seq} ({event.type}) of run {run.run_id!r} does not fit its state: {error!r} is not there"
        )
        raise ValueError(message) from error
    state[_SEQ], state[_AT], state[_EPOCH] = event.seq, event.at, event.epoch
    if event.offset is not None and event.offset > run.offset:
        state[_OFFSET] = event.offset
    if run.held and type(event.body) in DELIVERIES:
        _pop_held(run, event, state)
    return tuple.__new__(Run, state)


def _pop_held(run: Run, event: Event, state: State) -> None:
    """A delivery that was held is no longer: it is the first one, of the same type and op."""
    first = run.held[0]
    if first.delivery == event.type and first.op == getattr(event.body, "op", None):
        state[_HELD] = run.held[1:]
        state[_SIZE] -= _held_bytes(first)


def _deliver(state: State, event: Event, op: str | None, value: bytes | None, error: ev.Failure | None = None) -> None:
    code = event.code or ""
    entry = tuple.__new__(Delivered, (TYPES[type(event.body)], op, value, error, event.seq or 0, event.at, code))
    state[_JOURNAL] = state[_JOURNAL].append(entry)
    state[_SIZE] += _ENTRY_BYTES
    if value:
        state[_SIZE] += len(value)
    if error is not None:
        state[_SIZE] += _failure_bytes(error)
    if code:
        state[_CODE] = code


def _issue(state: State, op: str, kind: str, name: str, hash_: bytes) -> None:
    state[_JOURNAL] = state[_JOURNAL].append(tuple.__new__(Issued, (op, kind, name, hash_)))
    state[_SIZE] += _ENTRY_BYTES


def _failure_bytes(error: ev.Failure | None) -> int:
    return 0 if error is None else len(error.message) + len(error.details or b"")


def _op_bytes(op: OpState) -> int:
    names = len(op.id) + len(op.name) + len(op.key or "")
    failure = 0 if op.error is None else _failure_bytes(op.error)
    return _ENTRY_BYTES + names + len(op.args or b"") + len(op.noted or b"") + failure


def _held_bytes(held: ev.InputHeld) -> int:
    return _ENTRY_BYTES + len(held.value or b"") + _failure_bytes(held.error)


def _drop_ops(state: State, *ids: str) -> None:
    """Take ops out that are open; what is not passes."""
    ops = dict(state[_OPS])
    for id_ in ids:
        op = ops.pop(id_, None)
        if op is not None:
            state[_SIZE] -= _op_bytes(op)
    state[_OPS] = ops


def _set_op(state: State, op: OpState) -> None:
    ops = state[_OPS]
    state[_SIZE] += _op_bytes(op) - _op_bytes(ops[op.id])
    state[_OPS] = {**ops, op.id: op}


def _run_started(state: State, event: Event, body: ev.RunStarted) -> None:
    _deliver(state, event, None, None)
    state[_WORKFLOW] = body.workflow
    state[_VERSION] = body.version
    state[_CODE] = body.code
    state[_PHASE] = Phase.ACTIVE
    state[_BASE] = fresh_base(body.base)
    state[_ACTIVE] = body.active
    state[_SEED] = body.seed
    state[_INPUT_HASH] = body.input_hash
    state[_ATTRIBUTES] = body.attributes
    state[_PARENT] = body.parent
    state[_STARTED_AT] = event.at
    state[_SIZE] += sum([len(value) for _, value in body.base]) + _active_bytes(body.active)


def _active_bytes(active: tuple[ev.Activation, ...]) -> int:
    return sum([len(item.arg or b"") for item in active])


def _op_scheduled(state: State, event: Event, body: ev.OpScheduled) -> None:
    id_, kind, name, args, hash_, due, attempt, key, ref, policy = body
    phase = OpPhase.WAITING
    if kind == "task":
        phase = OpPhase.RUNNING if attempt else OpPhase.QUEUED
    fields = (id_, kind, name, args, hash_, phase, event.at, due, attempt, attempt, event.epoch, key, ref, policy)
    op = tuple.__new__(OpState, fields + _UNTOUCHED)
    _issue(state, id_, kind, name, hash_)
    state[_SIZE] += len(id_) + len(name) + _op_bytes(op)
    state[_OPS] = {**state[_OPS], id_: op}


def _settle(state: State, event: Event, op: str, value: bytes | None, error: ev.Failure | None = None) -> None:
    ops = dict(state[_OPS])
    state[_SIZE] -= _op_bytes(ops.pop(op))
    state[_OPS] = ops
    _deliver(state, event, op, value, error)


def _op_completed(state: State, event: Event, body: ev.OpCompleted) -> None:
    _settle(state, event, body.op, body.value)


def _signal_taken(state: State, event: Event, body: ev.SignalTaken) -> None:
    inbox = state[_INBOX]
    item = next(item for item in inbox if item.number == body.number)
    _settle(state, event, body.op, item.value)
    state[_INBOX] = tuple(other for other in inbox if other is not item)
    state[_SIZE] -= _ENTRY_BYTES + len(item.value)


def _remember(state: State, command_id: str | None) -> None:
    if command_id is not None:
        state[_SEEN] = (*state[_SEEN][-(SEEN_MAX - 1) :], command_id)


def _interrupt_answered(state: State, event: Event, body: ev.InterruptAnswered) -> None:
    _settle(state, event, body.op, body.value)
    _remember(state, body.command_id)


def _signal_received(state: State, _: Event, body: ev.SignalReceived) -> None:
    number = state[_SIGNALS]
    state[_INBOX] = (*state[_INBOX], InboxItem(number, body.name, body.value))
    state[_SIGNALS] = number + 1
    state[_SIZE] += _ENTRY_BYTES + len(body.value)
    _remember(state, body.command_id)


def _attempt_started(state: State, event: Event, body: ev.AttemptStarted) -> None:
    op = state[_OPS][body.op]
    spent = 1 if op.phase is OpPhase.PARKED else op.spent + 1
    phase, due = OpPhase.RUNNING, None
    if op.kind == "request":
        phase, due = OpPhase.WAITING, reply_due(op, event.at)
    _set_op(state, op._replace(phase=phase, attempt=body.attempt, spent=spent, epoch=event.epoch, due=due, error=None))


def _attempt_failed(state: State, _: Event, body: ev.AttemptFailed) -> None:
    op = state[_OPS][body.op]
    _set_op(state, op._replace(phase=OpPhase.BACKOFF, due=body.due, maybe=body.maybe, error=body.error))


def _attempt_returned(state: State, event: Event, body: ev.AttemptReturned) -> None:
    op = state[_OPS][body.op]
    _set_op(state, op._replace(phase=OpPhase.BACKOFF, due=event.at, spent=max(op.spent - 1, 0), maybe=True))


def _attempt_noted(state: State, _: Event, body: ev.AttemptNoted) -> None:
    _set_op(state, state[_OPS][body.op]._replace(noted=body.details))


def _op_parked(state: State, _: Event, body: ev.OpParked) -> None:
    op = state[_OPS][body.op]
    maybe = op.maybe or body.reason.code == "OUTCOME_UNKNOWN"
    _set_op(state, op._replace(phase=OpPhase.PARKED, due=None, error=body.reason, maybe=maybe))


def _op_withdrawn(state: State, event: Event, body: ev.OpWithdrawn) -> None:
    op = state[_OPS].get(body.op)
    if op is not None and op.kind not in WORKED_ON:
        _drop_ops(state, body.op)
    elif op is not None and (is_out(op) or op.phase is OpPhase.HELD):
        _set_op(state, op._replace(asked=True))
    elif op is not None:  # nothing runs that could end: its end is a delivery of its own, which clean-up may await
        held = ev.InputHeld("op.failed", op.id, op.attempt, error=_WITHDRAWN)
        _set_op(state, op._replace(asked=True, phase=OpPhase.HELD))
        state[_HELD] = (*state[_HELD], held)
        state[_SIZE] += _held_bytes(held)
    if event.cause is not None:
        _issue(state, body.op, "withdraw", "", b"")


def _effect_emitted(state: State, _: Event, body: ev.EffectEmitted) -> None:
    _issue(state, body.op, "emit", body.effect, body.hash)
    state[_SIZE] += len(body.op) + len(body.effect)


def _cancel_requested(state: State, event: Event, body: ev.CancelRequested) -> None:
    if state[_PHASE] is not Phase.PENDING and not body.force:
        _deliver(state, event, None, "\n".join(body.withdrawn).encode())
        _drop_ops(state, *body.withdrawn)
        state[_OPS] = {id_: op._replace(asked=True) if is_out(op) else op for id_, op in state[_OPS].items()}
    state[_CANCEL_REQUESTED] = True


def _state_advanced(state: State, event: Event, body: ev.StateAdvanced) -> None:
    base = apply_changes(state[_BASE], body.changes)
    kept = sum([_held_bytes(item) for item in state[_HELD]])
    kept += sum([_ENTRY_BYTES + len(item.value) for item in state[_INBOX]])
    state[_BASE] = base
    state[_ACTIVE] = body.active
    state[_ARRIVED] = body.arrived
    state[_GENERATION] += 1
    state[_JOURNAL] = Vector()
    state[_OPS] = {}
    state[_SIZE] = kept + base_bytes(base) + _active_bytes(body.active)
    _deliver(state, event, None, None)


def _run_blocked(state: State, _: Event, body: ev.RunBlocked) -> None:
    state[_BLOCKED] = body.error


def _run_unblocked(state: State, event: Event, body: ev.RunUnblocked) -> None:
    state[_BLOCKED] = None
    state[_VERSION] = body.version or state[_VERSION]
    held = state[_HELD]
    if held and held[0].delivery == "run.started":
        entry = Delivered("run.started", None, None, None, event.seq or 0, event.at, body.code)
        state[_HELD] = held[1:]
        state[_JOURNAL] = Vector((entry,))
        state[_CODE] = body.code
        state[_SIZE] += _ENTRY_BYTES - _held_bytes(held[0])


def _input_held(state: State, _: Event, body: ev.InputHeld) -> None:
    state[_HELD] = (*state[_HELD], body)
    state[_SIZE] += _held_bytes(body)
    if body.delivery == "run.started":
        state[_JOURNAL] = Vector()
        state[_SIZE] -= _ENTRY_BYTES
    op = state[_OPS].get(body.op)
    if op is not None:
        state[_OPS] = {**state[_OPS], op.id: op._replace(phase=OpPhase.HELD)}


def _held_dropped(state: State, _: Event, __: ev.HeldDropped) -> None:
    first = state[_HELD][0]
    state[_HELD] = state[_HELD][1:]
    state[_SIZE] -= _held_bytes(first)
    op = state[_OPS].get(first.op)
    if op is not None and op.phase is OpPhase.HELD:
        state[_OPS] = {**state[_OPS], op.id: op._replace(phase=OpPhase.WAITING)}


def _end(state: State, phase: Phase, result: bytes | None, error: ev.Failure | None) -> None:
    """Everything but identity, hashes and result goes."""
    state[_PHASE] = phase
    state[_RESULT] = result
    state[_ERROR] = error
    state[_BASE] = state[_ACTIVE] = state[_ARRIVED] = ()
    state[_JOURNAL], state[_OPS] = _FRESH.journal, _FRESH.ops
    state[_INBOX] = state[_HELD] = ()
    state[_BLOCKED] = None
    state[_SEED] = b""
    state[_SIZE] = len(result or b"")


def _run_repaired(state: State, event: Event, body: ev.RunRepaired) -> None:
    unknown = sorted({change.field for change in body.changes} - set(STATE_FIELDS))
    if unknown:
        message = (
            f"event {event.seq} of run {state[_RUN_ID]!r} sets {unknown[0]!r}, which this version of streams lacks"
        )
        raise UnknownEvent(message)
    repaired = run_of(state[_RUN_ID], event.identity, body.changes)
    # Not what this reader has folded before: one that knows more or less of the damage must come to the same.
    offset = repaired.offset if event.offset is None else max(repaired.offset, event.offset)
    state[:] = repaired._replace(offset=offset)


def _nothing(_: State, __: Event, ___: ev.Body) -> None:
    """It says something about the run that its state does not hold."""


_FOLDS: dict[type, Callable[[State, Event, Any], None]] = {
    ev.RunStarted: _run_started,
    ev.OpScheduled: _op_scheduled,
    ev.OpCompleted: _op_completed,
    ev.OpFailed: lambda state, event, body: _settle(state, event, body.op, None, body.error),
    ev.TimerFired: lambda state, event, body: _settle(state, event, body.op, None),
    ev.InterruptAnswered: _interrupt_answered,
    ev.SignalTaken: _signal_taken,
    ev.SignalReceived: _signal_received,
    ev.AttemptStarted: _attempt_started,
    ev.AttemptFailed: _attempt_failed,
    ev.AttemptReturned: _attempt_returned,
    ev.AttemptNoted: _attempt_noted,
    ev.OpParked: _op_parked,
    ev.OpWithdrawn: _op_withdrawn,
    ev.EffectEmitted: _effect_emitted,
    ev.CancelRequested: _cancel_requested,
    ev.StateAdvanced: _state_advanced,
    ev.RunBlocked: _run_blocked,
    ev.RunUnblocked: _run_unblocked,
    ev.InputHeld: _input_held,
    ev.HeldDropped: _held_dropped,
    ev.RunOwned: _nothing,
    ev.RunRepaired: _run_repaired,
    ev.RunExpired: _nothing,
    ev.RunCompleted: lambda state, _, body: _end(state, Phase.COMPLETED, body.result, None),
    ev.RunFailed: lambda state, _, body: _end(state, Phase.FAILED, None, body.error),
    ev.RunCancelled: lambda state, _, __: _end(state, Phase.CANCELLED, None, None),
}
