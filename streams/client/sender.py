"""Producing commands: where they go, how large they may be, and how many share one append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from streams.client.drafts import Draft
from streams.errors import SendRefused, UsageError
from streams.log.port import Log, NewRecord
from streams.wire.headers import headers_of
from streams.wire.partitioner import partition_of
from streams.wire.topics import Topics

__all__ = ["BATCH_MAX", "Sender", "Sent"]

BATCH_MAX = 1_000
_END_SECONDS = 1.0


class Sent(NamedTuple):
    """A command that is durable in the log. `events_from` is an end of the events from before it was there."""

    run_id: str
    partition: int
    offset: int
    command_id: str
    events_from: int


class Sender:
    """Appends commands. Those that come while an append is under way share the next one."""

    def __init__(self, log: Log, topics: Topics, reading: Callable[[int], int | None]) -> None:
        """`reading` tells how far this process has read the events of a partition, where it follows them."""
        self._log = log
        self._topics = topics
        self._reading = reading
        self._partitions = 0
        self._ends: dict[int, tuple[float, int]] = {}
        self._waiting: list[tuple[Draft, asyncio.Future[Sent]]] = []
        self._task: asyncio.Task[None] | None = None

    async def partitions(self) -> int:
        """The partition count of the app's topics. Raises `UsageError` where there are none."""
        if not self._partitions:
            wanted = [self._topics.commands, self._topics.events, self._topics.checkpoints, self._topics.leases]
            found = await self._log.describe_topics(wanted)
            missing = [name for name in wanted if name not in found]
            if missing:
                message = (
                    f"the log {self._log.url} has no topic {missing[0]}: start a worker of app {self._topics.app!r}, "
                    "or run `streams topics create MODULE:APP`"
                )
                raise UsageError(message)
            self._partitions = found[self._topics.commands].partitions
        return self._partitions

    async def partition(self, run_id: str) -> int:
        """Where the run lives."""
        return partition_of(run_id.encode(), await self.partitions())

    async def send(self, draft: Draft) -> Sent:
        """Append one command, with whatever else is waiting, and return when it is durable."""
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._waiting.append((draft, future))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        return await future

    async def send_all(self, drafts: Sequence[Draft]) -> list[Sent]:
        """Append these commands in one go."""
        count = await self.partitions()
        places = [partition_of(draft.run_id.encode(), count) for draft in drafts]
        ends = {place: await self._end(place) for place in sorted(set(places))}
        offsets = await self._log.append(
            [
                NewRecord(
                    self._topics.commands, place, draft.run_id.encode(), draft.data, headers_of("command", draft.data)
                )
                for draft, place in zip(drafts, places, strict=True)
            ]
        )
        return [
            Sent(draft.run_id, place, offset, draft.command_id, ends[place])
            for draft, place, offset in zip(drafts, places, offsets, strict=True)
        ]

    async def close(self) -> None:
        """Give up what has not been sent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for _, future in self._waiting:
            future.cancel()

    async def _end(self, partition: int) -> int:
        """An end of the events from before now. An old one is as good; it only means reading more."""
        position = self._reading(partition)
        if position is not None:
            return position
        now = asyncio.get_running_loop().time()
        at, end = self._ends.get(partition, (now - _END_SECONDS, 0))
        if now - at >= _END_SECONDS:
            end = (await self._log.span(self._topics.events, partition)).end
            self._ends[partition] = (now, end)
        return end

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                await self._send_batch(batch)
        finally:
            self._task = None

    async def _send_batch(self, batch: Sequence[tuple[Draft, asyncio.Future[Sent]]]) -> None:
        try:
            sent = await self.send_all([draft for draft, _ in batch])
        except SendRefused as refused:
            if len(batch) > 1:
                # One record that fits nowhere must not take the others with it; a repeat has the same command id.
                for each in batch:
                    await self._send_batch([each])
                return
            _fail(batch, refused)
        except Exception as error:  # noqa: BLE001 - each sender gets the error of the append that it was part of
            _fail(batch, error)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), one in zip(batch, sent, strict=True):
                if not future.done():
                    future.set_result(one)


def _fail(batch: Sequence[tuple[Draft, asyncio.Future[Sent]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
