"""The verbs that look at runs: runs, show, history, diagnose."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from streams.cli.ledgers import add_ledger, possible_ledger
from streams.cli.logs import connect
from streams.cli.parser import Verbs, attribute, run_id
from streams.cli.render import history_table, run_facts, runs_table
from streams.cli.render_diagnosis import diagnosis
from streams.cli.terminal import console, note, print_json, show
from streams.client import Client, RunView
from streams.client.reading import Progress as Report
from streams.clock import SystemClock
from streams.errors import UnknownRun, WireError
from streams.kernel.run import Status
from streams.ops import views
from streams.ops.diagnose import diagnose
from streams.ops.timeline import history_lines, timeline

__all__ = ["add", "reading"]


_STATUSES = [status.value for status in Status]


def add(verbs: Verbs) -> None:
    """Declare the verbs."""
    runs = verbs.add("look", "runs", _runs, "list runs", "streams runs --status waiting --attr tenant=acme")
    runs.add_argument("--status", metavar="S", choices=_STATUSES, help=f"one of {', '.join(_STATUSES)}")
    runs.add_argument("--attr", metavar="K=V", type=attribute, action="append", default=[], help="only those with it")
    for name, run, help_ in (
        ("show", _show, "show a run: where it stands, what it waits for, its result"),
        ("history", _history, "show what happened to a run, event by event"),
        ("diagnose", _diagnose, "find out why a run does not get on, and what to do"),
    ):
        parser = verbs.add("look", name, run, help_, f"streams {name} o-1")
        parser.add_argument("run", metavar="RUN", type=run_id, help="the id of the run")
        if name == "diagnose":
            add_ledger(parser)


def _runs(args: argparse.Namespace) -> int:
    async def look() -> int:
        found: list[dict[str, Any]] = []
        async with connect(args) as client:
            with reading() as report:
                runs = client.runs(status=args.status, attributes=dict(args.attr), progress=report)
                async for view in runs:
                    shown = views.brief(view, client.values.codec)
                    if getattr(args, "json", False):
                        print_json(shown)
                    else:
                        found.append(shown)
        if found:
            show(runs_table(sorted(found, key=lambda run: str(run["started_at"]))))
        elif not getattr(args, "json", False):
            note("no runs" + (" like that" if args.status or args.attr else " yet"))
        return 0

    return asyncio.run(look())


def _show(args: argparse.Namespace) -> int:
    async def look() -> int:
        async with connect(args) as client:
            shown = views.show(await _known(client, args.run), client.values.codec)
        if getattr(args, "json", False):
            print_json(shown)
        else:
            show(run_facts(shown))
        return 0

    return asyncio.run(look())


def _history(args: argparse.Namespace) -> int:
    async def look() -> int:
        async with connect(args) as client:
            with reading() as report:
                history = await client.history(args.run, progress=report, unreadable=_unreadable)
            if not history:
                raise _unknown(client, args.run)
            if getattr(args, "json", False):
                for line in history_lines(history, client.values.codec):
                    print_json(line)
            else:
                show(history_table(timeline(history, client.values.codec)))
        return 0

    return asyncio.run(look())


def _diagnose(args: argparse.Namespace) -> int:
    async def look() -> int:
        async with connect(args) as client:
            async with possible_ledger(args) as (ledger, flaw):
                with reading() as report:
                    now = SystemClock().now_us()
                    found = await diagnose(client, args.run, now=now, progress=report, ledger=ledger)
            if found is None:
                raise _unknown(client, args.run)
        if flaw and found.effects:
            found = found._replace(ledger_error=flaw)
        if getattr(args, "json", False):
            print_json(found.plain())
        else:
            show(diagnosis(found))
        return 0

    return asyncio.run(look())


def _unreadable(offset: int, error: WireError) -> None:
    note(f"the record at offset {offset} of the events cannot be read: {error}")


async def _known(client: Client, name: str) -> RunView:
    view = await client.get(name)
    if view is None:
        raise _unknown(client, name)
    return view


def _unknown(client: Client, name: str) -> UnknownRun:
    return UnknownRun("UNKNOWN_RUN", f"app {client.topics.app!r} has no run {name!r}; streams runs lists those it has")


@contextmanager
def reading() -> Iterator[Report | None]:
    """A progress bar while a log is read, on a terminal."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield None
        return
    columns = (TextColumn("reading the log"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=out, transient=True, refresh_per_second=5) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
