"""The transactional producer of a memory log, step by step as a Kafka client does it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from streams.errors import CommitAborted, Fenced, InDoubt
from streams.log.memory.hooks import End
from streams.log.memory.store import Store, Transaction
from streams.log.port import GroupSnapshot, NewRecord
from streams.log.rules import check_commit, refuse_unwritable

__all__ = ["MemoryProducer"]


class MemoryProducer:
    """See `streams.log.port.Producer`."""

    def __init__(self, store: Store, transactional_id: str) -> None:
        self.id = transactional_id
        self._store = store
        self._epoch = store.initialise(transactional_id)
        self._unusable = ""

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        """Begin, write records and offsets in the order that the hooks choose, end."""
        check_commit(snapshot, records, offsets)
        refuse_unwritable(records, self._store.topics)
        if self._unusable:
            raise ValueError(f"the producer {self.id} {self._unusable}: make a new one")
        self._store.check_epoch(self.id, self._epoch)
        await self._store.completed(self.id)
        transaction = self._store.begin(self.id, self._epoch)
        try:
            written = await self._fill(transaction, snapshot, records, offsets)
        except BaseException:
            if transaction.state == "open":
                self._store.end(transaction, committed=False)
            raise
        self._end(transaction, self._store.hooks.end(self.id))
        return written

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        """Initialise under each id, which ends what was open there."""
        for transactional_id in transactional_ids:
            self._store.initialise(transactional_id)
            await self._store.completed(transactional_id)

    async def close(self) -> None:
        """Nothing of this producer is open between two calls."""
        self._unusable = "is closed"

    async def _fill(
        self,
        transaction: Transaction,
        snapshot: GroupSnapshot,
        records: Sequence[NewRecord],
        offsets: Mapping[int, int],
    ) -> list[int]:
        hooks = self._store.hooks
        await hooks.before_commit(self.id, snapshot)
        # Without this, no other coroutine could ever come between two commits, and tests would prove too much.
        await asyncio.sleep(0)
        if hooks.offsets_first(self.id):
            self._send_offsets(transaction, snapshot, offsets)
            await hooks.between(self.id)
            written = self._write(transaction, records)
        else:
            written = self._write(transaction, records)
            await hooks.between(self.id)
            self._send_offsets(transaction, snapshot, offsets)
        await hooks.before_end(self.id)
        self._still_open(transaction)
        return written

    def _write(self, transaction: Transaction, records: Sequence[NewRecord]) -> list[int]:
        self._still_open(transaction)
        return self._store.write(records, transaction)

    def _send_offsets(self, transaction: Transaction, snapshot: GroupSnapshot, offsets: Mapping[int, int]) -> None:
        self._still_open(transaction)
        group = self._store.group(snapshot.group, snapshot.topic)
        group.check(snapshot, offsets)
        self._store.send_offsets(group, offsets, transaction)

    def _still_open(self, transaction: Transaction) -> None:
        self._store.check_epoch(self.id, self._epoch)
        if transaction.state != "open":
            raise Fenced(f"the transaction of {self.id} was ended from outside")

    def _end(self, transaction: Transaction, end: End) -> None:
        if end != "in_doubt_open":
            self._store.end(transaction, committed=end in ("commit", "in_doubt_committed"))
        if end == "abort":
            raise CommitAborted(f"the transaction of {self.id} was aborted")
        if end != "commit":
            self._unusable = "has a commit in doubt"
            raise InDoubt(f"the answer to the commit of {self.id} did not arrive")
