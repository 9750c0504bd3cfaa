"""Telling the observer what a turn has done."""

from __future__ import annotations

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.observer import Observer
from streams.runtime.turn import Turn

__all__ = ["tell"]


def tell(observer: Observer, turn: Turn) -> None:
    """Tell of a turn that is committed."""
    for letter in turn.letters:
        observer.dead_letter(letter.topic, letter.partition, letter.offset, letter.reason)
    for partition, commands in turn.skipped.items():
        observer.skipped(partition, commands)
    for event, task in turn.told:
        _tell_event(observer, event, task)


def _tell_event(observer: Observer, event: Event, task: str) -> None:
    body = event.body
    if isinstance(body, ev.RunBlocked):
        observer.run_blocked(event.run_id, body.error.code, body.error.message)
    elif isinstance(body, ev.OpParked):
        observer.op_parked(event.run_id, body.op, body.reason.code, body.reason.message)
    elif isinstance(body, ev.AttemptFailed):
        observer.attempt_failed(event.run_id, body.op, task, body.attempt, body.error.code, body.error.message)
    else:
        observer.run_ended(event.run_id, event.type.removeprefix("run."))
