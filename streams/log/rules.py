"""Rules that are the same on every log: what a commit must name, what a record may weigh, who gets which partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from streams.errors import SendRefused
from streams.log.port import RECORD_BYTES_MAX, GroupSnapshot, Headers, NewRecord, TopicInfo

__all__ = ["check_commit", "is_compacted", "moves", "refuse_unwritable"]


class Moves(NamedTuple):
    """What one member has to give up, and what it may take, so that the shares become fair."""

    give_up: list[int]
    take: list[int]


def check_commit(snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]) -> None:
    """Raise ValueError unless `offsets` can be the fence of these records.

    Kafka's client drops an empty or invalid entry without a word and commits unfenced, so it is caught here.
    """
    if not offsets:
        raise ValueError(
            "a commit without offsets has no fence: pass the next offset to apply of every partition it writes for, "
            "unchanged where it applied no command"
        )
    for partition, offset in offsets.items():
        if partition not in snapshot.owned:
            raise ValueError(
                f"partition {partition} of {snapshot.topic} is not owned in this snapshot "
                f"(owned: {sorted(snapshot.owned)}): commit with the snapshot of the poll that assigned it"
            )
        if offset < 0:
            raise ValueError(f"{offset!r} is no offset for partition {partition}: pass 0 or more, never a placeholder")
    unfenced = {record.partition for record in records}.difference(offsets)
    if unfenced:
        raise ValueError(
            f"partitions {sorted(unfenced)} are written but are not among the offsets {sorted(offsets)}: "
            "two owners could write them; name the next offset of each"
        )


def refuse_unwritable(records: Sequence[NewRecord], topics: Mapping[str, TopicInfo]) -> None:
    """Raise SendRefused for the first record that no retry could ever write."""
    sizes = {name: info.partitions for name, info in topics.items()}
    for index, (topic, partition, key, value, headers) in enumerate(records):
        if not 0 <= partition < sizes.get(topic, 0):
            same = [n for n, record in enumerate(records) if record.topic == topic and record.partition == partition]
            message = (
                f"record {index} is for {topic}[{partition}], which does not exist (any more): create it, then retry"
            )
            raise SendRefused(message, index, others=same[1:], code="TOPIC_MISSING")
        if key is None and is_compacted(topics[topic]):
            raise SendRefused(f"record {index} for the compacted topic {topic} has no key: give it one", index)
        size = (len(key) if key else 0) + (len(value) if value else 0)
        if headers:
            size += _header_size(headers, index)
        if size > RECORD_BYTES_MAX:
            raise SendRefused(
                f"record {index} for {topic}[{partition}] has {size} bytes, over the limit of {RECORD_BYTES_MAX}: "
                "store the value elsewhere and send a reference",
                index,
            )


def _header_size(headers: Headers, index: int) -> int:
    try:
        return header_bytes(headers)
    except UnicodeEncodeError as error:
        raise SendRefused(f"record {index} has a header name that is no valid text: {error.reason}", index) from error


def header_bytes(headers: Headers) -> int:
    """The size of names and values; what a transport adds around them does not count."""
    return sum(len(name.encode()) + (len(value) if value else 0) for name, value in headers)


def is_compacted(info: TopicInfo) -> bool:
    """Whether the log keeps only the last record of a key."""
    return "compact" in info.config.get("cleanup.policy", "delete").split(",")


def moves(me: str, owners: Mapping[int, str | None], members: Collection[str]) -> Moves:
    """What `me` gives up or takes. Sticky: nobody gives up anything before it holds more than its fair share.

    Every member computes this from the same rows, so they agree without talking: the larger shares go to those who
    hold most, then by id.
    """
    held = dict.fromkeys(members, 0)
    for owner in owners.values():
        if owner in held:
            held[owner] += 1
    low, larger = divmod(len(owners), len(held))
    rank = sorted(held, key=lambda member: (-held[member], member)).index(me)
    share = low + (rank < larger)
    mine = sorted(partition for partition, owner in owners.items() if owner == me)
    free = sorted(partition for partition, owner in owners.items() if owner not in held)
    return Moves(mine[share:], free[: max(0, share - len(mine))])
