"""Creating an app's topics, and refusing those that would lose data."""

from __future__ import annotations

from collections.abc import Mapping

from streams.errors import UsageError
from streams.log.port import Log, TopicInfo, TopicSpec
from streams.wire.topics import Topics

__all__ = ["check_topics", "ensure_topics"]


async def ensure_topics(log: Log, topics: Topics, partitions: int) -> dict[str, TopicInfo]:
    """Create what is missing and check what exists; return all topics.

    Raises UsageError with one line a fault: partition counts that differ, or settings that would lose data.
    """
    wanted = topics.settings()
    found = await log.describe_topics(list(wanted))
    if found:
        # A topic added later, such as a new effect's, must have the count that keys were spread over before.
        partitions = next(iter(found.values())).partitions
    missing = [TopicSpec(name, partitions, config) for name, config in wanted.items() if name not in found]
    if missing:
        await log.create_topics(missing)
        found = await log.describe_topics(list(wanted))
    faults = check_topics(wanted, found)
    if faults:
        raise UsageError("; ".join(faults))
    return found


def check_topics(wanted: Mapping[str, Mapping[str, str]], found: Mapping[str, TopicInfo]) -> list[str]:
    """What is wrong with the topics, one sentence each; an empty list means that nothing is."""
    faults = [f"topic {name} does not exist" for name in wanted if name not in found]
    counts = {info.partitions for info in found.values()}
    if len(counts) > 1:
        listed = ", ".join(f"{name}: {info.partitions}" for name, info in sorted(found.items()))
        faults.append(f"all topics of an app need the same partition count, or runs lie in two places ({listed})")
    for name, info in found.items():
        for setting in ("cleanup.policy", "message.timestamp.type"):
            expected, actual = wanted[name].get(setting), info.config.get(setting)
            if expected is not None and actual is not None and actual != expected:
                faults.append(f"topic {name}: {setting} is {actual!r} and must be {expected!r}, or data is lost")
    return faults
