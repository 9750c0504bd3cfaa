"""A process of the simulation and the gate between it and the log; and the worker as a process."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from streams.errors import CommitAborted, LogUnavailable
from streams.log.memory.hooks import End
from streams.log.port import Batch, Log, Member, NewRecord, Producer
from streams.runtime.host import Host
from streams.runtime.partition import Hot
from streams.runtime.worker import Worker
from streams.testing.clock import VirtualClock
from streams.testing.sim.faults import EVICTED, LEFT_OPEN, Fault
from streams.testing.sim.log import SimLog

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["Process", "SimHost", "WorkerProcess"]

_HOLDS = ("freeze in a commit", "kill in a commit")
_ENDS: dict[str, End] = {
    "commit aborted": "abort",
    "commit in doubt, done": "in_doubt_committed",
    "commit in doubt, left open": "in_doubt_open",
    "commit in doubt, not done": "in_doubt_aborted",
}
_OPEN = ("commit written", "commit fenced")
_DELAYED_SHARE = 0.15
_DELAY_SECONDS = 0.004
_TRACEBACK_CHARS = 1_000


class SimHost(Host):
    """A machine on which a seed decides everything, and threads are calls."""

    watched = False

    def __init__(self, rng: random.Random, pid: int) -> None:
        self._rng = rng
        self._pid = pid

    @property
    def name(self) -> str:
        """The same for all."""
        return "simulation"

    @property
    def pid(self) -> int:
        """Each process its own."""
        return self._pid

    def random_bytes(self, count: int) -> bytes:
        """Drawn from the seed."""
        return self._rng.randbytes(count)

    def start_thread(self, work: Callable[[], None], name: str) -> None:
        """Do the work here and now."""
        del name
        work()

    @staticmethod
    def traceback(error: BaseException) -> str:
        """As long as a real one, for sizes decide on checkpoints, and without the folder and the lines of this code."""
        return f"{type(error).__name__} in a simulated task".ljust(_TRACEBACK_CHARS, ".")


class Process(ABC):
    """A process from its start to its end. It is the gate (`streams.testing.sim.log.Gate`) of its own log."""

    prefix = ""
    """How the kinds of faults begin that are for it."""

    def __init__(self, world: World, slot: int, name: str) -> None:
        self.world = world
        self.slot = slot
        self.name = name
        self.actor = world.loop.actor(self.name)
        self.clock = VirtualClock(world.loop)
        self.freezes = 0
        self.expired = False
        """The group has given up on it."""
        self.over = False
        """It has ended by itself."""
        self.stopping = False
        self._rng = random.Random(f"{world.seed}/{self.name}")  # noqa: S311 - a seed decides everything
        self._deaf_until = 0.0
        self._faults = world.faults
        self._striker = world.striker
        self.task: asyncio.Task[None]

    def begin(self, running: Coroutine[Any, Any, None]) -> None:
        """Let it live."""
        world = self.world
        self.task = self.actor.start(running)
        self.task.add_done_callback(lambda task: world.ended(self, task), context=world.context)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    @property
    def alive(self) -> bool:
        """Whether it is there at all."""
        return self.actor.alive and not self.over

    @property
    @abstractmethod
    def owns(self) -> Collection[object]:
        """What it serves, or thinks that it does."""

    @abstractmethod
    def tell_to_stop(self) -> None:
        """Ask it to end in order."""

    @abstractmethod
    def places(self) -> Sequence[tuple[str, str]]:
        """The groups that it is a member of, each with its topic."""

    def gone(self) -> None:  # noqa: B027 - most have nobody to tell
        """It was killed."""

    def stop(self, seconds: float) -> None:
        """Begin a graceful stop; another process takes the place some seconds after its end."""
        self.stopping = True
        self.tell_to_stop()
        world = self.world
        self.task.add_done_callback(lambda _: world.later(seconds, world.start, self.slot), context=world.context)

    def due(self, *kinds: str, detail: str = "") -> Fault | None:
        """The fault of one of these kinds whose occasion this is."""
        if self.slot not in self._faults.waiting:
            return None
        if self.prefix:
            kinds = tuple(self.prefix + kind for kind in kinds)
        return self._faults.due(self.slot, *kinds, detail=detail)

    # -- the gate ------------------------------------------------------------------------------------------------

    async def operation(self, name: str) -> None:
        """Any operation begins."""
        fault = self.due("kill at an operation of the log", "operation refused", "operation delayed")
        if fault is not None:
            await self._strike(fault, name)
        if self._striker.away:
            self._striker.refused_while_away()
            raise LogUnavailable(f"{name}: no broker answers")
        if self._rng.random() < _DELAYED_SHARE:
            await asyncio.sleep(self._rng.random() * _DELAY_SECONDS)

    async def append(self, log: Log, records: Sequence[NewRecord]) -> list[int]:
        """A worker that appends outside a transaction."""
        await self.operation("append")
        return await log.append(records)

    async def poll(self, member: Member, records_max: int, timeout: float) -> Batch:
        """Late, deaf for a while, or hearing things twice."""
        await self.operation("poll")
        now = self.world.loop.time()
        fault = self.due("late poll", "delivery delayed")
        if fault is not None:
            self.world.struck(fault, self.name)
            if fault.what == "late poll":
                await asyncio.sleep(fault.seconds)
            else:
                self._deaf_until = now + fault.seconds
        if now < self._deaf_until:
            return await member.poll(0, min(timeout, self._deaf_until - now))
        batch = await member.poll(records_max, timeout)
        if batch.records:
            fault = self.due("delivery duplicated")
            if fault is not None:
                self.world.struck(fault, f"{self.name}, {len(batch.records)} records")
                batch = batch._replace(records=[*batch.records, *batch.records])
        return batch

    async def commit(self, producer: Producer, records: Sequence[NewRecord]) -> None:
        """Before a commit."""
        await self.operation("commit")
        self.world.told(self.name, lambda: self.world.story_of(records))
        fault = self.due("queue full", "producer fenced")
        if fault is not None:
            self.world.struck(fault, self.name)
            if fault.what == "queue full":
                await asyncio.sleep(fault.seconds)
                raise LogUnavailable("the client's queue stays full: the brokers do not take records")
            await self.world.broker.producer(producer.id)

    async def stage(self, name: str) -> None:
        """Inside a commit."""
        fault = self.due(*_HOLDS, detail=name)
        if fault is not None:
            await self._strike(fault, f"commit {name}")
        if self._striker.away and name != "ended":
            self._striker.refused_while_away()
            raise CommitAborted(f"no broker answers any more in the middle of a commit ({name})")
        if self._rng.random() < _DELAYED_SHARE:
            await asyncio.sleep(self._rng.random() * _DELAY_SECONDS)

    def end(self) -> End:
        """How the commit ends."""
        fault = self.due(*_ENDS)
        if fault is None:
            return "commit"
        self.world.struck(fault, self.name)
        return _ENDS[fault.what]

    async def committed(self, topic: str, partition: int, offset: int | None) -> None:
        """The group's offset was read."""
        del topic
        self._striker.offset_read(partition, offset, self.name)

    def passing(self, point: str) -> None:
        """A crash point is passed."""
        fault = self.due("kill at a crash point", detail=point.partition("/")[0])
        if fault is not None:
            self.world.struck(fault, f"{self.name} at {point}")
            self.world.killed(self, fault.seconds)
            self.actor.die()

    async def _strike(self, fault: Fault, where: str) -> None:
        world = self.world
        world.struck(fault, f"{self.name} at {where}")
        if fault.what == "operation refused":
            raise LogUnavailable(f"{where}: the broker did not answer in time")
        if fault.what == "operation delayed":
            await asyncio.sleep(fault.seconds)
        elif fault.what.startswith("freeze"):
            world.frozen(self, fault.seconds)
            await asyncio.sleep(0)
        else:
            if where in _OPEN:
                world.faults.hits[LEFT_OPEN] += 1
            world.killed(self, fault.seconds)
            await _for_ever()


