"""The verb `dev`: a real Kafka, and a real PostgreSQL, on this machine, for trying and developing."""

from __future__ import annotations

import argparse
import signal

from streams.cli.parser import Verbs
from streams.cli.terminal import console, note, print_json, safe
from streams.dev import FOLDER_DEFAULT, Stack, crashed, down, status, up

__all__ = ["add"]

_ACTIONS = ("up", "down", "status")
_DESCRIPTION = """\
start or stop a real Kafka (and PostgreSQL) on this machine

up      starts what does not run yet, on free ports of 127.0.0.1 that stay the same, and goes back to the shell;
        the first time it fetches Kafka from Maven Central. Stopped or crashed, the next `up` finds all data again.
down    stops what runs; the data stays, for the next `up`, unless you say --remove
status  exits with 0 while Kafka runs, else with 1"""


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams dev up --postgres\n  streams dev status\n  streams dev down --remove"
    parser = verbs.add("try", "dev", _run, "start or stop a real Kafka (and PostgreSQL) on this machine", example)
    parser.description = _DESCRIPTION
    parser.add_argument("action", choices=_ACTIONS, metavar="up|down|status", help="start, stop, or show what runs")
    parser.add_argument("--postgres", action="store_true", help="up: PostgreSQL too")
    parser.add_argument(
        "--folder", default=FOLDER_DEFAULT, help=f"where data and logs live (default: {FOLDER_DEFAULT})"
    )
    parser.add_argument("--remove", action="store_true", help="down: delete the data too; without it the data stays")


def _run(args: argparse.Namespace) -> int:
    if args.action == "up":
        # A closed terminal or a `kill` has to take down what is half started, so it is an exception here.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        stack = up(args.folder, postgres=args.postgres, say=note)
    elif args.action == "down":
        stopped = down(args.folder, remove=args.remove)
        _tell_stopped(stopped, args)
        return 0
    else:
        stack = status(args.folder)
        for name, log in crashed(args.folder):
            note(
                f"{name} was not stopped, it ended by itself or was killed; `streams dev up` starts it. Its log: {log}"
            )
    if getattr(args, "json", False):
        print_json(stack.as_json())
    else:
        _tell(stack)
    return 0 if stack.kafka else 1


def _tell(stack: Stack) -> None:
    out = console()
    for name, url in stack.as_json().items():
        out.print(f"{name:<10} {safe(url or 'not running')}", soft_wrap=True)
    if stack.kafka:
        out.print(f"use it with: export STREAMS_LOG={safe(stack.kafka.url)}", style="dim", soft_wrap=True)


def _tell_stopped(stopped: Stack, args: argparse.Namespace) -> None:
    if getattr(args, "json", False):
        print_json({"kafka": None, "postgresql": None})
        return
    names = [name for name, server in (("Kafka", stopped.kafka), ("PostgreSQL", stopped.postgres)) if server]
    kept = "the data is gone" if args.remove else f"the data stays in {safe(args.folder)}"
    note(f"stopped {' and '.join(names)}; {kept}" if names else f"nothing was running; {kept}")
