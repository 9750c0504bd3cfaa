"""The verb `demo`: its arguments, its temporary folder, and its end."""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

from streams.cli.demo import order, order_request, report, report_postgres
from streams.cli.demo.narrator import Narrator
from streams.cli.demo.play import Ending, Play
from streams.cli.demo.stage import Stage
from streams.cli.parser import Verbs
from streams.cli.terminal import print_json
from streams.errors import UsageError

__all__ = ["add"]

_STORIES = {"order": order.tell, "report": report.tell}
_VIA_SUBSCRIBER = {"order": order_request.tell, "report": report_postgres.tell}


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams demo order --approve"
    parser = verbs.add("try", "demo", _run, "run an example, and kill its workers at the worst moments", example)
    parser.add_argument("story", metavar="order|report", nargs="?", choices=tuple(_STORIES), default="order")
    via = "let a subscriber carry out what the run decides, and kill that too"
    parser.add_argument("--via", metavar="subscriber", choices=("subscriber",), help=via)
    ledger = "the subscriber's ledger, sqlite:///PATH or postgresql://… (default: a file that goes with the demo)"
    parser.add_argument("--ledger", metavar="URL", help=ledger)
    answer = parser.add_mutually_exclusive_group()
    answer.add_argument("--approve", dest="approve", action="store_const", const=True, help="answer the question: yes")
    answer.add_argument("--reject", dest="approve", action="store_const", const=False, help="answer the question: no")


def _story(args: argparse.Namespace) -> Callable[[Play], Awaitable[Ending]]:
    if args.via is None:
        if args.ledger is not None:
            raise UsageError("--ledger is for --via subscriber: without one nobody needs a ledger")
        return _STORIES[args.story]
    if args.story == "report" and not (args.ledger or "").startswith(("postgresql:", "postgres:")):
        raise UsageError("the report via a subscriber is written into PostgreSQL: add --ledger postgresql://…")
    return _VIA_SUBSCRIBER[args.story]


def _run(args: argparse.Namespace) -> int:
    tell = _story(args)
    as_json = getattr(args, "json", False)
    narrator = Narrator(stderr=as_json)
    # A closed terminal or a `kill` must end the processes of the demo too, and so must be an exception here.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="streams-demo-") as folder:
        stage = Stage(Path(folder), getattr(args, "log", None), getattr(args, "app", None), args.ledger)
        try:
            ending = asyncio.run(_told(tell, Play(stage, narrator, args.approve)))
        finally:
            stage.close()
    if as_json:
        print_json(ending.facts)
    return _judge(narrator, ending)


async def _told(tell: Callable[[Play], Awaitable[Ending]], play: Play) -> Ending:
    return await tell(play)


def _judge(narrator: Narrator, ending: Ending) -> int:
    for name, (expected, actual) in ending.broken.items():
        narrator.failed(f"{name}: promised {expected}, found {actual}")
    return 1 if ending.broken else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
