"""Faust's Kafka driver with what goes wrong on transactional topics put right: isolation, commits, and resets."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer
from faust.transport.drivers import aiokafka as stock
from faust.types import TP, Message

from streams.errors import LogDamaged

__all__ = ["Consumer", "ConsumerThread", "Transport"]


class ConsumerThread(stock.AIOKafkaConsumerThread):
    """Reads read_committed. Faust does so only in its own exactly-once mode, and else shows what was aborted."""

    isolation: ClassVar[str] = "read_committed"

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        return self._isolated(super()._create_worker_consumer(transport))

    def _create_client_consumer(self, transport: Any) -> AIOKafkaConsumer:
        return self._isolated(super()._create_client_consumer(transport))

    def _isolated(self, consumer: AIOKafkaConsumer) -> AIOKafkaConsumer:
        # Read when the consumer starts, which is later; Faust gives no way to pass it to the constructor.
        consumer._isolation_level = self.isolation  # noqa: SLF001
        return consumer


class Consumer(stock.Consumer):
    """Commits what lies before the first message that is not finished, whatever holes the offsets have.

    Faust puts acknowledged offsets in a row and fills the holes that markers and aborted records leave. It takes the
    end of a hole as a part of it, so it counts a message as acknowledged before it is, and then waits for ever for a
    row that never closes. The messages themselves, in the order of their delivery, say all that is needed.
    """

    Thread: ClassVar[type[stock.AIOKafkaConsumerThread]] = ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._delivered: dict[TP, deque[Message]] = {}
        self._passed: dict[TP, int] = {}
        super().__init__(*args, **kwargs)
        self._deliver = self.callback
        self.callback = self._note

    def _new_consumer_thread(self) -> stock.AIOKafkaConsumerThread:
        return self.Thread(self, loop=self.loop, beacon=self.beacon)

    async def _note(self, message: Message) -> None:
        # Noted before it is delivered, so that one whose delivery a rebalance breaks off is not passed over.
        if self.app.topics.acks_enabled_for(message.topic):
            self._delivered.setdefault(message.tp, deque()).append(message)
        await self._deliver(message)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """The next messages. Where there are none, notes how far their partitions have been read."""
        generation, quiet = self.app.consumer_generation_id, True
        async for tp, message in super().getmany(timeout):
            quiet = False
            yield tp, message
        # At a stop or a rebalance Faust drops what was fetched, without a word.
        if quiet and self.flow_active and not self.should_stop and generation == self.app.consumer_generation_id:
            self._note_positions()

    def _note_positions(self) -> None:
        """All that was fetched is delivered: what a position has passed beyond it are markers and aborted records.

        Committed too, for else a topic at rest shows messages that never come, and once they expire, a loss.
        """
        assignment = self._thread._ensure_consumer()._subscription.subscription.assignment  # noqa: SLF001
        for tp in self._active_partitions:
            state = assignment.state_value(tp) if self.app.topics.acks_enabled_for(tp.topic) else None
            if state is not None and state.has_valid_position:
                self._passed[tp] = state.position

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Holes need no book-keeping."""

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Any:
        places = {**self._delivered, **self._passed}
        return [tp for tp in places if topics is None or tp in topics or tp.topic in topics]

    def _new_offset(self, tp: TP) -> int | None:
        delivered, offset = self._delivered.get(tp), 0
        while delivered and delivered[0].acked:
            offset = delivered.popleft().offset + 1
        if not delivered:
            offset = max(offset, self._passed.pop(tp, 0))
        # Faust's own lists of acknowledged offsets grow for ever where nobody takes from them.
        self._acked.pop(tp, None)
        self._acked_index.pop(tp, None)
        return offset or None

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        # Another owner, or this one at the next assignment, begins at the committed offset; what is still at work here
        # is no part of that any more.
        self._forget(revoked)
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        # Faust may have delivered more between the revocation and the end of the flow, and dropped it afterwards.
        self._forget({*self._delivered, *self._passed})
        await super().on_partitions_assigned(assigned, generation_id)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Where to go on. Raises `LogDamaged` where messages that were never taken are gone from the topic."""
        committed = await super().seek_to_committed()
        self._passed.clear()
        known: Mapping[TP, int | None] = committed  # None where the group has never been
        places = {tp: offset for tp, offset in known.items() if offset is not None and offset > 0}
        await self._seek_to_start([tp for tp in known if tp not in places])
        starts = await self.earliest_offsets(*places) if places else {}
        for tp, offset in places.items():
            if offset < starts[tp]:
                error = _gone(self.app.conf.id, tp, offset, starts[tp])
                await self.crash(error)
                raise error  # else Faust would go on, from the first message that is left
        return committed

    async def _seek_to_start(self, places: list[TP]) -> None:
        """Where nothing was committed, begin at the start.

        aiokafka leaves the position of such a partition as it is, and Faust drops what it has fetched while the flow
        was stopped: in a group's first seconds a rebalance would lose it.
        """
        fresh = [tp for tp in places if self.app.topics.acks_enabled_for(tp.topic)]
        if fresh:
            await self.seek_wait(await self.earliest_offsets(*fresh))

    def _forget(self, revoked: Iterable[TP]) -> None:
        for tp in revoked:
            self._delivered.pop(tp, None)
            self._passed.pop(tp, None)


def _gone(group: str, tp: TP, offset: int, start: int) -> LogDamaged:
    return LogDamaged(
        f"group {group!r} is at offset {offset} of {tp.topic}-{tp.partition}, which begins at {start} now: messages "
        "were deleted before they were taken. Nothing is skipped silently: find out what they asked for, then set the "
        f"offset of the group to {start} with the tools of Kafka",
        tp.partition,
    )


class Transport(stock.Transport):
    """The driver of `Consumer`."""

    Consumer = Consumer
