"""How the tests open a Kafka log: the broker of the run, and members that are given up soon."""

from __future__ import annotations

import asyncio

import pytest

from streams.dev import Kafka
from streams.log.kafka import KafkaLog, open_kafka
from streams.log.port import Log
from tests.contract.worlds import Worker

MAX_POLL_SECONDS = 8.0


class KafkaConfig:
    @pytest.fixture(autouse=True)
    def _broker(self, kafka: Kafka):
        self.url = f"{kafka.url}?heartbeat.interval.ms=200&max.poll.interval.ms={MAX_POLL_SECONDS * 1000:.0f}"

    async def open(self) -> Log:
        return await open_kafka(self.url)

    async def freeze(self, log: KafkaLog, worker: Worker) -> None:
        # Nobody polls it, so the client leaves the group, and the member does not know before its next poll.
        await asyncio.sleep(MAX_POLL_SECONDS + 1.0)
