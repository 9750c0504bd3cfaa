"""The subscriber: serves the effects of an app that have a handler, each once, whatever dies in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from streams.authoring.app import App
from streams.authoring.subscriber import Subscription
from streams.clock import Clock, SystemClock
from streams.effects.port import Ledger
from streams.effects.subscriber.batches import Batches
from streams.effects.subscriber.outside import OutsideCalls
from streams.effects.subscriber.parts import Parts, done_before
from streams.effects.subscriber.settings import SubscriberSettings
from streams.effects.subscriber.station import Station
from streams.errors import UsageError
from streams.log.port import Log
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.host import Host
from streams.runtime.origin import actual_topics
from streams.runtime.topics import ensure_topics
from streams.wire.app_codec import make_codec
from streams.wire.topics import topics_of

__all__ = ["Subscriber"]


class Subscriber:
    """Carries out an app's effects until it is stopped. `owner` names it in the ledger; two never share a name.

    `only` names the effects to serve, all that have a handler unless given. The ledger stays open at the end.
    """

    def __init__(
        self,
        app: App,
        log: Log,
        ledger: Ledger,
        *,
        settings: SubscriberSettings | None = None,
        observer: Observer | None = None,
        clock: Clock | None = None,
        host: Host | None = None,
        only: Iterable[str] | None = None,
        owner: str | None = None,
        strict: bool = False,
    ) -> None:
        host = host or Host()
        self._subscriptions = _chosen(app, only)
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._strict = strict
        self.parts = Parts(
            app,
            log,
            ledger,
            topics=topics_of(app.name, app.effects),
            codec=make_codec(app.annotations, app.named_types),
            owner=owner or f"{host.name}/{host.pid}/{host.random_bytes(4).hex()}",
            settings=settings or SubscriberSettings(),
            observer=observer or Observer(),
            clock=clock or SystemClock(),
            host=host,
            fail=self.fail,
        )
        self.stations: dict[str, Station] = {}

    async def run(self) -> None:
        """Work until `stop` is called; then let running handlers finish, within a bound. Raises what no retry mends.

        A ledger whose tables are of another version raises `LedgerMismatch`.
        """
        parts = self.parts
        _check_transactional(self._subscriptions.values(), parts.ledger)
        if await done_before(self._stopping, self._prepare()):
            crash.install_from(os.environ)
            await self._work()
        if self._failure is not None:
            raise self._failure

    async def _prepare(self) -> None:
        """Wait for the log, a minute at most, and for the ledger."""
        parts = self.parts
        await parts.at_start(self._prepare_topics)
        await parts.ask_ledger(parts.ledger.migrate)
        await parts.ask_ledger(parts.ledger.check)

    async def _work(self) -> None:
        parts = self.parts
        async with AsyncExitStack() as stack:
            if parts.app.lifespan is not None:
                parts.resources = await stack.enter_async_context(parts.app.lifespan(parts.app))
            for name, subscription in self._subscriptions.items():
                work = Batches if subscription.transactional else OutsideCalls
                self.stations[name] = Station(parts, subscription, work, strict=self._strict)
            await self._serve()

    def stop(self) -> None:
        """Begin a graceful stop. From the event loop's thread."""
        self._stopping.set()

    def fail(self, error: BaseException) -> None:
        """End the subscriber because of something that no retry can mend."""
        self._failure = self._failure or error
        self.parts.failed = True
        self._stopping.set()

    async def _serve(self) -> None:
        serving = [asyncio.ensure_future(station.serve(self._stopping)) for station in self.stations.values()]
        try:
            await asyncio.gather(*serving)
        finally:
            self._stopping.set()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    async def _prepare_topics(self) -> None:
        parts = self.parts
        topics, origin = await actual_topics(parts.log, parts.app.name, parts.app.effects)
        if origin is not None and not origin.publishes:
            message = (
                f"app {parts.app.name} is a copy of {origin.app} with effects off: nothing is there to subscribe to"
            )
            raise UsageError(message)
        await ensure_topics(parts.log, topics, parts.settings.partitions, warn=parts.observer.message)


def _chosen(app: App, only: Iterable[str] | None) -> dict[str, Subscription[Any, Any]]:
    """The subscriptions to serve. Raises UsageError."""
    found = dict(app.subscriptions)
    if only is not None:
        wanted = list(only)
        unknown = [name for name in wanted if name not in found]
        if unknown:
            known = ", ".join(sorted(found)) or "none"
            message = f"app {app.name} has no subscriber of effect {', '.join(unknown)}; those it has: {known}"
            raise UsageError(message)
        found = {name: found[name] for name in wanted}
    if not found:
        message = f"app {app.name} has no subscriber: declare one with @app.subscriber(EFFECT)"
        raise UsageError(message)
    return found


def _check_transactional(subscriptions: Iterable[Subscription[Any, Any]], ledger: Ledger) -> None:
    """Raises UsageError for a transactional handler that cannot use the connection of this ledger."""
    wanted = {"postgresql": True, "postgres": True, "sqlite": False}.get(ledger.url.partition(":")[0])
    for subscription in subscriptions:
        if subscription.transactional and wanted is not None and subscription.is_async is not wanted:
            taken = "payloads" if subscription.many else "payload"
            write, given = ("async def", "psycopg.AsyncConnection") if wanted else ("def", "sqlite3.Connection")
            message = (
                f"subscriber {subscription.name!r} of effect {subscription.effect.name!r} is transactional: with "
                f"{ledger.url} it is given a {given}, so write `{write} {subscription.name}(ctx, {taken})`"
            )
            raise UsageError(message)
