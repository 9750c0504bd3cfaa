"""Which runs a pass takes: those whose id hashes into its share, so that the state of many runs fits into memory."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

__all__ = ["BUCKETS", "Counts", "Share", "bucket_of"]

_BITS_MAX = 12
BUCKETS = 1 << _BITS_MAX


def bucket_of(key: bytes) -> int:
    """The bucket of a run's key."""
    return crc32(key) & (BUCKETS - 1)


class Share(NamedTuple):
    """The buckets whose lowest bits are `value`."""

    bits: int = 0
    value: int = 0

    @property
    def mask(self) -> int:
        """For `bucket & mask == value`."""
        return (1 << self.bits) - 1

    def holds(self, key: bytes) -> bool:
        """Whether the run with this key belongs to it."""
        return bucket_of(key) & self.mask == self.value

    def split(self) -> tuple[Share, Share] | None:
        """Its halves; None where it is as small as it gets."""
        if self.bits == _BITS_MAX:
            return None
        return Share(self.bits + 1, self.value), Share(self.bits + 1, self.value | 1 << self.bits)


class Counts:
    """One count by bucket: what a pass has counted of runs that it then leaves to another one can be left out."""

    __slots__ = ("by_bucket",)

    def __init__(self) -> None:
        self.by_bucket = [0] * BUCKETS

    def of(self, share: Share) -> int:
        """The count over a share."""
        return sum(self.by_bucket[share.value :: 1 << share.bits])
