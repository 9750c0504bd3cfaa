"""Builds the log that a URL names, and finds the app that is meant in it."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streams.cli.parser import log_url
from streams.cli.terminal import note
from streams.client import Client
from streams.errors import UsageError
from streams.log.address import shown
from streams.log.port import Log
from streams.log.sqlite import open_sqlite
from streams.log.sqlite.place import parse_url, refuse_network
from streams.runtime import crash
from streams.wire.topics import topics_of

__all__ = ["app_of", "connect", "existing", "exists", "open_log"]

_COMMANDS = topics_of("").commands  # what the names of command topics end in
APPEAR_SECONDS = 5.0


async def open_log(url: str) -> Log:
    """The log at `url`. Raises UsageError for an address that is none."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return await open_sqlite(url, on_stall=note, on_step=crash.passing)
    if scheme == "kafka":
        return await _open_kafka(url)
    if scheme == "memory":
        raise UsageError(f"{shown(url)!r} lives inside one process, for tests; here use sqlite:///PATH")
    raise UsageError(f"{shown(url)!r} is no address of a log; write sqlite:///PATH or kafka://HOST:PORT")


async def _open_kafka(url: str) -> Log:
    try:
        from streams.log.kafka import open_kafka  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "a kafka:// address needs the package confluent-kafka: pip install 'streams-engine[kafka]'"
        ) from error
    return await open_kafka(url, on_stall=note, on_step=crash.passing)


def exists(url: str) -> bool:
    """Whether something is there. Raises UsageError for an address that is none, or where nothing can be."""
    if not url.startswith("sqlite:"):
        return True
    place = parse_url(url)
    refuse_network(place.path)
    return Path(place.path).exists()


def app_of(args: argparse.Namespace) -> str | None:
    """The app that the arguments or the environment name, if they do."""
    return getattr(args, "app", None) or os.environ.get("STREAMS_APP") or None


@asynccontextmanager
async def connect(args: argparse.Namespace, *, patient: bool = False) -> AsyncIterator[Client]:
    """A client of the app that the arguments mean. `patient`: its worker may be starting at this moment."""
    url = log_url(args)
    waited = await _wait_for_file(url, APPEAR_SECONDS if patient else 0)
    log = await open_log(url)
    try:
        name = await _app_name(args, log, APPEAR_SECONDS - waited if patient else 0)
        client = Client(log, name)
        try:
            yield client
        finally:
            await client.close()
    finally:
        await log.close()


@asynccontextmanager
async def existing(args: argparse.Namespace) -> AsyncIterator[Log]:
    """The log that the arguments mean, which must be there: opening the address of a file would make one."""
    url = log_url(args)
    if not exists(url):
        raise UsageError(f"there is no log at {url}")
    log = await open_log(url)
    try:
        yield log
    finally:
        await log.close()


async def _wait_for_file(url: str, patience: float) -> float:
    """Opening would create the file, and an empty log answers nothing. Returns the seconds that it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not exists(url):
        if loop.time() - started >= patience:
            raise UsageError(f"there is no log at {url}; start a worker first: streams worker MODULE:APP --log {url}")
        await asyncio.sleep(0.1)
    return loop.time() - started


async def _app_name(args: argparse.Namespace, log: Log, patience: float) -> str:
    wanted = app_of(args)
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        apps = [name.removesuffix(_COMMANDS) for name in await log.list_topics() if name.endswith(_COMMANDS)]
        if wanted in apps or (not wanted and len(apps) == 1):
            return str(wanted or apps[0])
        if (apps and not wanted) or asyncio.get_running_loop().time() >= deadline:
            raise UsageError(_which_app(wanted, apps, log.url))
        await asyncio.sleep(0.1)


def _which_app(wanted: str | None, apps: list[str], url: str) -> str:
    if not apps:
        return f"no app has topics in {url}; start a worker first, or run: streams topics create MODULE:APP"
    if wanted:
        return f"no app {wanted!r} has topics in {url}; there are: {', '.join(apps)}"
    return f"several apps are in {url}: {', '.join(apps)}; name one with --app"
