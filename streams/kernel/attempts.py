"""What happens to the attempts of an op: outcomes, back-off, hand-back, recovery, and an operator's word."""

from __future__ import annotations

from streams.errors import Refused
from streams.kernel import bodies as ev
from streams.kernel.draft import Draft
from streams.kernel.drive import conform_reply, deliver
from streams.kernel.inputs import Due, Noted, Outcome, Returned
from streams.kernel.retry import Again, Park, Verdict, judge, judge_request
from streams.kernel.run import WORKED_ON, OpPhase, OpState, is_terminal

__all__ = [
    "complete",
    "complete_op",
    "fail_request",
    "on_due",
    "on_noted",
    "on_outcome",
    "on_recover",
    "on_returned",
    "retry_op",
    "skip_op",
]

_IDLE = frozenset({OpPhase.WAITING, OpPhase.QUEUED, OpPhase.BACKOFF, OpPhase.PARKED})


def on_outcome(draft: Draft, outcome: Outcome) -> None:
    """The end of an attempt; one that no longer counts is recorded as late."""
    op = draft.run.ops.get(outcome.op)
    current = op is not None and op.phase is OpPhase.RUNNING and op.attempt == outcome.attempt
    if op is None or not current or is_terminal(draft.run):
        draft.emit(ev.OutcomeLate(outcome.op, outcome.attempt, outcome.value, outcome.failure))
    elif outcome.failure is not None:
        _fail(draft, op, outcome.failure)
    else:
        complete(draft, op, outcome.value or b"")


def complete(draft: Draft, op: OpState, value: bytes, operator: str | None = None) -> None:
    """Settle an op with a value that fits."""
    deliver(draft, ev.OpCompleted(op.id, op.attempt, value, operator))


def _fail(draft: Draft, op: OpState, failure: ev.Failure) -> None:
    _take(draft, op, failure, judge(op, draft.definitions.task(op.name), failure, draft.now, draft.run.seed))


def fail_request(draft: Draft, op: OpState, failure: ev.Failure, *, replied: bool) -> None:
    """An error was replied to the current attempt of a request, or nothing was in time."""
    _take(draft, op, failure, judge_request(op, failure, draft.now, draft.run.seed, replied=replied))


def _take(draft: Draft, op: OpState, failure: ev.Failure, verdict: Verdict) -> None:
    if isinstance(verdict, Again):
        draft.emit(ev.AttemptFailed(op.id, op.attempt, failure, verdict.due, verdict.maybe))
    elif isinstance(verdict, Park):
        draft.emit(ev.OpParked(op.id, verdict.reason))
    else:
        _settle(draft, op, verdict.error)


def _settle(draft: Draft, op: OpState, error: ev.Failure) -> None:
    deliver(draft, ev.OpFailed(op.id, op.attempt, error))


def on_due(draft: Draft, due: Due) -> None:
    """The time of an op, or a slot for it, has come; a stale call changes nothing."""
    op = draft.run.ops.get(due.op)
    if op is None or is_terminal(draft.run):
        return
    if op.phase is OpPhase.QUEUED or (op.phase is OpPhase.BACKOFF and (op.due or 0) <= draft.now):
        draft.emit(ev.AttemptStarted(op.id, op.attempt + 1))
    elif op.phase is OpPhase.WAITING and op.due is not None and op.due <= draft.now:
        if op.kind == "timer":
            deliver(draft, ev.TimerFired(op.id))
        elif op.kind == "request":
            text = f"no reply to attempt {op.attempt} of request {op.name!r} came in time"
            fail_request(draft, op, ev.Failure("unknown", "TIMED_OUT", text), replied=False)
        else:
            _settle(draft, op, ev.Failure("terminal", "TIMED_OUT", f"no answer to {op.name!r} came in time"))


def on_returned(draft: Draft, returned: Returned) -> None:
    """A graceful stop: the attempt does not count, but may have done its work."""
    op = draft.run.ops.get(returned.op)
    if op is None or op.phase is not OpPhase.RUNNING or op.attempt != returned.attempt:
        return
    spec = draft.definitions.task(op.name)
    if spec is not None and (spec.reconciles or (spec.idempotent and not op.asked)):
        draft.emit(ev.AttemptReturned(op.id, op.attempt, returned.reason))
    else:
        _fail(draft, op, ev.Failure("unknown", "ATTEMPT_RETURNED", returned.reason))


def on_noted(draft: Draft, noted: Noted) -> None:
    """Keep what a running attempt has left for the next one."""
    op = draft.run.ops.get(noted.op)
    if op is not None and op.phase is OpPhase.RUNNING and op.attempt == noted.attempt:
        draft.emit(ev.AttemptNoted(op.id, op.attempt, noted.details))


def on_recover(draft: Draft) -> None:
    """Sort what was running when the memory of the run was lost: look it up, try again, or ask a person."""
    running = [op.id for op in draft.run.ops.values() if op.phase is OpPhase.RUNNING]
    for id_ in running:
        op = draft.run.ops.get(id_)  # what an earlier one led to may have ended it, or asked it to stop
        if op is not None:
            message = f"the worker of epoch {op.epoch} stopped during attempt {op.attempt}"
            _fail(draft, op, ev.Failure("unknown", "WORKER_LOST", message))


# -- an operator's word ------------------------------------------------------------------------------------------


def _idle_op(draft: Draft, id_: str) -> OpState:
    op = draft.run.ops.get(id_)
    if op is None:
        open_ = ", ".join(f"{op.id} ({op.name})" for op in draft.run.ops.values()) or "none"
        raise Refused("NO_SUCH_OP", f"op {id_!r} is not open; open ops: {open_}")
    if op.phase not in _IDLE:
        raise Refused("OP_BUSY", f"op {id_} is {op.phase}; wait for its outcome or its time-out")
    return op


def retry_op(draft: Draft, id_: str | None) -> None:
    """Start a parked or waiting attempt now, with a fresh budget for a parked one. Raises `Refused`."""
    if id_ is None:
        parked = [op.id for op in draft.run.ops.values() if op.phase is OpPhase.PARKED]
        if len(parked) != 1:
            listed = (
                f"parked ops: {', '.join(parked)}; name one with --op" if parked else "nothing is parked or blocked"
            )
            raise Refused("NOTHING_TO_RETRY", listed)
        id_ = parked[0]
    op = _idle_op(draft, id_)
    if op.kind not in WORKED_ON:
        raise Refused("NOTHING_TO_RETRY", f"op {id_} is a {op.kind}, which has no attempts")
    draft.emit(ev.AttemptStarted(op.id, op.attempt + 1))


def skip_op(draft: Draft, id_: str, operator: str) -> None:
    """Fail an op by an operator's word. Raises `Refused`."""
    op = _idle_op(draft, id_)
    by = f" by {operator}" if operator else ""
    _settle(draft, op, ev.Failure("terminal", "SKIPPED", f"op {id_} ({op.name}) was skipped{by}"))


def complete_op(draft: Draft, id_: str, value: bytes, operator: str) -> None:
    """Complete a task or request by an operator's value. Raises `Refused` where the value does not fit its result."""
    op = _idle_op(draft, id_)
    if op.kind not in WORKED_ON:
        advice = "answer it with resume" if op.kind == "interrupt" else "skip it instead"
        raise Refused("NOT_A_TASK", f"op {id_} is a {op.kind}; {advice}")
    if op.kind == "request":
        value = conform_reply(draft, op.name, value)
    elif (spec := draft.definitions.task(op.name)) is not None:
        value = draft.env.codec.conform(value, spec.result)
    complete(draft, op, value, operator or "operator")
