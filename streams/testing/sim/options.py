"""The size of a simulation, and whether it has subscribers."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Options", "subscribers_of"]

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
