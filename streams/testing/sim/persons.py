"""People who look after the ledger: they find out what became of what is parked, and say so."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

from streams.effects.port import Entry, Outcome, Query, Resolution, Status
from streams.errors import LogError, Refused
from streams.kernel.bodies import Failure
from streams.log.port import NewRecord
from streams.testing.sim.foreign import say
from streams.testing.sim.model import command
from streams.testing.sim.model_served import NOT_WANTED
from streams.wire.headers import SENT_BACK
from streams.wire.records import decode_dead_letter, decode_effect

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["Persons"]

_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 0.3
_GIVE_UP_SHARE = 0.2


class Persons:
    """They look at the ledger itself, whatever faults there are between it and the subscribers."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._told: dict[tuple[Any, int], None] = {}
        self.busy = 0
        """How many of them are at it."""

    async def run(self) -> None:
        """Look after what is parked, for ever."""
        while True:
            for entry in await self._world.ledger.entries(Query(statuses=(Status.PARKED,), limit=1_000)):
                letter = self._letter(entry)
                if letter is None or (entry.key, entry.updated_at) in self._told:
                    continue  # its letter is on its way, or somebody is at it
                self._told[entry.key, entry.updated_at] = None
                asyncio.get_running_loop().create_task(self._resolve(entry, letter))
            await asyncio.sleep(_LOOK_SECONDS)

    def _letter(self, entry: Entry) -> tuple[str, NewRecord] | None:
        """The last dead letter of this message, and what sends it again."""
        world = self._world
        found = None
        topic = world.topics.effect_dead(entry.key.operation)
        for record in world.broker.everything("read_committed"):
            if record.topic != topic:
                continue
            letter = decode_dead_letter(record.value or b"")
            message = decode_effect(letter.value or b"")
            if (message.effect_id, message.attempt) == (entry.effect_id, entry.attempt):
                place = f"{record.partition}@{record.offset}"
                again = NewRecord(letter.topic, letter.partition, letter.key, letter.value)
                found = place, again._replace(headers=((SENT_BACK, place.encode()),))
        return found

    async def _resolve(self, entry: Entry, letter: tuple[str, NewRecord]) -> None:
        self.busy += 1
        try:
            await asyncio.sleep(self._rng.choice([0.0, 0.3, 1.5]))
            await self._decide(entry, letter[1])
        finally:
            self.busy -= 1

    async def _decide(self, entry: Entry, again: NewRecord) -> None:
        world = self._world
        assert world.services is not None
        found = world.services.find(entry.key.key)
        if found is not None:
            resolution = Resolution(Status.DONE, response=json.dumps(found).encode(), operator="a person")
        elif self._rng.random() < _GIVE_UP_SHARE:
            error = Failure("terminal", NOT_WANTED, "nobody wants it any more")
            resolution = Resolution(Status.FAILED, error=error, operator="a person")
        else:
            resolution = Resolution(Status.FAILED, again=True, operator="a person")
        try:
            entry = await world.ledger.resolve(entry.key, resolution)
        except Refused:
            return  # it has moved on since
        world.told("person", lambda: f"resolves {entry.key.key} as {resolution.status}")
        if resolution.again:
            await self._send(again)
        else:
            await self._reply(entry, found)

    async def _send(self, again: NewRecord) -> None:
        while True:
            try:
                await self._world.log.append([again])
            except LogError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    async def _reply(self, entry: Entry, found: str | None) -> None:
        if entry.attempt:
            token = {"op": entry.op, "effect_id": entry.effect_id, "attempt": entry.attempt, "epoch": entry.epoch}
            said = command(entry.run_id, f"p{entry.effect_id}.{entry.attempt}", "reply", **token)
            if found is not None:
                said["value"] = found
            elif entry.error is not None:
                said["error"] = {"class": "terminal", "code": entry.error.code, "message": entry.error.message}
            await say(self._world, entry.run_id, said)
        told = Outcome(entry.key, entry.effect_id, entry.epoch, entry.attempt, entry.status)
        await self._world.ledger.note_published([told])
