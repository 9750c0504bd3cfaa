"""Leases: the visible record of who owns a partition, under which epoch, and how far it has come."""

from __future__ import annotations

from streams.log.port import NewRecord
from streams.runtime.partition import Partition
from streams.wire.records import Lease, encode_lease
from streams.wire.topics import Topics

__all__ = ["lease_record"]


def lease_record(
    topics: Topics, partition: Partition, *, owner: str, ids: tuple[str, ...], now: int, released: bool = False
) -> NewRecord:
    """The lease of a partition as a record of the lease topic; its key is the partition's number."""
    lease = Lease(
        partition=partition.number,
        owner=owner,
        epoch=partition.epoch,
        transactional_ids=ids,
        address=None,
        applied=partition.applied,
        tail=partition.tail(),
        topic_id=partition.topic_id,
        claimed_at=now,
        released=released,
    )
    return NewRecord(topics.leases, partition.number, str(partition.number).encode(), encode_lease(lease))
