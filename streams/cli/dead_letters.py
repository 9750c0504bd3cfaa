"""The verb `dead-letters`: what could not be applied or carried out, and sending it back."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rich.table import Table

from streams.cli.ledgers import add_ledger, possible_ledger
from streams.cli.logs import connect
from streams.cli.look import reading
from streams.cli.parser import Verbs, effect_name, run_id
from streams.cli.render import facts, local_time
from streams.cli.terminal import console, error_text, note, plain, print_json, show, text_of
from streams.client import Client
from streams.effects.port import Ledger
from streams.errors import LedgerUnavailable, Refused, UsageError
from streams.ops.dead_letters import Letter, Post, SentBack, Which
from streams.ops.outbox import effect_names

__all__ = ["add", "place"]


def add(verbs: Verbs) -> None:
    """Declare the verb and its actions."""
    help_ = "look at what could not be applied or carried out, and send it back"
    verbs.add("repair", "dead-letters", _which, help_, "streams dead-letters list --effect payments")
    example = "streams dead-letters list --run o-1"
    list_ = _action(verbs, "list", _list, "list the dead letters of commands and of all effects", example)
    list_.add_argument("--run", metavar="ID", type=run_id, help="only those of this run")
    look = _action(verbs, "show", _show, "show one with its content", "streams dead-letters show --at 3@17")
    look.add_argument("--at", metavar="PARTITION@OFFSET", type=place, required=True, help="its place, as `list` shows")
    example = "streams dead-letters send-back --effect payments --at 3@17"
    back = _action(verbs, "send-back", _send_back, "write letters into the topic that they came from", example)
    which = back.add_mutually_exclusive_group(required=True)
    which.add_argument("--at", metavar="PARTITION@OFFSET", type=place, help="the one at this place")
    which.add_argument("--run", metavar="ID", type=run_id, help="those of this run")
    which.add_argument("--all", action="store_true", help="all of them")
    back.add_argument("--again", action="store_true", help="also those that went back before")
    add_ledger(back)


def _which(_: argparse.Namespace) -> int:
    raise UsageError("which action? see: streams dead-letters --help")


def _action(
    verbs: Verbs, name: str, run: Callable[[argparse.Namespace], Any], help_: str, example: str
) -> argparse.ArgumentParser:
    parser = verbs.action("dead-letters", name, lambda args: asyncio.run(run(args)), help_, example)
    others = "those of all effects too" if name == "list" else "those of the app's commands"
    parser.add_argument("--effect", metavar="NAME", type=effect_name, help=f"those of this effect; without it {others}")
    return parser


def place(text: str) -> tuple[int, int]:
    """PARTITION@OFFSET."""
    found = re.fullmatch(r"([0-9]{1,9})@([0-9]{1,18})", text)
    if found is None:
        message = f"{text[:60]!r} is no PARTITION@OFFSET, such as 3@17"
        raise argparse.ArgumentTypeError(message)
    return int(found[1]), int(found[2])


async def _post(client: Client, effect: str | None, ledger: Ledger | None = None) -> Post:
    if effect is not None:
        known = await effect_names(client.log, client.topics.app)
        if effect not in known:
            have = f"there are: {', '.join(known)}" if known else "it has none"
            raise UsageError(f"app {client.topics.app!r} has no effect {effect!r} in the log; {have}")
    return Post(client.log, client.topics, effect or "", ledger)


# ---- looking --------------------------------------------------------------------------------------------------------


async def _list(args: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = []
    async with connect(args) as client:
        names = [args.effect] if args.effect else [None, *await effect_names(client.log, client.topics.app)]
        for name in names:
            post = await _post(client, name)
            with reading() as progress:
                async for letter in post.letters(Which(args.run), progress):
                    if getattr(args, "json", False):
                        print_json(letter.plain())
                    else:
                        found.append(letter.plain())
    if found:
        show(_table(found))
    elif not getattr(args, "json", False):
        note("no dead letters" + (" like that" if args.run or args.effect else ""))
    return 0


def _table(letters: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("of", "at", "since", "run", "what", "sent back"):
        table.add_column(name, overflow="fold", no_wrap=name in ("at", "since"))
    for letter in letters:
        cells = (
            letter["effect"] or "commands",
            f"{letter['partition']}@{letter['offset']}",
            local_time(letter["at"], "%m-%d %H:%M:%S"),
            letter["run_id"] or "",
            error_text(letter["code"], letter["reason"]) + (" (cut)" if letter["cut"] else ""),
            {0: "", 1: "yes"}.get(letter["sent_back"], f"{letter['sent_back']} times"),
        )
        table.add_row(*(plain(cell) for cell in cells))
    return table


async def _show(args: argparse.Namespace) -> int:
    async with connect(args) as client:
        post = await _post(client, args.effect)
        letter = await _one(post, args.at)
        found = {**letter.plain(), **letter.content(client.values.codec)}
    if getattr(args, "json", False):
        print_json(found)
    else:
        show(facts((name, plain(text_of(value))) for name, value in found.items() if value not in (None, "", {})))
    return 0


async def _one(post: Post, at: tuple[int, int]) -> Letter:
    async for letter in post.letters(Which(at=at)):
        return letter
    raise Refused("NO_SUCH_LETTER", f"{post.topic} has no letter at {at[0]}@{at[1]}; streams dead-letters list")


# ---- sending back ---------------------------------------------------------------------------------------------------


async def _send_back(args: argparse.Namespace) -> int:
    as_json = getattr(args, "json", False)
    async with connect(args) as client, _ledger(args) as ledger:
        post = await _post(client, args.effect, ledger)
        if args.at is not None:
            await _one(post, args.at)
        counts = await post.send_back(
            Which(args.run, args.at),
            again=args.again,
            told=(lambda one: print_json(one.plain())) if as_json else _tell,
        )
    if not as_json:
        text = f"{counts['sent']} sent back, {counts['sent before']} were before, {counts['refused']} refused"
        console().print(plain(text), soft_wrap=True)
    return 1 if counts["refused"] else 0


def _tell(one: SentBack) -> None:
    what = f"{one.letter.effect or 'command'} {one.letter.place}"
    if one.refused:
        text, style = f"✗ {what}: {one.refused}", "red"
    elif one.place:
        text, style = f"✓ {what} is at {one.place}", "green"
    else:
        text, style = f"· {what} went back before; --again sends it once more", "dim"
    console().print(plain(text, style), soft_wrap=True)


@asynccontextmanager
async def _ledger(args: argparse.Namespace) -> AsyncIterator[Ledger | None]:
    """The ledger, where one is named or lies at the usual place: it knows what only a person may repeat."""
    if args.effect is None:
        if args.ledger is not None:
            raise UsageError("--ledger is for --effect NAME: no ledger knows of commands")
        yield None
        return
    async with possible_ledger(args) as (ledger, flaw):
        if flaw:
            raise LedgerUnavailable(f"{flaw}; it knows what only a person may repeat, so nothing was sent back")
        yield ledger
