"""The world of one simulation: the log, the workers and their faults, the clients, and what is outside.

A workload and the invariants see it through these attributes: `log` (a handle without faults once the world is calm),
`topics`, `partitions`, `app`, `settings`, `outside` (what tasks do; it survives every crash), `plans` (the runs by id),
`sent` (the accepted commands with their offsets), `rng`, `clock` (the true time), `processes` (those that are alive).
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from streams.log.memory.hooks import End
from streams.log.memory.log import MemoryLog
from streams.log.port import Log, NewRecord, Record, TopicSpec
from streams.observer import Observer
from streams.runtime import crash
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.testing.clock import VirtualClock
from streams.testing.ledger import When
from streams.testing.loop import Actor, Dead, VirtualLoop, current_actor
from streams.testing.sim.app_served import QUOTES, make_served_app
from streams.testing.sim.clients import Clients
from streams.testing.sim.faults import EXPIRED, ZOMBIE, Fault, Faults
from streams.testing.sim.foreign import ForeignService
from streams.testing.sim.history import Served, read_history
from streams.testing.sim.invariants import check_lives
from streams.testing.sim.log import Gate, SimHooks, SimLog
from streams.testing.sim.model import draw
from streams.testing.sim.model_served import draw_served
from streams.testing.sim.oblivion import outlive
from streams.testing.sim.options import Options, drawn_faults, subscribers_of
from streams.testing.sim.outside import Outside
from streams.testing.sim.persons import Persons
from streams.testing.sim.process import Process, WorkerProcess
from streams.testing.sim.resting import all_visible, last_command, rewind, served_of, unfinished
from streams.testing.sim.rules_effects import check_effects
from streams.testing.sim.services import Services
from streams.testing.sim.story import Story, Teller
from streams.testing.sim.striking import Striker
from streams.testing.sim.subscribing import SubscriberProcess, subscriber_settings_of
from streams.testing.sim.watched import WatchedLedger
from streams.testing.sim.workload import Accepted, Load, Plan, make_app, plan, settings_of
from streams.wire.topics import topics_of

__all__ = ["Options", "World"]

SESSION_SECONDS = 2.0
"""After so long a silence the group gives the partitions of a member to others."""
TRANSACTION_SECONDS = 4.0
_LOOKS = 4
_EXPIRING_SHARE = 0.08
_TAKEN_OVER_SHARE = 0.2
_RESULT_SECONDS = 0.3
_KEPT_SECONDS = 8.0
"""Where runs expire: longer than any client repeats itself."""
LIVENESS_SECONDS = 180.0
"""Virtual time after the last fault in which every run must come to its end."""


class World:
    """Made inside a virtual loop, for one history."""

    def __init__(
        self, seed: int, options: Options, *, only: Collection[int] | None = None, story: Story | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "a world lives in virtual time: run it with `run_virtual`"
        self.loop = loop
        self.context = contextvars.copy_context()
        self.seed = seed
        self.options = options
        self.partitions = options.partitions
        self.rng = random.Random(f"{seed}/world")  # noqa: S311 - a seed decides everything
        self.clock = VirtualClock(loop)
        self.broker = MemoryLog(clock=self.clock.now_ms, hooks=SimHooks(self), transaction_timeout=TRANSACTION_SECONDS)
        self.log: Log = SimLog(self.broker.share(), Clients(self))
        self.outside = Outside(self.clock.now_us, _caller)
        subscribers = subscribers_of(seed, options)
        self.ledger = WatchedLedger(
            self.clock, lambda what: self.violations.append(f"at {self.loop.time():.4f}: {what}")
        )
        self.services = Services(self.clock.now_us, _caller, self._called) if subscribers else None
        self.outside.services = self.services
        self.app = make_served_app(self.outside) if self.services else make_app(self.outside)
        self.topics = topics_of(self.app.name, self.app.effects)
        self.settings = settings_of(random.Random(f"{seed}/settings"), options.partitions)  # noqa: S311
        settings_rng = random.Random(f"{seed}/subscriber settings")  # noqa: S311
        self.subscriber_settings = subscriber_settings_of(settings_rng, options.partitions)
        self.expiring = self.rng.random() < _EXPIRING_SHARE and not subscribers
        if self.expiring:
            sweep_seconds = min(1.0, self.settings.sweep_seconds)
            self.settings = replace(
                self.settings,
                result_kept_seconds=_RESULT_SECONDS,
                stub_kept_seconds=_KEPT_SECONDS,
                sweep_seconds=sweep_seconds,
            )
        self.plans: dict[str, Plan] = {}
        self.sent: list[Accepted] = []
        self.kept: dict[tuple[str, int], dict[int, Record]] = {}
        """What a compaction was about to take away, by topic and partition, then by offset."""
        self.violations: list[str] = []
        self.faults = Faults(drawn_faults(seed, options), only)
        self.calm = False
        self.served: Served | None = None
        self.calm_us: int | None = None
        """Since when nothing goes wrong any more."""
        self._story = story
        self._slots: list[Process | None] = [None] * (options.workers + subscribers)
        self._by_actor: dict[Actor, Process] = {}
        self._generations = [0] * len(self._slots)
        self.persons = Persons(self, random.Random(f"{seed}/persons"))  # noqa: S311
        self.striker = Striker(self)
        self._broker_rng = random.Random(f"{seed}/broker")  # noqa: S311

    # -- the course of a simulation ------------------------------------------------------------------------------

    async def run(self, check: Callable[[World], Any]) -> None:
        """Live through the faults, then without; `check` returns the invariants that do not hold."""
        drawn = draw_served if self.services is not None else draw
        runs = plan(random.Random(f"{self.seed}/plan"), self.options.runs, drawn)  # noqa: S311
        if self.options.only_runs is not None:
            runs = [run for number, run in enumerate(runs) if number in self.options.only_runs]
        if self.expiring:
            await self.broker.create_topics([self._short_commands()])
        await ensure_topics(self.broker, self.topics, self.partitions)
        load = Load(self, runs, random.Random(f"{self.seed}/load"), spread=self.options.seconds / 2)  # noqa: S311
        crash.install(self._passing)
        helpers = self._helpers()
        try:
            for slot in range(len(self._slots)):
                self.later(self.rng.random() * 0.5, self.start, slot)
            for fault in self.faults.all:
                self.later(fault.at, self.striker.strike, fault)
            for _ in range(_LOOKS):
                self.later(self.rng.random() * self.options.seconds, self._look_at_lives)
            clients = self.loop.create_task(load.run())
            await asyncio.sleep(self.options.seconds)
            self._calm_down()
            done, _ = await asyncio.wait([clients], timeout=LIVENESS_SECONDS)
            if done:
                await clients
                await self._settle()
                await self._rewind()
                await self._live_on()
            else:
                self.violations.append(
                    f"{LIVENESS_SECONDS:g} s after the last fault these runs have not come to their end: "
                    f"{', '.join(sorted(load.left)) or 'none, but something is still to be sent'}"
                )
            self.served = await served_of(self)
            self.violations += await check(self)
        finally:
            crash.install(None)
            for helper in helpers:
                helper.cancel()

    def _helpers(self) -> list[asyncio.Task[None]]:
        """Who else acts in a world with subscribers."""
        if self.services is None:
            return []
        foreign = ForeignService(self, QUOTES, random.Random(f"{self.seed}/foreign"))  # noqa: S311
        return [self.loop.create_task(one.run()) for one in (foreign, self.persons)]

    def _calm_down(self) -> None:
        """No more faults: clocks are right, the log is there, everybody lives."""
        self.told("world", lambda: "from here on nothing goes wrong any more")
        self.calm = True
        self.calm_us = self.clock.now_us()
        self.faults.calm()
        self.striker.calm_down()
        for process in (*self.processes, *self.subscribers):
            process.clock.offset_us = 0
            self._thaw(process, process.freezes)
        for slot in range(len(self._slots)):
            self.start(slot)

    async def _settle(self) -> None:
        """Wait until every command has its outcome and no worker is in the middle of a turn."""
        deadline = self.loop.time() + LIVENESS_SECONDS
        while self.loop.time() < deadline:
            await asyncio.sleep(0.1)
            if await self._at_rest():
                return
        left = "" if self.services is None else await unfinished(self)
        self.violations.append(
            f"{LIVENESS_SECONDS:g} s after the end of all runs {left or 'some commands have no outcome'}"
        )

    async def _rewind(self) -> None:
        """The groups of all subscribers begin again at the first message; nothing must follow from that."""
        if self.services is None or self.violations:
            return
        await all_visible(self)
        self.served = await served_of(self)
        # What a rewind would mend must not have been missing before it.
        self.violations += check_effects(await read_history(self), self)
        self.violations += await rewind(self, self._settle)

    async def _live_on(self) -> None:
        """After the last run, in some worlds: old runs are forgotten, and somebody takes over what is left."""
        ended = self.loop.time()
        if self.expiring:
            await asyncio.sleep(max(0.0, _KEPT_SECONDS - self.loop.time()))
            since = _KEPT_SECONDS + 2 * self.settings.sweep_seconds + _RESULT_SECONDS - (self.loop.time() - ended)
            self.faults.hits[EXPIRED] += await outlive(self, since)
            await self._settle()
            self.striker.compact()
        if self.expiring or self.rng.random() < _TAKEN_OVER_SHARE:
            self.killed(self.processes[0], 0.0)
            await asyncio.sleep(SESSION_SECONDS + 0.1)
            await self._settle()

    def _short_commands(self) -> TopicSpec:
        """Commands that are kept for seconds only, so that runs can be forgotten within one history."""
        config = self.topics.settings()[self.topics.commands]
        return TopicSpec(
            self.topics.commands, self.partitions, {**config, "retention.ms": str(round(_KEPT_SECONDS * 1000))}
        )

    async def _at_rest(self) -> bool:
        served = [p for process in self.processes for p in process.worker.owner.partitions.values() if p.running]
        if sorted(partition.number for partition in served) != list(range(self.partitions)):
            return False  # or one that has not yet learned of its loss serves it too
        for partition in served:
            end = (await self.broker.span(self.topics.commands, partition.number)).end
            if partition.applied < end and partition.applied <= last_command(self, partition.number):
                return False
        if any(p.worker.turn_lock.locked() or p.worker.inbox for p in self.processes):
            return False
        return self.services is None or not (self.persons.busy or await unfinished(self))

    def _look_at_lives(self) -> None:
        """Compare what is live in each worker with a dry replay of its journal."""
        for process in self.processes:
            found = list(check_lives(process.worker))
            self.violations += [f"at {self.loop.time():.4f}, {process.name}: {what}" for what in found]

    @property
    def processes(self) -> list[WorkerProcess]:
        """The workers that are alive, as processes."""
        return [process for process in self._slots if isinstance(process, WorkerProcess) and process.alive]

    @property
    def subscribers(self) -> list[SubscriberProcess]:
        """The subscribers that are alive."""
        return [process for process in self._slots if isinstance(process, SubscriberProcess) and process.alive]

    @property
    def workers(self) -> list[Worker]:
        """The workers of those that are alive."""
        return [process.worker for process in self.processes]

    def later(self, seconds: float, act: Callable[..., Any], *args: Any) -> None:
        """Do something in the world's own name, whoever asks for it."""
        self.loop.call_later(seconds, act, *args, context=self.context)

    # -- processes -----------------------------------------------------------------------------------------------

    def start(self, slot: int) -> None:
        """Start a process, unless there is one."""
        process = self._slots[slot]
        if process is not None and process.alive:
            return
        self._generations[slot] += 1
        made = WorkerProcess if slot < self.options.workers else SubscriberProcess
        self._slots[slot] = process = made(self, slot, self._generations[slot])
        self._by_actor[process.actor] = process
        self.told(process.name, lambda: "starts")

    def ended(self, process: Process, task: asyncio.Task[None]) -> None:
        """A worker has ended by itself: after a stop, or because of something that it cannot mend."""
        process.over = True
        self.later(SESSION_SECONDS, self.expire, process)  # it may not have been able to leave its group
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Dead) or not process.actor.alive:
            return
        self.told(process.name, lambda: f"has ended{'' if error is None else f': {error!r}'}")
        if error is not None or not process.stopping:
            self.violations.append(f"{process.name} ended by itself: {error!r}")
        if not process.stopping:
            self.later(0.1, self.start, process.slot)

    def killed(self, process: Process, seconds: float) -> None:
        """Kill -9, and another one takes the place after some seconds."""
        process.actor.kill()
        process.gone()
        self.later(SESSION_SECONDS, self.expire, process)
        self.later(0.0 if self.calm else seconds, self.start, process.slot)

    def frozen(self, process: Process, seconds: float) -> None:
        """Stop a process, and let it go on after some seconds."""
        process.actor.freeze()
        process.freezes += 1
        if seconds > SESSION_SECONDS:
            self.later(SESSION_SECONDS, self._expire_frozen, process, process.freezes)
        self.later(seconds, self._thaw, process, process.freezes)

    def _thaw(self, process: Process, freezes: int) -> None:
        if process.alive and process.actor.frozen and process.freezes == freezes:
            self.told(process.name, lambda: "goes on")
            if process.expired:
                self.faults.hits[ZOMBIE] += 1
            process.expired = False
            process.actor.thaw()

    def _expire_frozen(self, process: Process, freezes: int) -> None:
        if process.alive and process.actor.frozen and process.freezes == freezes:
            process.expired = True
            self.expire(process)

    def expire(self, process: Process, only: str | None = None) -> None:
        """Its groups take a member for dead, or that of one topic does."""
        self.told("broker", lambda: f"takes {process.name} for dead")
        for group, topic in process.places():
            if only in (None, topic):
                self.broker.expire(group, topic, process.name)

    # -- faults --------------------------------------------------------------------------------------------------

    def struck(self, fault: Fault, what: str) -> None:
        """A fault has hit something."""
        self.faults.strike(fault, self.loop.time())
        self.told("FAULT", lambda: f"{fault}: {what}")

    def _passing(self, point: str) -> None:
        if self.faults.waiting:  # points are passed by the thousand
            process = self._by_actor.get(current_actor())  # type: ignore[arg-type]
            if process is not None and process.actor.alive:
                process.passing(point)

    async def _called(self, when: When) -> None:
        """A provider is called, or answers."""
        process = self._by_actor.get(current_actor())  # type: ignore[arg-type]
        if isinstance(process, SubscriberProcess):
            await process.provider(when)

    # -- what the broker asks ------------------------------------------------------------------------------------

    def gate(self) -> Gate | None:
        """The gate of the process that commits."""
        return self._by_actor.get(current_actor())  # type: ignore[arg-type]

    def offsets_first(self) -> bool:
        """Either half of a commit may arrive first."""
        return self._broker_rng.random() < 0.5

    def end(self) -> End:
        """As the faults of the process have it."""
        process = self._by_actor.get(current_actor())  # type: ignore[arg-type]
        return "commit" if process is None else process.end()

    def marker_delay(self) -> float:
        """Mostly short, and now and then long enough for somebody to grow impatient."""
        late = self.striker.marker_seconds_max()
        if late:
            return self._broker_rng.random() * late
        return self._broker_rng.random() * 0.03 if self._broker_rng.random() < 0.3 else 0.0

    # -- the story -----------------------------------------------------------------------------------------------

    def told(self, who: str, what: Callable[[], str]) -> None:
        """Note for the story, if one is told."""
        if self._story is not None:
            self._story.add(self.loop.time(), who, what())

    def story_of(self, records: Sequence[NewRecord]) -> str:
        """What a commit holds."""
        return "" if self._story is None else self._story.commit(self.topics, records)

    def observer(self, name: str) -> Observer:
        """Who listens to a worker."""
        return Observer() if self._story is None else Teller(self, name)


def _caller() -> str:
    actor = current_actor()
    return actor.name if actor is not None else "nobody"
