"""A proxy before a broker that loses requests or their answers, told apart by the header of Kafka's protocol."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from streams.dev import Kafka, start_kafka
from streams.dev.process import free_port
from tests.broker import SETTINGS

__all__ = [
    "ADD_OFFSETS",
    "ADD_PARTITIONS",
    "END",
    "INIT",
    "OFFSETS",
    "PRODUCE",
    "Proxy",
    "proxied_address",
    "proxied_broker",
    "proxy",
]

PRODUCE, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, OFFSETS = 0, 22, 24, 25, 26, 28
"""The keys of requests: Produce, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit."""


@dataclass
class Loss:
    """Which requests get lost: those of one kind, of clients whose id begins so, each `every`-th of them."""

    api: int
    done: bool
    every: int
    client: str
    cut: bool
    seen: int = 0

    def hits(self, api: int, client: str) -> bool:
        if api != self.api or not client.startswith(self.client):
            return False
        self.seen += 1
        return self.seen % self.every == 0


class Proxy:
    """Stands between clients and one listener of a broker."""

    def __init__(self, port: int) -> None:
        self.lost: Counter[tuple[int, bool]] = Counter()
        """How many were lost, by the kind of request and whether the broker has done what it asked for."""
        self._port = port
        self._losses: list[Loss] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def lose(self, api: int, *, done: bool, every: int = 1, client: str = "", cut: bool = True) -> None:
        """From now on lose requests of this kind: the answer only (`done`), or the request too.

        Then the connection is cut, or else held: the client waits in vain for this answer.
        """
        self._losses.append(Loss(api, done, every, client, cut))

    def heal(self) -> None:
        """Lose nothing any more."""
        self._losses.clear()

    async def serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            broker, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            back.close()
            return
        doomed: dict[int, Loss] = {}
        ways = [
            asyncio.ensure_future(self._requests(client, forth, doomed)),
            asyncio.ensure_future(self._answers(broker, back, doomed)),
        ]
        self._tasks.update(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._tasks.difference_update(ways)
            forth.close()
            back.close()

    async def _requests(
        self, client: asyncio.StreamReader, forth: asyncio.StreamWriter, doomed: dict[int, Loss]
    ) -> None:
        while True:
            frame = await _frame(client)
            api, _, correlation, length = struct.unpack_from(">hhih", frame, 4)
            name = frame[14 : 14 + max(length, 0)].decode()
            loss = next((loss for loss in self._losses if loss.hits(api, name)), None)
            if loss is not None and not loss.done:
                self.lost[api, False] += 1
                if loss.cut:
                    return
                continue
            if loss is not None:
                doomed[correlation] = loss
            forth.write(frame)
            await forth.drain()

    async def _answers(self, broker: asyncio.StreamReader, back: asyncio.StreamWriter, doomed: dict[int, Loss]) -> None:
        while True:
            frame = await _frame(broker)
            loss = doomed.pop(struct.unpack_from(">i", frame, 4)[0], None)
            if loss is None:
                back.write(frame)
                await back.drain()
                continue
            self.lost[loss.api, True] += 1
            if loss.cut:
                return

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


@asynccontextmanager
async def proxy(kafka: Kafka) -> AsyncIterator[Proxy]:
    """A proxy before a broker of `proxied_broker`; it listens where the broker sends its clients."""
    found = Proxy(_port(kafka, "listeners"))
    server = await asyncio.start_server(found.serve, "127.0.0.1", _port(kafka, "advertised.listeners"))
    try:
        yield found
    finally:
        server.close()
        await found.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 5)


def proxied_broker(folder: Path, **more: str) -> Kafka:
    """A broker with a second listener, whose clients are sent to the port of a proxy."""
    controller, plain, behind, before = (free_port() for _ in range(4))
    ends = f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},PROXIED://127.0.0.1:"
    settings = SETTINGS | {
        "listeners": f"{ends}{behind}",
        "advertised.listeners": f"{ends}{before}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
    }
    return start_kafka(folder, port=plain, settings=settings | more, tied=True, seconds=110.0)


def proxied_address(kafka: Kafka) -> str:
    """HOST:PORT of the proxy."""
    return f"127.0.0.1:{_port(kafka, 'advertised.listeners')}"


def _port(kafka: Kafka, setting: str) -> int:
    return int(kafka.settings[setting].rpartition(":")[2])
