"""Many seeds, on as many cores as there are."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from streams.testing.sim.faults import CONSEQUENCES, KINDS, OF_SUBSCRIBERS
from streams.testing.sim.options import Options, subscribers_of
from streams.testing.sim.run import Result, simulate

__all__ = ["Summary", "run_seeds"]

_ALONE_MAX = 30
"""So few seeds are done sooner in one process than others have started."""


class Summary(NamedTuple):
    """What came of many seeds."""

    seeds: int
    runs: int
    hits: Counter[str]
    failed: tuple[Result, ...]
    served: bool
    """Whether some of them had subscribers."""

    @property
    def unstruck(self) -> list[str]:
        """The kinds of faults that never hit anything."""
        served = OF_SUBSCRIBERS if self.served else ()
        return [kind for kind in (*KINDS, *CONSEQUENCES, *served) if not self.hits[kind]]


def run_seeds(
    seeds: Sequence[int],
    options: Options | None = None,
    *,
    jobs: int | None = None,
    done: Callable[[Result], None] = lambda _: None,
) -> Summary:
    """Run all of them; `done` is told of each in the order of the seeds."""
    hits: Counter[str] = Counter()
    failed, runs = [], 0
    jobs = jobs or min(os.cpu_count() or 1, max(1, len(seeds) // _ALONE_MAX))
    for result in _results(seeds, partial(simulate, options=options or Options()), jobs):
        hits += result.hits
        runs += result.runs
        if result.violations:
            failed.append(result)
        done(result)
    served = any(subscribers_of(seed, options or Options()) for seed in seeds)
    return Summary(len(seeds), runs, hits, tuple(failed), served)


def _results(seeds: Iterable[int], run: Callable[[int], Result], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    # Processes that know nothing of this one, whatever threads it has.
    with multiprocessing.get_context("spawn").Pool(jobs, _begin) as pool:
        yield from pool.imap(run, seeds, chunksize=5)


def _begin() -> None:
    """Only the process that was asked ends at Ctrl-C; it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
