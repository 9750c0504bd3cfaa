"""The outside world of these tests: the provider of the order demo as a process, and its database as the judge."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from tests.runtime.history import HANG_SECONDS, until

__all__ = ["Asked", "Outside"]

PROGRAM = Path(__file__).resolve().parents[3] / "examples" / "provider.py"


class Asked(NamedTuple):
    """A request that the provider has received, and how it answered."""

    key: str
    status: int


class Outside:
    """A hold of stock is what the provider does here: with another key, or told to ignore keys, it does it again."""

    def __init__(self, folder: Path) -> None:
        self._db = folder / "provider.db"
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def up(self, *flags: str) -> None:
        """Start it, always on the same port and with the same database."""
        line = [str(PROGRAM), "--port", str(self._port), "--db", str(self._db), *flags]
        self._process = await asyncio.create_subprocess_exec(sys.executable, *line, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        said = await asyncio.wait_for(self._process.stdout.readline(), HANG_SECONDS)
        assert b" on http://" in said, said
        self._port = int(said.rsplit(b":", 1)[1])

    async def down(self) -> None:
        """Kill -9: whoever waits for an answer gets none."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    async def behave(self, order: str, mode: str, times: int = 1, delay_ms: int = 0) -> None:
        """Misbehave in the next holds of an order."""
        told = {"order_id": order, "operation": "reserve", "mode": mode, "times": times, "delay_ms": delay_ms}
        await asyncio.to_thread(self._post, "/behaviours", told)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=HANG_SECONDS)) as connection:
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()

    # -- what has happened, as its database tells, whether it is up or down ------------------------------------------

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self._db, timeout=30)) as connection:
            return connection.execute(sql, values).fetchall()

    def holds(self, order: str) -> int:
        """How often this order got its stock."""
        return self._rows("SELECT count(*) FROM reservations WHERE order_id = ?", order)[0][0]

    def number(self, order: str) -> int:
        """The number of the order's first hold."""
        return self._rows("SELECT min(rowid) FROM reservations WHERE order_id = ?", order)[0][0]

    def all_holds(self) -> dict[str, int]:
        return dict(self._rows("SELECT order_id, count(*) FROM reservations GROUP BY 1"))

    def asked(self, order: str) -> list[Asked]:
        """The requests of an order, in the order of their coming."""
        return [
            Asked(*row)
            for row in self._rows("SELECT key, status FROM requests WHERE order_id = ? ORDER BY rowid", order)
        ]

    async def held(self, *orders: str) -> None:
        """Wait until these have their stock."""
        await until(lambda: all(self.holds(order) for order in orders), f"holds of {orders}")
