"""`python -m bench`: measure, print a table, write JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from bench import capacity, growth, plan, report
from bench.broker import broker, postgres
from bench.child import Failed, measure
from bench.goals import goals, merged
from bench.loop import loop_name
from bench.measure import disk_folder, machine
from bench.page import PAGE, write_page
from bench.peer import left_out
from bench.plan import NAMES, STEPS, Step, rounds
from bench.profiling import profile
from bench.scenarios import Task
from bench.target import TARGETS
from streams.errors import StreamsError

__all__ = ["main"]

RESULTS = Path(__file__).resolve().parent / "results"
EPILOG = """scenarios: {names}; without any, all of them. `saturated-1000` asks for one size only.
`profile` instead of them runs the saturated scenario under profilers and says where the time goes.
`report FILE...` writes the report of earlier runs again.
`growth` measures what a run costs against whatever may grow: `python -m bench growth --help`.
`capacity FILE...` plans a cluster from results."""
INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str] | None = None) -> int:
    """Exit 0 when everything was measured, 1 when something broke or hung; times are not judged."""
    argv = sys.argv[1:] if argv is None else argv
    _end_on_signals()
    try:
        return COMMANDS[argv[0]](argv[1:]) if argv[:1] and argv[0] in COMMANDS else _bench(_parse(argv))
    except StreamsError as error:  # a server that does not start, a package that is missing
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _end_on_signals() -> None:
    """Take Ctrl-C and signals to end once: what was started is ended then, and no second one breaks that off."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        for signal_ in _SIGNALS:
            signal.signal(signal_, signal.SIG_IGN)
        print(f"{signal.Signals(number).name}: ending what was started", file=sys.stderr)
        raise KeyboardInterrupt

    for signal_ in _SIGNALS:
        signal.signal(signal_, stop)


def _bench(args: argparse.Namespace) -> int:
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
    facts |= {"load_after": round(os.getloadavg()[0], 2)}
    found, judged = report.results(values), goals(values, sizes)
    print(report.table(found, judged))
    options = {"scenarios": args.scenarios, "quick": args.quick, "runs": sizes, "repeat": args.repeat}
    head = {"at": started.isoformat(timespec="seconds"), "machine": facts, "options": options}
    whole = {**head, "results": found, "failed": failed, "goals": judged}
    _write(args.json or RESULTS / f"{started:%Y%m%d-%H%M%S}.json", whole)
    everything = not (args.scenarios or args.quick or args.runs or failed)
    if args.page or everything:
        write_page(whole, args.page or PAGE)
        print(f"written to {args.page or PAGE}", file=sys.stderr)
    return 1 if failed else 0


def render(argv: list[str]) -> int:
    """`python -m bench report FILE...`: the page once more, from what earlier runs have found."""
    parser = argparse.ArgumentParser(
        prog="python -m bench report", description="Write the report of earlier runs, without measuring."
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="JSON of runs; of two figures the later counts"
    )
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="where to write; docs/benchmarks.md")
    args = parser.parse_args(argv)
    try:
        files = [json.loads(path.read_text("utf-8")) for path in args.files]
    except (OSError, ValueError) as error:
        parser.error(f"no results of a run: {error}")
    write_page(merged(files), args.page)
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
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
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the report there; docs/benchmarks.md after a run of everything"
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
            task = Task(course, step.target, folder, step.runs, step.in_flight, step.processes)
            metrics = measure(task, step.seconds_max)
            found |= {f"{course}_{name}" if name in found else name: value for name, value in metrics.items()}
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, whole: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)


COMMANDS = {"capacity": capacity.main, "growth": growth.main, "report": render}

if __name__ == "__main__":
    sys.exit(main())
