"""The size of a simulation, and whether it has subscribers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from streams.testing.sim.faults import Fault, faults_of

__all__ = ["Options", "drawn_faults", "subscribers_of"]

SUBSCRIBERS = 2
_SERVED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Options:
    """The size of a simulation."""

    workers: int = 3
    partitions: int = 4
    runs: int = 20
    seconds: float = 5.0
    """How long faults strike, in virtual time."""
    only_runs: tuple[int, ...] | None = None
    """The places of the runs to start, to make a story shorter; None for all."""
    subscribers: int | None = None
    """Processes that carry effects out; None lets a quarter of the seeds have some."""


def subscribers_of(seed: int, options: Options) -> int:
    """How many processes carry effects out in the history of this seed."""
    if options.subscribers is not None:
        return options.subscribers
    served = random.Random(f"{seed}/served").random() < _SERVED_SHARE  # noqa: S311 - a seed decides everything
    return SUBSCRIBERS if served else 0


def drawn_faults(seed: int, options: Options) -> list[Fault]:
    """All faults of the history of a seed, whether they will hit something or not."""
    subscribers = subscribers_of(seed, options)
    return faults_of(seed, workers=options.workers, seconds=options.seconds, subscribers=subscribers)
