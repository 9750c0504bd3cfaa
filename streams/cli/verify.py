"""The verb `verify`: tells whether a log agrees with itself, and where it does not."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from streams.authoring.app import App
from streams.cli.loader import load_app, rename
from streams.cli.logs import connect
from streams.cli.parser import Verbs, log_url, new_file, whole_number
from streams.cli.render import facts
from streams.cli.terminal import console, note, plain, print_json
from streams.ops.verify import MEMORY_BYTES_MAX, Divergence, NotCompared, Report, verify
from streams.ops.verify import Progress as Told

__all__ = ["add", "reading"]

_MB = 1_000_000
_SHOWN_MAX = 20


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add(
        "prove",
        "verify",
        _run,
        "fold the events again and compare them with checkpoints, commands, effects and leases",
        "streams verify --app orders --report verified.json",
    )
    parser.add_argument("target", metavar="MODULE:APP", nargs="?", help="the app, for effects whose topic is missing")
    parser.add_argument(
        "--partition", metavar="N", type=whole_number(0, 99_999), action="append", help="only this one; may be repeated"
    )
    default = MEMORY_BYTES_MAX // _MB
    parser.add_argument(
        "--memory",
        metavar="MB",
        type=whole_number(1, 1_000_000),
        default=default,
        help=f"what the states of a pass may take; with more, some runs get a pass of their own (default: {default})",
    )
    parser.add_argument(
        "--report", metavar="FILE", type=new_file, help="write all of it as JSON into this file as well"
    )


def _run(args: argparse.Namespace) -> int:
    app = None if args.target is None else rename(load_app(args.target), getattr(args, "app", None))
    if app is not None:
        args.app = app.name
    report = asyncio.run(_verify(args, app))
    if args.report is not None:
        _write(Path(args.report), report)
    if getattr(args, "json", False):
        print_json(report.plain())
    else:
        _print(report, log_url(args))
    return 0 if report.good else 1


async def _verify(args: argparse.Namespace, app: App | None) -> Report:
    async with connect(args) as client:
        with reading("verifying") as progress:
            return await verify(
                client.log,
                client.topics.app,
                effects=None if app is None else app.effects,
                progress=progress,
                memory_bytes_max=args.memory * _MB,
                partitions=args.partition,
            )


@contextmanager
def reading(what: str) -> Iterator[Told | None]:
    """A progress bar while a whole log is read, on a terminal; with the time that is left."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _write(path: Path, report: Report) -> None:
    """A report that was begun is never left under the name."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(report.plain(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# -- for people ------------------------------------------------------------------------------------------------------


def _print(report: Report, url: str) -> None:
    out = console()
    for divergence in report.divergences[:_SHOWN_MAX]:
        out.print(_headline(divergence), soft_wrap=True)
        out.print(_details(divergence))
    if report.divergent > _SHOWN_MAX:
        rest = report.divergent - min(_SHOWN_MAX, len(report.divergences))
        note(f"and {rest} more; streams verify --app {report.app} --log {url} --report FILE writes them down")
    out.print(_counts(report), soft_wrap=True)
    if gaps := _gaps(report.not_compared):
        out.print(plain(f"not compared, because the other side is gone: {gaps}", "yellow"), soft_wrap=True)
    if report.damaged:
        out.print(plain(f"{_many(report.damaged, 'damaged run')} that an operator has ended or repaired", "dim"))
    if report.good:
        out.print(plain("✓ nothing differs", "green"))
    else:
        out.print(plain(f"✗ {_many(report.divergent, 'divergence')}", "bold red"))


def _headline(found: Divergence) -> Text:
    what = f"run {found.run_id}" if found.run_id else f"partition {found.partition}"
    return Text.assemble(("✗ ", "bold red"), plain(what, "bold"), "  ", plain(f"{found.kind}: {found.message}", "red"))


def _details(found: Divergence) -> Table:
    place = found.topic + f"[{found.partition}]" + ("" if found.offset is None else f" at offset {found.offset}")
    pairs = [("  where", place + ("" if found.seq is None else f", seq {found.seq}"))]
    if found.field:
        pairs.append(("  field", f"{found.field}: expected {found.expected or '-'}, found {found.found or '-'}"))
    if found.code:
        pairs.append(("  code", found.code))
    if found.more:
        pairs.append(("  more", f"{found.more} further findings, which may follow from it"))
    return facts([*pairs, ("  next", found.advice)])


def _counts(report: Report) -> Text:
    names = ("run", "event", "checkpoint", "effect", "command", "lease", "dead letter")
    keys = ("runs", "events", "checkpoints", "effects", "commands", "leases", "dead_letters")
    counts = ", ".join(_many(getattr(report, key), name) for key, name in zip(keys, names, strict=True))
    rate = f", {report.events / report.seconds:,.0f} events/s" if report.seconds > 1 else ""
    passes = report.passes - len(report.partitions)
    extra = f", {_many(passes, 'further pass', 'es')} for want of memory" if passes else ""
    return plain(f"{counts} in {_many(len(report.partitions), 'partition')} ({report.seconds:.1f} s{rate}{extra})")


def _gaps(missing: NotCompared) -> str:
    parts = [
        f"{count:,} {name}"
        for count, name in (
            (missing.runs, "runs from their first event on"),
            (missing.runs_unknown, "of them at all"),
            (missing.checkpoints, "checkpoints"),
            (missing.effects, "effects"),
            (missing.commands, "commands"),
        )
        if count
    ]
    return ", ".join(parts)


def _many(count: int, name: str, plural: str = "s") -> str:
    return f"{count:,} {name}{'' if count == 1 else plural}"
