"""The verb `topics`: creates the topics of an app, or checks those that exist."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from rich.table import Table

from streams.authoring.app import App
from streams.cli.loader import load_app, rename
from streams.cli.logs import exists, open_log
from streams.cli.parser import Verbs, log_url, whole_number
from streams.cli.terminal import console, plain, print_json, show
from streams.errors import UsageError
from streams.log.port import TopicInfo
from streams.runtime.origin import actual_topics
from streams.runtime.topics import Checkup, check_topics, ensure_topics
from streams.wire.topics import PARTITIONS_DEFAULT, TopicPlan

__all__ = ["add", "kept"]

PARTITIONS_MAX = 1_000
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = "streams topics create examples/order.py:app --partitions 24"
    parser = verbs.add("serve", "topics", _run, "create or check the topics of an app", example)
    parser.add_argument("action", metavar="create|check", choices=("create", "check"))
    parser.add_argument("target", metavar="MODULE:APP", help="a file or a module, and the app in it")
    help_ = f"how many partitions new topics get (default: {PARTITIONS_DEFAULT}); it can never be changed later"
    parser.add_argument("--partitions", metavar="N", type=whole_number(1, PARTITIONS_MAX), help=help_)


def _run(args: argparse.Namespace) -> int:
    app = rename(load_app(args.target), getattr(args, "app", None))
    url = log_url(args)
    if args.action == "check" and not exists(url):
        raise UsageError(f"there is no log at {url}; create one with: streams topics create {args.target} --log {url}")
    return asyncio.run(_work(args, app, url))


async def _work(args: argparse.Namespace, app: App, url: str) -> int:
    log = await open_log(url)
    try:
        topics, _ = await actual_topics(log, app.name, app.effects)
        if args.action == "create":
            await ensure_topics(log, topics, args.partitions or PARTITIONS_DEFAULT)
        checkup = await check_topics(log, topics)
    finally:
        await log.close()
    checkup.faults.extend(_count_faults(checkup.found, args.partitions))
    if getattr(args, "json", False):
        print_json(_as_json(topics.plans(), checkup))
    else:
        _print(topics.plans(), checkup)
    return 1 if checkup.faults else 0


def _count_faults(found: Mapping[str, TopicInfo], wanted: int | None) -> list[str]:
    """What a count that was asked for finds; a count never changes, or keys would land on other partitions."""
    wrong = sorted(name for name, info in found.items() if wanted is not None and info.partitions != wanted)
    if not wrong:
        return []
    have = found[wrong[0]].partitions
    return [f"the topics have {have} partitions, not {wanted}; the count of an app never changes"]


def _as_json(plans: Mapping[str, TopicPlan], checkup: Checkup) -> dict[str, Any]:
    topics = [
        {
            "name": name,
            "purpose": plan.purpose,
            "exists": name in checkup.found,
            "partitions": checkup.found[name].partitions if name in checkup.found else None,
            "kept": kept(_config(name, plan, checkup)),
            "config": dict(checkup.found[name].config) if name in checkup.found else {},
        }
        for name, plan in plans.items()
    ]
    return {
        "topics": topics,
        "faults": checkup.faults,
        "warnings": checkup.warnings,
        "commands": checkup.commands,
    }


def _print(plans: Mapping[str, TopicPlan], checkup: Checkup) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("topic", "partitions", "cleanup", "kept", "holds"):
        justify: Literal["left", "right"] = "right" if name == "partitions" else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "topic")
    for name, plan in plans.items():
        info = checkup.found.get(name)
        config = _config(name, plan, checkup)
        style = "" if info is not None else "red"
        count = str(info.partitions) if info is not None else "missing"
        cells = (name, count, config.get("cleanup.policy", ""), kept(config), plan.purpose)
        table.add_row(*(plain(cell, style) for cell in cells))
    show(table)
    out = console()
    for line in checkup.faults:
        out.print(plain(f"✗ {line}", "red"), soft_wrap=True)
    for line in checkup.warnings:
        out.print(plain(f"! {line}", "yellow"), soft_wrap=True)
    if checkup.commands:
        out.print(plain("mend it with:", "dim"))
    for command in checkup.commands:
        out.print(plain(f"  {command}"), soft_wrap=True)
    if not checkup.faults:
        risks = f", with {len(checkup.warnings)} to think about" if checkup.warnings else ""
        out.print(plain(f"✓ all topics are as they must be{risks}", "green"))


def _config(name: str, plan: TopicPlan, checkup: Checkup) -> Mapping[str, str]:
    """What a topic has; of one that is missing, what it would get."""
    info = checkup.found.get(name)
    return plan.config if info is None else info.config


def kept(config: Mapping[str, str]) -> str:
    """How long the records of a topic are kept, in words."""
    policies = config.get("cleanup.policy", "").split(",")
    parts = []
    if "compact" in policies:
        deleted = _duration(config.get("delete.retention.ms", "86400000"))
        parts.append(f"latest of a key, deletions {deleted}")
    if "delete" in policies:
        time = _duration(config.get("retention.ms", "-1"))
        parts.append(time)
    if "delete" in policies and config.get("retention.bytes", "-1") != "-1":
        parts.append(f"at most {int(config['retention.bytes']):,} bytes a partition")
    return "; ".join(parts)


def _duration(ms: str) -> str:
    value = int(ms)
    if value < 0:
        return "for ever"
    for name, size in _UNITS:
        if value % size == 0 and value:
            return f"{value // size} {name}" + ("" if value == size else "s")
    return f"{value} ms"
