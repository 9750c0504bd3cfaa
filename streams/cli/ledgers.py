"""Builds the ledger that a URL names, and finds the one that is meant."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streams.effects.port import Ledger
from streams.errors import LedgerError, UsageError
from streams.log.address import shown

__all__ = [
    "LEDGER_DEFAULT",
    "add_ledger",
    "existing_ledger",
    "is_there",
    "ledger_url",
    "open_ledger",
    "possible_ledger",
]

LEDGER_DEFAULT = "sqlite:///streams-ledger.db"


def add_ledger(parser: argparse.ArgumentParser) -> None:
    """Declare the flag."""
    help_ = f"the ledger of the subscribers, else STREAMS_LEDGER (default: {LEDGER_DEFAULT}); or postgresql://…"
    parser.add_argument("--ledger", metavar="URL", help=help_)


def ledger_url(args: argparse.Namespace) -> str:
    """The ledger's address: the flag, the environment, or the default."""
    url = getattr(args, "ledger", None) or os.environ.get("STREAMS_LEDGER") or LEDGER_DEFAULT
    return str(url)


async def open_ledger(url: str) -> Ledger:
    """The ledger at `url`. Raises UsageError for an address that is none."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from streams.effects.sqlite import open_sqlite_ledger  # noqa: PLC0415 - only some verbs need a ledger

        return await open_sqlite_ledger(url)
    if scheme in ("postgresql", "postgres"):
        return await _open_postgres(url)
    raise UsageError(f"{shown(url)!r} is no address of a ledger; write sqlite:///PATH or postgresql://HOST/DATABASE")


async def _open_postgres(url: str) -> Ledger:
    try:
        from streams.effects.postgres import open_postgres_ledger  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "a postgresql:// address needs the package psycopg: pip install 'streams-engine[postgres]'"
        ) from error
    return await open_postgres_ledger(url)


def is_there(url: str) -> bool:
    """Whether opening it would find something. A server is asked when it is opened."""
    if not url.startswith("sqlite:"):
        return True
    from streams.effects.sqlite import path_of  # noqa: PLC0415 - as above

    return Path(path_of(url)).exists()


@asynccontextmanager
async def existing_ledger(args: argparse.Namespace) -> AsyncIterator[Ledger]:
    """The ledger that the arguments mean, which must be there: opening the address of a file would make one."""
    url = ledger_url(args)
    if not is_there(url):
        make = "a subscriber makes it: streams subscribe MODULE:APP"
        raise UsageError(f"there is no ledger at {url}; name another with --ledger; {make}")
    ledger = await open_ledger(url)
    try:
        await ledger.check()
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def possible_ledger(args: argparse.Namespace) -> AsyncIterator[tuple[Ledger | None, str]]:
    """The ledger that is named, or lies at the usual place; else None, with the reason where one was named."""
    url = ledger_url(args)
    named = url != LEDGER_DEFAULT
    try:
        if not is_there(url):
            yield None, f"there is no ledger at {shown(url)}" if named else ""
            return
        ledger = await open_ledger(url)
    except LedgerError as error:
        yield None, f"the ledger {shown(url)} cannot be asked: {error}"
        return
    try:
        yield ledger, ""
    finally:
        await ledger.close()
