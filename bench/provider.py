"""A service outside: answers each line after a while. `python -m bench.provider MS` prints its port first."""

from __future__ import annotations

import asyncio
import sys


async def _serve(seconds: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await asyncio.sleep(seconds)
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]) / 1000))
