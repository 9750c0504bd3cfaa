"""The shortest story of a seed that fails: as few faults and as few runs as it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from streams.testing.sim.options import Options, drawn_faults
from streams.testing.sim.run import Check, Result, simulate
from streams.testing.sim.story import Story

__all__ = ["Minimal", "command", "minimise", "reduced", "tell"]

_TRIES_MAX = 120
_SHOWN_MAX = 400


class Minimal(NamedTuple):
    """A history that still fails, and what is left of its causes."""

    result: Result
    options: Options
    faults: tuple[int, ...]


def reduced(items: Sequence[int], fails: Callable[[Sequence[int]], bool], tries_max: int) -> tuple[int, ...]:
    """Leave out what is not needed for `fails`: halves first, then ever smaller parts (delta debugging)."""
    kept, parts, tries = tuple(items), 2, 0
    if kept and fails(()):
        return ()
    while len(kept) >= 2 and tries < tries_max:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            tries += 1
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), parts * 2)
    return kept


def minimise(failed: Result, options: Options, check: Check) -> Minimal:
    """Of a seed that fails, let through fewer faults and start fewer runs, as long as it still fails in some way."""
    best = Minimal(failed, options, tuple(fault.number for fault in failed.struck))

    def try_(sizes: Options, faults: Sequence[int]) -> bool:
        nonlocal best
        result = simulate(failed.seed, sizes, check=check, only=faults)
        if result.violations:
            best = Minimal(result, sizes, tuple(faults))
        return bool(result.violations)

    if not try_(options, best.faults):
        # A fault that hit nothing has shifted something all the same, be it the last one.
        drawn = drawn_faults(failed.seed, options)
        best = best._replace(faults=tuple(fault.number for fault in drawn))
    reduced(best.faults, lambda faults: try_(options, faults), _TRIES_MAX)
    runs = options.only_runs if options.only_runs is not None else tuple(range(options.runs))
    reduced(runs, lambda some: try_(replace(options, only_runs=tuple(some)), best.faults), _TRIES_MAX)
    reduced(best.faults, lambda faults: try_(best.options, faults), _TRIES_MAX)
    return best


def tell(minimal: Minimal, check: Check) -> list[str]:
    """The story as lines: what happened when, what is wrong with it, and how to see it again."""
    result, options, faults = minimal
    story = Story()
    result = simulate(result.seed, options, check=check, only=faults, story=story)
    lines = [f"the story of seed {result.seed}, with {len(faults)} faults; times are virtual seconds"]
    lines += [f"  {fault}: drawn for {fault.at:.4f}" for fault in result.struck]
    lines.append("")
    if len(story.lines) > _SHOWN_MAX:
        lines.append(f"   ... {len(story.lines) - _SHOWN_MAX} lines before these are left out; --story tells all")
    lines += story.lines[-_SHOWN_MAX:]
    lines += ["", f"violated ({len(result.violations)}):"]
    lines += [f"  - {violation}" for violation in result.violations]
    lines += ["", f"again: {command(result.seed, options, faults)}"]
    return lines


def command(seed: int, options: Options, faults: Sequence[int] | None) -> str:
    """The command that repeats a history."""
    usual = Options()
    words = [f"python -m streams.testing.sim --seed {seed}"]
    words += [
        f"--{name} {getattr(options, name)}"
        for name in ("workers", "partitions", "runs", "seconds", "subscribers")
        if getattr(options, name) != getattr(usual, name)
    ]
    if faults is not None:
        words.append(f"--only-faults {','.join(map(str, faults)) or 'none'}")
    if options.only_runs is not None:
        words.append(f"--only-runs {','.join(map(str, options.only_runs)) or 'none'}")
    return " ".join(words)
