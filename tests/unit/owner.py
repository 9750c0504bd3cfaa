"""An owner of all partitions without a worker: decides on commands by hand, and writes what a worker would write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.authoring.app import App, AppDefinitions
from streams.kernel import bodies as ev
from streams.kernel.decide import decide
from streams.kernel.events import Event
from streams.kernel.inputs import Due, Env, Input, Outcome
from streams.kernel.run import OpPhase, Run, blank
from streams.log.memory import MemoryLog
from streams.log.port import NewRecord, TopicPartition, TopicSpec
from streams.wire.app_codec import make_codec
from streams.wire.records import Damaged, Lease, decode_command, encode_checkpoint, encode_event, encode_lease
from streams.wire.topics import topics_of

SECOND = 1_000_000


class Owner:
    """Time goes on by a second at each decision."""

    def __init__(self, log: MemoryLog, app: App, *, name: str = "w-1", epoch: int = 1, slots: int = 100) -> None:
        self.log = log
        self.app = app
        self.topics = topics_of(app.name, app.effects)
        self.definitions = AppDefinitions(app)
        self.codec = make_codec(app.annotations, app.named_types)
        self.name, self.epoch, self.slots = name, epoch, slots
        self.now = 1_700_000_000 * SECOND
        self.runs: dict[str, Run] = {}
        self.places: dict[str, int] = {}
        self.next: dict[int, int] = {}

    async def create(self, partitions: int = 3) -> None:
        specs = [TopicSpec(name, partitions, config) for name, config in self.topics.settings().items()]
        await self.log.create_topics(specs)

    async def take(self) -> int:
        """Decide on all commands that have come; return how many there were."""
        count = 0
        info = (await self.log.describe_topics([self.topics.commands]))[self.topics.commands]
        for partition in range(info.partitions):
            start = self.next.get(partition, 0)
            reader = self.log.reader({TopicPartition(self.topics.commands, partition): start})
            for record in await reader.read(10_000, 0):
                command = decode_command(record.key, record.value, default_id="?", offset=record.offset)
                self.places[command.run_id] = partition
                self.next[partition] = record.offset + 1
                await self.decide(command.run_id, command)
                count += 1
        return count

    async def decide(self, run_id: str, input_: Input) -> list[Event]:
        self.now += SECOND
        offset = getattr(input_, "offset", 0)
        run = self.runs.get(run_id) or blank(run_id, offset)
        env = Env(self.now, self.epoch, self.name, self.codec, {"loop": self.slots, "thread": self.slots})
        decision = decide(self.definitions, run, None, input_, env)
        if decision.live is not None:
            decision.live.close()
        if decision.run.seq:
            self.runs[run_id] = decision.run
        await self.write(*decision.events)
        return decision.events

    async def write(self, *events: Event) -> None:
        records = [
            NewRecord(self.topics.events, self.places[event.run_id], event.run_id.encode(), encode_event(event))
            for event in events
        ]
        await self.log.append(records)

    async def outcome(self, run_id: str, value: Any = None, *, failure: ev.Failure | None = None, op: str = "") -> None:
        """End a running attempt of a task."""
        ops = self.runs[run_id].ops
        chosen = ops[op] if op else next(o for o in ops.values() if o.phase is OpPhase.RUNNING)
        data = None if failure is not None else self.codec.encode(value)
        await self.decide(run_id, Outcome(chosen.id, chosen.attempt, data, failure))

    async def due(self, run_id: str, op: str, *, later: float = 0) -> None:
        self.now += int(later * SECOND)
        await self.decide(run_id, Due(op))

    async def checkpoint(self, *run_ids: str) -> None:
        for run_id in run_ids:
            await self.write_checkpoint(run_id, encode_checkpoint(self.runs[run_id]))

    async def damage(self, run_id: str, offset: int, reason: str) -> None:
        await self.write_checkpoint(run_id, encode_checkpoint(Damaged(run_id, offset, reason)))

    async def write_checkpoint(self, run_id: str, data: bytes | None) -> None:
        await self.log.append([NewRecord(self.topics.checkpoints, self.places[run_id], run_id.encode(), data)])

    async def lease(self, partition: int, *, tail: int = 0, released: bool = False, **more: Any) -> None:
        fields: Mapping[str, Any] = {
            "transactional_ids": ("t-1",),
            "address": None,
            "applied": self.next.get(partition, 0),
            "topic_id": "topic",
            "claimed_at": self.now,
            **more,
        }
        lease = Lease(partition, self.name, self.epoch, tail=tail, released=released, **fields)
        await self.log.append([NewRecord(self.topics.leases, partition, str(partition).encode(), encode_lease(lease))])

    async def events_end(self, partition: int) -> int:
        return (await self.log.span(self.topics.events, partition)).end
