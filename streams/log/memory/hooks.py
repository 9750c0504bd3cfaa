"""Where a test or the simulator interferes with a memory log: delays, aborts, commits in doubt, late markers."""

# ruff: noqa: ARG002 - a hook that does nothing still says what its overrides are told

from __future__ import annotations

from typing import Literal

from streams.log.port import GroupSnapshot

__all__ = ["End", "Hooks"]

End = Literal["commit", "abort", "in_doubt_committed", "in_doubt_aborted", "in_doubt_open"]
"""How a commit ends. The three in doubt raise `InDoubt`; `open` stays pending until it is settled or times out."""


class Hooks:
    """Does nothing; override what the test needs. What a coroutine here raises aborts the transaction.

    All randomness and all delays of a simulation come in through here, so that a seed decides everything.
    """

    async def before_commit(self, producer: str, snapshot: GroupSnapshot) -> None:
        """Called when the transaction has begun and nothing is written."""

    def offsets_first(self, producer: str) -> bool:
        """Whether the broker accepts the offsets (the fence) before the records arrive. Real clients do both."""
        return False

    async def between(self, producer: str) -> None:
        """Called between the offsets and the records: another owner may act here."""

    async def before_end(self, producer: str) -> None:
        """Called when offsets and records are written and the transaction is about to end."""

    def end(self, producer: str) -> End:
        """How this transaction ends."""
        return "commit"

    def marker_delay(self, topic: str, partition: int) -> float:
        """Seconds until the end of a transaction is visible in this partition, each its own."""
        return 0.0

    def offsets_delay(self, group: str) -> float:
        """Seconds until the group's offsets of an ended transaction are stable."""
        return 0.0
