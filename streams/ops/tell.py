"""One sentence an event, told with what is known of its op from earlier events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from streams.kernel import bodies as ev
from streams.kernel.bodies import Failure
from streams.kernel.changes import UNCHECKED
from streams.kernel.events import Event
from streams.ops.payload import plain_body
from streams.ops.texts import iso, line, span
from streams.wire.values import ValueCodec

__all__ = ["Level", "Teller", "Told"]

Level = Literal["info", "good", "warn", "bad", "ask", "dim"]


class Told(NamedTuple):
    """A sentence and how it is meant."""

    text: str
    level: Level = "info"


class _Op:
    """What is known of an op: what it is, and since when it and its attempt have gone on."""

    __slots__ = ("attempt_at", "kind", "name", "since")

    def __init__(self, kind: str = "op", name: str = "", since: int | None = None) -> None:
        self.kind = kind
        self.name = name
        self.since = since
        self.attempt_at = since


class Teller:
    """Tells the events of one run in order."""

    def __init__(self, codec: ValueCodec) -> None:
        self._codec = codec
        self._ops: dict[str, _Op] = {}
        self._started_at: int | None = None

    def tell(self, event: Event) -> Told:
        """The sentence for this event."""
        teller = _TELLERS.get(type(event.body))
        if teller is None:
            return Told(f"{event.type}: {line(plain_body(event.body, self._codec))}", "dim")
        return teller(self, event, event.body)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _value(self, data: bytes | None) -> str:
        return "nothing" if data is None else line(self._codec.to_plain(data))

    def _what(self, op: str) -> str:
        known = self._ops.get(op, _Op())
        name = known.name if known.name not in ("", known.kind) else op
        return f"{known.kind} {name}"

    def _took(self, op: str, at: int) -> str:
        known = self._ops.get(op)
        return "" if known is None or known.since is None else f" after {span(at - known.since)}"

    def _attempt_took(self, op: str, at: int) -> str:
        known = self._ops.get(op)
        return "" if known is None or known.attempt_at is None else f" after {span(at - known.attempt_at)}"

    def _life(self, at: int) -> str:
        return "" if self._started_at is None else f" after {span(at - self._started_at)}"

    # -- the run -------------------------------------------------------------------------------------------------

    def run_started(self, event: Event, body: ev.RunStarted) -> Told:
        self._started_at = event.at
        version = f" version {body.version}" if body.version else ""
        input_ = line({name: self._codec.to_plain(value) for name, value in body.base})
        if [name for name, _ in body.base] in (["input"], [UNCHECKED]):
            input_ = self._value(body.base[0][1])
        return Told(f"{body.workflow}{version} started by {body.owner or '?'} (epoch {event.epoch}) with {input_}")

    def run_owned(self, event: Event, body: ev.RunOwned) -> Told:
        return Told(f"taken over by {body.owner} (epoch {event.epoch})", "warn")

    def run_completed(self, event: Event, body: ev.RunCompleted) -> Told:
        asked = ", though a cancel was asked for" if body.cancel_requested else ""
        return Told(f"run completed{self._life(event.at)}{asked}: {self._value(body.result)}", "good")

    def run_failed(self, event: Event, body: ev.RunFailed) -> Told:
        return Told(f"run failed{self._life(event.at)}: {_error(body.error)}", "bad")

    def run_cancelled(self, event: Event, body: ev.RunCancelled) -> Told:
        how = " by force, without clean-up" if body.forced else ""
        return Told(f"run cancelled{how}{self._life(event.at)}", "bad")

    def run_blocked(self, _: Event, body: ev.RunBlocked) -> Told:
        return Told(f"run blocked: {_error(body.error)}", "bad")

    def run_unblocked(self, _: Event, body: ev.RunUnblocked) -> Told:
        by = f" by {body.operator}" if body.operator else ""
        return Told(f"run goes on, unblocked{by}", "good")

    def run_expired(self, _: Event, body: ev.RunExpired) -> Told:
        return Told(f"run expired: {body.reason}", "dim")

    def state_advanced(self, _: Event, body: ev.StateAdvanced) -> Told:
        fields = ", ".join(sorted({change.field for change in body.changes})) or "nothing"
        nodes = ", ".join(activation.node for activation in body.active) or "the end"
        return Told(f"step done: changed {fields}; next: {nodes}")

    def cancel_requested(self, _: Event, body: ev.CancelRequested) -> Told:
        ends = ", ".join(self._what(op) for op in body.withdrawn)
        asked = "cancel by force asked for" if body.force else "cancel asked for"
        return Told(f"{asked}; ends {ends}" if ends else asked, "warn")

    # -- ops -----------------------------------------------------------------------------------------------------

    def op_scheduled(self, event: Event, body: ev.OpScheduled) -> Told:
        self._ops[body.op] = _Op(body.kind, body.name, event.at)
        what = self._what(body.op)
        if body.kind == "timer":
            return Told(f"sleeps until {_time(body.due)}", "dim")
        if body.kind == "receive":
            return Told(f"waits for signal {body.name}")
        if body.kind == "interrupt":
            until = f", until {_time(body.due)}" if body.due is not None else ""
            return Told(f"asks{until}: {self._value(body.args)}", "ask")
        if body.kind == "request":
            key = "" if (body.key or "").startswith(event.identity) else f", key {body.key}"
            until = f", until {_time(body.due)}" if body.due is not None else ""
            return Told(f"{what} out, attempt {body.attempt}{key}{until}: {self._value(body.args)}")
        if body.kind == "task":
            key = f", key {body.key}" if body.key and not body.key.startswith(event.identity) else ""
            return Told(f"{what} {'started, attempt 1' if body.attempt else 'queued'}{key}{self._arguments(body.args)}")
        return Told(f"{what} created")

    def _arguments(self, args: bytes | None) -> str:
        return "" if args is None else _call(self._codec.to_plain(args))

    def attempt_started(self, event: Event, body: ev.AttemptStarted) -> Told:
        known = self._ops.setdefault(body.op, _Op("task"))
        known.attempt_at = event.at
        if known.kind == "request":
            return Told(f"{self._what(body.op)} out again, attempt {body.attempt}")
        return Told(f"{self._what(body.op)} started, attempt {body.attempt}")

    def attempt_failed(self, event: Event, body: ev.AttemptFailed) -> Told:
        again = f"; again in {span(body.due - event.at)}" if body.due is not None else ""
        maybe = " (it may have done its work)" if body.maybe else ""
        failed = f"attempt {body.attempt} of {self._what(body.op)} failed{self._attempt_took(body.op, event.at)}"
        return Told(f"{failed}{maybe}: {_error(body.error)}{again}", "warn")

    def attempt_returned(self, _: Event, body: ev.AttemptReturned) -> Told:
        return Told(f"attempt {body.attempt} of {self._what(body.op)} handed back: {body.reason}", "warn")

    def attempt_noted(self, _: Event, body: ev.AttemptNoted) -> Told:
        return Told(f"{self._what(body.op)} notes: {self._value(body.details)}", "dim")

    def op_completed(self, event: Event, body: ev.OpCompleted) -> Told:
        by = f" by {body.operator}" if body.operator else ""
        tries = f", attempt {body.attempt}" if body.attempt > 1 else ""
        took = self._took(body.op, event.at)
        return Told(f"{self._what(body.op)} completed{by}{took}{tries}: {self._value(body.value)}", "good")

    def op_failed(self, event: Event, body: ev.OpFailed) -> Told:
        return Told(f"{self._what(body.op)} failed{self._took(body.op, event.at)}: {_error(body.error)}", "bad")

    def op_parked(self, _: Event, body: ev.OpParked) -> Told:
        return Told(f"{self._what(body.op)} parked, waits for an operator: {_error(body.reason)}", "bad")

    def op_withdrawn(self, event: Event, body: ev.OpWithdrawn) -> Told:
        return Told(f"{self._what(body.op)} withdrawn{self._took(body.op, event.at)}", "dim")

    def timer_fired(self, event: Event, body: ev.TimerFired) -> Told:
        return Told(f"slept{self._took(body.op, event.at).replace(' after', '')}", "dim")

    def interrupt_answered(self, event: Event, body: ev.InterruptAnswered) -> Told:
        return Told(f"answered{self._took(body.op, event.at)}: {self._value(body.value)}", "good")

    def signal_received(self, _: Event, body: ev.SignalReceived) -> Told:
        return Told(f"signal {body.name} arrived: {self._value(body.value)}")

    def signal_taken(self, event: Event, body: ev.SignalTaken) -> Told:
        known = self._ops.get(body.op, _Op())
        return Told(f"took signal {known.name}{self._took(body.op, event.at)}", "good")

    def effect_emitted(self, _: Event, body: ev.EffectEmitted) -> Told:
        return Told(f"effect {body.effect} out, key {body.key}: {self._value(body.payload)}", "good")

    # -- what did not count --------------------------------------------------------------------------------------

    def input_held(self, _: Event, body: ev.InputHeld) -> Told:
        about = f" of {self._what(body.op)}" if body.op else ""
        return Told(f"{body.delivery}{about} kept until the run goes on", "warn")

    def held_dropped(self, _: Event, body: ev.HeldDropped) -> Told:
        return Told(f"what was kept is dropped: {body.reason}", "warn")

    def command_rejected(self, _: Event, body: ev.CommandRejected) -> Told:
        if body.code == "DUPLICATE":
            return Told(f"{body.command} came again: {body.message}", "dim")
        return Told(f"{body.command} refused: {body.code}: {body.message}", "warn")

    def outcome_late(self, _: Event, body: ev.OutcomeLate) -> Told:
        how = _error(body.error) if body.error is not None else self._value(body.value)
        return Told(f"attempt {body.attempt} of {self._what(body.op)} ended too late to count: {how}", "warn")


def _call(args: Any) -> str:
    """Arguments as a call shows them; `args` is [by position, by name] for tasks, an item for nodes."""
    if not (isinstance(args, list) and 1 <= len(args) <= 2 and isinstance(args[0], list)):
        return f": {line(args, 120)}"
    named = args[1] if len(args) == 2 and isinstance(args[1], dict) else {}
    shown = [line(value, 60) for value in args[0]] + [f"{name}={line(value, 60)}" for name, value in named.items()]
    return f": ({', '.join(shown)})"


def _error(error: Failure) -> str:
    return f"{error.code}: {error.message}" if error.message else error.code


def _time(due: int | None) -> str:
    return "?" if due is None else iso(due)


_TELLERS: dict[type, Callable[[Teller, Event, Any], Told]] = {
    ev.RunStarted: Teller.run_started,
    ev.RunOwned: Teller.run_owned,
    ev.RunCompleted: Teller.run_completed,
    ev.RunFailed: Teller.run_failed,
    ev.RunCancelled: Teller.run_cancelled,
    ev.RunBlocked: Teller.run_blocked,
    ev.RunUnblocked: Teller.run_unblocked,
    ev.RunExpired: Teller.run_expired,
    ev.StateAdvanced: Teller.state_advanced,
    ev.CancelRequested: Teller.cancel_requested,
    ev.OpScheduled: Teller.op_scheduled,
    ev.AttemptStarted: Teller.attempt_started,
    ev.AttemptFailed: Teller.attempt_failed,
    ev.AttemptReturned: Teller.attempt_returned,
    ev.AttemptNoted: Teller.attempt_noted,
    ev.OpCompleted: Teller.op_completed,
    ev.OpFailed: Teller.op_failed,
    ev.OpParked: Teller.op_parked,
    ev.OpWithdrawn: Teller.op_withdrawn,
    ev.TimerFired: Teller.timer_fired,
    ev.InterruptAnswered: Teller.interrupt_answered,
    ev.SignalReceived: Teller.signal_received,
    ev.SignalTaken: Teller.signal_taken,
    ev.EffectEmitted: Teller.effect_emitted,
    ev.InputHeld: Teller.input_held,
    ev.HeldDropped: Teller.held_dropped,
    ev.CommandRejected: Teller.command_rejected,
    ev.OutcomeLate: Teller.outcome_late,
}
