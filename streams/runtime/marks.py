"""What leases remember of the topics: how many partitions keys were spread over, and which topics hold the state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import chain, islice

from streams.errors import LogDamaged
from streams.log.port import Headers, Log, TopicInfo, TopicPartition
from streams.runtime.partition import Partition
from streams.wire.headers import read_headers
from streams.wire.partitioner import partition_of
from streams.wire.topics import Topics

__all__ = [
    "REBUILDING",
    "check_keys",
    "check_number",
    "marks_of",
    "read_marks",
    "rebuild_command",
    "remembered_faults",
    "topic_id",
]

# Names of headers in the records of leases. Never change one: older leases hold them.
PARTITIONS = "streams-partitions"
EVENTS = "streams-events-topic"
CHECKPOINTS = "streams-checkpoints-topic"
REBUILDING = "streams-rebuilding"
"""On the lease of a partition whose checkpoints are being made anew: nobody may serve it before that has ended."""
_KEYS = 100
_CHUNK = 5_000
_READ_SECONDS = 0.02
"""Short, because what is left before the end may be a hole, for which no record will ever come."""


def marks_of(topics: Topics, found: Mapping[str, TopicInfo]) -> Headers:
    """The headers that every lease gets."""
    return (
        (PARTITIONS, str(found[topics.commands].partitions).encode()),
        (EVENTS, found[topics.events].id.encode()),
        (CHECKPOINTS, found[topics.checkpoints].id.encode()),
    )


async def read_marks(log: Log, leases: TopicInfo) -> dict[int, dict[str, str]]:
    """The marks of the newest lease of each partition; empty where none was written yet."""
    places = [TopicPartition(leases.name, number) for number in range(leases.partitions)]
    spans = dict(zip(places, await asyncio.gather(*(log.span(*place) for place in places)), strict=True))
    open_ = {place: span.end for place, span in spans.items() if span.start < span.end}
    if not open_:
        return {}
    marks: dict[int, dict[str, str]] = {}
    reader = log.reader({place: spans[place].start for place in open_})
    try:
        while any(reader.position(place) < end for place, end in open_.items()):
            for record in await reader.read(_CHUNK, _READ_SECONDS):
                headers = read_headers(record.headers)
                if PARTITIONS in headers:
                    marks[record.partition] = headers
    finally:
        await reader.close()
    return marks


def rebuild_command(topics: Topics) -> str:
    """What makes the checkpoints of an app anew."""
    return f"streams rebuild --app {topics.app}"


def remembered_faults(
    topics: Topics, found: Mapping[str, TopicInfo], marks: Mapping[str, str], *, rebuilding: bool = False
) -> list[str]:
    """What the topics have become since a lease, one sentence each; an empty list means: the same.

    `rebuilding` leaves out what a rebuild of the checkpoints mends.
    """
    faults = []
    if REBUILDING in marks and not rebuilding:
        faults.append(
            f"a rebuild of the checkpoints of app {topics.app} has begun and not ended: run it (again), "
            f"{rebuild_command(topics)}"
        )
    before, info = marks.get(PARTITIONS), found.get(topics.commands)
    if before is not None and info is not None and str(info.partitions) != before:
        faults.append(
            f"app {topics.app} has runs spread over {before} partitions, and topic {topics.commands} has "
            f"{info.partitions} now: runs would start a second time on other partitions. A count cannot be lowered: "
            "give the app a new name, or restore the topics from a copy"
        )
    cures = {
        topics.events: (
            EVENTS,
            f"Give the app a new name; or restore its topics from a copy and leave {topics.leases} out of it",
        ),
        topics.checkpoints: (
            CHECKPOINTS,
            f"Stop all workers and make it anew from the events: {rebuild_command(topics)} --log URL",
        ),
    }
    for name, (mark, cure) in cures.items():
        known, now = marks.get(mark), found.get(name)
        if known is not None and (now is None or now.id != known) and not (rebuilding and mark == CHECKPOINTS):
            what = "deleted" if now is None else "deleted and created again"
            faults.append(f"topic {name} was {what} since the last owner, and the state of its runs with it. {cure}")
    return faults


async def topic_id(log: Log, topic: str) -> str:
    """The id of a topic now; it is another one when the topic was deleted and created again under a worker."""
    found = await log.describe_topics([topic])
    if topic not in found:
        raise LogDamaged(f"topic {topic} does not exist any more")
    return found[topic].id


def check_number(number: int, partitions: int) -> None:
    """Raise `LogDamaged` for a partition that came to be while this worker runs."""
    if number >= partitions:
        message = (
            f"partition {number}: the topics had {partitions} partitions when this worker started, and keys are spread "
            "over those; the count was raised since. A run would start a second time here"
        )
        raise LogDamaged(message)


def check_keys(partition: Partition, partitions: int) -> None:
    """Raise `LogDamaged` where runs lie on another partition than their keys say. A few tell; no lease is needed.

    A count that was doubled moves half of the keys. A single stray is somebody's mistake and stops nobody.
    """
    readable: Iterator[str] = (run_id for run_id, hot in partition.runs.items() if hot.damaged is None)
    if partition.mirror is not None:
        readable = chain(partition.mirror.some(_KEYS), readable)
    right = {run_id: partition_of(run_id.encode(), partitions) for run_id in islice(readable, _KEYS)}
    strays = [run_id for run_id, number in right.items() if number != partition.number]
    if strays and len(strays) * 4 >= len(right):
        message = (
            f"partition {partition.number}: run {strays[0]!r} lies here and belongs to partition {right[strays[0]]} of "
            f"{partitions}, as {len(strays)} of {len(right)} runs: the count of partitions has changed, and runs would "
            "start a second time. Give the app a new name, or restore its topics from a copy"
        )
        raise LogDamaged(message)
