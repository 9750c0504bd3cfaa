"""The simulator at the command line: `python -m streams.testing.sim --seeds 1000`."""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence

from streams.testing.sim.invariants import check
from streams.testing.sim.many import Summary, run_seeds
from streams.testing.sim.minimise import Minimal, command, minimise, tell
from streams.testing.sim.options import Options, drawn_faults
from streams.testing.sim.run import Result, simulate
from streams.testing.sim.story import Story

__all__ = ["main"]

_STORIES_MAX = 3
_ENOUGH = 1_000
"""With so many seeds, every kind of fault must have hit something."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where every invariant holds, 1 where one does not, 2 on wrong usage, 130 at Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    wrong = _wrong(args)
    if wrong:
        parser.error(wrong)
    options = _options(args)
    try:
        if args.seed is not None:
            return _one(args.seed, options, args.only_faults, story=args.story)
        return _many(args.seeds, options, args.jobs)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    usual = Options()
    parser = argparse.ArgumentParser(
        prog="python -m streams.testing.sim",
        description="Live through seeded histories of a whole cluster, with faults, in virtual time, and check them.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=_seeds, default=range(1, 201), metavar="N|A-B", help="how many, or which (200)")
    what.add_argument("--seed", type=int, metavar="N", help="this one alone")
    parser.add_argument("--workers", type=int, default=usual.workers, metavar="N", help=f"{usual.workers} unless given")
    parser.add_argument(
        "--partitions", type=int, default=usual.partitions, metavar="N", help=f"{usual.partitions} unless given"
    )
    parser.add_argument("--runs", type=int, default=usual.runs, metavar="N", help=f"{usual.runs} unless given")
    parser.add_argument(
        "--seconds", type=float, default=usual.seconds, metavar="S", help="how long faults strike, in virtual time"
    )
    parser.add_argument(
        "--subscribers",
        type=int,
        metavar="N",
        help="processes that carry effects out; some seeds have two unless given",
    )
    parser.add_argument("--story", action="store_true", help="with --seed: tell all that happens, also if all is well")
    parser.add_argument("--only-faults", type=_numbers, metavar="N,N", help="with --seed: let only these strike")
    parser.add_argument("--only-runs", type=_numbers, metavar="N,N", help="start only these, counted from 0")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes; one for each core unless given")
    return parser


def _options(args: argparse.Namespace) -> Options:
    return Options(args.workers, args.partitions, args.runs, args.seconds, args.only_runs, args.subscribers)


def _wrong(args: argparse.Namespace) -> str:
    """What cannot be, or would prove nothing and pass; empty where all is well."""
    if min(args.workers, args.runs) < 1 or args.partitions < 2 or not 0 < args.seconds < math.inf:
        return "there must be a worker, a run, and some time; and two partitions, or no command lies in a wrong one"
    if args.subscribers is not None and args.subscribers < 0:
        return "--subscribers: there are none, or some"
    if args.jobs is not None and args.jobs < 1:
        return "--jobs: there must be a process"
    if args.seed is None and (args.story or args.only_faults is not None):
        return "--story and --only-faults are for one seed: give it with --seed N"
    runs = args.only_runs or ()
    if any(not 0 <= number < args.runs for number in runs):
        return f"--only-runs: there are the runs 0 to {args.runs - 1}"
    drawn = () if args.seed is None else drawn_faults(args.seed, _options(args))
    if any(not 1 <= number <= len(drawn) for number in args.only_faults or ()):
        return f"--only-faults: seed {args.seed} has the faults 1 to {len(drawn)}"
    return ""


def _seeds(text: str) -> range:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seeds nor two of them, such as 1-50")
    first, last = (1, int(text)) if match[2] is None else (int(match[1]), int(match[2]))
    if last < first:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed at all")
    return range(first, last + 1)


def _numbers(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"none|\d+(,\d+)*", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 2,5 and not the word none")
    return () if text == "none" else tuple(int(number) for number in text.split(","))


def _one(seed: int, options: Options, only: tuple[int, ...] | None, *, story: bool) -> int:
    told = Story()
    result = simulate(seed, options, check=check, only=only, story=told if story else None)
    if story:
        _say(*told.lines, "")
    elif result.violations:
        numbers = only if only is not None else tuple(fault.number for fault in result.struck)
        _say(*tell(Minimal(result, options, numbers) if only is not None else minimise(result, options, check), check))
        return 1
    _say(
        f"seed {seed}: {result.runs} runs, {result.records} records, {result.seconds:.1f} virtual seconds, "
        f"digest {result.digest[:16]}"
    )
    _say(*(f"  {fault}" for fault in result.struck))
    _say(*(f"VIOLATED: {violation}" for violation in result.violations))
    return 1 if result.violations else 0


def _many(seeds: range, options: Options, jobs: int | None) -> int:
    progress = _Progress(len(seeds))
    summary = run_seeds(seeds, options, jobs=jobs, done=progress.step)
    progress.end()
    _say(
        f"{summary.seeds} seeds, {summary.runs} runs, {sum(summary.hits.values())} faults that hit something, "
        f"{time.monotonic() - progress.began:.1f} s"
    )
    _say(*(f"  {count:7} {kind}" for kind, count in summary.hits.most_common()))
    missing = summary.unstruck if summary.seeds >= _ENOUGH else []
    if missing:
        _say(f"these faults hit nothing, so nothing is proven of them: {', '.join(missing)}")
    _tell_of_failed(summary, options)
    return 1 if summary.failed or missing else 0


def _tell_of_failed(summary: Summary, options: Options) -> None:
    for result in summary.failed[:_STORIES_MAX]:
        _say("", *tell(minimise(result, options, check), check))
    if summary.failed:
        _say("", f"{len(summary.failed)} of {summary.seeds} seeds failed:")
        _say(*(f"  {command(result.seed, options, None)}" for result in summary.failed))


class _Progress:
    """A line that is written over, where somebody looks at it."""

    def __init__(self, seeds: int) -> None:
        self.began = time.monotonic()
        self._seeds = seeds
        self._done = self._failed = 0
        self._shown = sys.stderr.isatty()

    def step(self, result: Result) -> None:
        """One more is done."""
        self._done += 1
        self._failed += bool(result.violations)
        if self._shown:
            rate = self._done / max(1e-9, time.monotonic() - self.began)
            failed = f", {self._failed} FAILED" if self._failed else ""
            sys.stderr.write(f"\r{self._done}/{self._seeds} seeds, {rate:.1f} a second{failed} ")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._shown:
            sys.stderr.write("\n")


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
