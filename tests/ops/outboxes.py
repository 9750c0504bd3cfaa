"""A log with an effect's topics, and what subscribers leave there: messages, dead letters, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from streams.client import Client
from streams.clock import SystemClock
from streams.effects.memory import MemoryLedger
from streams.effects.port import Ask, Entry, Key, Settlement, Status
from streams.kernel.bodies import Failure
from streams.log.memory import MemoryLog
from streams.log.port import Log, NewRecord
from streams.runtime.topics import ensure_topics
from streams.wire.headers import headers_of
from streams.wire.partitioner import partition_of
from streams.wire.records import DeadLetter, EffectMessage, encode_dead_letter, encode_effect
from streams.wire.topics import topics_of

__all__ = ["APP", "EFFECT", "PARTITIONS", "TOPICS", "Shop", "message", "play"]

APP, EFFECT, PARTITIONS = "shop", "payments", 3
TOPICS = topics_of(APP, [EFFECT])
PAYLOAD = b'{"amount": 5}'


def message(run_id: str, *, key: str = "", attempt: int = 1, epoch: int = 4) -> EffectMessage:
    return EffectMessage(
        f"{run_id}@7/2", run_id, EFFECT, PAYLOAD, key or f"pay/{run_id}", epoch, 1, "buy", 1, "2", attempt
    )


class Shop:
    """The log, its client, and a ledger, as operators find them."""

    def __init__(self, log: Log, ledger: Any) -> None:
        self.log = log
        self.ledger = ledger
        self.client = Client(log, APP)

    def partition(self, run_id: str) -> int:
        return partition_of(run_id.encode(), PARTITIONS)

    async def put(self, sent: EffectMessage) -> int:
        """A message in the outbox; its offset."""
        data = encode_effect(sent)
        where = self.partition(sent.run_id)
        record = NewRecord(TOPICS.effect(EFFECT), where, sent.run_id.encode(), data, headers_of("effect", data))
        return (await self.log.append([record]))[0]

    async def set_aside(self, sent: EffectMessage, offset: int, *, code: str = "OUTCOME_UNKNOWN", **more: Any) -> int:
        """Its dead letter; the offset of that."""
        data = encode_effect(sent)
        where, key = self.partition(sent.run_id), sent.run_id.encode()
        letter = DeadLetter(TOPICS.effect(EFFECT), where, offset, "nobody knows", key, data, 1, code)
        letter = letter._replace(headers=headers_of("effect", data))._replace(**more)
        record = NewRecord(TOPICS.effect_dead(EFFECT), where, key, encode_dead_letter(letter))
        return (await self.log.append([record]))[0]

    async def refuse(self, key: bytes | None, value: bytes, *, offset: int = 5, partition: int = 0, **more: Any) -> int:
        """A dead letter of a command."""
        letter = DeadLetter(TOPICS.commands, partition, offset, "no command", key, value, 1, "COMMAND_INVALID")
        data = encode_dead_letter(letter._replace(**more))
        return (await self.log.append([NewRecord(TOPICS.dead_letters, partition, key, data)]))[0]

    async def take(self, run_id: str) -> None:
        """Let the subscriber have passed everything of this partition."""
        topic, where = TOPICS.effect(EFFECT), self.partition(run_id)
        end = (await self.log.span(topic, where)).end
        await self.log.rewind_group(TOPICS.subscribers(EFFECT), topic, {where: end})

    async def entry(self, sent: EffectMessage, status: Status, *, resent: str = "", **more: Any) -> Entry:
        """What a subscriber has settled."""
        key = Key(APP, EFFECT, sent.idempotency_key)
        ask = Ask(key, b"hash", sent.effect_id, sent.run_id, sent.op, sent.epoch, sent.attempt, "0@0", resent)
        (verdict,) = await self.ledger.claim([ask], "host/1", 60)
        error = None if status is Status.DONE else Failure("unknown", "OUTCOME_UNKNOWN", "who knows")
        settlement = Settlement(key, verdict.entry.claim, status, error=error)._replace(**more)
        assert await self.ledger.settle([settlement]) == [True]
        return (await self.ledger.look([key]))[key]

    async def records(self, topic: str, partition: int) -> list[Any]:
        from streams.client.reading import scan

        span = await self.log.span(topic, partition)
        return [record async for record in scan(self.log, topic, partition, span.start, span.end)]


def play(story: Callable[[Shop], Awaitable[None]]) -> None:
    async def main() -> None:
        log = MemoryLog()
        await ensure_topics(log, TOPICS, PARTITIONS)
        shop = Shop(log, MemoryLedger(SystemClock()))
        async with shop.client:
            await story(shop)
        await log.close()

    asyncio.run(main())
