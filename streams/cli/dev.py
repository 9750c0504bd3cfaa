"""The verb `dev`: a real Kafka, and a real PostgreSQL, on this machine, for trying and developing."""

from __future__ import annotations

import argparse

from streams.cli.parser import Verbs
from streams.cli.terminal import console, note, print_json, safe
from streams.dev import FOLDER_DEFAULT, Stack, down, status, up

__all__ = ["add"]

_ACTIONS = ("up", "down", "status")


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams dev up --postgres\n  streams dev down"
    parser = verbs.add("try", "dev", _run, "start or stop a real Kafka (and PostgreSQL) on this machine", example)
    parser.add_argument("action", choices=_ACTIONS, metavar="up|down|status", help="start, stop, or show what runs")
    parser.add_argument("--postgres", action="store_true", help="up: PostgreSQL too")
    parser.add_argument(
        "--folder", default=FOLDER_DEFAULT, help=f"where data and logs live (default: {FOLDER_DEFAULT})"
    )
    parser.add_argument("--remove", action="store_true", help="down: delete the data too")


def _run(args: argparse.Namespace) -> int:
    if args.action == "up":
        stack = up(args.folder, postgres=args.postgres, say=note)
    elif args.action == "down":
        stopped = down(args.folder, remove=args.remove)
        _tell_stopped(stopped, args)
        return 0
    else:
        stack = status(args.folder)
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
