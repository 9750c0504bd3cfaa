"""The port of a local store: per partition a mirror of its checkpoints, and an index of when they are looked at next.

Nothing in a store is the truth. It is a copy of what the log holds, up to the offset in its `Mark`: the last writes
may be missing after a crash of the machine, and all of it may be thrown away at any time. Then more is read from the
log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streams.errors import StreamsError

__all__ = ["Change", "Mark", "PartitionStore", "Place", "Store", "StoreFailed"]


class StoreFailed(StreamsError):
    """The local store cannot be used. Nothing is lost: without it, the state is restored from the log."""


class Mark(NamedTuple):
    """What a mirror reflects. Times in µs."""

    topics: str
    """The ids of the topics that it belongs to."""
    offset: int
    """Every checkpoint below this offset is in it."""
    at: int
    """When that was known to be all that there was."""
    epoch: int = 0
    """The highest epoch that any checkpoint has shown."""
    owned: int = 0
    """Under which epoch `tail` and `applied` were noted by the partition's owner; 0 where they were not."""
    tail: int = 0
    """Every event below this offset is covered by a checkpoint below `offset`."""
    applied: int = 0
    """The next command to apply."""


class Change(NamedTuple):
    """A checkpoint as it came, and its place in the index; a value of None deletes."""

    key: bytes
    value: bytes | None
    stage: int = 0
    at: int | None = None
    """None: in no index."""


class Place(NamedTuple):
    """A place in the index of a stage."""

    at: int
    key: bytes


class PartitionStore(Protocol):
    """The mirror of one partition. All of it raises `StoreFailed`."""

    def mark(self) -> Mark | None:
        """What it reflects; None where it is empty."""

    def get(self, key: bytes) -> bytes | None:
        """The checkpoint of a run."""

    def write(self, changes: Sequence[Change], mark: Mark) -> None:
        """All of it or nothing; what was written before is never lost without this being lost, too."""

    def due(self, stage: int, until: int, limit: int, after: Place | None = None) -> list[Place]:
        """The first places of a stage after `after` and up to the time `until`, in order; at most `limit`."""

    def keys(self, limit: int) -> list[bytes]:
        """Some of the keys."""

    def wipe(self) -> None:
        """Throw everything away."""


class Store(Protocol):
    """The mirrors of the partitions that a worker owns, or has owned."""

    def partition(self, number: int) -> PartitionStore:
        """The mirror of a partition, which may be empty."""

    def count(self) -> int:
        """About how many runs are in it."""

    def close(self) -> None:
        """Let go of it."""
