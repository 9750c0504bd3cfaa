"""The gate between the clients and the log: they are late, lose answers, and repeat themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from streams.errors import LogUnavailable, WireError
from streams.log.port import Batch, Log, Member, NewRecord, Producer
from streams.wire.commands import decode_command

if TYPE_CHECKING:
    from streams.testing.sim.world import World

__all__ = ["CLIENTS", "OF_CLIENTS", "Clients"]

CLIENTS = -1
"""The place of the clients among those whom faults are for."""
OF_CLIENTS = ("command delayed", "command duplicated")


class Clients:
    """See `streams.testing.sim.log.Gate`."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def operation(self, name: str) -> None:
        """Readers of clients see what is there."""

    async def append(self, log: Log, records: Sequence[NewRecord]) -> list[int]:
        """Late, or there without the client knowing."""
        world = self._world
        if world.striker.away:
            world.striker.refused_while_away()
            raise LogUnavailable("no broker answers")
        fault = world.faults.due(CLIENTS, *OF_CLIENTS)
        if fault is not None:
            world.struck(fault, f"a command for {(records[0].key or b'').decode('utf-8', 'replace')}")
            if fault.kind == "command duplicated":
                await log.append(records)
                raise LogUnavailable("the answer of the broker was lost")
            await asyncio.sleep(fault.seconds)
        offsets = await log.append(records)
        world.told("client", lambda: f"sends {_commands(records, offsets)}")
        return offsets

    async def poll(self, member: Member, records_max: int, timeout: float) -> Batch:
        """Clients are in no group, but could be."""
        return await member.poll(records_max, timeout)

    async def commit(self, producer: Producer, records: Sequence[NewRecord]) -> None:
        """Clients commit nothing, but could."""

    async def stage(self, name: str) -> None:
        """The same."""

    async def committed(self, topic: str, partition: int, offset: int | None) -> None:
        """The same."""


def _commands(records: Sequence[NewRecord], offsets: Sequence[int]) -> str:
    def lines() -> Iterator[str]:
        for record, offset in zip(records, offsets, strict=True):
            value = record.value or b""
            text = value[:80].decode("utf-8", "replace") if value[:1] == b"{" else _of_avro(record, offset)
            yield f"{(record.key or b'').decode('utf-8', 'replace')} [{record.partition}]@{offset}: {text}"

    return ", ".join(lines())


def _of_avro(record: NewRecord, offset: int) -> str:
    """What a client has sent, as it would stand in JSON."""
    try:
        command = decode_command(record.key, record.value, default_id="", offset=offset)
    except WireError:
        return f"{len(record.value or b'')} bytes that are no command"
    return f"{command.type} {command.command_id}"
