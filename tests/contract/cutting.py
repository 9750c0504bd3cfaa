"""A proxy before a server that cuts the connection at a chosen moment, as a bad network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto


class Cut(Enum):
    """When a connection is cut on which the word comes from the client."""

    NEVER = auto()
    BEFORE = auto()
    """The server never gets to see it."""
    AFTER = auto()
    """The server has done it and answered, and the answer is lost."""
    HUNG = auto()
    """The server does it, and no answer ever comes."""


class Proxy:
    """Passes bytes on both ways; `cut` counts how often it cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.word = b""
        self.when = Cut.NEVER
        self.cut = 0
        self.url = ""

    def arm(self, word: bytes, when: Cut) -> None:
        """Cut once, at this word."""
        self.word, self.when = word, when

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        state = {"seen": Cut.NEVER}
        ways = [
            asyncio.create_task(self._up(reader, server_writer, state)),
            asyncio.create_task(self._down(server_reader, writer, state)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()
        server_writer.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, Cut]) -> None:
        while data := await reader.read(65536):
            if self.when is not Cut.NEVER and self.word in data:
                state["seen"], self.when = self.when, Cut.NEVER
                self.cut += 1
                if state["seen"] is Cut.BEFORE:
                    return
            writer.write(data)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, state: dict[str, Cut]) -> None:
        while data := await reader.read(65536):
            if state["seen"] is Cut.AFTER:
                return
            if state["seen"] is not Cut.HUNG:
                writer.write(data)


@asynccontextmanager
async def cutting(url: str) -> AsyncIterator[Proxy]:
    """A proxy for the server at `url`."""
    start, _, rest = url.rpartition(":")
    port, _, database = rest.partition("/")
    proxy = Proxy(int(port))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"{start}:{server.sockets[0].getsockname()[1]}/{database}"
    try:
        yield proxy
    finally:
        server.close()
