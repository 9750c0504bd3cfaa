"""One execution: the production runtime on a memory log in virtual time, with workers that die where a plan says."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from streams.authoring.app import App
from streams.client import Client
from streams.effects.port import Key
from streams.kernel.events import Event
from streams.kernel.run import Run
from streams.log.memory import MemoryLog
from streams.runtime import crash
from streams.runtime.host import Host
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.testing.clock import VirtualClock
from streams.testing.crash.calls import Call, watched
from streams.testing.crash.eyes import Eyes
from streams.testing.crash.positions import EFFECT_HANDOVER, HANDOVER, Position, Probe
from streams.testing.crash.scenario import Scenario, Script
from streams.testing.crash.serving import Served, Serving, is_subscriber
from streams.testing.loop import VirtualLoop, current_actor
from streams.wire.records import EffectMessage

__all__ = ["Execution", "Seen", "Struck", "World"]

_LOOK_SECONDS = 0.25
_STUCK_LOOKS = 200
_JUMPS_MAX = 5_000
_ENTROPY = bytes(16)
_SUBSCRIBER_PID = 1_000


class Struck(NamedTuple):
    """What the log and the outside looked like when the plan struck."""

    position: Position
    calls: int
    """How many calls of user code had begun."""
    settled: frozenset[tuple[str, str]]
    """The ops (run, op) whose outcome was committed."""
    last: str
    """The last event of the log, in words."""
    done: frozenset[Key] = frozenset()
    """What the ledger had for done."""


class Seen(NamedTuple):
    """What the check has returned, in words too, and whether it did so without a crash; or what it has raised."""

    value: object = None
    words: str = ""
    same: bool = True
    error: Exception | None = None


class Execution(NamedTuple):
    """What has come of it all."""

    runs: Mapping[str, Run]
    events: Mapping[str, Sequence[Event]]
    effects: Mapping[str, Sequence[EffectMessage]]
    calls: Sequence[Call]
    strikes: Sequence[Struck]
    passed: Sequence[Sequence[Position]]
    commits: Sequence[int]
    turns: Sequence[Counter[str]]
    missed: Sequence[Position]
    """Positions of the plan that were never reached."""
    stuck: str
    """What was waited for in vain; empty where everything came to rest."""
    errors: Sequence[Exception]
    """What a worker, a reader of the log, and the script have raised."""
    seen: Seen
    served: Served
    """What subscribers have made of the effects."""


class _Host(Host):
    """The machine of a worker: every worker has the same chance, and its threads are calls."""

    watched = False

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def name(self) -> str:
        return "virtual"

    @property
    def pid(self) -> int:
        return self._number

    def random_bytes(self, count: int) -> bytes:
        return _ENTROPY[:count]

    def start_thread(self, work: Callable[[], None], name: str) -> None:  # noqa: ARG002 - see Host
        work()


class World:
    """See the module. `run` is called once, in a virtual loop."""

    def __init__(
        self,
        app: App,
        script: Script,
        probe: Probe,
        *,
        resources: Callable[[], Any] | None,
        check: Callable[[Any], Seen],
        settings: WorkerSettings,
    ) -> None:
        self.calls: list[Call] = []
        self.resources: Any = None if resources is None else resources()
        self.client: Client
        self.eyes: Eyes
        self._app = watched(app, self.calls.append, None if resources is None else lambda: self.resources)
        self._script, self._probe, self._check, self._settings = script, probe, check, settings
        self._strikes: list[Struck] = []
        self._sleeps: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._workers = 0
        self._stuck = ""
        self._script_error: Exception | None = None
        self._error: Exception | None = None
        """What ended a worker, or the reading of the log."""

    async def run(self) -> Execution:
        """Bring everything to rest, stop the worker, and read what the log says."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop, self._context = loop, contextvars.copy_context()
        self._clock = VirtualClock(loop)
        self._log = MemoryLog(clock=self._clock.now_ms, hooks=self._probe)
        commands = count()
        self.client = Client(self._log, self._app, new_id=lambda: f"command-{next(commands)}")
        await ensure_topics(self._log, self.client.topics, self._settings.partitions)
        self._serving = Serving(
            self._app,
            self._log,
            self._clock,
            topics=self.client.topics,
            partitions=self._settings.partitions,
            host=lambda number: _Host(_SUBSCRIBER_PID + number),
            ended=self._ended,
        )
        self.eyes = Eyes(self._log, self.client.topics, self._settings.partitions)
        self._probe.strike = self._struck
        crash.install(self._probe.passing)
        try:
            self._begin_worker()
            if self._serving.needed:
                self._serving.begin()
            following = loop.create_task(self.eyes.follow())
            following.add_done_callback(self._ended)
            acting = loop.create_task(self._act())
            await self._settle(acting)
            await self._stop(acting)
            for task in (following, acting):
                task.cancel()
            return await self._execution()
        finally:
            crash.install(None)

    def dispose(self) -> None:
        """Let go of everything, once the loop has ended."""
        for call in self.calls:
            call.dispose()

    async def sleep(self, seconds: float) -> None:
        """Let virtual wall time pass, for the script."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._clock.now_us() + round(seconds * 1_000_000)
        heapq.heappush(self._sleeps, (due, next(self._order), future))
        await future

    async def _act(self) -> None:
        try:
            await self._script(Scenario(self))
        except Exception as error:  # noqa: BLE001 - whatever the script raises is a finding
            self._script_error = error

    async def _execution(self) -> Execution:
        effects = await self.eyes.effects()
        served = await self._serving.served()
        seen = Seen() if self._error is not None else self._check(self.resources)
        return Execution(
            self.eyes.runs,
            self.eyes.events,
            effects,
            self.calls,
            self._strikes,
            self._probe.passed,
            self._probe.commits,
            self._probe.turns,
            tuple(self._probe.left),
            self._stuck,
            tuple(error for error in (self._error, self._script_error) if error is not None),
            seen,
            served,
        )

    # -- coming to rest ------------------------------------------------------------------------------------------

    async def _settle(self, acting: asyncio.Task[None]) -> None:
        """Wait until nothing moves any more, and let time pass at once where nothing but time is waited for.

        It counts as still when two looks have seen the same. The worker's timers look at the clock within a second of
        the loop's own time, so a sleep of a month takes them no longer than that.
        """
        before: object = None
        looks, jumps = 0, 0
        while self._error is None and not self._stuck:
            await asyncio.sleep(_LOOK_SECONDS)
            idle = self._is_idle() and (not self._serving.needed or await self._serving.idle())
            begun = self._workers + self._serving.number
            now = (self.eyes.heard, begun, len(self.calls), acting.done()) if idle else None
            looks = looks + 1 if now == before else 0
            still, before = now is not None and looks > 0, now
            if not still:
                continue
            due = min([*self.eyes.dues(), *(due for due, _, future in self._sleeps if not future.done())], default=None)
            resting = due is None and not self.eyes.moving
            if resting and acting.done():
                return
            if resting or looks > _STUCK_LOOKS or jumps > _JUMPS_MAX:
                self._stuck = self.eyes.waited_for or f"the runs to come to rest: they have waited {jumps:,} times"
            elif due is not None and due > self._clock.now_us():
                jumps, before = jumps + 1, None
                self._jump(due)

    def _jump(self, due: int) -> None:
        self._clock.offset_us += due - self._clock.now_us()
        while self._sleeps and self._sleeps[0][0] <= due:
            _, _, future = heapq.heappop(self._sleeps)
            if not future.done():
                future.set_result(None)

    def _is_idle(self) -> bool:
        """Whether the worker owns everything and does nothing, and all that it has written was seen."""
        worker = self._worker
        partitions = worker.owner.partitions.values()
        owned = len(partitions) == self._settings.partitions and all(p.running for p in partitions)
        return owned and not worker.busy and all(self.eyes.has_seen(p.number, p.events_end) for p in partitions)

    async def _stop(self, acting: asyncio.Task[None]) -> None:
        """Stop the worker gracefully; one that dies in it has a successor, which is stopped too."""
        while self._error is None:
            begun = self._workers + self._serving.number
            tasks = self._at_work()
            self._worker.stop()
            if self._serving.needed:
                self._serving.stop()
            while self._workers + self._serving.number == begun and not all(task.done() for task in tasks):  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(_LOOK_SECONDS)
            if self._workers + self._serving.number == begun:
                return
            await self._begin_stopped(tasks)
            await self._settle(acting)

    def _at_work(self) -> list[asyncio.Task[None]]:
        """The worker and the subscriber that none has followed yet."""
        return [self._working, self._serving.task] if self._serving.needed else [self._working]

    async def _begin_stopped(self, told: list[asyncio.Task[None]]) -> None:
        """One died in its stop. Who was told to stop beside it ends, and begins anew: the dead one has left work."""
        while any(task in self._at_work() and not task.done() for task in told):  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(_LOOK_SECONDS)
        if self._working.done():
            self._begin_worker()
        if self._serving.needed and self._serving.task.done():
            self._serving.begin()

    # -- workers -------------------------------------------------------------------------------------------------

    def _begin_worker(self) -> None:
        self._workers += 1
        name = f"worker-{self._workers}"
        self._worker = Worker(
            self._app,
            self._log.share(),
            owner=name,
            settings=self._settings,
            clock=self._clock,
            host=_Host(self._workers),
            strict=True,
        )
        self._working = self._loop.actor(name).start(self._worker.run())
        self._working.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A worker has stopped, or failed; or the log holds what cannot be, and nobody can follow it any more."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._error = self._error or error

    def _struck(self, position: Position) -> None:
        """In the code of whoever dies: nothing but a note for the others."""
        actor = current_actor()
        victim = self._worker.engine.owner if actor is None else actor.name
        self._loop.call_soon(self._after_strike, position, victim, context=self._context)

    def _after_strike(self, position: Position, victim: str) -> None:
        self._striking = self._loop.create_task(self._take_over(position, victim))

    async def _take_over(self, position: Position, victim: str) -> None:
        """Note how things stand, and let another worker take the place of one that is dead, or is stopped for it."""
        await self.eyes.catch_up()
        # Both at one instant: a worker that lives goes on meanwhile.
        struck = Struck(position, len(self.calls), self.eyes.settled(), self.eyes.last, self._serving.done())
        self._strikes.append(struck)
        topics = self.client.topics
        if position.kills and is_subscriber(victim):
            self._serving.take_over(victim)
        elif position.point == EFFECT_HANDOVER:
            await self._serving.hand_over()
        elif position.kills:
            self._log.expire(topics.group, topics.commands, victim)
            # A new process has other chance. The next draw of one and the same source may happen to go the same way.
            random.seed(f"{position}/{self._workers}")
            self._begin_worker()
        elif position.point == HANDOVER:
            worker = self._worker
            worker.stop()
            await asyncio.wait([self._working])
            if self._worker is worker:  # one that is stopped may be struck again before it has ended
                self._begin_worker()
