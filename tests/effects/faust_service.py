"""Faust services as programs of their own, for tests that kill them: `python faust_service.py ROLE --FLAGS`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from streams import App, EffectContext, Found, NotFound, Retry
from streams.effects.faust import effect_agent, make_app, run_app
from streams.effects.port import Ledger
from streams.effects.sqlite import open_sqlite_ledger
from streams.effects.subscriber.settings import SubscriberSettings
from tests.effects.faust_lab import lines


def note(out: Path, line: str) -> None:
    with out.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def collect(options: argparse.Namespace) -> None:
    """Write down what is read, a line each."""
    app = make_app(options.group, options.log, web_enabled=False, broker_commit_interval=0.2, **TIMES[options.times])

    @app.agent(app.log_topic(options.topic))
    async def read(stream):
        async for value in stream:
            note(options.out, value.decode())

    run_app(app)


def effects(options: argparse.Namespace) -> None:
    """Carry out `pay` of the app `--topic`. The provider is a file: one line a call, which the look-up reads."""
    app = App(options.topic)
    pay = app.effect("pay", dict, reply=str)
    service = make_app(options.group, options.log, web_enabled=False, broker_commit_interval=0.2, **BRIEF)
    settings = SubscriberSettings(lease_seconds=1.0, ask_again_seconds=0.1)

    async def look(ctx: EffectContext, payload: dict) -> Found[str] | NotFound:
        return Found(ctx.idempotency_key) if ctx.idempotency_key in lines(options.out) else NotFound()

    async def open_ledger() -> Ledger:
        return await open_sqlite_ledger(options.ledger)

    @effect_agent(service, app, open_ledger, settings=settings)
    @app.subscriber(pay, reconcile=look, looks=Retry(initial=0.1))
    async def provide(ctx: EffectContext, payload: dict) -> str:
        note(options.out, ctx.idempotency_key)
        await asyncio.sleep(payload.get("seconds", 0.0))
        return ctx.idempotency_key

    run_app(service)


BRIEF = {"broker_session_timeout": 2.0, "broker_heartbeat_interval": 0.5}
TIMES = {
    "ours": {},
    "stock": {"broker_session_timeout": 60.0, "broker_heartbeat_interval": 3.0, "broker_request_timeout": 90.0},
}
ROLES = {"collect": collect, "effects": effects}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=sorted(ROLES))
    parser.add_argument("--log", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ledger")
    parser.add_argument("--times", choices=sorted(TIMES), default="ours")
    options = parser.parse_args()
    ROLES[options.role](options)


if __name__ == "__main__":
    main()
