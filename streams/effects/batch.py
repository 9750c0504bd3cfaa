"""A whole call's worth of asks or outcomes put through the rules, one after another, on the entries they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from streams.effects import rules
from streams.effects.port import Ask, Claim, Entry, Key, Outcome, Settlement, Verdict, Word

__all__ = [
    "GRANTED",
    "INSTANT_SECONDS",
    "Changes",
    "Claims",
    "concluded",
    "extended",
    "judged",
    "keys_of",
    "noted",
    "settled",
    "with_entries",
]

Changes = dict[Key, Entry]
"""The entries to write, each as it is after the whole call."""

INSTANT_SECONDS = 0.001
"""The lease inside a transaction, which itself keeps others off: only a second ask of the same call meets it."""

GRANTED = frozenset({Word.CARRY_OUT, Word.LOOK_UP})


class Claims(NamedTuple):
    """Who claims, for how long, by which clock; `name` gives a name that was never given before."""

    owner: str
    lease_seconds: float
    now: int
    name: Callable[[], str]


def keys_of(items: Iterable[Ask | Claim | Settlement | Outcome]) -> list[Key]:
    """Each key once, in the order of its first mention."""
    return list(dict.fromkeys(item.key for item in items))


def judged(known: Mapping[Key, Entry], asks: Iterable[Ask], claims: Claims) -> tuple[list[Verdict], Changes]:
    """The answers in the order of the asks. A key that is asked for twice meets its first claim the second time."""
    changes: Changes = {}
    verdicts = []
    for ask in asks:
        entry = changes.get(ask.key) or known.get(ask.key)
        verdict, changed = rules.judge(
            entry,
            ask,
            owner=claims.owner,
            claim=claims.name(),
            lease_seconds=claims.lease_seconds,
            now=claims.now,
        )
        if changed is not None:
            changes[ask.key] = changed
        verdicts.append(verdict)
    return verdicts, changes


def settled(known: Mapping[Key, Entry], settlements: Iterable[Settlement], now: int) -> tuple[list[bool], Changes]:
    """Which of the claims were still held, and the entries after their outcomes."""
    changes: Changes = {}
    held = []
    for settlement in settlements:
        entry = changes.get(settlement.key) or known.get(settlement.key)
        changed = rules.settle(entry, settlement, now)
        if changed is not None:
            changes[settlement.key] = changed
        held.append(changed is not None)
    return held, changes


def extended(
    known: Mapping[Key, Entry], claims: Iterable[Claim], lease_seconds: float, now: int
) -> tuple[list[bool], Changes]:
    """Which of the claims are still held, and their entries with the longer lease."""
    changes: Changes = {}
    held = []
    for claim in claims:
        changed = rules.extend(known.get(claim.key), claim, lease_seconds, now)
        if changed is not None:
            changes[claim.key] = changed
        held.append(changed is not None)
    return held, changes


def noted(known: Mapping[Key, Entry], outcomes: Iterable[Outcome]) -> Changes:
    """The entries whose reply or dead letter is in the log now and was not noted yet."""
    found = ((outcome.key, rules.published(known.get(outcome.key), outcome)) for outcome in outcomes)
    return {key: entry for key, entry in found if entry is not None}


def concluded(verdicts: Sequence[Verdict], claimed: Changes, settlements: Iterable[Settlement], now: int) -> Changes:
    """What a transaction writes: the outcomes, and what asks changed beside claims. An unsettled claim leaves nothing.

    Raises ValueError for an outcome of anything that this transaction has not claimed: it could be written twice.
    """
    granted = {verdict.entry.key for verdict in verdicts if verdict.word in GRANTED}
    settlements = list(settlements)
    held, changes = settled({key: claimed[key] for key in granted}, settlements, now)
    if not all(held):
        key = settlements[held.index(False)].key
        raise ValueError(f"{key.operation} {key.key!r} was settled, but is not claimed in this transaction (any more)")
    return {key: entry for key, entry in claimed.items() if key not in granted} | changes


def with_entries(verdicts: Sequence[Verdict], changes: Changes) -> list[Verdict]:
    """The same answers, with the entries as they were written."""
    if not changes:
        return list(verdicts)
    return [verdict._replace(entry=changes.get(verdict.entry.key, verdict.entry)) for verdict in verdicts]
