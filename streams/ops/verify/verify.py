"""Reads the topics of an app, partition by partition, and hands what it reads to the checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping

from streams.errors import UsageError
from streams.log.port import Log, TopicInfo
from streams.ops.verify.ends import Ends, capture
from streams.ops.verify.findings import LISTED_MAX, Findings
from streams.ops.verify.partition import Outcome, PartitionCheck
from streams.ops.verify.place import Place
from streams.ops.verify.report import NotCompared, Progress, Report
from streams.runtime.origin import read_origin
from streams.wire.topics import Topics, topics_of

__all__ = ["MEMORY_BYTES_MAX", "verify"]

MEMORY_BYTES_MAX = 256_000_000
"""What the states and checkpoints of a pass may take before half of its runs are left to a pass of their own."""


async def verify(
    log: Log,
    app_name: str,
    *,
    effects: Iterable[str] | None = None,
    progress: Progress | None = None,
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    partitions: Collection[int] | None = None,
) -> Report:
    """Fold the events of an app again and compare them with all that was derived from them.

    The ends are captured at the start, so it may run beside workers. `effects` names those to look at besides the ones
    that have topics. Raises `UsageError` for an app that has no topics here or a partition that it does not have, and
    `LogUnavailable` where the log does not answer.
    """
    began = time.perf_counter()
    topics, existing = await _topics(log, app_name, effects)
    origin = await read_origin(log, app_name)
    publishes = origin is None or origin.publishes
    count = existing[topics.events].partitions
    numbers = _numbers(partitions, count)
    topic_id = existing[topics.commands].id if topics.commands in existing else ""
    ends = await asyncio.gather(*(capture(log, topics, number, existing) for number in numbers))
    meter = _Meter(progress, ends)
    outcomes = []
    for number, end in zip(numbers, ends, strict=True):
        place = Place(topics, number, count, publishes)
        check = PartitionCheck(log, place, end, topic_id, memory_bytes_max, meter)
        outcomes.append(await check.run())
    report = _sum(Report(app_name, tuple(numbers)), outcomes)
    return report._replace(seconds=time.perf_counter() - began)


async def _topics(log: Log, app: str, effects: Iterable[str] | None) -> tuple[Topics, Mapping[str, TopicInfo]]:
    """The topics of the app, with the effects that have one."""
    begin = topics_of(app).effect("")
    listed = {name.removeprefix(begin) for name in await log.list_topics() if name.startswith(begin)}
    topics = topics_of(app, {name for name in listed if not name.endswith(".dead")} | set(effects or ()))
    existing = await log.describe_topics(list(topics.plans()))
    if topics.events not in existing:
        raise UsageError(
            f"app {app!r} has no topic {topics.events} in {log.url}; streams topics check tells what it has"
        )
    return topics._replace(effect_names=tuple(n for n in topics.effect_names if topics.effect(n) in existing)), existing


def _numbers(wanted: Collection[int] | None, count: int) -> list[int]:
    numbers = sorted(set(range(count) if wanted is None else wanted))
    if wrong := [number for number in numbers if number not in range(count)]:
        raise UsageError(f"there is no partition {wrong[0]}; the app has {count}, from 0 on")
    return numbers


class _Meter:
    """Adds up what the passes over all partitions have read."""

    def __init__(self, progress: Progress | None, ends: Iterable[Ends]) -> None:
        self._progress = progress
        self._total = sum(end.offsets for end in ends)
        self._done = 0

    def more(self, offsets: int) -> None:
        """Another pass is needed."""
        self._total += offsets

    def read(self, offsets: int) -> None:
        """So many offsets have been passed."""
        self._done += offsets
        if self._progress is not None:
            self._progress(self._done, self._total)


def _sum(report: Report, outcomes: Iterable[Outcome]) -> Report:
    outcomes = list(outcomes)
    names = ("runs", "events", "checkpoints", "effects", "commands", "leases", "dead_letters", "damaged", "passes")
    sums = {name: sum(getattr(outcome, name) for outcome in outcomes) for name in names}
    missing = NotCompared(*map(sum, zip(*(outcome.not_compared for outcome in outcomes), strict=True)))
    found, divergent = Findings.merge(part for outcome in outcomes for part in outcome.findings)
    return report._replace(**sums, not_compared=missing, divergences=tuple(found[:LISTED_MAX]), divergent=divergent)
