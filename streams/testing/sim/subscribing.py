"""A process of the simulation that carries effects out, and the gates between it, the ledger and the providers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.errors import LedgerUnavailable
from streams.testing.ledger import GatedLedger, When
from streams.testing.sim.faults import SUBSCRIBER, Fault
from streams.testing.sim.log import SimLog
from streams.testing.sim.process import Process, SimHost

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["LEASE_SECONDS", "SubscriberProcess", "overlaps", "subscriber_settings_of"]

T = TypeVar("T")
LEASE_SECONDS = 9.0
"""So long that no process is frozen for it, and no handler is at work for it: nothing is done twice."""
_SMALL_WINDOW = 100
_SHORT_SECONDS = 1.5
"""So short that a frozen process comes back to a claim that others have taken over."""
_DELAYED_SHARE = 0.3
_DELAY_SECONDS = 0.006
_HELD = {when: tuple(f"{what} at a call of the ledger" for what in ("kill", "freeze")) for when in ("before", "after")}
_CALLED = ("kill at a call of a provider", "freeze at a call of a provider")


class SubscriberProcess(Process):
    """A subscriber of all effects that have one."""

    prefix = SUBSCRIBER

    def __init__(self, world: World, slot: int, generation: int) -> None:
        number = slot - world.options.workers + 1
        super().__init__(world, slot, f"s{number}.{generation}")
        self.died: asyncio.Future[None] = world.loop.create_future()
        """Done once the process is dead; waited for by the database alone."""
        self.subscriber = Subscriber(
            world.app,
            SimLog(world.broker.share(), self),
            GatedLedger(world.ledger, self),
            settings=world.subscriber_settings,
            observer=world.observer(self.name),
            clock=self.clock,
            host=SimHost(self._rng, 100_000 * (number + 1) + generation),
            owner=self.name,
        )
        self.begin(self.subscriber.run())

    @property
    def owns(self) -> Sequence[object]:
        """Where it lives, it owns something, or will."""
        return [self.name]

    def tell_to_stop(self) -> None:
        """As SIGTERM does."""
        self.subscriber.stop()

    def gone(self) -> None:
        """The database learns of it."""
        if not self.died.done():
            self.died.set_result(None)

    def places(self) -> Sequence[tuple[str, str]]:
        """One of each effect that is subscribed to."""
        topics = self.world.topics
        return [(topics.subscribers(name), topics.effect(name)) for name in self.world.app.subscriptions]

    async def committed(self, topic: str, partition: int, offset: int | None) -> None:
        """The group's offset was read."""
        self._striker.effect_offset_read(topic, partition, offset, self.name)

    # -- the ledger ----------------------------------------------------------------------------------------------

    async def ledger(self, name: str, when: When) -> None:
        """A call of the ledger begins, or its answer comes."""
        world = self.world
        fault = self.due(*_HELD[when], detail=when)
        if fault is not None:
            await self._strike(fault, f"ledger {name}, {when}")
        if not self._striker.ledger.there:
            raise LedgerUnavailable(f"{name}: no database answers")
        wanted = ("ledger refuses a call", "call of the ledger delayed") if when == "before" else _LOST
        fault = self.due(*wanted)
        if fault is not None:
            world.struck(fault, f"{self.name} at {name}")
            if fault.what != "call of the ledger delayed":
                raise LedgerUnavailable(f"{name}: the database did not answer in time")
            await asyncio.sleep(fault.seconds)
        if self._rng.random() < _DELAYED_SHARE:
            await asyncio.sleep(self._rng.random() * _DELAY_SECONDS)

    def serve(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """In the world's own name."""
        return self.world.loop.create_task(call, context=self.world.context.copy())

    async def while_alive(self, body: Coroutine[Any, Any, T]) -> T:
        """In the name of the process, waited for by the database."""
        working = self.actor.start(body)
        try:
            both: list[asyncio.Future[Any]] = [working, self.died]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            working.cancel()
            raise
        if not working.done():
            raise ConnectionError(f"{self.name} has gone")
        return working.result()

    # -- providers -----------------------------------------------------------------------------------------------

    async def provider(self, when: When) -> None:
        """A call of a provider begins, or its answer comes."""
        fault = self.due(*_CALLED, detail=when)
        if fault is not None:
            await self._strike(fault, f"a call of a provider, {when}")
        if not self._striker.providers.there:
            raise ConnectionError("no provider answers")


_LOST = ("answer of the ledger lost",)


def subscriber_settings_of(rng: random.Random, partitions: int) -> SubscriberSettings:
    """Limits so small that a short history meets them."""
    window = rng.choice([2, 5, 10_000])
    return SubscriberSettings(
        partitions=partitions,
        concurrency=rng.choice([1, 3, 1_000]),
        threads=rng.choice([1, 256]),
        window=window,
        poll_records=rng.choice([1, 4, 1_000]),
        poll_seconds=1.0 if window > _SMALL_WINDOW else 0.2,  # a full window is looked at after each poll
        claims_max=rng.choice([1, 3, 1_000]),
        lease_seconds=rng.choice([LEASE_SECONDS, LEASE_SECONDS, _SHORT_SECONDS]),
        ask_again_seconds=0.3,
        commit_records=rng.choice([2, 2_000]),
        ledger_pause_seconds=0.5,
        stop_seconds=rng.choice([0.1, 1.5]),
        drain_seconds=rng.choice([0.1, 1.0]),
        retry_refused_seconds=1.0,
    )


def overlaps(settings: SubscriberSettings, struck: Iterable[Fault]) -> bool:
    """Whether a process may have stood still, or have been cut off from the ledger, longer than a claim of it holds."""
    still = sum(fault.seconds for fault in struck if fault.kind.startswith(SUBSCRIBER) and fault.what in _STILL)
    return bool(still + _HANDLER_SECONDS_MAX > settings.lease_seconds)


_STILL = (
    *(f"freeze {where}" for where in ("at a random instant", "in a commit")),
    *(f"freeze at a call of {what}" for what in ("the ledger", "a provider")),
    *("ledger away", "call of the ledger delayed"),
)
_HANDLER_SECONDS_MAX = 1.3
