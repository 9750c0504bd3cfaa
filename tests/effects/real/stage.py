"""Real processes around one log: workers, subscribers and the provider; a test kills, freezes and stops them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from streams.cli.logs import open_log
from streams.dev import Kafka
from streams.effects.port import Entry
from streams.log.port import Log, NewRecord
from streams.runtime.topics import ensure_topics
from streams.wire.headers import EFFECT_ID, IDEMPOTENCY_KEY, headers_of
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, encode_effect
from tests.effects.real.books import Books
from tests.effects.real.notes import Call, read_calls
from tests.effects.real.outside import Outside
from tests.effects.real.till import EFFECTS
from tests.runtime.checker import Checked, check_log
from tests.runtime.history import until
from tests.system.processes import Follower, Process, members

__all__ = ["LEASE_SECONDS", "PARTITIONS", "TILL", "Pair", "Stage", "on_each_pair", "stage"]

PARTITIONS = 2
HERE = Path(__file__).parent
TILL = "tests.effects.real.till"
LEASE_SECONDS = 1.0
"""Short, so that what a dead subscriber has claimed is soon looked up."""

on_each_pair = pytest.mark.parametrize(
    "pair",
    ["embedded", pytest.param("real", marks=[pytest.mark.kafka, pytest.mark.postgres])],
    indirect=True,
)
"""For tests that take the fixture `pair`: sqlite log and sqlite ledger, and Kafka with PostgreSQL."""


class Pair(NamedTuple):
    """A broker and a database of one's own; None where both are files."""

    kafka: Kafka | None = None
    ledger_url: str = ""


