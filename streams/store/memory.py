"""A store in memory, for tests and the simulator: it outlives its worker as a folder would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streams.store.port import Change, Mark, Place

__all__ = ["MemoryPartitionStore", "MemoryStore"]


class _Kept(NamedTuple):
    value: bytes
    stage: int
    at: int | None


class MemoryPartitionStore:
    """Implements `PartitionStore`."""

    def __init__(self) -> None:
        self._mark: Mark | None = None
        self._kept: dict[bytes, _Kept] = {}

    def mark(self) -> Mark | None:
        """What it reflects."""
        return self._mark

    def get(self, key: bytes) -> bytes | None:
        """The checkpoint of a run."""
        kept = self._kept.get(key)
        return None if kept is None else kept.value

    def write(self, changes: Sequence[Change], mark: Mark) -> None:
        """All of it or nothing."""
        for key, value, stage, at in changes:
            if value is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = _Kept(value, stage, at)
        self._mark = mark

    def due(self, stage: int, until: int, limit: int, after: Place | None = None) -> list[Place]:
        """The first places of a stage up to a time."""
        found = (Place(kept.at, key) for key, kept in self._kept.items() if kept.stage == stage and kept.at is not None)
        return sorted(place for place in found if place.at <= until and (after is None or place > after))[:limit]

    def keys(self, limit: int) -> list[bytes]:
        """Some of the keys."""
        return sorted(self._kept)[:limit]

    def wipe(self) -> None:
        """Throw everything away."""
        self._kept.clear()
        self._mark = None

    def __len__(self) -> int:
        return len(self._kept)


class MemoryStore:
    """Implements `Store`."""

    def __init__(self) -> None:
        self.partitions: dict[int, MemoryPartitionStore] = {}

    def partition(self, number: int) -> MemoryPartitionStore:
        """The mirror of a partition."""
        return self.partitions.setdefault(number, MemoryPartitionStore())

    def count(self) -> int:
        """How many runs are in it."""
        return sum(map(len, self.partitions.values()))

    def close(self) -> None:
        """There is nothing to let go of."""
