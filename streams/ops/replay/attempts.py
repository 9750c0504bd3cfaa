"""Whether the new code would judge the end of an attempt as the old one did: budgets, back-off, parking.

What became of an attempt is a fact, and the replay goes on from it either way; a changed policy is told all the same.
"""

from __future__ import annotations

from streams.kernel import bodies as ev
from streams.kernel.bodies import Body, Failure
from streams.kernel.definition import Definitions, TaskSpec
from streams.kernel.retry import Again, Park, Verdict, judge
from streams.kernel.run import OpState, Run

__all__ = ["judged_anew"]

_SPENT = "RETRIES_EXHAUSTED"
_NOT_DONE = "NOT_DONE"
"""What a look-up says after the last attempt."""


def judged_anew(definitions: Definitions, run: Run, body: Body, at: int) -> str | Body | None:
    """What the new code would make of it: another body, or words; None where it is the same or cannot be told."""
    op = run.ops.get(getattr(body, "op", ""))
    if op is None or op.kind != "task":
        return None
    spec = definitions.task(op.name)
    if isinstance(body, ev.AttemptFailed):
        return _failed(body, op, judge(op, spec, body.error, at, run.seed))
    if isinstance(body, ev.AttemptReturned):
        keeps = spec is not None and (spec.reconciles or (spec.idempotent and not op.asked))
        return None if keeps else f"an attempt of task {op.name!r} that is handed back is not simply tried again"
    if isinstance(body, ev.OpParked):
        return _parked(op, spec, body.reason, at, run.seed)
    if isinstance(body, ev.OpFailed) and body.error.code == _SPENT and spec is not None:
        return _words(judge(op, spec, _last(spec, body.error), at, run.seed), op, Again)
    return None


def _failed(body: ev.AttemptFailed, op: OpState, verdict: Verdict) -> str | Body | None:
    if not isinstance(verdict, Again):
        return _words(verdict, op)
    now = body._replace(due=verdict.due, maybe=verdict.maybe)
    return None if now == body else now


def _parked(op: OpState, spec: TaskSpec | None, reason: Failure, at: int, seed: bytes) -> str | None:
    if spec is None or reason.code not in ("OUTCOME_UNKNOWN", _SPENT):
        return None
    failure = _last(spec, reason) if reason.code == _SPENT else Failure("unknown", "", "")
    verdict = judge(op, spec, failure, at, seed)
    return None if isinstance(verdict, Park) else _words(verdict, op)


def _last(spec: TaskSpec, error: Failure) -> Failure:
    """A failure of the kind that ended the op; where the task is looked up, only a look-up uses its budget up."""
    looked_up = spec.reconciles or f"; the last: {_NOT_DONE}" in error.message
    return Failure("exhausted" if looked_up else "retryable", "", "")


def _words(verdict: Verdict, op: OpState, only: type | None = None) -> str | None:
    if only is not None and not isinstance(verdict, only):
        return None
    if isinstance(verdict, Again):
        return f"task {op.name!r} is tried again"
    return f"op {op.id} is parked" if isinstance(verdict, Park) else f"task {op.name!r} fails for good"
