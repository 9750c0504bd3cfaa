"""Events: the facts about a run, and the only thing that changes its state or leaves it.

The names in `TYPES` are a wire format: never change one. An event whose body class is in `DELIVERIES` moves the code
of the workflow by one step; the events that this step gave rise to name it in `cause`.
"""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel import bodies as ev
from streams.kernel.bodies import Body

__all__ = ["DELIVERIES", "TYPES", "Event", "event_id"]

TYPES: dict[type, str] = {
    ev.RunStarted: "run.started",
    ev.OpScheduled: "op.scheduled",
    ev.OpCompleted: "op.completed",
    ev.OpFailed: "op.failed",
    ev.TimerFired: "timer.fired",
    ev.InterruptAnswered: "interrupt.answered",
    ev.SignalTaken: "signal.taken",
    ev.SignalReceived: "signal.received",
    ev.AttemptStarted: "attempt.started",
    ev.AttemptFailed: "attempt.failed",
    ev.AttemptReturned: "attempt.returned",
    ev.AttemptNoted: "attempt.noted",
    ev.OpParked: "op.parked",
    ev.OpWithdrawn: "op.withdrawn",
    ev.EffectEmitted: "effect.emitted",
    ev.PatchMarked: "patch.marked",
    ev.CancelRequested: "cancel.requested",
    ev.RunForked: "run.forked",
    ev.StateAdvanced: "state.advanced",
    ev.RunBlocked: "run.blocked",
    ev.RunUnblocked: "run.unblocked",
    ev.InputHeld: "input.held",
    ev.HeldDropped: "held.dropped",
    ev.UpdateReceived: "update.received",
    ev.UpdateAnswered: "update.answered",
    ev.RunOwned: "run.owned",
    ev.RunMigrated: "run.migrated",
    ev.RunRewound: "run.rewound",
    ev.RunRepaired: "run.repaired",
    ev.RunExpired: "run.expired",
    ev.RunCompleted: "run.completed",
    ev.RunFailed: "run.failed",
    ev.RunCancelled: "run.cancelled",
    ev.CommandRejected: "command.rejected",
    ev.OutcomeLate: "outcome.late",
}

DELIVERIES: frozenset[type] = frozenset(
    {
        ev.RunStarted,
        ev.OpCompleted,
        ev.OpFailed,
        ev.TimerFired,
        ev.InterruptAnswered,
        ev.SignalTaken,
        ev.CancelRequested,
        ev.RunForked,
        ev.StateAdvanced,
    }
)


class Event(NamedTuple):
    """One fact.

    `at` is in microseconds since the epoch (UTC); `cause` the seq of the delivery that led to it; `offset` that of the
    command it answers; `seq` is None for records that are no part of the state; `code` is the fingerprint of the code
    that a delivery met.
    """

    run_id: str
    identity: str
    seq: int | None
    at: int
    cause: int | None
    offset: int | None
    epoch: int
    body: Body
    code: str | None = None

    @property
    def type(self) -> str:
        """The wire name of the body."""
        return TYPES[type(self.body)]


def event_id(event: Event) -> str:
    """Identity and seq, so that a redo of the same decision gives the same id; what has no seq has its own place.

    Never change it: readers of the log know a repeated event by it.
    """
    if event.seq is not None:
        return f"{event.identity}/{event.seq}"
    if isinstance(event.body, ev.OutcomeLate):
        late = f"{event.identity}/late/{event.body.op}/{event.body.attempt}"
        return late if event.offset is None else f"{late}@{event.offset}"
    return f"{event.identity}/@{event.offset}"
