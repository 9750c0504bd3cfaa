"""What the stories of the demo share: one run, its question, its answer, and its end."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from streams.authoring.app import App
from streams.cli.demo.narrator import Narrator
from streams.cli.demo.stage import Child, Stage
from streams.cli.ledgers import open_ledger
from streams.cli.loader import load_file, rename
from streams.cli.logs import open_log
from streams.cli.render import history_lines
from streams.client import Client, RunView
from streams.client.reading import scan
from streams.effects.port import Key
from streams.kernel.run import OpPhase, is_terminal
from streams.log.port import Log
from streams.ops.entries import plain_entry
from streams.ops.timeline import timeline
from streams.runtime.topics import ensure_topics
from streams.wire.topics import topics_of

__all__ = ["Ending", "Play"]

PARTITIONS = 3


class Ending(NamedTuple):
    """What a demo found at its end, and where this is not what was promised: name -> (promised, found)."""

    facts: dict[str, Any]
    broken: dict[str, tuple[Any, Any]]

    @classmethod
    def of(cls, facts: dict[str, Any], promised: Mapping[str, Any], found: Mapping[str, Any]) -> Ending:
        """Compare what was found with what was promised."""
        wrong = {name: (value, found[name]) for name, value in promised.items() if found[name] != value}
        return cls(facts, wrong)


class Play:
    """One run of an example on its stage."""

    def __init__(self, stage: Stage, narrator: Narrator, approve: bool | None) -> None:  # noqa: FBT001 - three answers
        self.stage = stage
        self.narrator = narrator
        self._approve = approve
        self._log: Log
        self._client: Client
        self._app: App

    @asynccontextmanager
    async def opened(self, example: str) -> AsyncIterator[Any]:
        """The log with the topics of the example, and the example's module."""
        module = load_file(self.stage.examples / f"{example}.py")
        self._app = rename(module.app, self._name(module.app))
        self._log = await open_log(self.stage.url)
        try:
            await ensure_topics(self._log, topics_of(self._app.name, self._app.effects), PARTITIONS)
            async with Client(self._log, self._app) as self._client:
                yield module
        finally:
            await self._log.close()

    def _name(self, app: App) -> str | None:
        """On a log that others use each demo has topics of its own: the next one must not find this one's runs."""
        if self.stage.shared and self.stage.app is None:
            self.stage.app = f"{app.name}-{secrets.token_hex(3)}"
        return self.stage.app

    @property
    def app(self) -> str:
        """The name under which the example runs."""
        return self._app.name

    @property
    def silence(self) -> str:
        """Why nothing happens for a while after a kill, where it is long enough to wonder about."""
        kafka = self.stage.url.startswith("kafka:")
        return " Kafka takes it for dead when its session is over, after 6 s by default." if kafka else ""

    async def start(self, workflow: str, run_id: str, value: object) -> None:
        await self._client.start(workflow, value, run_id=run_id)

    async def asked(self, run_id: str, worker: Child) -> Mapping[str, Any]:
        """Wait until the run asks its question, and give that."""

        async def probe() -> Mapping[str, Any] | None:
            view = await self._client.get(run_id)
            return _question(self._client, view)

        return await self.stage.until("the run asks its question", probe, needs=worker)

    async def answer(self, run_id: str, question: Mapping[str, Any]) -> bool:
        """Show the question, take the answer, and put it into the log."""
        self.narrator.question(question)
        approved = await self.narrator.answer(given=self._approve)
        await self._client.resume(run_id, {"approved": approved})
        return approved

    async def ended(self, run_id: str, worker: Child) -> dict[str, Any]:
        """Wait for the end of the run; give its status and result as plain values."""

        async def probe() -> RunView | None:
            view = await self._client.get(run_id)
            return view if view is not None and view.run is not None and is_terminal(view.run) else None

        view = await self.stage.until("the run ends", probe, needs=worker)
        assert view.run is not None
        result = None if view.run.result is None else self._client.values.codec.to_plain(view.run.result)
        return {"status": view.status.value, "result": result}

    async def timeline(self, run_id: str) -> None:
        """Show what happened."""
        entries = timeline(await self._client.history(run_id), self._client.values.codec)
        self.narrator.table("what happened", history_lines(entries))
        if self.stage.log_is_shared:
            command = f"streams show {run_id} --app {self.app} --log '{self._log.url}'"
            self.narrator.facts("more of it, while the broker runs", {"type": command})

    async def effects(self) -> int:
        """How many effect messages are in the log."""
        count = 0
        topics = topics_of(self._app.name, self._app.effects)
        for name in self._app.effects:
            for partition in range(PARTITIONS):
                topic = topics.effect(name)
                span = await self._log.span(topic, partition)
                count += len([record async for record in scan(self._log, topic, partition, span.start, span.end)])
        return count

    async def prepare_ledger(self) -> None:
        """Make its tables: an address that is wrong is told of before anything is started."""
        ledger = await open_ledger(self.stage.ledger)
        try:
            await ledger.migrate()
        finally:
            await ledger.close()

    async def ledger_entry(self, effect: str, key: str) -> dict[str, Any] | None:
        """What the ledger knows of an operation."""
        ledger = await open_ledger(self.stage.ledger)
        try:
            wanted = Key(self._app.name, effect, key)
            entry = (await ledger.look([wanted])).get(wanted)
        finally:
            await ledger.close()
        return None if entry is None else plain_entry(entry)


def _question(client: Client, view: RunView | None) -> Mapping[str, Any] | None:
    if view is None or view.run is None:
        return None
    waiting = [op for op in view.run.ops.values() if op.kind == "interrupt" and op.phase is OpPhase.WAITING]
    if not waiting or waiting[0].args is None:
        return None
    question = client.values.codec.to_plain(waiting[0].args)
    return question if isinstance(question, Mapping) else {"question": question}
