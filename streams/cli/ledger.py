"""The verb `ledger`: what subscribers have done, what waits for a person, and that person's word."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from rich.table import Table
from rich.text import Text

from streams.authoring.app import App
from streams.cli.ask import ANSWER_SECONDS, operator_name
from streams.cli.ledgers import add_ledger, existing_ledger
from streams.cli.loader import load_app
from streams.cli.logs import app_of, connect, existing
from streams.cli.parser import Verbs, duration, effect_name, json_value, key, run_id, words
from streams.cli.render import facts, local_time
from streams.cli.terminal import console, error_text, note, plain, print_json, safe, show, text_of
from streams.client import Client
from streams.effects.port import Entry, Key, Ledger, Query, Resolution, Status
from streams.errors import Refused, UsageError
from streams.kernel.bodies import Failure
from streams.ops.entries import plain_entry
from streams.ops.keeping import keeping_of
from streams.ops.outbox import effect_names, resolve_line
from streams.ops.resolving import GIVEN_UP, Resolved, open_again, settle_by_hand
from streams.ops.texts import span
from streams.wire.app_codec import make_codec
from streams.wire.topics import topics_of

__all__ = ["add"]

KEEP_DEFAULT = "60d"
ROWS_MAX = 1_000
"""Rows of one table; `--json` prints all, one by one."""

_PAGE = 500
_BATCH = 10_000
_STATUSES = [status.value for status in Status]
_STYLES = {"done": "green", "parked": "bold red", "uncertain": "yellow", "failed": "red", "claimed": "cyan"}


def add(verbs: Verbs) -> None:
    """Declare the verb and its actions."""
    help_ = "look at what subscribers have done, and say what a person has found out"
    verbs.add("prove", "ledger", _which, help_, "streams ledger list --status parked")
    list_ = _action(verbs, "list", _list, "list operations", "streams ledger list --status parked --effect payments")
    list_.add_argument("--status", metavar="S", choices=_STATUSES, help=f"one of {', '.join(_STATUSES)}")
    list_.add_argument("--effect", metavar="NAME", type=effect_name, help="only of this effect")
    list_.add_argument("--run", metavar="ID", type=run_id, help="only of this run")
    look = _action(verbs, "show", _show, "show one operation", "streams ledger show o-1/pay --effect payments")
    _add_key(look)
    example = """streams ledger resolve o-1/pay --effect payments --done '{"payment_id": "pay-7"}'
  streams ledger resolve o-1/pay --effect payments --not-done"""
    resolve = _action(verbs, "resolve", _resolve, "say what became of an operation that nobody knows of", example)
    _add_key(resolve)
    word = resolve.add_mutually_exclusive_group(required=True)
    word.add_argument("--done", metavar="JSON", type=json_value, default=argparse.SUPPRESS, help="it was done: this")
    word.add_argument("--not-done", action="store_true", help="it was not: the subscriber carries it out once more")
    word.add_argument("--give-up", metavar="TEXT", type=words, help="it was not, and never will be; TEXT says why")
    code = "the app's code, to check what --done says by the type of the effect's reply before it is written"
    resolve.add_argument("--code", metavar="MODULE:APP", help=code)
    clean = _action(verbs, "clean", _clean, "forget what is done and old", "streams ledger clean --older-than 90d")
    age = f"how long ago it must have been done or given up, such as 90d (default: {KEEP_DEFAULT})"
    clean.add_argument("--older-than", metavar="AGE", type=duration, default=KEEP_DEFAULT, help=age)
    clean.add_argument("--effect", metavar="NAME", type=effect_name, help="only of this effect")
    clean.add_argument("--force", action="store_true", help="also what a message in the log may ask for once more")


def _which(_: argparse.Namespace) -> int:
    raise UsageError("which action? see: streams ledger --help")


def _action(
    verbs: Verbs, name: str, run: Callable[[argparse.Namespace], Any], help_: str, example: str
) -> argparse.ArgumentParser:
    parser = verbs.action("ledger", name, lambda args: asyncio.run(run(args)), help_, example)
    add_ledger(parser)
    return parser


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", type=key, help="its idempotency key")
    parser.add_argument("--effect", metavar="NAME", type=effect_name, required=True, help="the effect that it is of")


# ---- looking --------------------------------------------------------------------------------------------------------


async def _list(args: argparse.Namespace) -> int:
    statuses = () if args.status is None else (Status(args.status),)
    query = Query(app_of(args), args.effect, statuses, args.run, limit=_PAGE)
    found: list[dict[str, Any]] = []
    async with existing_ledger(args) as ledger:
        async for entry in _entries(ledger, query):
            shown = plain_entry(entry)
            if getattr(args, "json", False):
                print_json(shown)
            elif len(found) == ROWS_MAX:
                note(f"these are the first {ROWS_MAX:,}; narrow it with --status, --effect or --run, or use --json")
                break
            else:
                found.append(shown)
    if found:
        show(_table(found))
    elif not getattr(args, "json", False):
        narrowed = args.status or args.effect or args.run or query.app
        note("nothing like that in the ledger" if narrowed else "the ledger is empty")
    return 0


async def _entries(ledger: Ledger, query: Query) -> AsyncIterator[Entry]:
    while True:
        page = await ledger.entries(query)
        for entry in page:
            yield entry
        if len(page) < query.limit:
            return
        query = query._replace(after=page[-1].key)


def _table(entries: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("key", "effect", "status", "tries", "run", "changed", "error"):
        table.add_column(name, overflow="fold", no_wrap=name in ("status", "changed"))
    several = len({entry["app"] for entry in entries}) > 1
    for entry in entries:
        error = entry["error"]
        text = "" if error is None else error_text(error["code"], error["message"])
        name = f"{entry['app']}: {entry['effect']}" if several else entry["effect"]
        status = Text(entry["status"], style=_STYLES[entry["status"]])
        changed = local_time(entry["updated_at"], "%m-%d %H:%M:%S")
        cells = (entry["key"], name, entry["run_id"], changed, text)
        key, effect, run, at, why = (plain(cell) for cell in cells)
        table.add_row(key, effect, status, str(entry["deliveries"]), run, at, why)
    return table


async def _show(args: argparse.Namespace) -> int:
    async with existing_ledger(args) as ledger:
        key = Key(await _app_name(args), args.effect, args.key)
        entry = (await ledger.look([key])).get(key)
    if entry is None:
        raise Refused("UNKNOWN_KEY", _unknown(key))
    if getattr(args, "json", False):
        print_json(plain_entry(entry))
    else:
        show(facts((name, _shown(name, value)) for name, value in plain_entry(entry).items() if value is not None))
        for line in _cures(entry):
            console().print(plain(line, "bold"), soft_wrap=True)
    return 0


def _unknown(key: Key) -> str:
    return (
        f"the ledger has no entry of effect {key.operation!r} of app {key.app!r} under the key {key.key!r}; "
        f"streams ledger list --effect {key.operation} shows those that it has"
    )


def _shown(name: str, value: Any) -> Text | str:
    if name == "status":
        return Text(value, style=_STYLES[value])
    if name in ("created_at", "updated_at", "due", "lease_until"):
        return local_time(value)
    if name == "error":
        return plain(error_text(value["code"], value["message"]), "red")
    return safe(text_of(value))


def _cures(entry: Entry) -> list[str]:
    if entry.status not in (Status.PARKED, Status.UNCERTAIN):
        return []
    verb = resolve_line(entry.key.operation, entry.key.key)
    return [f"{verb} --done JSON", f"{verb} --not-done", f"{verb} --give-up TEXT"]


async def _app_name(args: argparse.Namespace) -> str:
    """The app that is meant, else the only one in the log."""
    if name := app_of(args):
        return name
    async with connect(args) as client:
        return client.topics.app


# ---- a person's word ------------------------------------------------------------------------------------------------


async def _resolve(args: argparse.Namespace) -> int:
    app = _code(args)
    operator = operator_name() or "operator"
    async with existing_ledger(args) as ledger, connect(args) as client:
        key = Key(client.topics.app, args.effect, args.key)
        if key not in await ledger.look([key]):
            raise Refused("UNKNOWN_KEY", _unknown(key))
        if args.not_done:
            done = await open_again(client, ledger, key, operator)
        else:
            done = await settle_by_hand(client, ledger, key, _resolution(args, client, app, operator))
        taken = await _taken(client, done)
    _tell(args, done, taken)
    return 0


def _code(args: argparse.Namespace) -> App | None:
    """The app's code, where it is given. Raises UsageError where it is not for this effect."""
    if args.code is None:
        return None
    if "done" not in args:
        raise UsageError("--code is for --done, whose response it checks")
    app = load_app(args.code)
    if args.effect not in app.replies:
        have = ", ".join(sorted(app.replies)) or "none"
        raise UsageError(f"{args.code} has no effect {args.effect!r}; it has: {have}")
    return app


