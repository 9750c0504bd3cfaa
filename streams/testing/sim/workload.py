"""The clients of the simulation: they start runs, answer questions, mend what is parked, and repeat themselves.

`make_app` gives the app, `plan` the runs of a seed, `settings_of` the limits of its workers, and `Load` sends it all.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, NamedTuple, Protocol

from streams.errors import LogError
from streams.kernel import bodies as ev
from streams.log.port import Log, NewRecord, TopicPartition
from streams.runtime.settings import WorkerSettings
from streams.testing.sim.app import make_app
from streams.testing.sim.model import CONFLICT, JUNK, Plan, answer_of, draw, encode
from streams.testing.sim.outside import Outside
from streams.wire.partitioner import partition_of
from streams.wire.records import decode_event
from streams.wire.topics import Topics

__all__ = ["Accepted", "Load", "Plan", "Setting", "make_app", "plan", "settings_of"]

_AGAIN_SECONDS = 0.3
_NAP_SECONDS = 0.01
"""Clients look at several events at once, and are slower than the log."""
_OPERATOR = "operator"
"""Stands for what an operator says after a look at the provider."""
_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
_JUNK = (b"\x00nothing", b'{"type": "begin"}', b"{", b'{"type": "start", "x": 1}', b"", None)


class Accepted(NamedTuple):
    """A record that the log has acknowledged."""

    run_id: str
    type: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Setting(Protocol):
    """What the clients need of a world."""

    log: Log
    topics: Topics
    partitions: int
    outside: Outside
    plans: dict[str, Plan]
    sent: list[Accepted]


def plan(rng: random.Random, runs: int, drawn: Callable[[random.Random, int], Plan] = draw) -> list[Plan]:
    """The runs of a seed."""
    return [drawn(rng, number) for number in range(runs)]


def settings_of(rng: random.Random, partitions: int) -> WorkerSettings:
    """Limits so small that a short history meets them."""
    age = rng.choice([1.2, 3.0, 60.0])
    return WorkerSettings(
        partitions=partitions,
        loop_slots=rng.choice([2, 5, 2_000]),
        thread_slots=rng.choice([1, 256]),
        stop_seconds=rng.choice([0.1, 1.0]),
        drain_seconds=rng.choice([0.1, 1.0]),
        turn_inputs_max=rng.choice([3, 20, 2_000]),
        inbox_max=rng.choice([10, 10_000]),
        live_runs_max=rng.choice([1, 5, 4_000]),
        checkpoint_bytes_min=rng.choice([1, 500, 4_096]),
        sweep_seconds=min(rng.choice([1.0, 2.0, 5.0]), age),
        checkpoint_age_seconds=age,
        retry_refused_seconds=1.0,
        clock_warn_seconds=1_000.0,
        clock_refuse_seconds=10_000.0,
    )


class Load:
    """All clients as one: `run` ends when everything was sent and every accepted run has ended, as far as it can."""

    def __init__(self, world: Setting, plans: Iterable[Plan], rng: random.Random, *, spread: float = 2.0) -> None:
        """Starts come within so many seconds, or nearly all at once."""
        self._world, self._rng = world, rng
        self._answers: dict[type, Callable[[str, Any, int | None], None]] = {
            ev.RunStarted: self._started,
            ev.OpScheduled: self._asked,
            ev.OpParked: self._parked,
            ev.RunBlocked: self._blocked,
            **dict.fromkeys(_ENDS, self._ended),
        }
        self._heap: list[tuple[float, int, str, dict[str, Any]]] = []
        self._order = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers: dict[tuple[str, str], int] = {}
        """Which question an op asks of the service in another language."""
        self.started: set[str] = set()
        self.wanted: set[str] = set()
        """Runs whose start was acknowledged."""
        self.ended: set[str] = set()
        spread *= rng.choice([0.02, 0.2, 1.0, 1.0])
        for one in plans:
            world.plans[one.run_id] = one
            begin = rng.random() * spread
            for delay, command in one.sends:
                self._later(begin + delay, one.run_id, command)
            self._later(begin, one.run_id, one.start)

    @property
    def left(self) -> set[str]:
        """Runs that must come to an end and have not."""
        return (self.wanted | self.started) - self.ended

    @property
    def quiet(self) -> bool:
        """Whether nothing is to be sent and nothing is to be waited for."""
        return not self._heap and not self._tasks and not self.left

    async def run(self) -> None:
        """Send and answer until it is quiet."""
        world, loop = self._world, asyncio.get_running_loop()
        began = loop.time()
        self._heap = [(began + due, *rest) for due, rest in ((entry[0], entry[1:]) for entry in self._heap)]
        heapq.heapify(self._heap)
        reader = world.log.reader({TopicPartition(world.topics.events, p): 0 for p in range(world.partitions)})
        try:
            while not self.quiet:
                now = loop.time()
                while self._heap and self._heap[0][0] <= now:
                    self._send(*heapq.heappop(self._heap)[2:])
                wait = self._heap[0][0] - now if self._heap else 1.0
                for record in await reader.read(500, min(wait, 1.0)):
                    self._take(record.value or b"")
                await asyncio.sleep(_NAP_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await reader.close()

    # -- sending -------------------------------------------------------------------------------------------------

    def _later(self, due: float, run_id: str, command: dict[str, Any]) -> None:
        heapq.heappush(self._heap, (due, next(self._order), run_id, command))

    def _soon(self, delays: list[float], run_id: str, command: dict[str, Any]) -> None:
        self._later(asyncio.get_running_loop().time() + self._rng.choice(delays), run_id, command)

    def _send(self, run_id: str, command: dict[str, Any]) -> None:
        if command["command_id"].endswith(CONFLICT) and run_id not in self.started:
            return  # it would be the first start, and none that is to be refused
        if command["type"] == _OPERATOR:
            command = self._word_of_operator(run_id, command)
        task = asyncio.get_running_loop().create_task(self._append(run_id, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(self, run_id: str, command: dict[str, Any]) -> None:
        """What is not acknowledged may be there or not: it is sent again as it was, until it is."""
        record = self._record(run_id, command)
        offset = await self._until_acknowledged(record)
        place = (record.partition, offset, record.key, record.value)
        self._world.sent.append(Accepted(run_id, command["type"], *place))
        if command["type"] == "start" and self._world.plans[run_id].kind != JUNK:
            self.wanted.add(run_id)

    async def _until_acknowledged(self, record: NewRecord) -> int:
        while True:
            try:
                return (await self._world.log.append([record]))[0]
            except LogError:
                await asyncio.sleep(_AGAIN_SECONDS)

    def _record(self, run_id: str, command: dict[str, Any]) -> NewRecord:
        topic, partitions = self._world.topics.commands, self._world.partitions
        key: bytes | None = run_id.encode()
        partition = partition_of(run_id.encode(), partitions)
        one = self._world.plans[run_id]
        if one.kind != JUNK:
            return NewRecord(topic, partition, key, encode(command, as_json=self._rng.random() < 0.5))
        if one.input == len(_JUNK):  # a command in order, and in a partition that is not that of its run
            return NewRecord(
                topic, (partition + 1) % partitions, key, encode({**command, "workflow": "chain"}, as_json=True)
            )
        return NewRecord(topic, partition, key, _JUNK[one.input])

    # -- what the events tell ------------------------------------------------------------------------------------

    def _take(self, value: bytes) -> None:
        event = decode_event(value)
        answer = self._answers.get(type(event.body))
        if answer is not None and event.run_id in self._world.plans:
            answer(event.run_id, event.body, event.seq)

    def _started(self, run_id: str, _: ev.RunStarted, __: int | None) -> None:
        self.started.add(run_id)

    def _ended(self, run_id: str, _: object, __: int | None) -> None:
        self.ended.add(run_id)

    def _asked(self, run_id: str, body: ev.OpScheduled, _: int | None) -> None:
        """Answer a question, sometimes more than once and late, always under the same command id."""
        if body.kind == "request":
            self._numbers[run_id, body.op] = json.loads(body.args or b"{}").get("number", 0)
        if body.kind != "interrupt":
            return
        number = json.loads(body.args or b"{}")["number"]
        if number < 0:
            return
        command = {"type": "resume", "command_id": f"{run_id}/a{number}", "value": answer_of(run_id, number)}
        if body.name in ("left", "right"):
            command["interrupt"] = body.name
        self._soon([0.0, 0.05, 0.3], run_id, command)
        if self._rng.random() < 0.4:
            self._soon([0.05, 0.4, 0.4, 1.5], run_id, command)

    def _parked(self, run_id: str, body: ev.OpParked, seq: int | None) -> None:
        """An operator looks whether the work was done, and says what is to become of the op."""
        self._soon([0.05, 0.5], run_id, {"type": _OPERATOR, "op": body.op, "command_id": f"{run_id}/op{seq}"})

    def _word_of_operator(self, run_id: str, command: dict[str, Any]) -> dict[str, Any]:
        input_ = self._world.plans[run_id].input
        if "questions" in input_ and self._rng.random() < 0.5:
            return {**command, "type": "complete", "value": answer_of(run_id, self._numbers[run_id, command["op"]])}
        found = self._world.outside.find(f"charge/{input_['order']}") if "order" in input_ else None
        if found is not None:
            return {**command, "type": "complete", "value": found}
        gives_up = self._rng.random() < 0.2 and "questions" not in input_
        return {**command, "type": "skip" if gives_up else "retry"}

    def _blocked(self, run_id: str, _: ev.RunBlocked, seq: int | None) -> None:
        """An operator tries once more, and then ends the run by force, or leaves it."""
        one = self._world.plans[run_id]
        if one.kind != "buggy" or not one.input["force"]:
            self.ended.add(run_id)
        if one.kind != "buggy":
            return
        if self._rng.random() < 0.3:
            self._soon([0.1], run_id, {"type": "retry", "command_id": f"{run_id}/retry{seq}"})
        if one.input["force"]:
            self._soon([0.2, 1.0], run_id, {"type": "cancel", "command_id": f"{run_id}/force", "force": True})
