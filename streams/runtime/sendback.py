"""After a repair: the commands that have waited among the dead letters go back into the log, before the run goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streams.errors import LogDamaged, LogUnavailable
from streams.kernel.commands import Retry
from streams.kernel.repair import order_of
from streams.kernel.run import REPAIR_PENDING, Run
from streams.log.port import NewRecord
from streams.runtime.inputs import SendBack
from streams.runtime.letters import Waiting, waiting_commands
from streams.runtime.starting import patiently
from streams.wire.headers import headers_of
from streams.wire.records import encode_command

if TYPE_CHECKING:
    from streams.runtime.partition import Partition
    from streams.runtime.worker import Worker

__all__ = ["SendBacks", "opened_at"]

_PAUSE_SECONDS = 0.2


def opened_at(run: Run) -> int:
    """The offset of the command that opened the run."""
    offset = run.identity.rpartition("@")[2]
    return int(offset) if offset.isdigit() else 0


class SendBacks:
    """Reads what waits for a repaired run, beside the turns, and gives it to one of them.

    That turn writes the commands, their `retry`, and the event that says so: all of it or nothing. A worker that takes
    over finds the run as it was and begins again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, partition: Partition, run_id: str) -> None:
        """Begin for a run whose repair is committed."""
        task = asyncio.create_task(self._work(partition, run_id))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def end(self) -> None:
        """Give up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._worker.fail(error)

    async def _work(self, partition: Partition, run_id: str) -> None:
        worker, topics = self._worker, self._worker.engine.topics
        hot = partition.runs.get(run_id)
        if hot is None or hot.run.blocked is None or hot.run.blocked.code != REPAIR_PENDING:
            return
        run = hot.run
        runs = {run_id.encode(): range(opened_at(run), run.offset)}

        async def read() -> Waiting:
            try:
                return await waiting_commands(worker.log, topics, partition.number, partition.topic_id, runs)
            except LogDamaged as error:  # what is old goes away while it is read
                raise LogUnavailable(str(error)) from error

        waiting = await patiently(
            worker.engine,
            read,
            f"the commands that wait for run {run_id} cannot be read, trying again",
            pause=_PAUSE_SECONDS,
        )
        for offset in waiting.cut:
            text = (
                f"run {run_id}: its command at offset {offset} was too large to be kept whole, and stays a dead letter"
            )
            worker.engine.observer.message(text)
        records = [*waiting.records, *_retry(topics.commands, partition.number, run)]
        worker.put(SendBack(partition, run_id, tuple(records)))


def _retry(topic: str, partition: int, run: Run) -> list[NewRecord]:
    """What lets the run go on, unless an operator is to."""
    operator, parked = order_of(run)
    if parked:
        return []
    value = encode_command(Retry(), command_id=f"{run.identity}/{run.seq}/repaired"[-900:], operator=operator)
    return [NewRecord(topic, partition, run.run_id.encode(), value, headers_of("command", value))]
