"""How the tests open a sqlite log: a new file a test, and sessions short enough to wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.log.port import Log
from streams.log.sqlite import SqliteLog, open_sqlite
from tests.contract.worlds import Worker

SESSION_MS = 900


class SqliteConfig:
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path):
        self.path = tmp_path / "streams.db"
        self.url = f"sqlite:///{self.path}?session_timeout_ms={SESSION_MS}"
        self.stalls: list[str] = []

    async def open(self) -> Log:
        return await open_sqlite(self.url, on_stall=self.stalls.append)

    async def freeze(self, log: SqliteLog, worker: Worker) -> None:
        log._core.pulse._members.clear()
