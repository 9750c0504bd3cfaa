"""What follows on a failed attempt: another one, the end of the op, or a person. Never a guess."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from streams.kernel.bodies import Failure, Policy
from streams.kernel.definition import TaskSpec
from streams.kernel.run import OpState
from streams.kernel.times import span_us

__all__ = ["Again", "Park", "Settle", "Verdict", "backoff_us", "judge", "judge_request", "policy_of", "reply_due"]

_PARKING = frozenset({"VALUE_TOO_LARGE", "VALUE_NOT_STORABLE", "TASK_UNKNOWN"})
_SECOND_US = 1_000_000


class Again(NamedTuple):
    """Another attempt at `due`; `maybe`: this one may have done its work all the same."""

    due: int
    maybe: bool


class Settle(NamedTuple):
    """The op has failed for good."""

    error: Failure


class Park(NamedTuple):
    """The op waits for an operator."""

    reason: Failure


Verdict = Again | Settle | Park


def policy_of(op: OpState, spec: TaskSpec) -> Policy:
    """The policy given at the call, else that of the task."""
    return op.policy or spec.policy


def backoff_us(policy: Policy, spent: int, seed: bytes, op_id: str) -> int:
    """min(max, initial * factor^(spent - 1)), spread over its upper half by a hash, in microseconds.

    The hash makes the jitter a function of the run, so that a redo of the decision gives the same due time.
    """
    exponent = min(spent - 1, 64)
    delay = min(policy.max_delay, policy.initial * policy.factor**exponent)
    digest = hashlib.blake2b(f"{op_id}/{spent}".encode(), key=seed[:64], digest_size=4).digest()
    spread = 0.5 + int.from_bytes(digest, "big") / 2**33
    return int(delay * spread * _SECOND_US)


def judge(op: OpState, spec: TaskSpec | None, failure: Failure, now: int, seed: bytes) -> Verdict:
    """Sort the failure of an attempt.

    terminal -> the op fails. A result that cannot be stored parks: the work is done, a repeat could do it twice.
    unknown, without a look-up, of a task that is not idempotent -> parks. Otherwise the budget decides; a task with a
    look-up may look `max_attempts` more times after its budget is used up, since the last attempt may have worked.
    """
    if spec is None or failure.code in _PARKING:
        return Park(failure)
    if failure.kind == "terminal":
        return Settle(failure)
    if not spec.idempotent and not spec.reconciles:
        return Park(Failure("unknown", "OUTCOME_UNKNOWN", _unknown(op, failure), failure.details))
    if op.asked and not (spec.reconciles and failure.kind == "unknown"):
        return Settle(failure)
    maybe = op.maybe or failure.kind == "unknown" or spec.reconciles
    policy = policy_of(op, spec)
    looks = policy.max_attempts if spec.reconciles and maybe else 0
    if failure.kind != "exhausted" and op.spent < policy.max_attempts + looks:
        soon = failure.code == "WORKER_LOST" and op.spent == 1
        return Again(now if soon else now + backoff_us(policy, op.spent, seed, op.id), maybe)
    return _exhausted(op, policy, failure, unknown=looks > 0 and failure.kind != "exhausted")


def _exhausted(op: OpState, policy: Policy, failure: Failure, *, unknown: bool) -> Verdict:
    if unknown:
        return Park(Failure("unknown", "OUTCOME_UNKNOWN", _unknown(op, failure), failure.details))
    attempts = f"{op.spent} attempt{'' if op.spent == 1 else 's'} of task {op.name!r} failed"
    error = Failure("terminal", "RETRIES_EXHAUSTED", f"{attempts}; the last: {_words(failure)}", failure.details)
    return Park(error) if policy.on_exhausted == "park" else Settle(error)


def reply_due(op: OpState, at: int) -> int | None:
    """Until when the reply to an attempt that is made now is waited for; None where it is for ever."""
    timeout = None if op.policy is None else op.policy.timeout
    return None if timeout is None else at + span_us(timeout)


def judge_request(op: OpState, failure: Failure, now: int, seed: bytes, *, replied: bool) -> Verdict:
    """Sort the failure of an attempt of a request: an error that was `replied`, or no reply in time, which is unknown.

    terminal -> the op fails. A reply that says unknown parks: somebody has looked, and only a person can tell. For the
    others the budget decides; to ask again is safe, since each attempt has the same key.
    """
    policy = op.policy
    assert policy is not None
    if failure.kind == "terminal":
        return Settle(failure)
    if failure.kind == "unknown" and replied:
        return Park(Failure("unknown", "OUTCOME_UNKNOWN", _unknown(op, failure), failure.details))
    if op.asked:
        return Settle(failure)
    maybe = op.maybe or failure.kind == "unknown"
    if op.spent < policy.max_attempts:
        return Again(now + backoff_us(policy, op.spent, seed, op.id), maybe)
    attempts = f"{op.spent} attempt{'' if op.spent == 1 else 's'} of request {op.name!r} failed"
    text = f"{attempts}; the last: {_words(failure)}"
    error = Failure("unknown" if maybe else failure.kind, "RETRIES_EXHAUSTED", text, failure.details)
    return Park(error) if policy.on_exhausted == "park" else Settle(error)


def _unknown(op: OpState, failure: Failure) -> str:
    return (
        f"attempt {op.attempt} of {op.kind} {op.name!r} may or may not have done its work ({_words(failure)}). "
        f"Look it up under the key {op.key!r}, then complete, skip or retry op {op.id}"
    )


def _words(failure: Failure) -> str:
    return f"{failure.code}: {failure.message}" if failure.message else failure.code
