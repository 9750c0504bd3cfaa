"""The rules of the protocol by name; each can be taken out, to see what it is there for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Rules(NamedTuple):
    """What holds. All of it, unless a rule is taken out."""

    runs: tuple[int, ...] = (0, 0)
    """The run of each command, in the order of the partition."""
    checkpoints: bool = False
    """Whether turns may write checkpoints."""
    overlap: bool = False
    records_first: bool = False
    """Whether every record is acknowledged before the offsets are sent, as on Kafka; else either may come first."""

    # acquire
    stable_fetch: bool = True
    ends_after_stable: bool = True
    true_ends: bool = True
    barrier: bool = True
    position: bool = True
    claim: bool = True
    claim_alone: bool = True
    epoch_check: bool = True
    applied_from_events: bool = True
    start_applied: bool = True
    forward_reset: bool = True
    # turn and commit
    snapshot_of_poll: bool = True
    joined_metadata: bool = True
    generation: bool = True
    offsets: bool = True
    offsets_of_each: bool = True
    adopt_after_commit: bool = True
    effects_inside: bool = True
    tail_after_commit: bool = True
    second_falls: bool = True
    one_run: bool = True
    prefix: bool = True
    # trouble
    abort_drops: bool = True
    fence_forgets: bool = True
    doubt_is_no_failure: bool = True
    doubt_is_no_success: bool = True
    fresh_producer: bool = True
    same_id: bool = True
    # release
    forget_when_revoked: bool = True
    forget_when_lost: bool = True

    @property
    def runs_count(self) -> int:
        return max(self.runs) + 1

    def without(self, names: Iterable[str]) -> Rules:
        """The rules less some."""
        return self._replace(**dict.fromkeys((name.replace("-", "_") for name in names), False))
