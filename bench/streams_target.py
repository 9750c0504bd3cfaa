"""`streams` itself: a worker and a client in one process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench import app
from bench.jobs import Job, waiting_state
from streams import Graph, Workflow
from streams.cli.logs import open_log
from streams.client import Client
from streams.kernel.bodies import OpScheduled
from streams.kernel.run import Status, status_of
from streams.log.port import Log, TopicPartition
from streams.observer import Observer
from streams.runtime.collector import calm_collector
from streams.runtime.worker import Worker
from streams.wire.events import decode_event

__all__ = ["StreamsTarget", "Watch"]

_WORKFLOWS: Mapping[Job, Workflow[Any, Any] | Graph[Any]] = {
    Job.ORDER: app.order,
    Job.APPROVAL: app.approval,
    Job.WAITING: app.waiting,
    Job.FAN_OUT: app.fan_out,
    Job.LOOP: app.loop,
    Job.SLOW: app.slow,
    Job.PURE: app.order_pure,
}


class StreamsTarget:
    """See `bench.target.Target`. `url` gives the address of the log for a folder."""

    jobs = frozenset(Job)

    def __init__(self, name: str, url: Callable[[Path], str]) -> None:
        self.name = name
        self._url = url
        self._watch = Watch()
        self._log: Log
        self._worker: Worker
        self._client: Client
        self._working: asyncio.Task[None]

    async def start(self, folder: Path) -> None:
        """Open the log, and wait until every partition runs."""
        self._log = await open_log(self._url(folder))
        calm_collector()  # as `streams worker` does
        self._worker = Worker(app.app, self._log, observer=self._watch)
        self._client = Client(self._log, app.app)
        self._working = asyncio.create_task(self._worker.run())
        while len(self._watch.running) < self._worker.engine.settings.partitions:
            if self._working.done():
                self._working.result()
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Stop gracefully, so that the next owner need not wait."""
        await self._client.close()
        self._worker.stop()
        await self._working
        await self._log.close()

    async def submit(self, job: Job, run_id: str, size: int = 0) -> None:
        """Start a run."""
        await self._client.start(_WORKFLOWS[job], _input(job, run_id, size), run_id=run_id)

    async def submit_many(self, job: Job, run_ids: Iterable[str]) -> None:
        """Start many, a thousand to an append."""
        items = ((run_id, _input(job, run_id, 0)) for run_id in run_ids)
        async for _ in self._client.start_many(_WORKFLOWS[job], items):
            pass

    async def answer(self, run_id: str) -> None:
        """Say yes."""
        await self._client.resume(run_id, True)  # noqa: FBT003 - the answer itself

    async def answer_each(self, run_id: str, questions: int) -> None:
        """Say yes to so many questions of a run, each as soon as it can be read."""
        place = TopicPartition(self._client.topics.events, await self._client.partition(run_id))
        reader = self._log.reader({place: (await self._log.span(*place)).start})
        try:
            while questions > 0:
                for record in await reader.read(1_000, 1.0):
                    event = decode_event(record.value or b"")
                    if (
                        event.run_id == run_id
                        and isinstance(event.body, OpScheduled)
                        and event.body.kind == "interrupt"
                    ):
                        questions -= 1
                        await self._client.resume(run_id, True, interrupt=event.body.op)  # noqa: FBT003 - as above
        finally:
            await reader.close()

    async def result(self, run_id: str) -> Any:
        """Wait for the end."""
        return await self._client.result(run_id)

    async def settled(self, count: int) -> None:
        """Ask the worker, which is in this process: a client would fold everything once more, in our memory."""
        while self._waiting(count) < count:
            if self._working.done():
                self._working.result()
            await asyncio.sleep(0.02)

    def _waiting(self, enough: int) -> int:
        partitions = list(self._worker.owner.partitions.values())
        if sum(len(partition.runs) for partition in partitions) < enough:
            return 0
        hots = (hot for partition in partitions for hot in partition.runs.values())
        return sum(status_of(hot.run) is Status.WAITING for hot in hots)

    def facts(self) -> Mapping[str, float]:
        """How large the turns were."""
        watch = self._watch
        return {"records_per_turn": watch.records / max(1, watch.turns)}


class Watch(Observer):
    """Counts turns, and passes on whatever should not happen in a measurement."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.turns = 0
        self.records = 0

    def partition(self, number: int, state: str, epoch: int, detail: str) -> None:
        del epoch
        if state == "running":
            self.running.add(number)
        elif state == "refused":
            self.message(f"partition {number} was refused: {detail}")

    def turn(self, runs: int, records: int, seconds: float) -> None:
        del runs, seconds
        self.turns += 1
        self.records += records

    def redo(self, reason: str) -> None:
        self.message(f"a turn was done again: {reason}")

    def run_blocked(self, run_id: str, code: str, message: str) -> None:
        self.message(f"run {run_id} is blocked: {code}: {message}")

    def attempt_failed(self, run_id: str, op: str, task: str, attempt: int, code: str, message: str) -> None:
        self.message(f"attempt {attempt} of {task} in {run_id} {op} failed: {code}: {message}")

    def message(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr)


def _input(job: Job, run_id: str, size: int) -> Any:
    if job is Job.WAITING:
        return waiting_state(run_id)
    return {"last": size} if job is Job.LOOP else run_id