def _resolution(args: argparse.Namespace, client: Client, app: App | None, operator: str) -> Resolution:
    if args.give_up is not None:
        error = Failure("terminal", GIVEN_UP, args.give_up)
        return Resolution(Status.FAILED, error=error, operator=operator)
    response = client.values.encode(args.done, "the response")
    if app is not None:
        response = make_codec(app.annotations, app.named_types).conform(response, app.replies[args.effect])
    return Resolution(Status.DONE, response=response, operator=operator)


async def _taken(client: Client, done: Resolved) -> bool | None:
    """Whether the run has taken the reply; None where no reply was due, or no worker is there."""
    if done.reply is None:
        return None
    try:
        return await client.accepted(done.reply, timeout=ANSWER_SECONDS)
    except TimeoutError as late:
        note(str(late))
    except Refused as refused:
        note(f"the run did not take the reply: {refused}")
    return None


def _tell(args: argparse.Namespace, done: Resolved, taken: bool | None) -> None:  # noqa: FBT001 - three answers
    entry = done.entry
    if getattr(args, "json", False):
        facts_ = {"new": done.new, "sent_to": done.sent_to or None, "replied": done.reply is not None, "taken": taken}
        print_json({**plain_entry(entry), **facts_})
        return
    text = f"{entry.key.operation} {entry.key.key} is {entry.status.value}"
    if not done.new and done.reply is None:
        text += "; that was known, and nothing changed"
    elif done.reply is not None:
        known = "" if taken is None else ", and the run has it" if taken else ", and the run knew it already"
        text += f"; the reply is in the log{known}"
    elif done.sent_to:
        text = f"{entry.key.operation} {entry.key.key} is tried again; its message was sent once more: {done.sent_to}"
    elif args.not_done:
        text = f"{entry.key.operation} {entry.key.key} is tried again; its subscriber has the message still before it"
    console().print(plain(text), soft_wrap=True)