class Stage:
    """A log, a ledger, the provider, and the processes of a test."""

    def __init__(self, folder: Path, log: Log, url: str, ledger_url: str, app: str, outside: Outside | None) -> None:
        self.folder = folder
        self.log = log
        self.url = url
        self.ledger_url = ledger_url
        self.app = app
        self.outside = outside or Outside(folder)
        self.history = Follower(log, app, EFFECTS, PARTITIONS)
        self.books = Books(log, self.history.topics, ledger_url, PARTITIONS, folder)
        self.processes: list[Process] = []

    async def worker(self, module: str, crash_at: str = "", *, freeze_at: str = "", **settings: Any) -> Process:
        """Start a worker of a module's app; it dies or stands still at a crash point."""
        told = json.dumps({"partitions": PARTITIONS} | settings)
        return await self.process("run_worker.py", module, self.url, told, crash_at=crash_at, freeze_at=freeze_at)

    async def subscriber(
        self, strike_at: str = "", strike: signal.Signals = signal.SIGKILL, **settings: Any
    ) -> Process:
        """Start a subscriber of the till's effects; `only` names some of them.

        Once it is armed, it gets the signal at the crash point `POINT/EFFECT`.
        """
        if strike_at:
            settings |= {"strike_at": strike_at, "signal": int(strike), "armed": str(self._armed)}
        told = json.dumps({"lease_seconds": LEASE_SECONDS} | settings)
        return await self.process("run_subscriber.py", TILL, self.url, self.ledger_url, told)

    def arm(self) -> None:
        """From now on the subscriber that waits for it is struck at its crash point."""
        self._armed.touch()

    @property
    def _armed(self) -> Path:
        return self.folder / "armed"

    @property
    def environment(self) -> dict[str, str]:
        """What the app's code asks for."""
        own = {"STAGE_APP": self.app, "STAGE_FOLDER": str(self.folder), "STAGE_LEDGER": self.ledger_url}
        return own | {"ORDERS_PROVIDER": self.outside.address}

    async def process(self, program: str, *arguments: str, crash_at: str = "", freeze_at: str = "") -> Process:
        environment = os.environ | {"STREAMS_CRASH_AT": crash_at, "FREEZE_AT": freeze_at}
        environment |= self.environment
        line = [sys.executable, str(HERE / program), *arguments]
        process = Process(await asyncio.create_subprocess_exec(*line, stdout=asyncio.subprocess.PIPE, env=environment))
        self.processes.append(process)
        # Told to stop before, it would die of the signal.
        await until(lambda: process.said or process.process.returncode is not None, f"{program} is ready")
        return process

    # -- what the outbox holds, without a worker -----------------------------------------------------------------------

    def message(self, effect: str, order: str, **more: Any) -> EffectMessage:
        """A message as a worker writes it; `attempt=1` makes a request of it."""
        usual = {
            "effect_id": f"{order}@0/{effect}",
            "run_id": order,
            "effect": effect,
            "payload": json.dumps({"order": order}).encode(),
            "idempotency_key": f"{effect}/{order}",
            "epoch": 1,
            "at": time.time_ns() // 1000,
            "workflow": "test",
            "version": 1,
            "op": effect,
        }
        return EffectMessage(**(usual | more))

    def record(self, message: EffectMessage, **more: Any) -> NewRecord:
        data, key = encode_effect(message), message.run_id.encode()
        headers = headers_of("effect", data)
        headers += ((IDEMPOTENCY_KEY, message.idempotency_key.encode()), (EFFECT_ID, message.effect_id.encode()))
        topic = self.history.topics.effect(message.effect)
        return NewRecord(topic, partition_of(key, PARTITIONS), key, data, headers)._replace(**more)

    async def send(self, *messages: EffectMessage) -> list[int]:
        """Append messages with one call; return their offsets."""
        return await self.log.append([self.record(message) for message in messages])

    async def ask(self, effect: str, *orders: str, **more: Any) -> None:
        """Append a request for each order."""
        await self.send(*(self.message(effect, order, **({"attempt": 1} | more)) for order in orders))

    # -- what has happened ---------------------------------------------------------------------------------------------

    def calls(self, what: str = "", key: str = "") -> list[Call]:
        """Calls of user code, each process in its own order."""
        return [call for call in read_calls(self.folder) if what in ("", call.what) and key in ("", call.key)]

    def check_calls(self, entries: Mapping[str, Entry], what: str) -> None:
        """No delivery has called its handler twice, and none has called it that the ledger does not count."""
        called = Counter((call.key, call.delivery) for call in self.calls(what))
        twice = [one for one, count in called.items() if count > 1]
        assert twice == [], f"deliveries that were carried out twice: {twice}"
        for key, delivery in called:
            assert 1 <= delivery <= entries[key].deliveries, f"delivery {delivery} of {entries[key]}"

    async def check(self) -> Checked:
        """Prove the log right, where all effects have come from workers."""
        return await check_log(self.log, self.app, EFFECTS, partitions=PARTITIONS)

    async def close(self, *codes: int) -> None:
        """Stop all processes that are left, in order. Others were killed by the test, or ended with one of `codes`."""
        for process in self.processes:
            ours = {-signal.SIGKILL, *codes} if process.process.returncode is not None else {0}
            assert await process.stop() in {0, *ours}, process.said[-20:]


@asynccontextmanager
async def stage(
    folder: Path,
    pair: Pair = Pair(),  # noqa: B008 - a frozen value
    *,
    app: str = "",
    outside: Outside | None = None,
) -> AsyncIterator[Stage]:
    """An app of its own on a fresh sqlite log or on a broker; ends every process of the test.

    `app` and `outside` are those of another stage, of which this is the double.
    """
    kafka = pair.kafka
    url = members(kafka) if kafka else f"sqlite:///{folder}/log.db?session_timeout_ms=1000"
    log = await open_log(url)
    ledger_url = pair.ledger_url or f"sqlite:///{folder}/ledger.db"
    found = Stage(folder, log, url, ledger_url, app or f"stage-{uuid4().hex[:8]}", outside)
    try:
        if outside is None:
            await found.outside.up()
        await ensure_topics(log, found.history.topics, PARTITIONS)
        await found.books.open()
        yield found
    finally:
        for process in found.processes:
            await process.end()
        await found.outside.down()
        await found.books.close()
        await log.close()
