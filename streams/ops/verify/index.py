"""The checkpoints of a partition, some fifty bytes each: their seq, their place and a hash of their bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from streams.ops.verify.shares import Share

__all__ = ["DAMAGED", "DELETED", "MATCHED", "NEVER", "NOTHING", "Entry", "Index", "digest"]

DELETED, DAMAGED = -1, -2
"""Stand for the seq of a null, and of the mark of a damaged run."""
MATCHED = bytes(16)
"""Stands for the hash of a checkpoint that was compared."""
NOTHING = bytes([255] * 16)
"""Stands for the hash of what holds no state."""

_ENTRY = struct.Struct("<qq16s")
_KEY_BYTES = 200
"""What a key takes beside its own bytes: two objects and a place in a dict."""
NEVER = 1 << 62


def digest(data: bytes) -> bytes:
    """What is kept of a checkpoint's bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


class Entry(NamedTuple):
    """A checkpoint record."""

    seq: int
    offset: int
    digest: bytes


class Index:
    """By key, in the order of the topic."""

    def __init__(self) -> None:
        self._packed: dict[bytes, bytes] = {}
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, key: bytes, entry: Entry) -> None:
        """Note another record."""
        before = self._packed.get(key)
        if before is None:
            self.bytes += _KEY_BYTES + len(key)
        self._packed[key] = (before or b"") + _ENTRY.pack(*entry)
        self.bytes += _ENTRY.size

    def of(self, key: bytes) -> list[Entry]:
        """The records of a run."""
        return [Entry(*entry) for entry in _ENTRY.iter_unpack(self._packed.get(key, b""))]

    def put(self, key: bytes, entries: list[Entry]) -> None:
        """Replace the records of a run; without any it is forgotten."""
        before = self._packed.pop(key, None)
        if before is not None:
            self.bytes -= _KEY_BYTES + len(key) + len(before)
        if entries:
            packed = b"".join(_ENTRY.pack(*entry) for entry in entries)
            self._packed[key] = packed
            self.bytes += _KEY_BYTES + len(key) + len(packed)

    def last(self, key: bytes) -> Entry | None:
        """The last record of a run: what a take-over reads."""
        packed = self._packed.get(key)
        return None if packed is None else Entry(*_ENTRY.unpack_from(packed, len(packed) - _ENTRY.size))

    def keep(self, share: Share) -> None:
        """Forget the runs outside the share."""
        for key in [key for key in self._packed if not share.holds(key)]:
            self.put(key, [])
