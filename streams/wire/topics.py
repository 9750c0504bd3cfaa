"""The topics of an app: their names, and the settings they are created with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["PARTITIONS_DEFAULT", "Topics", "topics_of"]

PARTITIONS_DEFAULT = 12

_DAY_MS = 24 * 3600 * 1000
_COMPACTED = {
    "cleanup.policy": "compact",
    # The active segment is never compacted, and a take-over reads all of it: small segments bound that.
    "segment.bytes": str(32 * 1024 * 1024),
    "segment.ms": str(10 * 60 * 1000),
    "max.compaction.lag.ms": str(60 * 60 * 1000),
    "message.timestamp.type": "LogAppendTime",
}


def _kept(ms: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(ms), "message.timestamp.type": "LogAppendTime"}


class Topics(NamedTuple):
    """The names of an app's topics. Never change one: they are the app's address."""

    app: str
    commands: str
    events: str
    checkpoints: str
    leases: str
    dead_letters: str
    effect_names: tuple[str, ...]

    @property
    def group(self) -> str:
        """The consumer group of the app's workers. Two groups would be two owners."""
        return f"{self.app}.workers"

    def effect(self, name: str) -> str:
        """The topic of an effect."""
        return f"{self.app}.effects.{name}"

    def settings(self) -> dict[str, dict[str, str]]:
        """All topics with their settings by Kafka's names; every topic has the same partition count."""
        settings = {
            self.commands: _kept(7 * _DAY_MS),
            self.events: _kept(-1),
            self.checkpoints: dict(_COMPACTED),
            self.leases: dict(_COMPACTED),
            self.dead_letters: _kept(30 * _DAY_MS),
        }
        for name in self.effect_names:
            settings[self.effect(name)] = _kept(7 * _DAY_MS)
        return settings


def topics_of(app: str, effects: Iterable[str] = ()) -> Topics:
    """The topics of the app of this name with these effects."""
    return Topics(
        app,
        f"{app}.commands",
        f"{app}.events",
        f"{app}.checkpoints",
        f"{app}.leases",
        f"{app}.dead-letters",
        tuple(sorted(effects)),
    )
