"""The verb `topics`: creates the topics of an app, or checks those that exist."""

from __future__ import annotations

import argparse
import asyncio

from streams.authoring.app import App
from streams.cli.loader import load_app
from streams.cli.logs import exists, open_log
from streams.cli.parser import Verbs, log_url, whole_number
from streams.cli.terminal import console, plain, print_json
from streams.errors import UsageError
from streams.log.port import TopicInfo
from streams.runtime.topics import check_topics, ensure_topics
from streams.wire.topics import PARTITIONS_DEFAULT, topics_of

__all__ = ["add"]

PARTITIONS_MAX = 1_000


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams topics create examples/order.py:app --partitions 24"
    parser = verbs.add("serve", "topics", _run, "create or check the topics of an app", example)
    parser.add_argument("action", metavar="create|check", choices=("create", "check"))
    parser.add_argument("target", metavar="MODULE:APP", help="a file or a module, and the app in it")
    help_ = f"how many partitions new topics get (default: {PARTITIONS_DEFAULT}); it can never be changed later"
    parser.add_argument("--partitions", metavar="N", type=whole_number(1, PARTITIONS_MAX), help=help_)


def _run(args: argparse.Namespace) -> int:
    app = load_app(args.target)
    url = log_url(args)
    if args.action == "check" and not exists(url):
        raise UsageError(f"there is no log at {url}; create one with: streams topics create {args.target} --log {url}")
    return asyncio.run(_work(args, app, url))


async def _work(args: argparse.Namespace, app: App, url: str) -> int:
    log = await open_log(url)
    topics = topics_of(app.name, app.effects)
    try:
        if args.action == "create":
            await ensure_topics(log, topics, args.partitions or PARTITIONS_DEFAULT)
        found = await log.describe_topics(list(topics.settings()))
    finally:
        await log.close()
    faults = check_topics(topics.settings(), found)
    faults += _count_faults(found, args.partitions)
    _print(args, found, faults)
    return 1 if faults else 0


def _count_faults(found: dict[str, TopicInfo], wanted: int | None) -> list[str]:
    """What a count that was asked for finds; a count never changes, or keys would land on other partitions."""
    wrong = sorted(name for name, info in found.items() if wanted is not None and info.partitions != wanted)
    if not wrong:
        return []
    have = found[wrong[0]].partitions
    return [f"the topics have {have} partitions, not {wanted}; the count of an app never changes"]


def _print(args: argparse.Namespace, found: dict[str, TopicInfo], faults: list[str]) -> None:
    if getattr(args, "json", False):
        topics = [
            {"name": info.name, "partitions": info.partitions, "config": dict(info.config)} for info in found.values()
        ]
        print_json({"topics": topics, "faults": faults})
        return
    out = console()
    for name, info in sorted(found.items()):
        policy = info.config.get("cleanup.policy", "")
        out.print(plain(f"{name:<40} {info.partitions:>4} partitions  {policy}"))
    for fault in faults:
        out.print(plain(f"✗ {fault}", "red"))
    if not faults:
        out.print(plain("✓ all topics are as they must be", "green"))
