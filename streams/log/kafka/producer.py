"""The transactional producer behind the async port."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from confluent_kafka import Producer, TopicPartition

from streams.errors import Fenced, InDoubt, LogError, LogUnavailable
from streams.log.kafka.admin import Admin
from streams.log.kafka.lane import Lane
from streams.log.kafka.transaction import INIT_SECONDS, OnStep, Transactor, untold
from streams.log.port import GroupSnapshot, NewRecord
from streams.log.rules import check_commit, refuse_unwritable

__all__ = ["KafkaProducer"]

MakeClient = Callable[[str], Callable[[], Producer]]
CLOSE_SECONDS = 10.0

T = TypeVar("T")


class KafkaProducer:
    """See `streams.log.port.Producer`."""

    def __init__(self, id: str, admin: Admin, make: MakeClient, on_step: OnStep = untold) -> None:
        self.id = id
        self.closed = False
        self._admin = admin
        self._make = make
        self._transactor = Transactor(id, make(id), on_step)
        self._lane = Lane(f"producer {id}")

    async def initialise(self) -> None:
        """Take the id."""
        await self._watched(self._transactor.initialise, LogUnavailable)

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        """One transaction on the client's thread. A caller that is cancelled does not stop it."""
        check_commit(snapshot, records, offsets)
        if snapshot.token is None:
            raise ValueError("this snapshot is of a member that is not in its group: Kafka would not fence the commit")
        refuse_unwritable(records, await self._admin.known_for(records))
        places = [TopicPartition(snapshot.topic, partition, offset) for partition, offset in offsets.items()]
        try:
            return await self._watched(lambda: self._transactor.commit(records, snapshot.token, places), InDoubt)
        except LogUnavailable:
            # The client waits for a topic that was deleted as for a broker that is away.
            await self._admin.forget_missing(records)
            raise

    async def _watched(self, job: Callable[[], T], error: type[LogError]) -> T:
        found = error(f"Kafka's client of producer {self.id} does not return from a call")
        try:
            return await self._lane.watched(job, self._transactor.patience, found)
        except LogError as raised:
            if raised is found:
                self._transactor.give_up()
            raise

    def wear(self) -> None:
        """The brokers were away: the next commit begins with a fresh client under the same id."""
        self._transactor.stale = True

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        """Take each id for a moment, which ends what is open under it."""
        for id in transactional_ids:
            other = KafkaProducer(id, self._admin, self._make)
            try:
                await other.initialise()
            except Fenced:
                continue  # somebody else took the id in the same moment, which ends what was open just as well
            finally:
                await other.close()

    async def close(self) -> None:
        """Free the client. A commit that still runs is not ended by it any more."""
        self.closed = True
        self._transactor.give_up()
        await self._lane.close(self._transactor.close, CLOSE_SECONDS + INIT_SECONDS)
