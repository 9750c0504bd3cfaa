"""One partition of a memory log: records and transaction markers at offsets that are never dense."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from streams.log.port import Headers, Isolation, NewRecord, Record, Span

__all__ = ["PartitionLog"]


class Entry(NamedTuple):
    """What stands at an offset. `transaction` is 0 outside any; a marker holds no record."""

    offset: int
    record: Record | None
    transaction: int


class PartitionLog:
    """An append-only sequence. A marker takes an offset, and ends its transaction in this partition only."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._entries: list[Entry] = []
        self._end = 0
        self._open: dict[int, int] = {}
        self._aborted: set[int] = set()

    def append(self, new: NewRecord, timestamp: int, transaction: int = 0) -> int:
        """Add a record; return its offset. It is pending until `mark`, if it belongs to a transaction."""
        key, value, headers = _frozen(new)
        if transaction:
            self._open.setdefault(transaction, self._end)
        record = Record(self.topic, self.partition, self._end, timestamp, key, value, headers)
        return self._push(record, transaction)

    def mark(self, transaction: int, *, committed: bool) -> None:
        """Write the marker of an ended transaction."""
        del self._open[transaction]
        if not committed:
            self._aborted.add(transaction)
        self._push(None, transaction)

    def span(self, isolation: Isolation) -> Span:
        """The committed end stops at the first record whose transaction is still open."""
        if isolation == "read_committed" and self._open:
            return Span(0, min(self._open.values()))
        return Span(0, self._end)

    def read(self, position: int, records_max: int, isolation: Isolation) -> tuple[list[Record], int]:
        """Up to `records_max` records from `position` on, and the position after all that was passed."""
        end = self.span(isolation).end
        found: list[Record] = []
        if position >= end:
            return found, position
        for index in range(self._index(position), len(self._entries)):
            offset, record, transaction = self._entries[index]
            if offset >= end:
                break
            if record is not None and (isolation == "read_uncommitted" or transaction not in self._aborted):
                if len(found) == records_max:
                    return found, offset
                found.append(record)
        return found, max(position, end)

    def compact(self, tombstones_before: int) -> None:
        """Drop committed records that a later one supersedes, and tombstones older than `tombstones_before`."""
        end = self.span("read_committed").end
        visible = [r for r in self.read(0, len(self._entries) + 1, "read_committed")[0] if r.offset < end]
        last = {record.key: record.offset for record in visible}
        kept = {
            record.offset
            for record in visible
            if last[record.key] == record.offset and (record.value is not None or record.timestamp >= tombstones_before)
        }
        self._entries = [entry for entry in self._entries if entry.offset in kept or entry.offset >= end]

    def _push(self, record: Record | None, transaction: int) -> int:
        offset = self._end
        self._entries.append(Entry(offset, record, transaction))
        self._end += 1
        return offset

    def _index(self, position: int) -> int:
        return bisect_left(self._entries, position, key=lambda entry: entry.offset)


def _frozen(new: NewRecord) -> tuple[bytes | None, bytes | None, Headers]:
    key = None if new.key is None else bytes(new.key)
    value = None if new.value is None else bytes(new.value)
    return key, value, tuple((name, None if data is None else bytes(data)) for name, data in new.headers)
