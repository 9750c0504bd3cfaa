"""Which partition a key belongs to: the murmur2 of Kafka's Java client, for every producer of the engine."""

from __future__ import annotations

from functools import lru_cache
from struct import unpack_from

__all__ = ["murmur2", "partition_of"]

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=16_384)
def murmur2(key: bytes) -> int:
    """The hash as an unsigned number. A contract with every other client: never change; the tests pin its vectors."""
    size = len(key)
    whole = size & ~3
    found = _SEED ^ size
    for word in unpack_from(f"<{whole >> 2}I", key):
        part = word * _MULTIPLIER & _MASK
        part = (part ^ part >> 24) * _MULTIPLIER & _MASK
        found = (found * _MULTIPLIER & _MASK) ^ part
    if size != whole:
        found = (found ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    found = (found ^ found >> 13) * _MULTIPLIER & _MASK
    return found ^ found >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
