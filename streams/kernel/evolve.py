"""The fold: `evolve(run, event)` is the only way a run's state changes, and it runs no user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.kernel import bodies as ev
from streams.kernel.changes import apply_changes, base_bytes, fresh_base
from streams.kernel.events import DELIVERIES, Event
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
Changes = dict[str, Any]
_PLACES = {name: place for place, name in enumerate(Run._fields)}
_SEQ, _AT, _EPOCH, _OFFSET = (_PLACES[name] for name in ("seq", "at", "epoch", "offset"))
_ENTRY_BYTES = 64
_FRESH = Run("", "")
"""Its empty collections are shared: a million runs that have ended need no dict each."""


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
    try:
        changes = fold(run, event, event.body)
    except (KeyError, IndexError, StopIteration) as error:
        message = (
            f"event {event.seq} ({event.type}) of run {run.run_id!r} does not fit its state: {error!r} is not there"
        )
        raise ValueError(message) from error
    if run.held and type(event.body) in DELIVERIES:
        _pop_held(run, event, changes)
    return _changed(run, event, changes)


def _changed(run: Run, event: Event, changes: Changes) -> Run:
    """What `_replace` does, at a third of its cost: a run has many fields, and most events change few."""
    state: list[Any] = list(run)
    for name, value in changes.items():
        state[_PLACES[name]] = value
    state[_SEQ] = event.seq
    state[_AT] = event.at
    state[_EPOCH] = event.epoch
    if event.offset is not None and event.offset > run.offset:
        state[_OFFSET] = event.offset
    return tuple.__new__(Run, state)


def _pop_held(run: Run, event: Event, changes: Changes) -> None:
    """A delivery that was held is no longer: it is the first one, of the same type and op."""
    first = run.held[0]
    if first.delivery == event.type and first.op == getattr(event.body, "op", None):
        changes["held"] = run.held[1:]
        changes["size"] = changes.get("size", run.size) - _held_bytes(first)


def _deliver(run: Run, event: Event, op: str | None, value: bytes | None, error: ev.Failure | None = None) -> Changes:
    entry = Delivered(event.type, op, value, error, event.seq or 0, event.at, event.code or "")
    size = run.size + _ENTRY_BYTES + (len(value) if value else 0) + _failure_bytes(error)
    return {"journal": run.journal.append(entry), "size": size, "code": event.code or run.code}


def _issue(run: Run, op: str, kind: str, name: str, hash_: bytes) -> Vector[Delivered | Issued]:
    return run.journal.append(Issued(op, kind, name, hash_))


def _issued_bytes(op: str, name: str) -> int:
    return _ENTRY_BYTES + len(op) + len(name)


def _failure_bytes(error: ev.Failure | None) -> int:
    return 0 if error is None else len(error.message) + len(error.details or b"")


def _op_bytes(op: OpState) -> int:
    names = len(op.id) + len(op.name) + len(op.key or "")
    return _ENTRY_BYTES + names + len(op.args or b"") + len(op.noted or b"") + _failure_bytes(op.error)


def _held_bytes(held: ev.InputHeld) -> int:
    return _ENTRY_BYTES + len(held.value or b"") + _failure_bytes(held.error)


def _without(run: Run, *ids: str) -> Changes:
    ops = dict(run.ops)
    freed = sum(_op_bytes(op) for op in (ops.pop(id_, None) for id_ in ids) if op is not None)
    return {"ops": ops, "size": run.size - freed}


def _with(run: Run, op: OpState) -> Changes:
    return {"ops": {**run.ops, op.id: op}, "size": run.size + _op_bytes(op) - _op_bytes(run.ops[op.id])}


def _run_started(run: Run, event: Event, body: ev.RunStarted) -> Changes:
    changes = _deliver(run, event, None, None)
    return changes | {
        "workflow": body.workflow,
        "version": body.version,
        "code": body.code,
        "phase": Phase.ACTIVE,
        "base": fresh_base(body.base),
        "active": body.active,
        "seed": body.seed,
        "input_hash": body.input_hash,
        "attributes": body.attributes,
        "parent": body.parent,
        "started_at": event.at,
        "size": changes["size"] + sum(len(value) for _, value in body.base) + _active_bytes(body.active),
    }


def _active_bytes(active: tuple[ev.Activation, ...]) -> int:
    return sum(len(item.arg or b"") for item in active)


def _op_scheduled(run: Run, event: Event, body: ev.OpScheduled) -> Changes:
    phase = OpPhase.WAITING
    if body.kind == "task":
        phase = OpPhase.RUNNING if body.attempt else OpPhase.QUEUED
    op = OpState(
        body.op,
        body.kind,
        body.name,
        body.args,
        body.hash,
        phase,
        event.at,
        body.due,
        body.attempt,
        body.attempt,
        event.epoch,
        body.key,
        body.ref,
        body.policy,
    )
    journal = _issue(run, body.op, body.kind, body.name, body.hash)
    size = run.size + _issued_bytes(body.op, body.name) + _op_bytes(op)
    return {"ops": {**run.ops, body.op: op}, "journal": journal, "size": size}


def _settled(run: Run, event: Event, op: str, value: bytes | None, error: ev.Failure | None = None) -> Changes:
    changes = _deliver(run, event, op, value, error)
    ops = dict(run.ops)
    changes["size"] -= _op_bytes(ops.pop(op))
    changes["ops"] = ops
    return changes


def _signal_taken(run: Run, event: Event, body: ev.SignalTaken) -> Changes:
    item = next(item for item in run.inbox if item.number == body.number)
    changes = _settled(run, event, body.op, item.value)
    changes["inbox"] = tuple(other for other in run.inbox if other is not item)
    changes["size"] -= _ENTRY_BYTES + len(item.value)
    return changes


def _remember(run: Run, command_id: str | None) -> tuple[str, ...]:
    return run.seen if command_id is None else (*run.seen[-(SEEN_MAX - 1) :], command_id)


def _interrupt_answered(run: Run, event: Event, body: ev.InterruptAnswered) -> Changes:
    return _settled(run, event, body.op, body.value) | {"seen": _remember(run, body.command_id)}


def _signal_received(run: Run, _: Event, body: ev.SignalReceived) -> Changes:
    item = InboxItem(run.signals, body.name, body.value)
    return {
        "inbox": (*run.inbox, item),
        "signals": run.signals + 1,
        "seen": _remember(run, body.command_id),
        "size": run.size + _ENTRY_BYTES + len(body.value),
    }


def _attempt_started(run: Run, event: Event, body: ev.AttemptStarted) -> Changes:
    op = run.ops[body.op]
    spent = 1 if op.phase is OpPhase.PARKED else op.spent + 1
    phase, due = OpPhase.RUNNING, None
    if op.kind == "request":
        phase, due = OpPhase.WAITING, reply_due(op, event.at)
    return _with(
        run, op._replace(phase=phase, attempt=body.attempt, spent=spent, epoch=event.epoch, due=due, error=None)
    )


def _attempt_failed(run: Run, _: Event, body: ev.AttemptFailed) -> Changes:
    op = run.ops[body.op]
    return _with(run, op._replace(phase=OpPhase.BACKOFF, due=body.due, maybe=body.maybe, error=body.error))


def _attempt_returned(run: Run, event: Event, body: ev.AttemptReturned) -> Changes:
    op = run.ops[body.op]
    return _with(run, op._replace(phase=OpPhase.BACKOFF, due=event.at, spent=max(op.spent - 1, 0), maybe=True))


def _attempt_noted(run: Run, _: Event, body: ev.AttemptNoted) -> Changes:
    return _with(run, run.ops[body.op]._replace(noted=body.details))


def _op_parked(run: Run, _: Event, body: ev.OpParked) -> Changes:
    op = run.ops[body.op]
    maybe = op.maybe or body.reason.code == "OUTCOME_UNKNOWN"
    return _with(run, op._replace(phase=OpPhase.PARKED, due=None, error=body.reason, maybe=maybe))


def _op_withdrawn(run: Run, event: Event, body: ev.OpWithdrawn) -> Changes:
    op = run.ops.get(body.op)
    changes: Changes = {"size": run.size}
    if op is not None and op.kind not in WORKED_ON:
        changes = _without(run, body.op)
    elif op is not None and (is_out(op) or op.phase is OpPhase.HELD):
        changes = _with(run, op._replace(asked=True))
    elif op is not None:  # nothing runs that could end: its end is a delivery of its own, which clean-up may await
        held = ev.InputHeld("op.failed", op.id, op.attempt, error=_WITHDRAWN)
        changes = _with(run, op._replace(asked=True, phase=OpPhase.HELD))
        changes["held"] = (*run.held, held)
        changes["size"] += _held_bytes(held)
    if event.cause is not None:
        changes["journal"] = _issue(run, body.op, "withdraw", "", b"")
        changes["size"] += _ENTRY_BYTES
    return changes


def _effect_emitted(run: Run, _: Event, body: ev.EffectEmitted) -> Changes:
    size = run.size + _issued_bytes(body.op, body.effect)
    return {"journal": _issue(run, body.op, "emit", body.effect, body.hash), "size": size}


def _cancel_requested(run: Run, event: Event, body: ev.CancelRequested) -> Changes:
    if run.phase is Phase.PENDING or body.force:
        return {"cancel_requested": True}
    changes = _deliver(run, event, None, "\n".join(body.withdrawn).encode())
    removed = _without(run, *body.withdrawn)
    changes["size"] += removed["size"] - run.size
    changes["ops"] = {id_: op._replace(asked=True) if is_out(op) else op for id_, op in removed["ops"].items()}
    changes["cancel_requested"] = True
    return changes


def _state_advanced(run: Run, event: Event, body: ev.StateAdvanced) -> Changes:
    base = apply_changes(run.base, body.changes)
    held = sum(_held_bytes(item) for item in run.held) + sum(_ENTRY_BYTES + len(item.value) for item in run.inbox)
    entry = Delivered(event.type, None, None, None, event.seq or 0, event.at, event.code or "")
    return {
        "base": base,
        "active": body.active,
        "arrived": body.arrived,
        "generation": run.generation + 1,
        "journal": Vector((entry,)),
        "ops": {},
        "code": event.code or run.code,
        "size": _ENTRY_BYTES + held + base_bytes(base) + _active_bytes(body.active),
    }


def _run_blocked(_: Run, __: Event, body: ev.RunBlocked) -> Changes:
    return {"blocked": body.error}


def _run_unblocked(run: Run, event: Event, body: ev.RunUnblocked) -> Changes:
    changes: Changes = {"blocked": None, "version": body.version or run.version}
    if run.held and run.held[0].delivery == "run.started":
        entry = Delivered("run.started", None, None, None, event.seq or 0, event.at, body.code)
        size = run.size - _held_bytes(run.held[0]) + _ENTRY_BYTES
        changes |= {"held": run.held[1:], "journal": Vector((entry,)), "code": body.code, "size": size}
    return changes


def _input_held(run: Run, _: Event, body: ev.InputHeld) -> Changes:
    changes: Changes = {"held": (*run.held, body), "size": run.size + _held_bytes(body)}
    if body.delivery == "run.started":
        changes["journal"] = Vector()
        changes["size"] -= _ENTRY_BYTES
    if body.op is not None and body.op in run.ops:
        changes["ops"] = {**run.ops, body.op: run.ops[body.op]._replace(phase=OpPhase.HELD)}
    return changes


def _held_dropped(run: Run, _: Event, __: ev.HeldDropped) -> Changes:
    first = run.held[0]
    changes: Changes = {"held": run.held[1:], "size": run.size - _held_bytes(first)}
    op = run.ops.get(first.op or "")
    if op is not None and op.phase is OpPhase.HELD:
        changes["ops"] = {**run.ops, op.id: op._replace(phase=OpPhase.WAITING)}
    return changes


def _end(run: Run, phase: Phase, result: bytes | None, error: ev.Failure | None) -> Changes:
    """Everything but identity, hashes and result goes."""
    return {
        "phase": phase,
        "result": result,
        "error": error,
        "base": (),
        "active": (),
        "arrived": (),
        "journal": _FRESH.journal,
        "ops": _FRESH.ops,
        "inbox": (),
        "held": (),
        "blocked": None,
        "seed": b"",
        "size": len(result or b""),
        "cancel_requested": run.cancel_requested,
    }


def _run_repaired(run: Run, event: Event, body: ev.RunRepaired) -> Changes:
    unknown = sorted({change.field for change in body.changes} - set(STATE_FIELDS))
    if unknown:
        message = f"event {event.seq} of run {run.run_id!r} sets {unknown[0]!r}, which this version of streams lacks"
        raise UnknownEvent(message)
    state = run_of(run.run_id, event.identity, body.changes)
    # Not what this reader has folded before: one that knows more or less of the damage must come to the same.
    offset = state.offset if event.offset is None else max(state.offset, event.offset)
    return state._replace(offset=offset)._asdict()


def _nothing(_: Run, __: Event, ___: ev.Body) -> Changes:
    return {}


_FOLDS: dict[type, Callable[[Run, Event, Any], Changes]] = {
    ev.RunStarted: _run_started,
    ev.OpScheduled: _op_scheduled,
    ev.OpCompleted: lambda run, event, body: _settled(run, event, body.op, body.value),
    ev.OpFailed: lambda run, event, body: _settled(run, event, body.op, None, body.error),
    ev.TimerFired: lambda run, event, body: _settled(run, event, body.op, None),
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
    ev.RunCompleted: lambda run, _, body: _end(run, Phase.COMPLETED, body.result, None),
    ev.RunFailed: lambda run, _, body: _end(run, Phase.FAILED, None, body.error),
    ev.RunCancelled: lambda run, _, __: _end(run, Phase.CANCELLED, None, None),
}
