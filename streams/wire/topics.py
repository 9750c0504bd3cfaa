"""The topics of an app: their names, what each is for, and the settings they are created with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["PARTITIONS_DEFAULT", "TopicPlan", "Topics", "topics_of"]

PARTITIONS_DEFAULT = 12

_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS
_ALL = {
    # By a producer's wrong clock a broker would delete accepted commands early.
    "message.timestamp.type": "LogAppendTime",
    # Said for each topic, so that a low limit of the broker does not count. Batches of the client stay below it.
    "max.message.bytes": str(1024 * 1024),
}
_COMPACTED = {
    **_ALL,
    "cleanup.policy": "compact",
    # The active segment is never compacted, and a take-over reads all of it: small segments bound that.
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "max.compaction.lag.ms": str(_HOUR_MS),
    # A restore that began before a deletion must still meet it, so this is longer than any restore.
    "delete.retention.ms": str(_DAY_MS),
}


def _kept(ms: int) -> dict[str, str]:
    return {**_ALL, "cleanup.policy": "delete", "retention.ms": str(ms)}


class TopicPlan(NamedTuple):
    """What a topic is for, and its settings by Kafka's names."""

    purpose: str
    config: Mapping[str, str]


class Topics(NamedTuple):
    """The names of an app's topics. Never change one: they are the app's address."""

    app: str
    commands: str
    events: str
    checkpoints: str
    leases: str
    dead_letters: str
    partials: str
    effect_names: tuple[str, ...]

    @property
    def group(self) -> str:
        """The consumer group of the app's workers. Two groups would be two owners."""
        return f"{self.app}.workers"

    def subscribers(self, name: str) -> str:
        """The consumer group of the effect's own subscribers; other services choose groups of their own."""
        return f"{self.app}.subscribers.{name}"

    def effect(self, name: str) -> str:
        """The topic of an effect."""
        return f"{self.app}.effects.{name}"

    def effect_dead(self, name: str) -> str:
        """The topic of what the subscriber of an effect gave up on. No effect's name ends in `.dead`."""
        return f"{self.app}.effects.{name}.dead"

    def plans(self) -> dict[str, TopicPlan]:
        """All topics; every one has the same partition count."""
        plans = {
            self.commands: TopicPlan("requests to runs", _kept(7 * _DAY_MS)),
            self.events: TopicPlan("history of all runs: the truth", _kept(-1)),
            self.checkpoints: TopicPlan("latest state of each run", dict(_COMPACTED)),
            self.leases: TopicPlan("who owns each partition", dict(_COMPACTED)),
            self.dead_letters: TopicPlan("what was no command", _kept(30 * _DAY_MS)),
            self.partials: TopicPlan("partial output of tasks", _kept(_HOUR_MS)),
        }
        for name in self.effect_names:
            # A message leaves with its segment, and the ledger must remember it for longer: a new segment each day.
            daily = {"segment.ms": str(_DAY_MS)}
            plans[self.effect(name)] = TopicPlan(f"messages of effect {name}", _kept(7 * _DAY_MS) | daily)
            dead = _kept(30 * _DAY_MS) | daily
            plans[self.effect_dead(name)] = TopicPlan("what its subscriber gave up on", dead)
        return plans

    def settings(self) -> dict[str, dict[str, str]]:
        """The settings of all topics."""
        return {name: dict(plan.config) for name, plan in self.plans().items()}


def topics_of(app: str, effects: Iterable[str] = ()) -> Topics:
    """The topics of the app of this name with these effects."""
    return Topics(
        app,
        f"{app}.commands",
        f"{app}.events",
        f"{app}.checkpoints",
        f"{app}.leases",
        f"{app}.dead-letters",
        f"{app}.partials",
        tuple(sorted(effects)),
    )
