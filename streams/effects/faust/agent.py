"""Effects in a Faust service: an agent that carries each out once, through the ledger, and skips none that fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Generic, TypeVar, cast

from aiokafka.errors import KafkaError
from faust.exceptions import ProducerSendError

from streams.authoring.app import App
from streams.authoring.subscriber import Subscription
from streams.clock import SystemClock
from streams.effects.faust.carrying import Carried, Carrier
from streams.effects.faust.logged import LogObserver
from streams.effects.faust.service import ServiceApp
from streams.effects.port import Ledger
from streams.effects.subscriber.parts import Parts
from streams.effects.subscriber.settings import SubscriberSettings
from streams.errors import LedgerUnavailable, UsageError
from streams.log.port import Log, NewRecord, Record
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.host import Host
from streams.wire.app_codec import make_codec
from streams.wire.topics import topics_of

__all__ = ["EffectAgent", "effect_agent"]

E = TypeVar("E")
Y = TypeVar("Y")

_PAUSE_SECONDS = 0.5


class EffectAgent(Generic[E, Y]):
    """The agent of one effect. Called directly, it is the plain function of its subscriber."""

    def __init__(
        self,
        service: ServiceApp,
        app: App,
        subscription: Subscription[E, Y],
        open_ledger: Callable[[], Awaitable[Ledger]],
        *,
        settings: SubscriberSettings,
        observer: Observer,
    ) -> None:
        self.service = service
        self.app = app
        self.subscription = subscription
        self._open_ledger = open_ledger
        self._settings = settings
        self._observer = observer
        self._resources = AsyncExitStack()
        self._parts: Parts
        self._carrier: Carrier | None = None
        self._lines: dict[bytes, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(settings.window)
        topic = service.log_topic(topics_of(app.name, app.effects).effect(subscription.effect.name))
        self.agent = service.agent(topic, name=f"effect-{subscription.effect.name}")(self._serve)

    async def __call__(self, ctx: Any, payload: E, /) -> Y:
        """Call the function itself, without Faust and without a ledger."""
        return await self.subscription(ctx, payload)

    async def _serve(self, stream: Any) -> None:
        """Take messages in, a task each; those of one key follow each other."""
        carrier = self._carrier or await self._open()
        async for event in stream.noack().events():
            await self._room.acquire()
            key = event.message.key or b""
            task = asyncio.ensure_future(self._deliver(carrier, event, self._lines.get(key)))
            self._lines[key] = task
            task.add_done_callback(partial(self._over, key))

    async def _open(self) -> Carrier:
        ledger = await self._ledger()
        self._resources.push_async_callback(ledger.close)
        host = Host()
        self._parts = parts = Parts(
            self.app,
            cast("Log", None),  # Faust reads and writes
            ledger,
            topics=topics_of(self.app.name, self.app.effects),
            codec=make_codec(self.app.annotations, self.app.named_types),
            owner=f"{host.name}/{host.pid}/{host.random_bytes(4).hex()}",
            settings=self._settings,
            observer=self._observer,
            clock=SystemClock(),
            host=host,
            fail=_unused,
        )
        await parts.ask_ledger(ledger.migrate)
        await parts.ask_ledger(ledger.check)
        crash.install_from(os.environ)
        if self.app.lifespan is not None:
            parts.resources = await self._resources.enter_async_context(self.app.lifespan(self.app))
        self._carrier = Carrier(parts, self.subscription)
        return self._carrier

    async def _ledger(self) -> Ledger:
        while True:
            try:
                return await self._open_ledger()
            except LedgerUnavailable as error:
                self._observer.message(f"the ledger cannot be opened, trying again: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _deliver(self, carrier: Carrier, event: Any, earlier: asyncio.Task[None] | None) -> None:
        """Carry one message out, write what follows from it, and only then acknowledge it."""
        if earlier is not None:
            await asyncio.wait([earlier])
        message = event.message

        def gone() -> bool:  # every partition is delivered anew after a rebalance, also to who keeps it
            return bool(message.generation_id != self.service.consumer_generation_id)

        if gone():
            return
        headers = tuple(message.headers or ())
        stamp = round((message.timestamp or 0.0) * 1_000)
        record = Record(message.topic, message.partition, message.offset, stamp, message.key, message.value, headers)
        carried = await carrier.carry(record, gone)
        if carried is not None:
            await self._publish(carried)
            event.ack()

    async def _publish(self, carried: Carried) -> None:
        """Replies and dead letters leave outside of any transaction, so after a crash perhaps twice, and never not."""
        for record in carried.records:
            await self._send(record)
        crash.passing("effect.committed", self.subscription.effect.name)
        if carried.outcome is not None:
            parts, outcomes = self._parts, [carried.outcome]
            await parts.ask_ledger(lambda: parts.ledger.note_published(outcomes))

    async def _send(self, record: NewRecord) -> None:
        producer = self.service.producer
        headers = [(name, value) for name, value in record.headers if value is not None]
        while True:
            try:
                await producer.send_and_wait(record.topic, record.key, record.value, record.partition, None, headers)
            except (KafkaError, ProducerSendError) as error:
                self._observer.message(f"{record.topic} does not take a record, trying again: {error}")
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    def _over(self, key: bytes, task: asyncio.Task[None]) -> None:
        self._room.release()
        if self._lines.get(key) is task:
            del self._lines[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nothing that a handler raises comes here: the tables of the ledger are not what they should be, or a bug.
            self._crashing = asyncio.ensure_future(self.service.crash(error))

    async def close(self) -> None:
        """Let running calls end, within the bound; what still runs then is left to the ledger and the next owner."""
        if self._carrier is None:
            return
        self._carrier.close()
        tasks = list(self._lines.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.stop_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._resources.aclose()


def effect_agent(
    service: ServiceApp,
    app: App,
    ledger: Callable[[], Awaitable[Ledger]],
    *,
    settings: SubscriberSettings | None = None,
    observer: Observer | None = None,
) -> Callable[[Subscription[E, Y]], EffectAgent[E, Y]]:
    """Let a Faust service carry out an effect of `app`. Goes over `@app.subscriber`, whose options and rules hold.

    `ledger` opens the ledger once the service runs. Not for transactional handlers, and not beside `streams subscribe`
    for the same effect, which is another consumer group: the ledger would keep them apart, at twice the reading.
    """

    def decorate(subscription: Subscription[E, Y]) -> EffectAgent[E, Y]:
        if not isinstance(subscription, Subscription):
            raise UsageError("@effect_agent goes over @app.subscriber(EFFECT): write it in the line above")
        if subscription.transactional:
            raise UsageError(
                f"subscriber {subscription.name!r} is transactional, which a Faust service does not offer: run it with "
                "`streams subscribe`"
            )
        agent = EffectAgent(
            service,
            app,
            subscription,
            ledger,
            settings=settings or SubscriberSettings(),
            observer=observer or LogObserver(),
        )

        async def closing(*_: Any, **__: Any) -> None:
            await agent.close()

        service.on_before_shutdown.connect(closing, weak=False)
        return agent

    return decorate


def _unused(error: BaseException) -> None:
    raise error
