"""Looks for seeds of the simulator that find planted faults, and writes them down with the table of docs.

python -m tests.sim.planted.find                          # those that no known seed finds any more
python -m tests.sim.planted.find --seeds 1-200 NAME ...   # these
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

from streams.testing.sim.options import Options
from streams.testing.sim.run import simulate
from tests.sim.planted.faults import FAULTS
from tests.sim.planted.planting import Fault, planted

__all__ = ["DOCUMENT", "Known", "load", "table"]

PLACE = Path(__file__).with_name("seeds.json")
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "planted-faults.md"
MARK = "<!-- The table is written by python -m tests.sim.planted.find -->\n"
_QUICK_SECONDS = 0.6
"""A seed that takes longer is kept only where no other one finds the fault."""
_WANTED = 1
_OF_SUBSCRIBERS = ("streams.effects", "streams.kernel.replies", "streams.wire.outbox")


class Known(NamedTuple):
    """What finds a fault in the simulator: seeds, how many were tried for the first of them, and what was said."""

    seeds: list[int]
    tried: int
    says: str


def load() -> dict[str, Known]:
    return {name: Known(**entry) for name, entry in json.loads(PLACE.read_text("utf-8")).items()}


def save(known: dict[str, Known]) -> None:
    entries = {name: known[name]._asdict() for name in FAULTS if name in known}
    PLACE.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", "utf-8")


def violations(fault: Fault, seed: int) -> tuple[str, ...]:
    with planted(fault):
        return simulate(seed, options_for(fault)).violations


def options_for(fault: Fault) -> Options:
    """A mistake of subscribers shows where there are some; others are found sooner without."""
    of_subscribers = any(edit.module.startswith(_OF_SUBSCRIBERS) for edit in fault.edits)
    return Options(subscribers=2 if of_subscribers else 0)


def search(fault: Fault, seeds: range) -> Known | None:
    """The first quick seeds that find the fault, or a slow one."""
    quick: list[int] = []
    slow: list[int] = []
    first, says = 0, ""
    for tried, seed in enumerate(seeds, 1):
        began = time.process_time()
        found = violations(fault, seed)
        if not found:
            continue
        first = first or tried
        if time.process_time() - began > _QUICK_SECONDS:
            slow.append(seed)
        else:
            says = says or plain(found)
            quick.append(seed)
        if len(quick) == _WANTED or len(slow) == 2:
            break
    if not quick and slow:
        says = plain(violations(fault, slow[0]))
    return Known(quick or slow[:1], first, says) if first else None


def plain(found: tuple[str, ...]) -> str:
    """The first complaint that tells more than that a run is late, without the names of this history."""
    telling = [line for line in found if "s after the last fault" not in line and "ended by itself" not in line]
    line = (telling or list(found))[0].splitlines()[0]
    line = re.sub(r"\b(\w+)-\d+\b", r"\1-N", line)
    line = re.sub(r"\d+", "N", line).replace("|", "/")
    return line if len(line) <= 150 else f"{line[:147]}..."


def table(known: dict[str, Known]) -> str:
    """All faults as a table."""
    lines = ["| fault | what is wrong | found by | what is said |", "|---|---|---|---|"]
    for fault in FAULTS.values():
        found = known.get(fault.name)
        if fault.test:
            by, says = f"`{fault.test}`", fault.says
        elif found is not None:
            seeds = ", ".join(map(str, found.seeds))
            by, says = f"simulator, seed {seeds} (the first one is number {found.tried} of those tried)", found.says
        else:
            by, says = "nothing", fault.says
        lines.append(f"| {fault.name} | {fault.breaks} | {by} | {says} |")
    return "\n".join(lines) + "\n"


def write_table(known: dict[str, Known]) -> None:
    before, mark, _ = DOCUMENT.read_text("utf-8").partition(MARK)
    DOCUMENT.write_text(before + mark + "\n" + table(known), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted.find")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", default="1-200", help="which seeds to try (1-200)")
    args = parser.parse_args()
    first, _, last = args.seeds.partition("-")
    known = load()
    for name in args.names or [name for name, fault in FAULTS.items() if not fault.test]:
        if not args.names and name in known and any(violations(FAULTS[name], seed) for seed in known[name].seeds):
            continue
        found = search(FAULTS[name], range(int(first), int(last) + 1))
        if found is not None:
            known = {**load(), name: found}
            save(known)
        print(name, found, flush=True)  # noqa: T201
    if DOCUMENT.exists():
        write_table(known)


if __name__ == "__main__":
    sys.exit(main())
