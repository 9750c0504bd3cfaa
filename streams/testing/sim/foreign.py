"""A service in another language: it reads messages of the outbox, and answers requests by JSON commands, badly."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from streams.errors import LogError
from streams.log.port import Log, NewRecord, TopicPartition
from streams.testing.sim.model import answer_of, command
from streams.testing.sim.workload import Accepted
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, decode_effect
from streams.wire.topics import Topics

__all__ = ["SAYINGS", "ForeignService", "say"]

_NOISE = ("stale", "newer", "wrong op", "wrong effect", "wrong epoch", "misfit", "twice", "other")
_INSTEAD = ("retryable", "unknown", "silent", "late")
SAYINGS = (*_NOISE, *_INSTEAD)
"""What it says beside the right answer, and what it does in its place."""
_WRONG = -1
_AGAIN_SECONDS = 0.3
Said = dict[str, Any]


class Place(Protocol):
    """What it needs of a world."""

    log: Log
    topics: Topics
    partitions: int
    sent: list[Accepted]


async def say(world: Place, run_id: str, said: Said) -> None:
    """Send a command as JSON, again and again until it is acknowledged."""
    key = run_id.encode()
    record = NewRecord(world.topics.commands, partition_of(key, world.partitions), key, json.dumps(said).encode())
    offset = await _until_acknowledged(world, record)
    world.sent.append(Accepted(run_id, said["type"], record.partition, offset, record.key, record.value))


async def _until_acknowledged(world: Place, record: NewRecord) -> int:
    while True:
        try:
            return (await world.log.append([record]))[0]
        except LogError:
            await asyncio.sleep(_AGAIN_SECONDS)


class ForeignService:
    """Answers the requests of one effect. `run` goes on for ever."""

    def __init__(self, world: Place, effect: str, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._topic = world.topics.effect(effect)
        self._asked: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Read and answer."""
        world = self._world
        reader = world.log.reader({TopicPartition(self._topic, number): 0 for number in range(world.partitions)})
        while True:
            for record in await reader.read(500, 1.0):
                task = asyncio.get_running_loop().create_task(self._answer(decode_effect(record.value or b"")))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: EffectMessage) -> None:
        payload = json.loads(message.payload)
        number = self._asked[message.effect_id]
        self._asked[message.effect_id] += 1
        act = payload["acts"][number] if number < len(payload["acts"]) else ""
        await asyncio.sleep(self._rng.choice([0.0, 0.02, 0.2]))
        if act == "late":
            await asyncio.sleep(self._rng.choice([0.3, 1.0, 3.0]))
        right = answer_of(payload["run"], payload["number"])
        for place, said in enumerate(_sayings(message, act, right)):
            said["command_id"] = f"{message.run_id}/r{message.effect_id}.{message.attempt}.{place}"
            await say(self._world, message.run_id, said)


def _sayings(message: EffectMessage, act: str, right: int) -> Iterator[Said]:
    """In the order in which they are said."""

    def reply(**fields: Any) -> Said:
        token = {"op": message.op, "effect_id": message.effect_id, "attempt": message.attempt, "epoch": message.epoch}
        return command(message.run_id, "", "reply", **token | fields)

    wrong: dict[str, Said] = {
        "stale": {"attempt": message.attempt - 1},
        "newer": {"attempt": message.attempt + 1_000},
        "wrong op": {"op": "99"},
        "wrong effect": {"effect_id": f"{message.effect_id}9"},
        "wrong epoch": {"epoch": message.epoch + 1},
    }
    if act in wrong:
        yield reply(value=_WRONG, **wrong[act])
    elif act == "misfit":
        yield reply(value="no number")
    elif act in ("retryable", "unknown"):
        yield reply(error={"class": act, "code": "AWAY", "message": "nobody is there"})
    if act not in ("retryable", "unknown", "silent"):
        yield reply(value=right)
    if act in ("twice", "other"):
        yield reply(value=right if act == "twice" else _WRONG)
