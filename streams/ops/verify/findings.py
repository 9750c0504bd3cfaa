"""Divergences as they are found: of each run the first one, and how many more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from streams.ops.verify.report import Divergence

__all__ = ["LISTED_MAX", "Findings"]

LISTED_MAX = 1_000
"""Runs of a partition whose first divergence is told; of a log that is wrong everywhere the others are counted."""


class Findings:
    """By run; what belongs to no run is kept by its kind."""

    def __init__(self) -> None:
        self.first: dict[bytes, Divergence] = {}
        self.kinds: dict[bytes, dict[str, int]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self.kinds

    @property
    def full(self) -> bool:
        """Whether another run is only counted, so that details need not be looked up."""
        return len(self.first) >= LISTED_MAX

    def add(self, key: bytes, found: Divergence) -> None:
        """Note a divergence of the run with this key, or (an empty key) of the partition."""
        key = key if found.run_id else f"\0{found.partition}/{found.kind}".encode()
        kinds = self.kinds.setdefault(key, {})
        kinds[found.kind] = kinds.get(found.kind, 0) + 1
        before = self.first.get(key)
        if (before is None and not self.full) or (before is not None and found.order < before.order):
            self.first[key] = found

    def drop(self, key: bytes, kinds: Collection[str]) -> bool:
        """Forget what an operator has dealt with since. Whether there was anything of these kinds."""
        before = self.kinds.get(key, {})
        left = {kind: count for kind, count in before.items() if kind not in kinds}
        if len(left) == len(before):
            return False
        first = self.first.pop(key, None)
        if left:
            self.kinds[key] = left
            if first is not None and first.kind in left:
                self.first[key] = first
        else:
            del self.kinds[key]
        return True

    def keep(self, mine: Callable[[bytes], bool]) -> None:
        """Forget the runs that another pass takes."""
        for key in [key for key in self.kinds if not mine(b"" if key.startswith(b"\0") else key)]:
            del self.kinds[key]
            self.first.pop(key, None)

    @staticmethod
    def merge(parts: Iterable[Findings]) -> tuple[list[Divergence], int]:
        """The first of each run over all parts, and how many runs differ."""
        whole = Findings()
        for part in parts:
            for key, kinds in part.kinds.items():
                first = part.first.get(key)
                if first is not None and first.run_id:  # what lies under a wrong key is of its run all the same
                    key = first.run_id.encode("utf-8", "backslashreplace")  # noqa: PLW2901
                mine = whole.kinds.setdefault(key, {})
                for kind, count in kinds.items():
                    mine[kind] = mine.get(kind, 0) + count
                before = whole.first.get(key)
                if first is not None and (before is None or first.order < before.order):
                    whole.first[key] = first
        found = [d._replace(more=sum(whole.kinds[key].values()) - 1) for key, d in whole.first.items()]
        return sorted(found, key=lambda d: (d.partition, d.run_id == "", d.order, d.run_id)), len(whole.kinds)