class WorkerProcess(Process):
    """A worker."""

    def __init__(self, world: World, slot: int, generation: int) -> None:
        super().__init__(world, slot, f"w{slot + 1}.{generation}")
        self.worker = Worker(
            world.app,
            SimLog(world.broker.share(), self),
            owner=self.name,
            settings=world.settings,
            observer=world.observer(self.name),
            clock=self.clock,
            host=SimHost(self._rng, 1_000 * (slot + 1) + generation),
        )
        self._touch = self.worker.engine.touch
        self.worker.engine.touch = self._touched  # type: ignore[method-assign]
        self.begin(self.worker.run())

    @property
    def owns(self) -> list[int]:
        """The partitions that it serves, or thinks that it does."""
        return [number for number, partition in self.worker.owner.partitions.items() if partition.running]

    def tell_to_stop(self) -> None:
        """As SIGTERM does."""
        self.worker.stop()

    def places(self) -> Sequence[tuple[str, str]]:
        """That of all workers."""
        return [(self.world.topics.group, self.world.topics.commands)]

    def _touched(self, hot: Hot) -> None:
        """A coroutine was used; count those that the bound drives out. A run that was restored has none either."""
        lives = self.worker.engine._lives  # noqa: SLF001 - nothing else tells an eviction from a coroutine not yet made
        before = len(lives) + (hot.live is not None and hot not in lives) - (hot.live is None and hot in lives)
        self._touch(hot)
        self._faults.hits[EVICTED] += before - len(lives)


async def _for_ever() -> NoReturn:
    """Where a killed process stands until the simulation ends."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody answers the dead")
