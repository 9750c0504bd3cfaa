"""`python -m bench profile`: where the time of a saturated run goes.

First by samples, which change nothing: a signal after every few milliseconds of CPU time notes what the main thread is
doing. Then with cProfile, which makes small functions look dearer than they are, but counts calls.
"""

from __future__ import annotations

import cProfile
import gc
import io
import pstats
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType

from bench.child import ROOT, run_here
from bench.loop import loop_name
from bench.measure import disk_folder
from bench.scenarios import saturate
from bench.target import TARGETS

__all__ = ["profile"]

_TICK_SECONDS = 0.001
_ROWS = 40
_STREAMS, _BENCH = f"{ROOT}/streams/", f"{ROOT}/bench/"
_LOOP, _GARBAGE = ("loop", "event loop and asyncio"), ("loop", "garbage collection")
_NAMED = {"evolve.py": "evolve", "values.py": "value codec", "tagging.py": "value codec", "app_codec.py": "value codec"}


def profile(runs: int, in_flight: int, target: str = "sqlite") -> None:
    """Print both profiles."""
    print(f"{target}: {runs:,} runs, {in_flight:,} in flight, {loop_name()}\n")
    sampler = Sampler()
    run_here(_saturated(target, runs, in_flight, sampler.around))
    print(sampler.text(runs))
    tracer = cProfile.Profile()
    run_here(_saturated(target, runs, in_flight, lambda work: _traced(tracer, work)))
    print(_calls(tracer, runs))


async def _saturated(
    name: str, runs: int, in_flight: int, around: Callable[[Awaitable[object]], Awaitable[None]]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="streams-bench-", dir=disk_folder()))
    target = TARGETS[name]()
    try:
        await target.start(folder)
        await saturate(target, "warm", min(runs, 1_000), in_flight)
        await around(saturate(target, "run", runs, in_flight))
        await target.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _traced(tracer: cProfile.Profile, work: Awaitable[object]) -> None:
    tracer.enable()
    await work
    tracer.disable()


def _calls(tracer: cProfile.Profile, runs: int) -> str:
    out = io.StringIO()
    stats = pstats.Stats(tracer, stream=out)
    stats.strip_dirs().sort_stats("tottime").print_stats(_ROWS)
    return f"cProfile, main thread, by own time; divide by {runs:,} runs\n{out.getvalue()}"


class Sampler:
    """Counts where the main thread stands, and the CPU time of every thread."""

    def __init__(self) -> None:
        self.stages: Counter[tuple[str, str]] = Counter()
        self.places: Counter[str] = Counter()
        self.threads: dict[str, float] = {}
        self.wall = 0.0

    async def around(self, work: Awaitable[object]) -> None:
        """Sample while `work` runs."""
        gc.callbacks.append(self._collected)
        before, began = _thread_seconds(), time.perf_counter()
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, _TICK_SECONDS, _TICK_SECONDS)
        try:
            await work
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            gc.callbacks.remove(self._collected)
        self.wall = time.perf_counter() - began
        self.threads = {name: seconds - before.get(name, 0) for name, seconds in _thread_seconds().items()}

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        """Does nothing. A signal that came in a collection is handled here, so the stack tells where it was."""

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number
        ours: list[tuple[tuple[str, ...], str]] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(_STREAMS) or code.co_filename.startswith(_BENCH):
                ours.append((Path(code.co_filename).relative_to(ROOT).parts, code.co_qualname))
            frame = frame.f_back
        stage = _stage(ours)
        self.stages[stage] += 1
        self.places[stage[1] if stage[0] == "loop" or not ours else f"{'/'.join(ours[0][0])}:{ours[0][1]}"] += 1

    def text(self, runs: int) -> str:
        """Three tables, in microseconds per run."""
        main = self.threads.get("MainThread", 0.0)
        total = max(1, sum(self.stages.values()))
        unit = main / total / runs * 1e6
        lines = [f"{runs / self.wall:,.0f} runs/s, {self.wall / runs * 1e6:.0f} µs of wall time per run", ""]
        lines += [f"{'CPU of thread':<44}{'µs/run':>8}"]
        lines += [f"{name:<44}{s / runs * 1e6:>8.1f}" for name, s in _largest(self.threads) if s / runs > 1e-7]
        lines += ["", f"{'main thread: on behalf of / stage':<44}{'µs/run':>8}"]
        lines += [f"{owner + ' / ' + stage:<44}{n * unit:>8.1f}" for (owner, stage), n in self.stages.most_common()]
        lines += ["", f"{'main thread: innermost function of ours':<74}{'µs/run':>8}"]
        lines += [f"{place:<74}{n * unit:>8.1f}" for place, n in self.places.most_common(_ROWS)]
        return "\n".join([*lines, ""])


def _stage(ours: list[tuple[tuple[str, ...], str]]) -> tuple[str, str]:
    """On whose behalf, by the outermost room of `streams`; and what, by the innermost module."""
    if not ours:
        return _LOOP
    if ours[0][1] == "Sampler._collected":
        return _GARBAGE
    inside = [(parts[1:], name) for parts, name in ours if parts[0] == "streams"]
    if not inside:
        return ("bench", "bench") if ours[0][0][-1] != "child.py" else _LOOP
    path, _ = inside[0]
    if path[-1] in _NAMED:
        what = _NAMED[path[-1]]
    elif path[0] == "wire":
        names = [name for parts, name in inside if parts[0] == "wire"]
        what = "avro encode" if any("encode" in name for name in names) else "avro decode"
    else:
        what = "decide" if path[0] == "kernel" else ".".join(path).removesuffix(".py")
    return inside[-1][0][0].removesuffix(".py"), what


def _largest(threads: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(threads.items(), key=lambda item: -item[1])


def _thread_seconds() -> dict[str, float]:
    """CPU time by thread; short-lived ones are missed."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None:
            clock = time.pthread_getcpuclockid(thread.ident)
            found[thread.name] = found.get(thread.name, 0.0) + time.clock_gettime(clock)
    return found
