"""The action `replay reprocess`: copies an app's commands to a new app, and compares how its runs ended."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import asdict
from typing import Any

from streams.authoring.app import App
from streams.authoring.declared import check_name
from streams.cli.loader import load_app
from streams.cli.logs import existing
from streams.cli.look import reading
from streams.cli.parser import Verbs, run_id, seconds, whole_number
from streams.cli.terminal import console, note, plain, print_json, short_json
from streams.clock import SystemClock
from streams.errors import UsageError
from streams.ops.replay import Reprocessed, Results, Wanted, compare_results, reprocess

__all__ = ["add"]

_TASKS = (
    "the runs of the copy are runs like any other: their tasks call the world again, really, whatever --effects says. "
    "Payments, mails and models answer a second time, unless a business key tells them not to. Say that you want it "
    "with: --tasks run. To try new code without running anything: streams replay shadow"
)


def add(verbs: Verbs) -> None:
    """Declare the action."""
    help_ = "copy an app's commands to a new app, whose worker works them off; run again, it goes on"
    example = "streams replay reprocess shop/orders.py:app --as orders-again --from 7d --tasks run"
    parser = verbs.action("replay", "reprocess", _run, help_, example)
    parser.add_argument("target", metavar="MODULE:APP", help="a file or a module, and the app in it")
    parser.add_argument("--as", dest="new", metavar="NAME", required=True, help="the name of the new app")
    parser.add_argument("--from", dest="from_", metavar="PLACE", default="start", help="`start`, or a time, or 7d, 2h")
    parser.add_argument("--until", metavar="TIME", default="", help="a time, or how long ago; now, if left out")
    parser.add_argument(
        "--run", metavar="RUN", nargs="+", action="extend", type=run_id, default=[], help="only commands of these runs"
    )
    effects = "off (default): what the copy emits is recorded and published nowhere; on: it goes to topics of its own"
    parser.add_argument("--effects", choices=("off", "on"), default="off", help=effects)
    parser.add_argument("--tasks", choices=("run",), help="`run`: consent to tasks being executed again")
    parser.add_argument(
        "--rate", metavar="N", type=whole_number(1, 1_000_000), help="at most so many commands a second"
    )
    parser.add_argument("--partitions", metavar="N", type=whole_number(1, 1_000), help="of the new topics; as the old")
    idle = "end when nothing got on for so long while answers wait for their runs (default: 30)"
    parser.add_argument("--idle", metavar="SECONDS", type=seconds, default=30.0, help=idle)
    parser.add_argument("--compare", action="store_true", help="copy nothing; compare how the runs of both ended")


def _run(args: argparse.Namespace) -> int:
    app = load_app(args.target)
    source = getattr(args, "app", None) or os.environ.get("STREAMS_APP") or app.name
    try:
        check_name("app", args.new)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if args.compare:
        return asyncio.run(_compare(args, source))
    if args.tasks != "run":
        raise UsageError(_TASKS)
    return asyncio.run(_copy(args, app, source))


async def _copy(args: argparse.Namespace, app: App, source: str) -> int:
    wanted = Wanted(args.from_, args.until, tuple(args.run), args.effects == "on")
    note(f"have a worker of the copy at work meanwhile: streams worker {args.target} --app {args.new}")
    async with existing(args) as log:
        with reading() as progress:
            done = await reprocess(
                log,
                source,
                args.new,
                app.effects,
                wanted,
                now_us=SystemClock().now_us(),
                partitions=args.partitions,
                rate=args.rate,
                idle_seconds=args.idle,
                progress=progress,
            )
    if getattr(args, "json", False):
        print_json(_as_json(done, args.new))
    else:
        _tell(done, args)
    return 1 if done.copied.held else 0


def _as_json(done: Reprocessed, new: str) -> dict[str, Any]:
    effects = "on" if done.origin.publishes else "off"
    head = {"app": done.origin.app, "as": new, "effects": effects, "partitions": done.partitions}
    return {**head, **asdict(done.copied)}


def _tell(done: Reprocessed, args: argparse.Namespace) -> None:
    copied, out = done.copied, console()
    before = f", {copied.before} had been copied before" if copied.before else ""
    out.print(plain(f"{copied.commands} commands copied to app {args.new}{before}"), soft_wrap=True)
    left = {
        "that the old app had refused": copied.refused,
        "repairs by an operator": copied.repairs,
        "replies, for the copy has its own": copied.replies,
        "on a wrong partition": copied.strays,
        "too large to be copied": copied.too_large,
    }
    if any(left.values()):
        text = ", ".join(f"{count} {what}" for what, count in left.items() if count)
        out.print(plain(f"left out: {text}", "yellow"), soft_wrap=True)
    if copied.cut:
        text = f"retention has deleted commands of {copied.cut} partitions since this copy was begun"
        out.print(plain(text, "yellow"), soft_wrap=True)
    if copied.held:
        runs = ", ".join(copied.holding)
        text = (
            f"{copied.held} answers, replies and later commands wait for their runs to come so far: {runs}. With a "
            "worker of the copy at work, give the same command again"
        )
        out.print(plain(text, "yellow"), soft_wrap=True)
    where = f" --log {args.log}" if getattr(args, "log", None) else ""
    effects = "are published on topics of their own" if done.origin.publishes else "are recorded, published nowhere"
    out.print(plain(f"effects {effects}; tasks RUN, really, as soon as a worker is there:", "bold"), soft_wrap=True)
    out.print(plain(f"  streams worker {args.target} --app {args.new}{where}"), soft_wrap=True)
    out.print(plain(f"  streams replay reprocess {args.target} --as {args.new} --compare{where}"), soft_wrap=True)


async def _compare(args: argparse.Namespace, source: str) -> int:
    async with existing(args) as log:
        with reading() as progress:
            found = await compare_results(log, source, args.new, runs=args.run, progress=progress)
    if getattr(args, "json", False):
        print_json(found.plain())
    else:
        _tell_results(found)
    return 0 if found.same else 1


def _tell_results(found: Results) -> None:
    out = console()
    for example in found.examples:
        sides = f"{short_json(example.old)} → {short_json(example.new)}"
        out.print(plain(f"{example.run_id}: {example.outcome.value.replace('_', ' ')}: {sides}"), soft_wrap=True)
    parts = [f"{count} {outcome.value.replace('_', ' ')}" for outcome, count in found.counts.items() if count]
    if not found.runs:
        note("no runs to compare; has a worker of the copy been started?")
    text = f"{found.runs} runs compared: {', '.join(parts) or 'none'}"
    out.print(plain(text, "green" if found.same else "bold"), soft_wrap=True)
