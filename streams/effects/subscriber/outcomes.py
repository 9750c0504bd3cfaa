"""What the end of a handler, or of a look-up, comes to in the ledger: pure rules."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, NamedTuple

from streams.authoring.subscriber import Subscription
from streams.effects.port import Entry, Settlement, Status
from streams.kernel.bodies import Failure, Policy
from streams.kernel.retry import backoff_us

__all__ = ["End", "How", "is_over", "settlement_of"]

_SECOND_US = 1_000_000
_AFTER_SECONDS_MAX = 366 * 86_400.0
"""A due time that no ledger could hold, or that nobody lives to see, is a slip of the handler."""


class How(Enum):
    """How a handler or a look-up ended."""

    DONE = "done"
    NEVER = "never"
    """It was surely not carried out, and no other try can help."""
    NOT_DONE = "not done"
    """It was surely not carried out; worth another try."""
    MAYBE = "maybe"
    """It may have been carried out."""
    NOT_FOUND = "not found"
    """The look-up is sure that it was not carried out."""
    UNCLEAR = "unclear"
    """The look-up could not tell."""
    PARK = "park"
    """Only a person can go on: it was carried out, and its result cannot be stored; or it cannot be looked up."""


class End(NamedTuple):
    """The end of a handler or look-up. `after`: the seconds until the next try, where the handler has said so."""

    how: How
    data: bytes | None = None
    failure: Failure | None = None
    after: float | None = None


def settlement_of(subscription: Subscription[Any, Any], entry: Entry, end: End) -> Settlement:
    """The settlement of the claim that `entry` holds."""
    claim = Settlement(entry.key, entry.claim, Status.FAILED, error=end.failure)
    how = end.how
    if how is How.MAYBE and (subscription.transactional or (subscription.idempotent and not subscription.reconcile)):
        how = How.NOT_DONE  # rolled back; or the other side knows the key
    match how:
        case How.DONE:
            return claim._replace(status=Status.DONE, response=end.data)
        case How.NEVER:
            return claim
        case How.PARK:
            return claim._replace(status=Status.PARKED)
        case How.NOT_DONE:
            return _again(subscription, entry, claim, end)
        case How.NOT_FOUND:
            spent = entry.deliveries >= subscription.policy.max_attempts
            return _exhausted(subscription, entry, claim) if spent else claim._replace(due_in=0.0)
        case How.UNCLEAR:
            return _look_again(subscription, entry, claim)
        case How.MAYBE:
            if subscription.reconcile is None:
                return _park_unknown(subscription, entry, claim)
            return claim._replace(status=Status.UNCERTAIN, due_in=_backoff(subscription.looks, 1, entry))
    raise AssertionError(how)


def is_over(settlement: Settlement) -> bool:
    """Whether its message is finished with it."""
    return settlement.status in (Status.DONE, Status.PARKED) or settlement.due_in is None


def _again(subscription: Subscription[Any, Any], entry: Entry, claim: Settlement, end: End) -> Settlement:
    if entry.deliveries >= subscription.policy.max_attempts:
        return _exhausted(subscription, entry, claim)
    after = end.after
    if after is None or not math.isfinite(after):
        after = _backoff(subscription.policy, entry.deliveries, entry)
    return claim._replace(due_in=min(max(0.0, after), _AFTER_SECONDS_MAX))


def _exhausted(subscription: Subscription[Any, Any], entry: Entry, claim: Settlement) -> Settlement:
    tries = (
        f"{entry.deliveries} {'try' if entry.deliveries == 1 else 'tries'} of subscriber {subscription.name!r} failed"
    )
    last = claim.error or entry.error
    text = f"{tries}; the last: {_words(last)}" if last is not None else tries
    error = Failure("terminal", "RETRIES_EXHAUSTED", text, last.details if last is not None else None)
    parks = subscription.policy.on_exhausted == "park"
    return claim._replace(status=Status.PARKED if parks else Status.FAILED, error=error)


def _look_again(subscription: Subscription[Any, Any], entry: Entry, claim: Settlement) -> Settlement:
    if entry.looks >= subscription.looks.max_attempts:
        return _park_unknown(subscription, entry, claim)
    return claim._replace(status=Status.UNCERTAIN, due_in=_backoff(subscription.looks, entry.looks + 1, entry))


def _park_unknown(subscription: Subscription[Any, Any], entry: Entry, claim: Settlement) -> Settlement:
    why = f" ({_words(claim.error)})" if claim.error is not None else ""
    text = (
        f"subscriber {subscription.name!r} may or may not have carried it out{why}. Look it up under the key "
        f"{entry.key.key!r}, then resolve it in the ledger"
    )
    details = claim.error.details if claim.error is not None else None
    return claim._replace(status=Status.PARKED, error=Failure("unknown", "OUTCOME_UNKNOWN", text, details))


def _backoff(policy: Policy, spent: int, entry: Entry) -> float:
    """Seconds, with a jitter that is a function of the message, so that nothing here is random."""
    return backoff_us(policy, max(1, spent), entry.request_hash, entry.effect_id) / _SECOND_US


def _words(failure: Failure) -> str:
    return f"{failure.code}: {failure.message}" if failure.message else failure.code
