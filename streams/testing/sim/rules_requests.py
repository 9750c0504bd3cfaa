"""Rules of requests: each outcome is that of a reply to the current attempt, and the first one that is valid counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streams.kernel import bodies as ev
from streams.kernel.commands import Reply
from streams.kernel.events import Event
from streams.log.port import Record
from streams.testing.sim.history import History
from streams.testing.sim.rules_log import where

__all__ = ["check_requests"]

_SECOND_US = 1_000_000
_MISFIT = b'"no number"'
"""The value that fits no effect's reply."""


@dataclass(slots=True)
class _Request:
    """An op as its events have left it."""

    identity: str
    scheduled: ev.OpScheduled
    attempt: int
    epoch: int
    began_at: int
    open: bool = True
    due: int | None = None
    """When the next attempt may begin."""
    withdrawn: bool = False
    by_person: bool = False

    def token(self) -> tuple[str, int, int]:
        """What a reply to it must say."""
        return f"{self.identity}/{self.scheduled.op}", self.attempt, self.epoch


def check_requests(history: History) -> Iterator[str]:
    """All partitions."""
    replies = {(record.partition, record.offset): reply for record, reply, _ in history.replies}
    for number, events in enumerate(history.events):
        requests: dict[tuple[str, str], _Request] = {}
        owned: dict[str, int | None] = {}
        for record, event in events:
            offset = event.offset if event.offset is not None else owned.get(event.run_id)
            owned[event.run_id] = event.offset if isinstance(event.body, ev.RunOwned) else None
            reply = None if offset is None else replies.get((number, offset))
            yield from _check_event(record, event, reply, offset, requests)


def _check_event(
    record: Record, event: Event, reply: Reply | None, offset: int | None, requests: dict[tuple[str, str], _Request]
) -> Iterator[str]:
    body: Any = event.body
    if isinstance(body, ev.OpScheduled) and body.kind == "request":
        requests[event.identity, body.op] = _Request(event.identity, body, body.attempt, event.epoch, event.at)
        if body.attempt != 1:
            yield f"{where(record, event)} begins a request with attempt {body.attempt}"
        return
    if isinstance(body, ev.CommandRejected):
        if reply is not None:
            yield from _check_refused(record, event, body, reply, requests)
        return
    request = requests.get((event.identity, getattr(body, "op", None) or ""))
    if request is None:
        return
    name = f"{where(record, event)}, request {request.scheduled.name}"
    if isinstance(body, (ev.OpCompleted, ev.OpFailed, ev.AttemptFailed, ev.OpParked)):
        yield from _check_outcome(name, event, body, reply, offset, request)
    elif isinstance(body, ev.AttemptStarted):
        yield from _check_start(name, event, body, offset, request)
    elif isinstance(body, ev.OpWithdrawn):
        request.withdrawn = True


def _check_outcome(
    name: str, event: Event, body: Any, reply: Reply | None, offset: int | None, request: _Request
) -> Iterator[str]:
    """It comes from a reply to the current attempt, from a person, or from the end of its time."""
    if not request.open:
        yield f"{name} is an outcome of what has had one"
    attempt = getattr(body, "attempt", request.attempt)
    if attempt != request.attempt:
        yield f"{name} is of attempt {attempt}, and attempt {request.attempt} is the last"
    if reply is not None:
        if (reply.effect_id, reply.attempt, reply.epoch) != request.token() or reply.op != body.op:
            yield f"{name} comes from {reply}, and only {request.token()} may be answered"
        if isinstance(body, ev.OpCompleted) and body.value != reply.value:
            yield f"{name} has the value {body.value!r}, and the reply said {reply.value!r}"
    elif offset is None and not request.withdrawn and not isinstance(body, ev.OpCompleted):
        timeout = request.scheduled.policy.timeout if request.scheduled.policy is not None else None
        if timeout is None:
            yield f"{name} failed without a reply, and it has no time-out"
        elif event.at < request.began_at + round(timeout * _SECOND_US):
            yield f"{name} ran out of time {request.began_at + round(timeout * _SECOND_US) - event.at} µs too early"
    elif offset is None and isinstance(body, ev.OpCompleted):
        yield f"{name} has completed without a reply"
    if isinstance(body, (ev.OpCompleted, ev.OpFailed)):
        request.open = False
    elif isinstance(body, ev.AttemptFailed):
        request.due = body.due


def _check_start(
    name: str, event: Event, body: ev.AttemptStarted, offset: int | None, request: _Request
) -> Iterator[str]:
    """One after another, when the back-off is over, and no more than there may be, unless a person asks for it."""
    policy = request.scheduled.policy
    request.by_person |= offset is not None
    if body.attempt != request.attempt + 1 or not request.open:
        yield f"{name} follows on attempt {request.attempt}"
    if offset is None and event.at < (request.due or 0):
        yield f"{name} begins {(request.due or 0) - event.at} µs before its back-off is over"
    if policy is not None and body.attempt > policy.max_attempts and not request.by_person:
        yield f"{name} is attempt {body.attempt} of {policy.max_attempts}"
    request.attempt, request.epoch, request.began_at = body.attempt, event.epoch, event.at


def _check_refused(
    record: Record,
    event: Event,
    body: ev.CommandRejected,
    reply: Reply,
    requests: dict[tuple[str, str], _Request],
) -> Iterator[str]:
    """A result for the current attempt of an open op counts; it is not refused."""
    for request in requests.values():
        if (reply.effect_id, reply.attempt, reply.epoch) == request.token() and reply.op == request.scheduled.op:
            right = request.open and not request.withdrawn and reply.error is None and reply.value != _MISFIT
            if right:
                yield f"{where(record, event)} refuses {reply} as {body.code}, and it is the answer"
