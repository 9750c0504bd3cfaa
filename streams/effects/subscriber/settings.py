"""How subscribers behave; every limit of theirs stands here, with its unit."""

from __future__ import annotations

from dataclasses import dataclass

from streams.wire.topics import PARTITIONS_DEFAULT

__all__ = ["LEASE_SHARE", "SubscriberSettings"]

LEASE_SHARE = 0.5
"""Of a lease, within which a handler is begun or not at all: later, somebody else may be about to take it."""


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    """Defaults are meant for production; tests shorten the times. Limits count for each effect."""

    partitions: int = PARTITIONS_DEFAULT
    """Partition count of topics that the subscriber creates."""
    concurrency: int = 1_000
    """Handlers in flight at once."""
    threads: int = 256
    """Of them, plain functions, each in a thread."""
    transactions: int = 1
    """Transactions of transactional handlers at once, each with its own messages and keys. More than one is only for
    handlers of which no two write the same row: else the database finds deadlocks, at a second each."""
    window: int = 10_000
    """Messages of a partition between the group's offset and what was read; beyond it no more are read."""
    bytes_max: int = 64_000_000
    """Bytes of messages that wait or are carried out; beyond it no more are read."""
    poll_records: int = 1_000
    """Messages of one poll."""
    poll_seconds: float = 0.2
    """How long a poll waits for messages; a subscriber that stops waits for it."""
    claims_max: int = 1_000
    """Claims, settlements or notes of one call of the ledger."""
    lease_seconds: float = 30.0
    """How long a claim is safe from others; it is prolonged at a third of it."""
    ask_again_seconds: float = 1.0
    """How soon a message that somebody else carries out is asked for again, at the latest."""
    commit_records: int = 2_000
    """Replies and dead letters of one transaction."""
    commit_bytes: int = 8_000_000
    """The same in bytes."""
    idle_seconds: float = 30.0
    """How often partitions without messages are looked at: the group's offset then passes markers behind the last."""
    ledger_pause_seconds: float = 5.0
    """The longest pause between two tries while the ledger is away."""
    stop_seconds: float = 10.0
    """How long a graceful stop waits for running handlers; what still runs then is left to the next owner."""
    drain_seconds: float = 5.0
    """The budget of giving partitions up in a rebalance, shared by all its steps."""
    retry_refused_seconds: float = 30.0
    """When a refused partition is tried again."""
