"""The verb `rebuild`: all checkpoints anew from the events, or the repair of one damaged run."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from streams.cli.ask import ANSWER_SECONDS, operator_name
from streams.cli.logs import connect
from streams.cli.parser import Verbs, run_id, whole_number
from streams.cli.terminal import console, note, plain, print_json
from streams.client import Client
from streams.client.reading import Progress as Report
from streams.errors import UsageError
from streams.kernel.run import status_of
from streams.observer import Observer
from streams.ops.rebuild import PartitionReport, RebuildReport, rebuild
from streams.ops.repair import Lost, RepairPlan, plan_repair

__all__ = ["add"]

_OFFSET_MAX = 999_999_999
_NAMED_MAX = 20


class _Notes(Observer):
    """What the engine says beside the report."""

    def message(self, text: str) -> None:
        note(text)


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    help_ = "make all checkpoints anew from the events, or repair one damaged run"
    example = """streams rebuild --app orders --dry-run
  streams rebuild o-1 --reason "a script wrote to orders.events" --dry-run"""
    parser = verbs.add("repair", "rebuild", _run, help_, example)
    parser.add_argument("run", metavar="RUN", nargs="?", type=run_id, help="repair this run alone; workers go on")
    number = whole_number(0, _OFFSET_MAX)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be written")
    everything = parser.add_argument_group("all checkpoints (no worker may run)")
    everything.add_argument(
        "--partition", metavar="N", type=number, action="append", help="only this one; may be given several times"
    )
    one = parser.add_argument_group("one damaged run")
    one.add_argument("--reason", metavar="TEXT", help="why, for whoever reads the history")
    one.add_argument("--operator", metavar="NAME", help="who repairs it (default: who is logged in)")
    one.add_argument("--to", metavar="SEQ", type=number, help="its state after this event, though more can be read")
    one.add_argument(
        "--skip", metavar="OFFSET", type=number, nargs="+", action="extend", default=[], help="without these records"
    )
    one.add_argument("--parked", action="store_true", help="leave it blocked until: streams retry RUN")


def _run(args: argparse.Namespace) -> int:
    if args.run is None:
        if args.reason is not None or args.to is not None or args.skip or args.parked or args.operator is not None:
            raise UsageError("--reason, --operator, --to, --skip and --parked are for one run: streams rebuild RUN …")
        return asyncio.run(_rebuild(args))
    if args.partition is not None:
        raise UsageError("--partition is for all checkpoints of a partition; RUN lies on the one that its id says")
    if not (args.reason or "").strip() and not args.dry_run:
        raise UsageError("a repair needs --reason TEXT: history keeps it; --dry-run shows what would be done")
    return asyncio.run(_repair(args))


# ---- all checkpoints ------------------------------------------------------------------------------------------------


async def _rebuild(args: argparse.Namespace) -> int:
    async with connect(args) as client:
        with _bar("folding the events") as progress:
            report = await rebuild(
                client.log,
                client.topics.app,
                partitions=args.partition,
                dry_run=args.dry_run,
                observer=_Notes(),
                progress=progress,
            )
    if getattr(args, "json", False):
        print_json(report.plain())
    else:
        _print_report(report)
    return 0 if report.good else 1


def _print_report(report: RebuildReport) -> None:
    out = console()
    would = "would be " if report.dry_run else ""
    total = report.total
    kinds = ", ".join(f"{total(name):,} {name}" for name in ("missing", "unreadable", "behind"))
    text = f"app {report.app}: {total('events'):,} events of {total('runs'):,} runs folded"
    text += f"; {total('written'):,} checkpoints {would}written ({kinds})"
    text += f", {total('unchanged'):,} unchanged, {total('deleted'):,} {would}deleted"
    out.print(text, soft_wrap=True)
    if total("sent_back"):
        out.print(f"{total('sent_back'):,} commands that had waited {would or 'were '}sent back", soft_wrap=True)
    for part in report.partitions:
        for line, style in _lines(part):
            out.print(plain(line, style), soft_wrap=True)
    if report.good:
        out.print(plain("✓ all runs can be served", "green"))


def _lines(part: PartitionReport) -> Iterator[tuple[str, str]]:
    where = f"partition {part.partition}: "
    if part.refused:
        yield f"✗ {where}nothing was rebuilt: {part.refused.removeprefix(where)}", "red"
    for text in part.notes:
        yield f"! {where}{text}", "yellow"
    for trouble in part.damaged[:_NAMED_MAX]:
        yield f"✗ {trouble.run_id} is damaged: {trouble.reason} · streams rebuild {trouble.run_id} --reason TEXT", "red"
    for trouble in part.lost[:_NAMED_MAX]:
        cure = f"streams cancel {trouble.run_id} --force"
        yield f"✗ {trouble.run_id} is not recoverable: {trouble.reason} · {cure}", "red"
    more = max(0, len(part.damaged) - _NAMED_MAX) + max(0, len(part.lost) - _NAMED_MAX)
    if more:
        yield f"… and {more} more of partition {part.partition}; --json names all", "red"


# ---- one run --------------------------------------------------------------------------------------------------------


async def _repair(args: argparse.Namespace) -> int:
    operator = args.operator or operator_name()
    async with connect(args) as client:
        with _bar("reading the log") as progress:
            plan = await plan_repair(client, args.run, to=args.to, skip=args.skip, progress=progress)
        parked = args.parked or bool(plan.risks)
        new = None if args.dry_run else await _send(client, plan, args.reason, operator, parked=parked)
    facts = {"dry_run": args.dry_run, "new": new, "parked": parked, "operator": operator}
    if getattr(args, "json", False):
        print_json({**_plain(plan), **facts})
    else:
        _print_plan(plan)
        _print_end(plan, dry_run=args.dry_run, new=new, parked=parked)
    return 0


async def _send(client: Client, plan: RepairPlan, reason: str, operator: str, *, parked: bool) -> bool | None:
    sent = await client.repair(plan.run_id, plan.request(reason, parked=parked), operator=operator)
    try:
        return await client.accepted(sent, timeout=ANSWER_SECONDS)
    except TimeoutError as late:
        note(str(late))
        return None


def _plain(plan: RepairPlan) -> dict[str, Any]:
    return {
        "run_id": plan.run_id,
        "identity": plan.identity,
        "seq": plan.seq,
        "state": {
            "seq": plan.state.seq,
            "status": status_of(plan.state).value,
            "open": [{"op": op.id, "kind": op.kind, "name": op.name} for op in plan.state.ops.values()],
        },
        "damage": plan.damage,
        "lost": [_plain_lost(item) for item in plan.lost],
        "risks": plan.risks,
        "waiting": plan.waiting,
    }


def _plain_lost(item: Lost) -> dict[str, Any]:
    event = item.event
    seq, type_ = (None, None) if event is None else (event.seq, event.type)
    return {"offset": item.offset, "seq": seq, "type": type_, "reason": item.reason}


def _print_plan(plan: RepairPlan) -> None:
    state, lines = plan.state, []
    lines.append((f"run {plan.run_id} is damaged: {plan.damage}", ""))
    lines.append((f"its state after event {state.seq} can be made: {status_of(state).value}", ""))
    lines += [(f"  open: op {op.id}, {op.kind} {op.name} ({op.phase.value})", "dim") for op in state.ops.values()]
    for item in plan.lost:
        what = "a record" if item.event is None else f"event {item.event.seq} ({item.event.type})"
        lines.append((f"lost: {what} at offset {item.offset}: {item.reason}", "yellow"))
    lines += [(f"! {risk}", "red") for risk in plan.risks]
    lines.append((f"commands among the dead letters that come back: {plan.waiting}", ""))
    out = console()
    for text, style in lines:
        out.print(plain(text, style), soft_wrap=True)


def _print_end(plan: RepairPlan, *, dry_run: bool, new: bool | None, parked: bool) -> None:
    name = plan.run_id
    if dry_run:
        after = f"stay blocked until: streams retry {name}" if parked else "go on by itself"
        text = f"nothing was changed; once repaired, the run would {after}"
    elif new is None:
        text = f"the request for run {name} is in the log; no worker has taken it yet"
    elif parked:
        text = f"run {name} is repaired and waits for you: streams retry {name}"
    else:
        text = f"run {name} is repaired and goes on"
    console().print(plain(text), soft_wrap=True)


# ---- progress -------------------------------------------------------------------------------------------------------


@contextmanager
def _bar(text: str) -> Iterator[Report | None]:
    """A progress bar on a terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (TextColumn(text), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out, transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
