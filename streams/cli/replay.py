"""The verb `replay`: move the group back, work commands off as another app, try new code on real histories."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.table import Table

from streams.cli import replay_copy
from streams.cli.loader import load_app
from streams.cli.logs import connect, existing
from streams.cli.look import reading
from streams.cli.parser import Verbs, run_id, whole_number
from streams.cli.terminal import console, note, plain, print_json, short_json, show
from streams.clock import SystemClock
from streams.errors import UsageError
from streams.kernel.run import Status
from streams.ops.replay import Report, RewindPlan, Shadowed, Verdict, plan_rewind, read_goal, read_time, rewind, shadow

__all__ = ["add"]

_NAMES_MAX = 10
_STATUSES = [status.value for status in Status]
_VERB = "read the log once more: to move the group back, or to try new code on what has happened"
_STYLES = {Verdict.DIFFERS: "yellow", Verdict.WOULD_BLOCK: "red", Verdict.NOT_COMPARABLE: "dim"}


def add(verbs: Verbs) -> None:
    """Declare the verb and its actions."""
    parser = verbs.add("prove", "replay", _which, _VERB, "streams replay shadow shop.orders:app --since 30d")
    parser.set_defaults(handler=_which)
    _add_rewind(verbs)
    replay_copy.add(verbs)
    _add_shadow(verbs)


def _which(_: argparse.Namespace) -> int:
    raise UsageError("which action? see: streams replay --help")


def _add_rewind(verbs: Verbs) -> None:
    help_ = "move the worker group back; what it has applied is skipped and counted, so nothing is done twice"
    example = "streams replay rewind --app orders --to 2h --dry-run"
    parser = verbs.action("replay", "rewind", _rewind, help_, example)
    to = "`start`, an OFFSET of one partition, or a time: 2026-05-01T12:00:00Z, or how long ago, such as 2h"
    parser.add_argument("--to", metavar="PLACE", required=True, help=to)
    parser.add_argument("--partition", metavar="N", type=whole_number(0, 999_999), help="only this partition")
    parser.add_argument("--dry-run", action="store_true", help="say what would be read again, and move nothing")


def _add_shadow(verbs: Verbs) -> None:
    help_ = "run the code of an app against recorded histories; nothing is published and no task runs"
    example = "streams replay shadow shop/orders.py:app --app orders --since 30d --report shadow.jsonl"
    parser = verbs.action("replay", "shadow", _shadow, help_, example)
    parser.add_argument("target", metavar="MODULE:APP", help="a file or a module with the new code, and the app in it")
    parser.add_argument(
        "--run", metavar="RUN", nargs="+", action="extend", type=run_id, default=[], help="only these runs"
    )
    parser.add_argument("--since", metavar="TIME", help="only runs that began then or later; a time, or 30d, 2h")
    parser.add_argument("--status", metavar="S", choices=_STATUSES, help=f"one of {', '.join(_STATUSES)}")
    parser.add_argument("--limit", metavar="N", type=whole_number(1, 999_999_999), help="stop after so many runs")
    parser.add_argument("--report", metavar="FILE", help="write every verdict there, a line of JSON each")


# -- rewind ----------------------------------------------------------------------------------------------------------


def _rewind(args: argparse.Namespace) -> int:
    goal = read_goal(args.to, SystemClock().now_us())

    async def work() -> int:
        async with connect(args) as client:
            with reading() as report:
                plan = await plan_rewind(
                    client.log,
                    client.topics.app,
                    goal,
                    partition=args.partition,
                    dry_run=args.dry_run,
                    progress=report,
                )
            if not args.dry_run:
                await rewind(client.log, plan)
        if getattr(args, "json", False):
            print_json({**plan.plain(), "dry_run": args.dry_run, "moved": bool(plan.offsets) and not args.dry_run})
        else:
            _tell_rewind(plan, dry_run=args.dry_run)
        return 0

    return asyncio.run(work())


def _tell_rewind(plan: RewindPlan, *, dry_run: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("partition", "group", "to", "applied", "known", "expired", "dead-lettered", "new"):
        table.add_column(name, justify="right")
    for part in plan.parts:
        counts = part.counts
        to = str(part.to) if part.moves else "stays"
        group = "-" if part.group is None else str(part.group)
        cells = (part.partition, group, to, part.applied, counts.known, counts.expired)
        table.add_row(*(str(cell) for cell in (*cells, counts.dead_lettered, counts.new)))
    show(table)
    total = plan.total
    if not plan.offsets:
        text = "nothing to move: the group stands there already, or before it"
    elif dry_run:
        text = f"dry run, nothing was moved: workers would skip {total.skipped} commands, and decide on {total.new} new"
    else:
        text = f"the group was moved: workers will skip {total.skipped} commands, and decide on {total.new} new"
    console().print(plain(text), soft_wrap=True)


# -- shadow ----------------------------------------------------------------------------------------------------------


def _shadow(args: argparse.Namespace) -> int:
    app = load_app(args.target)
    since = None if args.since is None else _moment(read_time(args.since, SystemClock().now_us()))
    missed = set(args.run)

    async def work() -> Report:
        async with existing(args) as log:
            with ExitStack() as stack:
                lines = None if args.report is None else stack.enter_context(_file(args.report))
                progress = stack.enter_context(reading())

                def keep(found: Shadowed) -> None:
                    missed.discard(found.run_id)
                    if lines is not None:
                        lines.write(json.dumps(found.plain(), ensure_ascii=False, default=str) + "\n")

                return await shadow(
                    log,
                    app,
                    name=getattr(args, "app", None) or os.environ.get("STREAMS_APP"),
                    runs=args.run,
                    since=since,
                    status=args.status,
                    limit=args.limit,
                    on_run=keep,
                    progress=progress,
                )

    report = asyncio.run(work())
    if getattr(args, "json", False):
        print_json(report.plain())
    else:
        _tell_shadow(report)
    if missed:
        note(f"not compared, for no such run began here in that time, or it is in another status: {_names(missed)}")
    return 0 if report.same and not missed else 1


def _names(runs: set[str]) -> str:
    return f"{', '.join(sorted(runs)[:_NAMES_MAX])}{' and more' if len(runs) > _NAMES_MAX else ''}"


def _file(path: str) -> Any:
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--report: {path} cannot be written: {error.strerror}") from error


def _moment(at_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)


def _tell_shadow(report: Report) -> None:
    out = console()
    for group in report.groups:
        what = group.verdict.value.replace("_", " ")
        head = f"{group.count} × {group.workflow or '(no workflow)'}: {what}: {group.kind}"
        out.print(plain(head, _STYLES.get(group.verdict, "")), soft_wrap=True)
        for example in group.examples:
            for line in _lines(example):
                out.print(plain(f"  {line}"), soft_wrap=True)
    if report.limited:
        note("ended at --limit; there are more runs")
    out.print(plain(report.headline, "green" if report.same else "bold"), soft_wrap=True)


def _lines(found: Shadowed) -> list[str]:
    """One run: what it differs in, and what it means for it."""
    lines = [f"{found.run_id} ({found.status}, version {found.version}, {found.events} events)"]
    for difference in found.differences:
        after = f" after {difference.after}" if difference.after else ""
        now = difference.note or str(difference.now)
        lines.append(f"  event {difference.seq}{after}: recorded {difference.recorded}; now {now}")
        lines += [f"    {c.field}: {short_json(c.recorded)} → {short_json(c.now)}" for c in difference.changes]
    if found.block is not None:
        lines.append(f"  {found.block.code}: {found.block.message}")
    if found.ahead:
        lines.append(f"  the run {found.ahead}")
    return lines
