"""Rules for attempts of pure tasks, which may begin before their start is durable, and whose start may never be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from streams.testing.sim.history import History
from streams.testing.sim.outside import Call
from streams.wire.partitioner import partition_of

__all__ = ["Start", "check_early"]


class Start(NamedTuple):
    """The record that an attempt has begun."""

    epoch: int
    partition: int
    timestamp: int


def check_early(
    history: History, starts: Mapping[tuple[str, int], Start], calls: Mapping[tuple[str, int], list[Call]]
) -> Iterator[str]:
    """Only first attempts begin early, and only of runs whose start came after the claim of the epoch.

    Else what ends a process would be tried without being counted, for ever.
    """
    claims: dict[tuple[int, int], int] = {}
    for number, leases in enumerate(history.leases):
        for record, lease in leases:
            claims.setdefault((number, lease.epoch), record.timestamp)
    commands = {(r.partition, r.offset): r.timestamp for records in history.commands for r in records}
    for (key, attempt), of_attempt in calls.items():
        start = starts.get((key, attempt))
        for call in of_attempt:
            if start is not None and start.epoch == call.epoch and start.timestamp <= call.at // 1000:
                continue
            name = f"attempt {attempt} of {key} ran under epoch {call.epoch} before its start was durable"
            if attempt > 1:
                yield f"{name}, and is not the first one"
            number = partition_of(call.run_id.encode(), history.partitions)
            sent = commands.get((number, _offset(key)))
            if sent is not None and sent < claims.get((number, call.epoch), 0):
                yield f"{name}, and its run was started before this epoch was claimed"


def _offset(key: str) -> int:
    """That of the command that began the run, by the key of one of its ops: NAME@OFFSET/OP."""
    return int(key.rpartition("@")[2].partition("/")[0])
