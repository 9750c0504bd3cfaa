"""Creating an app's topics, and refusing those that would lose data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from streams.errors import UsageError
from streams.log.port import Log, TopicInfo, TopicSpec
from streams.runtime.marks import read_marks, remembered_faults
from streams.runtime.policies import (
    CHECKPOINT_AGE_SECONDS,
    Finding,
    check_policies,
    lines,
    mend_commands,
    refusal,
    servers_of,
)
from streams.wire.topics import Topics

__all__ = ["Checkup", "check_topics", "ensure_topics"]


class Checkup(NamedTuple):
    """The topics of an app as they are, and what is wrong (faults) or risky (warnings) with them, a line each."""

    found: Mapping[str, TopicInfo]
    faults: list[str]
    warnings: list[str]
    commands: list[str]
    """What mends them, one command a topic."""


async def ensure_topics(
    log: Log,
    topics: Topics,
    partitions: int,
    *,
    age_seconds: float = CHECKPOINT_AGE_SECONDS,
    warn: Callable[[str], None] = lambda _: None,
    rebuilding: bool = False,
) -> dict[str, TopicInfo]:
    """Create what is missing and check what exists; return all topics.

    Raises UsageError for faults: partition counts that differ or have changed, or settings that would lose data.
    `warn` gets a line a risk; `rebuilding` lets pass what a rebuild of the checkpoints mends.
    """
    wanted = topics.settings()
    found = await log.describe_topics(list(wanted))
    if found:
        # A topic added later, such as a new effect's, must have the count that keys were spread over before.
        known = found.get(topics.commands) or next(iter(found.values()))
        partitions = known.partitions
    missing = [TopicSpec(name, partitions, config) for name, config in wanted.items() if name not in found]
    if missing:
        # Before anything is created: a state topic that is made anew would look as if it had always been empty.
        gone = await _remembered(log, topics, found, rebuilding=rebuilding)
        if gone:
            raise UsageError(refusal(gone, []))
        await log.create_topics(missing)
    checkup = await check_topics(log, topics, age_seconds=age_seconds, rebuilding=rebuilding)
    if checkup.faults:
        raise UsageError(refusal(checkup.faults, checkup.commands))
    for line in checkup.warnings:
        warn(line)
    return dict(checkup.found)


async def check_topics(
    log: Log, topics: Topics, *, age_seconds: float = CHECKPOINT_AGE_SECONDS, rebuilding: bool = False
) -> Checkup:
    """Look at everything, change nothing."""
    wanted = topics.settings()
    found = await log.describe_topics(list(wanted))
    faults = [f"topic {name} does not exist: streams topics create makes it" for name in wanted if name not in found]
    faults += _unequal(topics, found, log.url)
    faults += await _remembered(log, topics, found, rebuilding=rebuilding)
    policies = check_policies(topics, found, age_seconds)
    wrong: list[Finding] = [finding for finding in policies if finding.fault]
    risky = [finding for finding in policies if not finding.fault]
    return Checkup(
        found, faults + lines(wrong, len(found)), lines(risky, len(found)), mend_commands(wrong or risky, log.url)
    )


def _unequal(topics: Topics, found: Mapping[str, TopicInfo], url: str) -> Iterator[str]:
    """A sentence for each topic whose count is another one than most have."""
    counts = Counter(info.partitions for info in found.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for name, info in found.items():
        if info.partitions < usual:
            alter = f"--alter --topic {name} --partitions {usual}"
            mend = f"; mend it with: kafka-topics.sh --bootstrap-server {servers_of(url)} {alter}"
        elif name in (topics.commands, topics.events, topics.checkpoints, topics.leases):
            mend = "; a count cannot be lowered: give the app a new name, or restore the topic from a copy"
        else:
            mend = "; a count cannot be lowered: delete the topic, and streams topics create makes it anew, empty"
        if info.partitions != usual:
            yield (
                f"topic {name} has {info.partitions} partitions and the others have {usual}: all topics of an app need "
                f"the same partition count, or runs lie in two places{mend}"
            )


async def _remembered(log: Log, topics: Topics, found: Mapping[str, TopicInfo], *, rebuilding: bool) -> list[str]:
    """By the lease of each partition: a rebuild makes them good one by one."""
    leases = found.get(topics.leases)
    if leases is None:
        return []
    each = (await read_marks(log, leases)).values()
    return list(
        dict.fromkeys(f for marks in each for f in remembered_faults(topics, found, marks, rebuilding=rebuilding))
    )
