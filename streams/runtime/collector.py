"""The garbage collector of a worker's process."""

from __future__ import annotations

import gc

__all__ = ["calm_collector"]

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100


def calm_collector() -> None:
    """Make collections rare; for a process that is a worker and nothing else.

    A worker makes many small tuples and few cycles, and holds all its runs: with Python's defaults a quarter of its
    time went into looking through them again and again, in pauses of 90 to 140 ms (measured with 6,000 and 20,000
    runs). What was loaded at the start is taken out of the collector's sight.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
