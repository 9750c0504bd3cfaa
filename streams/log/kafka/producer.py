"""The transactional producer behind the async port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Producer, TopicPartition

from streams.errors import InDoubt
from streams.log.kafka.admin import Admin
from streams.log.kafka.lane import Lane
from streams.log.kafka.transaction import INIT_SECONDS, OnStep, Transactor, untold
from streams.log.port import GroupSnapshot, NewRecord
from streams.log.rules import check_commit, refuse_unwritable

__all__ = ["KafkaProducer", "MakeClient"]

MakeClient = Callable[[str], Callable[[], Producer]]
CLOSE_SECONDS = 10.0
_LOOK_SECONDS = 1.0


class KafkaProducer:
    """See `streams.log.port.Producer`."""

    def __init__(self, id: str, admin: Admin, make: MakeClient, on_step: OnStep = untold) -> None:
        self.id = id
        self._admin = admin
        self._make = make
        self._transactor = Transactor(id, make(id), on_step)
        self._lane = Lane(f"producer {id}")

    async def initialise(self) -> None:
        """Take the id."""
        await self._lane.run(self._transactor.initialise)

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        """One transaction on the client's thread. A caller that is cancelled does not stop it."""
        check_commit(snapshot, records, offsets)
        if snapshot.token is None:
            raise ValueError("this snapshot is of a member that is not in its group: Kafka would not fence the commit")
        refuse_unwritable(records, await self._admin.known_for(records))
        places = [TopicPartition(snapshot.topic, partition, offset) for partition, offset in offsets.items()]
        return await self._watched(lambda: self._transactor.commit(records, snapshot.token, places))

    async def _watched(self, commit: Callable[[], list[int]]) -> list[int]:
        """The commit's result, unless the client does not come back: then its thread is left to itself."""
        job = asyncio.ensure_future(self._lane.run(commit))
        try:
            while not (await asyncio.wait([job], timeout=_LOOK_SECONDS))[0]:
                self._transactor.abandon_if_stuck()
            return job.result()
        except InDoubt:
            if not job.done():
                self._lane.abandon()
            raise
        finally:
            job.cancel()

    async def settle(self, transactional_ids: Sequence[str]) -> None:
        """Take each id for a moment, which ends what is open under it."""
        for id in transactional_ids:
            other = KafkaProducer(id, self._admin, self._make)
            try:
                await other.initialise()
            finally:
                await other.close()

    async def close(self) -> None:
        """Free the client."""
        await self._lane.close(self._transactor.close, CLOSE_SECONDS + INIT_SECONDS)
