"""The live view: a Faust app that folds the events of an app into a table of runs, and shows it on a web page."""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import faust
from aiohttp import ClientError, ClientTimeout
from faust.serializers import codecs
from faust.types import TP
from faust.web import Request, Response
from faust.web import View as Page

from streams.effects.faust.pages import counts_page, run_page
from streams.effects.faust.service import ServiceApp, make_app
from streams.effects.faust.views import View, ViewCodec, fold, shown, status
from streams.errors import UsageError, WireError
from streams.wire.app_codec import make_codec
from streams.wire.records import decode_event
from streams.wire.topics import PARTITIONS_DEFAULT, topics_of
from streams.wire.values import ValueCodec

__all__ = ["LiveView", "free_port", "make_view"]

_LATEST_MAX = 50
_ASK_SECONDS = 3.0


class RunTable(faust.Table[str, View]):
    """The table of runs; its changelog holds views in their own form, with run ids as text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.key_serializer, self.value_serializer = "streams-key", "streams-view"


class LiveView:
    """The runs of the partitions that this worker has. Other workers of the same view are asked for theirs."""

    def __init__(self, service: ServiceApp, app: str, partitions: int) -> None:
        self.service, self.app, self.partitions = service, app, partitions
        self.events = topics_of(app).events
        self.unreadable = 0
        self.table = RunTable(service, name="runs", partitions=partitions, help=f"the runs of {app}")
        service.tables.add(self.table)
        self._codec: ValueCodec = make_codec((), {})
        self._owned: set[int] = set()

    @property
    def url(self) -> str:
        """Where the page of this worker is."""
        return f"{str(self.service.conf.canonical_url).rstrip('/')}/"

    def take(self, event: faust.Event) -> None:
        """Fold one record of the events."""
        message = event.message
        try:
            found = decode_event(event.value)
        except WireError:
            self.unreadable += 1
            return
        before = self.table.get(found.run_id)
        after = fold(before, found, message.partition, message.offset)
        if after is None and before is not None:
            self.table.pop(found.run_id)
        elif after is not None and after is not before:
            self.table[found.run_id] = after

    async def assigned(self, places: set[TP]) -> None:
        """Forget the runs of partitions that others have now: Faust would go on showing them as they were."""
        known = self.service.consumer.topic_partitions(self.events)
        if known not in (None, self.partitions):
            raise UsageError(
                f"{self.events} has {known} partitions and the view was made for {self.partitions}: pass "
                f"partitions={known}"
            )
        self._owned = {place.partition for place in places if place.topic == self.events}
        for run_id in [run_id for run_id, view in self.table.data.items() if view.partition not in self._owned]:
            self.table.data.pop(run_id, None)

    @property
    def ready(self) -> bool:
        """Whether the table is restored. Until then it would show runs as they were."""
        return not self.service.rebalancing and not self.service.in_recovery

    def here(self) -> dict[str, Any]:
        """The counts of this worker."""
        owned = sorted(self._owned) if self.ready else []
        views: Iterable[View] = self.table.data.values() if owned else ()
        statuses = Counter(status(view) for view in views)
        return {"partitions": owned, "runs": statuses.total(), "statuses": statuses, "unreadable": self.unreadable}

    def latest(self) -> list[dict[str, Any]]:
        """The runs of this worker that changed last."""
        views: Iterable[View] = self.table.data.values() if self.ready else ()
        newest = heapq.nlargest(_LATEST_MAX, views, key=lambda view: view.run.at)
        return [shown(view, self._codec) for view in newest]

    def run(self, run_id: str) -> dict[str, Any] | None:
        """The last state of a run of this worker."""
        view = self.table.data.get(run_id) if self.ready else None
        return None if view is None else shown(view, self._codec)

    async def counts(self) -> dict[str, Any]:
        """The counts of all workers together, and the partitions that none of them has shown."""
        found = [self.here(), *await self._ask_others("/counts.json")]
        statuses: Counter[str] = sum((Counter(part["statuses"]) for part in found), Counter())
        covered = {number for part in found for number in part["partitions"]}
        return {
            "app": self.app,
            "runs": statuses.total(),
            "statuses": dict(statuses),
            "unreadable": sum(part["unreadable"] for part in found),
            "missing_partitions": sorted(set(range(self.partitions)) - covered),
        }

    async def recent(self) -> list[dict[str, Any]]:
        """The runs of all workers that changed last."""
        found = [run for part in await self._ask_others("/latest.json") for run in part] + self.latest()
        return heapq.nlargest(_LATEST_MAX, found, key=lambda run: run["changed_at"] or "")

    async def find(self, run_id: str) -> dict[str, Any] | None:
        """The last state of a run, wherever it is."""
        here = self.run(run_id)
        if here is not None:
            return here
        others = await self._ask_others("/run.json", {"id": run_id})
        return next((run for run in others if run is not None), None)

    async def _ask_others(self, path: str, query: Mapping[str, str] | None = None) -> list[Any]:
        """What those answer that do; who is away is missed in the counts, by its partitions."""
        own = str(self.service.conf.canonical_url)
        hosts = sorted(set(self.service.router.tables_metadata()) - {own})
        answers = await asyncio.gather(*(self._ask(host + path, {**(query or {}), "here": "1"}) for host in hosts))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, url: str, query: Mapping[str, str]) -> Any:
        try:
            limit = ClientTimeout(total=_ASK_SECONDS)
            async with self.service.http_client.get(url, params=query, timeout=limit) as response:
                return await response.json() if response.status == 200 else None
        except (ClientError, TimeoutError, ValueError):
            return None


def make_view(
    app: str,
    log_url: str,
    *,
    group: str | None = None,
    partitions: int = PARTITIONS_DEFAULT,
    port: int = 0,
    **settings: Any,
) -> LiveView:
    """The live view of the app of this name, as a Faust app with web pages on 127.0.0.1 at `port` (0: a free one).

    `group` names the view; workers with the same name share the partitions. Another name builds another view from the
    first event on. `settings` are Faust's.
    """
    codecs.register("streams-view", ViewCodec())
    service = make_app(group or f"{app}.live-view", log_url, web_port=port or free_port(), **settings)
    view = LiveView(service, app, partitions)
    service.on_partitions_assigned.connect(_assigned(view), weak=False)

    @service.agent(service.log_topic(view.events), name="fold-events")
    async def fold_events(stream: Any) -> None:
        async for event in stream.noack().events():
            view.take(event)
            event.ack()

    _serve(view)
    return view


def _assigned(view: LiveView) -> Any:
    async def assigned(_: Any, places: set[TP], **__: Any) -> None:
        await view.assigned(places)

    return assigned


def _serve(view: LiveView) -> None:
    """The pages. With `?here=1` a worker speaks of its own partitions alone: so the others ask it."""
    service, app = view.service, view.app

    @service.page("/")
    async def index(page: Page, _: Request) -> Response:
        return page.html(counts_page(app, await view.counts(), await view.recent()))

    @service.page("/run")
    async def run(page: Page, request: Request) -> Response:
        run_id = request.query.get("id", "")
        found = await view.find(run_id) if run_id else None
        return page.html(run_page(app, run_id, found), status=200 if found or not run_id else 404)

    @service.page("/counts.json")
    async def counts_json(page: Page, request: Request) -> Response:
        return page.json(view.here() if "here" in request.query else await view.counts())

    @service.page("/latest.json")
    async def latest_json(page: Page, request: Request) -> Response:
        return page.json(view.latest() if "here" in request.query else await view.recent())

    @service.page("/run.json")
    async def run_json(page: Page, request: Request) -> Response:
        run_id = request.query.get("id", "")
        found = view.run(run_id) if "here" in request.query else await view.find(run_id)
        return page.json(found, status=200 if found or "here" in request.query else 404)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