# ---- forgetting -----------------------------------------------------------------------------------------------------


async def _clean(args: argparse.Namespace) -> int:
    async with existing_ledger(args) as ledger, existing(args) as log:
        app = await _app_name(args)
        topics = topics_of(app)
        names = [args.effect] if args.effect else await effect_names(log, app)
        for name in names if not args.force else ():
            keeping = await keeping_of(log, topics, name)
            if keeping.seconds is None or args.older_than < keeping.seconds:
                raise UsageError(_too_short(name, args.older_than, keeping.seconds, keeping.reason))
        counts = {name: await _clean_one(ledger, app, name, args.older_than) for name in names}
    if getattr(args, "json", False):
        print_json({"app": app, "older_than_seconds": args.older_than, "deleted": counts})
    else:
        total = sum(counts.values())
        console().print(plain(f"{total:,} operations older than {_age(args.older_than)} forgotten"), soft_wrap=True)
    return 0


async def _clean_one(ledger: Ledger, app: str, effect: str, age: float) -> int:
    total = 0
    out = console(stderr=True)
    while (count := await ledger.clean(app, effect, age, _BATCH)) > 0:
        total += count
        if out.is_terminal:
            note(f"{effect}: {total:,} forgotten")
    return total


def _too_short(effect: str, age: float, least: float | None, reason: str) -> str:
    text = f"what effect {effect!r} has done may be asked for once more: {reason}"
    if least is None:
        return f"{text}; nothing of it can be forgotten safely. --force forgets it all the same"
    return f"{text}. --older-than {_age(age)} is less than {_age(least)}; --force does it all the same"


def _age(seconds: float) -> str:
    return span(round(seconds * 1_000_000))
