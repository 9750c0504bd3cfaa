"""Local mirrors of the checkpoints: runs that wait need no memory, and a restart reads only what is new."""

from __future__ import annotations

from streams.store.port import Change, Mark, PartitionStore, Place, Store, StoreFailed

__all__ = ["Change", "Mark", "PartitionStore", "Place", "Store", "StoreFailed"]
