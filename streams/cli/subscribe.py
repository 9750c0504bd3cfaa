"""The verb `subscribe`: carries an app's effects out until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from streams.authoring.app import App
from streams.cli.ledgers import add_ledger, ledger_url, open_ledger
from streams.cli.loader import load_app, rename
from streams.cli.logs import open_log
from streams.cli.parser import Verbs, log_url, seconds
from streams.cli.serve import leave_if_held, loop_factory, stop_on_signals
from streams.cli.terminal import complain, console, note, print_json, safe
from streams.cli.watch_effects import SubscriberObserver
from streams.effects.port import Ledger
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.errors import LedgerUnavailable, LogDamaged, UsageError
from streams.runtime.collector import calm_collector

__all__ = ["add", "opened_ledger"]

LEASE_SECONDS_MIN = 1.0
START_SECONDS = 60.0
"""How long a subscriber that starts waits for its ledger, as a worker does for its log."""
PAUSE_SECONDS = 0.5


def add(verbs: Verbs) -> None:
    """Declare the verb."""
    example = """streams subscribe examples/order_request.py:app
  streams subscribe shop.orders:app --only payments --ledger postgresql://streams@db/streams"""
    help_ = "carry out an app's effects until stopped, each once, as its ledger knows"
    parser = verbs.add("serve", "subscribe", _run, help_, example)
    parser.add_argument("target", metavar="MODULE:APP", help="a file or a module, and the app in it")
    parser.add_argument(
        "--only",
        metavar="EFFECT",
        nargs="+",
        action="extend",
        help="only these effects; otherwise all with a subscriber",
    )
    parser.add_argument("--strict", action="store_true", help="end with 1 when a partition has to be refused")
    lease = "how long a claim is safe from others while its subscriber shows no sign of life (default: {:.0f})"
    default = SubscriberSettings().lease_seconds
    parser.add_argument("--lease", metavar="SECONDS", type=seconds, default=default, help=lease.format(default))
    add_ledger(parser)


def _run(args: argparse.Namespace) -> int:
    app = rename(load_app(args.target), getattr(args, "app", None))
    names = _served(app, args.target, args.only)
    if args.lease < LEASE_SECONDS_MIN:
        raise UsageError(f"--lease: a claim lasts at least {LEASE_SECONDS_MIN:.0f} s, or a short pause would lose it")
    calm_collector()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(args, app, names))


def _served(app: App, target: str, only: list[str] | None) -> list[str]:
    """The effects that are to be carried out here. Raises UsageError where there are none."""
    have = sorted(app.subscriptions)
    if not have:
        write = "write one: @app.subscriber(EFFECT) async def handler(ctx: EffectContext, payload)"
        raise UsageError(f"{target} has no subscriber; {write}")
    unknown = sorted(set(only or ()) - set(have))
    if unknown:
        raise UsageError(f"--only: {target} has no subscriber of {', '.join(unknown)}; it has: {', '.join(have)}")
    return sorted(set(only)) if only else have


async def _serve(args: argparse.Namespace, app: App, names: list[str]) -> int:
    as_json = getattr(args, "json", False)
    code = 0
    log = await open_log(log_url(args))
    try:
        ledger = await opened_ledger(ledger_url(args))
        try:
            subscriber = Subscriber(
                app,
                log,
                ledger,
                settings=SubscriberSettings(lease_seconds=args.lease),
                observer=SubscriberObserver(as_json=as_json),
                only=names,
                strict=args.strict,
            )
            stop_on_signals(subscriber.stop, "handlers")
            _greet(app, names, log.url, ledger.url, as_json=as_json)
            await subscriber.run()
        finally:
            await ledger.close()
    except LogDamaged as error:  # a refused partition, where `--strict` wants that to be the end
        complain(str(error))
        code = 1
    finally:
        await log.close()
    leave_if_held(code)
    return code


async def opened_ledger(url: str) -> Ledger:
    """The ledger, as soon as it answers. The subscriber makes its tables, and waits for it later on by itself."""
    loop = asyncio.get_running_loop()
    deadline, told = loop.time() + START_SECONDS, False
    while True:
        try:
            return await open_ledger(url)
        except LedgerUnavailable as away:
            if loop.time() >= deadline:
                raise
            if not told:
                note(f"the ledger does not answer, trying again: {away}")
            told = True
        await asyncio.sleep(PAUSE_SECONDS)


def _greet(app: App, names: list[str], log: str, ledger: str, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {"kind": "subscriber", "app": app.name, "log": log, "ledger": ledger, "effects": names, "pid": os.getpid()}
        )
    else:
        text = (
            f"subscriber of app {app.name} on {safe(log)}, ledger {safe(ledger)}: {', '.join(names)} · Ctrl-C stops it"
        )
        console().print(text, style="bold", soft_wrap=True)
    if log.startswith("kafka:") and ledger.startswith("sqlite:"):
        text = "this ledger is a file of this machine: a subscriber elsewhere would not know what was done here"
        note(f"{text}. For several machines: --ledger postgresql://…")
    sys.stdout.flush()
