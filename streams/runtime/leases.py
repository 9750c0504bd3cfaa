"""Leases: the visible record of who owns a partition, under which epoch, and how far it has come."""

from __future__ import annotations

from streams.log.port import NewRecord
from streams.runtime.engine import Engine
from streams.runtime.partition import Partition
from streams.wire.records import Lease, encode_lease

__all__ = ["lease_record"]


def lease_record(
    engine: Engine, partition: Partition, applied: int, ids: tuple[str, ...], *, now: int, released: bool = False
) -> NewRecord:
    """The lease of a partition as a record of the lease topic; its key is the partition's number.

    Its headers tell the next owner what the topics were like.
    """
    lease = Lease(
        partition=partition.number,
        owner=engine.owner,
        epoch=partition.epoch,
        transactional_ids=ids,
        address=engine.settings.address or engine.host.name,
        applied=applied,
        tail=partition.tail(),
        topic_id=partition.topic_id,
        claimed_at=now,
        released=released,
        host=engine.host.name,
        pid=engine.host.pid,
    )
    key = str(partition.number).encode()
    return NewRecord(engine.topics.leases, partition.number, key, encode_lease(lease), engine.marks)
