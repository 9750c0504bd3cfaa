"""`python -m tests.model`: explore the model, whole or without a step, and print the shortest trace."""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.catalogue import DEEP, SCENARIOS, STEPS, Scenario
from tests.model.explore import Found, explore
from tests.model.tell import told


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--without", default="", help=f"steps to take out, with commas: {', '.join(STEPS)}")
    parser.add_argument("--scenario", choices=[*SCENARIOS, *DEEP], help="only this one")
    parser.add_argument("--deep", action="store_true", help="the wider bounds too")
    parser.add_argument("--trace", action="store_true", help="print the shortest trace")
    asked = parser.parse_args(arguments)
    without = tuple(name for name in asked.without.split(",") if name)
    if unknown := set(without) - set(STEPS):
        parser.error(f"no step {', '.join(sorted(unknown))}")
    known = {**SCENARIOS, **DEEP}
    names = [asked.scenario] if asked.scenario else _chosen(without, deep=asked.deep)
    bad = False
    for name in names:
        bad |= _tell(name, known[name], without, trace=asked.trace)
    if without and not bad:
        cover = {also for step in without for also in STEPS[step].also} - set(without)
        print(f"no counter-example{f'; try it with {chr(44).join(sorted(cover))} taken out too' if cover else ''}")
    return 1 if bad else 0


def _chosen(without: tuple[str, ...], *, deep: bool) -> list[str]:
    if without:
        return [STEPS[without[0]].scenario]
    return [*SCENARIOS, *(DEEP if deep else ())]


def _tell(name: str, scenario: Scenario, without: tuple[str, ...], *, trace: bool) -> bool:
    began = time.monotonic()
    found: Found = explore(scenario.system(without))
    took = time.monotonic() - began
    said = found.complaint or "holds"
    print(
        f"{name}: {found.states:,} states, {found.edges:,} steps, depth {found.depth}, {took:.1f} s: {said}", flush=True
    )
    if trace:
        for number, (label, _) in enumerate(found.trace, 1):
            print(f"  {number:3} {told(label)}")
        if found.complaint:
            print(f"      {found.complaint}")
    return bool(found.complaint)


if __name__ == "__main__":
    sys.exit(main())
