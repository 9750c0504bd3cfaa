"""The verb `demo`: its arguments, its temporary folder, and its end."""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path
from types import FrameType

from streams.cli.demo import order, report
from streams.cli.demo.narrator import Narrator
from streams.cli.demo.play import Ending, Play
from streams.cli.demo.stage import Stage
from streams.cli.parser import Verbs
from streams.cli.terminal import print_json

__all__ = ["add"]

_STORIES = {"order": order.tell, "report": report.tell}


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams demo order --approve"
    parser = verbs.add("try", "demo", _run, "run an example, and kill its workers at the worst moments", example)
    parser.add_argument("story", metavar="order|report", nargs="?", choices=tuple(_STORIES), default="order")
    answer = parser.add_mutually_exclusive_group()
    answer.add_argument("--approve", dest="approve", action="store_const", const=True, help="answer the question: yes")
    answer.add_argument("--reject", dest="approve", action="store_const", const=False, help="answer the question: no")


def _run(args: argparse.Namespace) -> int:
    as_json = getattr(args, "json", False)
    narrator = Narrator(stderr=as_json)
    # A closed terminal or a `kill` must end the processes of the demo too, and so must be an exception here.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="streams-demo-") as folder:
        stage = Stage(Path(folder), getattr(args, "log", None), getattr(args, "app", None))
        try:
            ending = asyncio.run(_STORIES[args.story](Play(stage, narrator, args.approve)))
        finally:
            stage.close()
    if as_json:
        print_json(ending.facts)
    return _judge(narrator, ending)


def _judge(narrator: Narrator, ending: Ending) -> int:
    for name, (expected, actual) in ending.broken.items():
        narrator.failed(f"{name}: promised {expected}, found {actual}")
    return 1 if ending.broken else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
