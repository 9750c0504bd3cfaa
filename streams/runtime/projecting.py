"""What follows from an event once its turn is committed: messages, attempts, timers, stop requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import OpPhase
from streams.runtime.outgoing import publish
from streams.runtime.working import Start, Timer, Working

if TYPE_CHECKING:
    from streams.runtime.turn import Turn

__all__ = ["LEADS_ON", "project"]

_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
_TOLD = (ev.RunBlocked, ev.OpParked, *_ENDS)
_SETS_GOING = (ev.OpScheduled, ev.AttemptStarted, ev.EffectEmitted, ev.AttemptFailed, ev.HeldDropped)
LEADS_ON = frozenset({*_SETS_GOING, ev.OpWithdrawn, ev.CancelRequested, *_TOLD})
"""Events from which something follows; the others are only written."""


def project(turn: Turn, working: Working, event: Event) -> None:
    """Effects, dispatches, timers and stop requests are projections of events: nothing else leaves."""
    body = event.body
    partition, run_id = working.partition, event.run_id
    if isinstance(body, ev.OpScheduled):
        if body.kind == "request":
            publish(turn, working, event)
        elif body.attempt:
            task = turn.engine.definitions.task(body.name)
            pool = task.pool if task is not None else "loop"
            turn.slots[pool] = turn.slots.get(pool, 0) - 1
            turn.used[pool] = turn.used.get(pool, 0) + 1
            start = Start(partition, run_id, body.op, body.attempt)
            if not turn.early.take(turn.engine, working, task, start):
                turn.starts.append(start)
        if body.due is not None:
            turn.timers.append(Timer(body.due, partition, run_id, body.op))
        elif body.kind == "task" and not body.attempt:
            turn.timers.append(Timer(0, partition, run_id, body.op))
    elif isinstance(body, ev.AttemptStarted):
        if not publish(turn, working, event):
            turn.starts.append(Start(partition, run_id, body.op, body.attempt))
    elif isinstance(body, ev.EffectEmitted):
        publish(turn, working, event)
    elif isinstance(body, ev.AttemptFailed):
        if body.due is not None:
            turn.timers.append(Timer(body.due, partition, run_id, body.op))
        op = working.run.ops.get(body.op)
        turn.told.append((event, op.name if op is not None else ""))
    elif isinstance(body, ev.HeldDropped):
        waiting = (op for op in working.run.ops.values() if op.due is not None and op.phase is OpPhase.WAITING)
        turn.timers += [Timer(op.due or 0, partition, run_id, op.id) for op in waiting]
    elif isinstance(body, (ev.OpWithdrawn, ev.CancelRequested)):
        turn.stops.append((partition, run_id))
    elif isinstance(body, _TOLD):
        turn.told.append((event, ""))
        if isinstance(body, _ENDS):
            turn.stops.append((partition, run_id))
