"""How long a ledger must remember what is done: longer than its message can come once more."""

from __future__ import annotations

from typing import NamedTuple

from streams.log.port import Log, TopicInfo
from streams.wire.topics import Topics

__all__ = ["Keeping", "keeping_of"]

_FOREVER = -1
_SEGMENT_MS = 7 * 86_400_000
"""After what time Kafka begins a new segment, unless a topic says otherwise."""


class Keeping(NamedTuple):
    """For how many seconds at least; None where a topic keeps its messages for ever, or is not there to be asked."""

    seconds: float | None
    reason: str


async def keeping_of(log: Log, topics: Topics, effect: str) -> Keeping:
    """Twice as long as the effect's topic keeps a message, and as long as the topic of its dead letters does.

    A message leaves with its segment, so a segment's time is added to each. It may be set aside on its last day, and be
    sent back on the last day of that. Whoever rewinds the group before it is gone brings it once more.
    """
    topic, dead = topics.effect(effect), topics.effect_dead(effect)
    found = await log.describe_topics([topic, dead])
    seconds = []
    for name in (topic, dead):
        if name not in found:
            return Keeping(None, f"there is no topic {name} that says how long its messages are kept")
        kept = _seconds(found[name])
        if kept is None:
            return Keeping(None, f"{name} keeps its messages for ever, so each of them can come once more")
        seconds.append(kept)
    alive, set_aside = seconds
    least = 2 * alive + set_aside
    days = [f"{part / 86_400:g} d" for part in (alive, set_aside, least)]
    return Keeping(least, f"{topic} keeps them {days[0]}, {dead} {days[1]}, and one sent back comes later by {days[0]}")


def _seconds(info: TopicInfo) -> float | None:
    if "delete" not in info.config.get("cleanup.policy", "").split(","):
        return None
    ms = int(info.config.get("retention.ms", _FOREVER))
    return None if ms < 0 else (ms + int(info.config.get("segment.ms", _SEGMENT_MS))) / 1000
