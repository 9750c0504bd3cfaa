"""A decision that is held against the recorded one while it is made, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streams.kernel import bodies as ev
from streams.kernel.bodies import Body, Failure
from streams.kernel.draft import Draft
from streams.kernel.driver import Driver
from streams.kernel.events import DELIVERIES, TYPES, Event
from streams.kernel.evolve import evolve
from streams.kernel.fault import Command as Issue
from streams.kernel.inputs import Env
from streams.kernel.run import Run
from streams.ops.replay.verdict import Difference, difference_of
from streams.wire.values import ValueCodec

__all__ = ["BlockedThen", "Differs", "NotComparable", "ShadowDraft", "WouldBlock", "difference", "fold"]

_ANSWERS = (
    ev.OpScheduled,
    ev.EffectEmitted,
    ev.OpWithdrawn,
    ev.SignalTaken,
    ev.StateAdvanced,
    ev.HeldDropped,
    ev.RunCompleted,
    ev.RunFailed,
    ev.RunCancelled,
)
"""What code does in answer to a delivery, and what the kernel makes of that: no such event comes from outside."""


class Differs(Exception):
    """The new code did something else, so the recorded inputs that follow do not fit it any more."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


class WouldBlock(Exception):
    """The new code cannot go on."""

    def __init__(self, error: Failure) -> None:
        super().__init__(error.message)
        self.error = error


class BlockedThen(Exception):
    """The recorded run was blocked here: what the old code would have done is not known."""


class NotComparable(Exception):
    """The history is no ground for a comparison."""


class ShadowDraft(Draft):
    """Compares each event of a decision with the recorded one, and folds the recorded one.

    So every decision begins, and goes on, where the recorded one did, whatever slots were free at the time.
    """

    def __init__(
        self, live: Driver | None, env: Env, definitions: Any, run: Run, history: Sequence[Event], at: int, after: str
    ) -> None:
        super().__init__(definitions, run, live, env)
        self._history = history
        self._from = at
        self.after = after
        """The last delivery, for messages."""
        self.changed: list[tuple[Event, Body]] = []
        """Requests under another policy, which changes nothing of what the code did."""

    def emit(self, body: Body, *, cause: int | None = None, code: str | None = None) -> None:  # noqa: ARG002
        """Hold the event against the recorded one. Who owned the run is told by none: the recorded event did.

        `code`, the fingerprint, is no part of the comparison: it changes with every harmless change.
        """
        place = self._from + len(self.events)
        recorded = self._history[place] if place < len(self._history) else None
        if recorded is not None and self._blocked_then(place):
            raise BlockedThen
        if isinstance(body, ev.RunBlocked):
            raise WouldBlock(self._beside(body.error, place))
        if isinstance(body, ev.InputHeld):
            return  # the run is about to block, which is told with its reason
        if recorded is None or recorded.cause != cause or not _same(recorded.body, body, self.env.codec):
            answer = recorded is not None and isinstance(recorded.body, _ANSWERS)
            seq = self._history[min(place, len(self._history) - 1)].seq or 0
            raise Differs(difference(recorded if answer else None, body, self.env.codec, seq=seq, after=self.after))
        if _is_request(recorded.body) and recorded.body != body:
            self.changed.append((recorded, body))
        self.events.append(recorded)
        self.run = fold(self.run, recorded)
        if type(body) in DELIVERIES or isinstance(body, ev.RunUnblocked):
            self.after = f"{recorded.type} (event {recorded.seq})"

    def issue(self, command: Issue, cause: int) -> None:
        """What the code did. Whether a slot was free was a matter of the worker."""
        self.emit(command, cause=cause)

    def _blocked_then(self, place: int) -> bool:
        first, *others = self._history[place : place + 2]
        if isinstance(first.body, ev.RunBlocked):
            return True
        held = isinstance(first.body, ev.InputHeld) and self.run.blocked is None
        return held and any(isinstance(event.body, ev.RunBlocked) for event in others)

    def _beside(self, error: Failure, place: int) -> Failure:
        """The error, with what the recorded run did in the same place."""
        recorded = self._history[place : place + 2]
        if not recorded or error.code == "NON_DETERMINISM":  # that one names both sides itself
            return error
        did = ", then ".join(f"{event.type} (event {event.seq})" for event in recorded)
        return error._replace(message=f"{error.message}; the recorded run went on with {did}")


def difference(
    recorded: Event | None, now: Body | None, codec: Any, *, seq: int, after: str = "", note: str = ""
) -> Difference:
    """The two sides, one of which may have done nothing more."""
    assert isinstance(codec, ValueCodec)
    type_ = "" if now is None else TYPES[type(now)]
    return difference_of(recorded, now, type_, codec, seq=seq, after=after, note=note)


def fold(run: Run, event: Event) -> Run:
    """The state after a recorded event. Raises `NotComparable` where it does not follow."""
    try:
        return evolve(run, event)
    except ValueError as error:
        raise NotComparable(f"its history cannot be folded: {error}") from error


def _same(recorded: Body, now: Body, codec: Any) -> bool:
    """Whether two bodies say the same; a result whose mapping has another order of keys is the same value."""
    if isinstance(recorded, ev.OpScheduled) and isinstance(now, ev.OpScheduled):
        if _is_request(recorded):
            now = now._replace(policy=recorded.policy, due=recorded.due)
        return recorded == now._replace(attempt=recorded.attempt)
    if isinstance(recorded, ev.RunUnblocked) and isinstance(now, ev.RunUnblocked):
        return recorded == now._replace(code=recorded.code)
    if isinstance(recorded, ev.RunCompleted) and isinstance(now, ev.RunCompleted):
        same = recorded.result == now.result or codec.digest(recorded.result) == codec.digest(now.result)
        return same and recorded.cancel_requested == now.cancel_requested
    return type(recorded) is type(now) and recorded == now


def _is_request(body: Body) -> bool:
    return isinstance(body, ev.OpScheduled) and body.kind == "request"
