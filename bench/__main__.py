"""`python -m bench`: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from bench import capacity, growth, plan, report
from bench.broker import broker, postgres
from bench.child import Failed, measure
from bench.loop import loop_name
from bench.measure import disk_folder, machine
from bench.peer import left_out
from bench.plan import NAMES, STEPS, Step, rounds
from bench.profiling import profile
from bench.scenarios import Task
from bench.target import TARGETS

__all__ = ["main"]

RESULTS = Path(__file__).resolve().parent / "results"
COMMANDS = {"capacity": capacity.main, "growth": growth.main}
EPILOG = """scenarios: {names}; without any, all of them. `saturated-1000` asks for one size only.
`profile` instead of them runs the saturated scenario under profilers and says where the time goes.
`growth` measures what a run costs against whatever may grow: `python -m bench growth --help`.
`capacity FILE...` plans a cluster from results."""


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when everything was measured, 1 when something broke or hung; times are not judged."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] and argv[0] in COMMANDS:
        return COMMANDS[argv[0]](argv[1:])
    args = _parse(argv)
    if args.scenarios == ["profile"]:
        with broker(disk_folder()) if args.target == "kafka" else nullcontext():
            profile(args.runs or (1_000 if args.quick else 5_000), args.in_flight, args.target)
        return 0
    started = datetime.now(UTC)
    where = disk_folder()
    facts = {**machine(where), "loop": loop_name()}
    print("  ".join(f"{name}: {value}" for name, value in facts.items()), file=sys.stderr)
    for line in left_out(args.scenarios):
        print(line, file=sys.stderr)
    with (
        broker(where) if plan.needs_broker(args.scenarios) else nullcontext(),
        postgres(where) if plan.needs_postgres(args.scenarios) else nullcontext(),
    ):
        values, failed, sizes = _measure_all(args, where)
    found, judged = report.results(values), report.goals(values, sizes)
    print(report.table(found, judged))
    options = {"scenarios": args.scenarios, "quick": args.quick, "runs": sizes, "repeat": args.repeat}
    whole = {"at": started.isoformat(timespec="seconds"), "machine": facts, "options": options}
    _write(
        args.json or RESULTS / f"{started:%Y%m%d-%H%M%S}.json",
        {**whole, "results": found, "failed": failed, "goals": judged},
    )
    return 1 if failed else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure streams.",
        epilog=EPILOG.format(names=", ".join(NAMES)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: about a minute, to see that it works"
    )
    parser.add_argument("--runs", type=_positive, help="the size of every measurement: runs, commits or turns")
    parser.add_argument("--repeat", type=_positive, help="rounds; 3 unless given, 1 with --quick")
    parser.add_argument("--in-flight", type=_positive, default=1_000, help="for `profile`: runs under way at once")
    parser.add_argument("--target", choices=sorted(TARGETS), default="sqlite", help="for `profile`: the log")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where to write the figures; bench/results/ unless given"
    )
    args = parser.parse_args(argv)
    known = {*NAMES, *(step.name for step in STEPS)}
    unknown = [name for name in args.scenarios if name not in known and args.scenarios != ["profile"]]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]!r}; there are {', '.join(NAMES)}, and `profile` alone")
    args.repeat = args.repeat or (1 if args.quick else 3)
    return args


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _measure_all(
    args: argparse.Namespace, where: Path
) -> tuple[dict[str, dict[str, list[float]]], list[dict[str, str]], dict[str, int]]:
    values: dict[str, dict[str, list[float]]] = {}
    failed: list[dict[str, str]] = []
    sizes: dict[str, int] = {}
    for number, step in rounds(args.scenarios, quick=args.quick, runs=args.runs, repeat=args.repeat):
        sizes[step.name] = step.runs
        began = time.perf_counter()
        try:
            found = _measure(step, where)
        except Failed as error:
            failed.append({"scenario": step.name, "round": str(number + 1), "reason": str(error)})
            print(f"{step.name}: {error}", file=sys.stderr)
            continue
        for metric, value in found.items():
            values.setdefault(step.name, {}).setdefault(metric, []).append(value)
        print(f"round {number + 1}: {step.name}, {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return values, failed, sizes


def _measure(step: Step, where: Path) -> dict[str, float]:
    """All courses of a step, one after another in the same folder, which is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="streams-bench-", dir=where))
    os.environ["STREAMS_BENCH_APP"] = f"bench-{uuid4().hex[:8]}"  # topics outlive a step
    try:
        found: dict[str, float] = {}
        for course in step.courses:
            task = Task(course, step.target, folder, step.runs, step.in_flight)
            metrics = measure(task, step.seconds_max)
            found |= {f"{course}_{name}" if name in found else name: value for name, value in metrics.items()}
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, whole: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
