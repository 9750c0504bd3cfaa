"""docs/effects.md is true: its code runs, its tables are what the engine does, its SQL refuses what it says."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from streams.authoring.subscriber import LOOKS, Subscription
from streams.cli import entry as command_line
from streams.cli.ledger import KEEP_DEFAULT
from streams.cli.ledgers import LEDGER_DEFAULT
from streams.cli.loader import load_file
from streams.cli.parser import Verbs
from streams.client import Client
from streams.clock import SystemClock
from streams.effects.memory import MemoryLedger
from streams.effects.port import Entry, Key, Ledger, Status
from streams.effects.postgres import open_postgres_ledger
from streams.effects.subscriber import Subscriber, SubscriberSettings
from streams.effects.subscriber.outcomes import End, How, settlement_of
from streams.kernel.bodies import Failure
from streams.kernel.commands import Reply
from streams.log.memory import MemoryLog
from streams.log.port import NewRecord
from streams.ops.keeping import keeping_of
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import ensure_topics
from streams.runtime.worker import Worker
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, decode_command, encode_effect
from streams.wire.topics import topics_of

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "effects.md").read_text("utf-8")
FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 60.0


def block(name: str) -> str:
    (found,) = [body for _, called, body in FENCE.findall(TEXT) if called == name]
    return str(found)


def rows(first_column: str) -> list[list[str]]:
    """The rows of the table whose first column is called so."""
    rest = TEXT.partition(f"| {first_column} | ")[2].partition("\n\n")[0].splitlines()[2:]
    assert rest
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rest]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.setattr(sys, "path", [*sys.path])

    def load_(name: str) -> ModuleType:
        (tmp_path / name).write_text(block(name))
        return load_file(tmp_path / name)

    return load_


# ---- the code -------------------------------------------------------------------------------------------------------


async def serving(module: ModuleType, ledger: Ledger, story: Callable[[Client], Awaitable[Any]]) -> Any:
    """Tell a story while a worker and a subscriber of the page's app are at work."""
    log = MemoryLog()
    await ensure_topics(log, topics_of(module.app.name, module.app.effects), 2)
    await ledger.migrate()
    worker = Worker(module.app, log, settings=WorkerSettings(partitions=2, stop_seconds=1))
    subscriber = Subscriber(module.app, log, ledger, settings=SubscriberSettings(partitions=2, stop_seconds=1))
    tasks = [asyncio.create_task(worker.run()), asyncio.create_task(subscriber.run())]
    async with Client(log, module.app) as client:
        telling = asyncio.ensure_future(story(client))
        await asyncio.wait({*tasks, telling}, timeout=SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
        worker.stop()
        subscriber.stop()
        telling.cancel()
        await asyncio.gather(*tasks)
        return await telling


def test_the_subscriber_of_the_effects_page_pays_once_and_says_no_and_waits(load, capsys) -> None:
    desk = load("desk.py")
    desk.bank.is_open = False
    ledger = MemoryLedger(SystemClock())

    async def story(client: Client) -> list[str]:
        for run_id, amount in (("o-1", 10), ("o-2", 501)):
            await client.start("order", Decimal(amount), run_id=run_id)
        await until(lambda: entry_of(ledger, "o-1"), lambda entry: entry.error is not None)
        desk.bank.is_open = True
        ends = [await client.result("o-1"), await client.result("o-2")]
        await until(lambda: entry_of(ledger, "o-1", "mails", "mail"), lambda entry: entry.status is Status.DONE)
        return ends

    assert asyncio.run(serving(desk, ledger, story)) == ["p-1", "not paid: NO_MONEY"]
    assert capsys.readouterr().out == "mail mail/o-1: paid with p-1\n"
    assert len(desk.bank.payments) == 1


async def entry_of(ledger: Ledger, run_id: str, effect: str = "payments", what: str = "pay") -> Any:
    key = Key("desk", effect, f"{what}/{run_id}")
    return (await ledger.look([key])).get(key)


async def until(look: Callable[[], Awaitable[Any]], enough: Callable[[Any], Any]) -> None:
    while True:
        found = await look()
        if found is not None and enough(found):
            return
        await asyncio.sleep(0.02)


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["rows", "packs"])
def test_the_transactional_handlers_of_the_effects_page_write_with_the_ledger(load, database: str, name: str) -> None:
    rows_app = load(f"{name}.py")
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE entries (key text, amount int)")

    async def main() -> Any:
        ledger = await open_postgres_ledger(database)

        async def story(client: Client) -> None:
            records = []
            for key in ("k-1", "k-1", "k-2"):
                message = EffectMessage(f"r@0/{key}", "r", "entries", b'{"amount": 7}', key, 1, 1, "w", 1, "1", 0)
                records.append(
                    NewRecord(client.topics.effect("entries"), partition_of(b"r", 2), b"r", encode_effect(message))
                )
            await client.log.append(records)
            last = Key(name, "entries", "k-2")
            await until(lambda: ledger.look([last]), lambda found: last in found and found[last].status is Status.DONE)

        try:
            await serving(rows_app, ledger, story)
        finally:
            await ledger.close()

    asyncio.run(main())
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM entries ORDER BY key").fetchall() == [("k-1", 7), ("k-2", 7)]


# ---- the tables -----------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"reconcile": None, "idempotent": False, "transactional": False}
LOOKED = {**PLAIN, "reconcile": lambda *_: None}
ENDINGS: list[tuple[dict[str, Any], How, int]] = [  # in the order of the page: subscriber, its end, deliveries so far
    (PLAIN, How.DONE, 1),
    (PLAIN, How.NEVER, 1),
    (PLAIN, How.NOT_DONE, 1),
    (LOOKED, How.MAYBE, 1),
    ({**PLAIN, "idempotent": True}, How.MAYBE, 1),
    (PLAIN, How.MAYBE, 1),
    ({**PLAIN, "transactional": True}, How.MAYBE, 1),
    (PLAIN, How.PARK, 1),
    (PLAIN, How.NOT_DONE, 5),
    ({**PLAIN, "idempotent": True}, How.MAYBE, 5),
]


def settled(options: dict[str, Any], how: How, deliveries: int, looks: int = 0) -> str:
    """What the ledger notes, in the words of the page."""
    from streams.authoring.declared import Effect
    from streams.authoring.task import make_policy

    subscription: Subscription[Any, Any] = Subscription(
        Effect("e", dict), "s", lambda *_: None, make_policy(None, 20), make_policy(LOOKS, 20), **options
    )
    entry = Entry(
        Key("a", "e", "k"), b"h", Status.CLAIMED, "r@0/1", "r", "1", 1, 0, "", deliveries, looks, 0, 0, claim="c"
    )
    end = End(how, b"1", Failure("unknown", "E", "e") if how is How.MAYBE else None)
    settlement = settlement_of(subscription, entry, end)
    due = "" if settlement.due_in is None else ", due at once" if settlement.due_in == 0 else ", due"
    return f"`{settlement.status.value}`{due}"


def test_the_endings_on_the_effects_page_are_those_of_the_engine() -> None:
    table = rows("the handler")
    assert len(table) == len(ENDINGS)
    for row, ending in zip(table, ENDINGS, strict=True):
        assert row[2].removesuffix(", with the result") == settled(*ending), row


def test_the_look_ups_on_the_effects_page_are_those_of_the_engine() -> None:
    looks = [(How.DONE, 1), (How.NOT_FOUND, 1), (How.UNCLEAR, 1), (How.UNCLEAR, LOOKS.max_attempts)]
    table = rows("the look-up")
    for row, (how, count) in zip(table, looks, strict=True):
        assert row[1].removesuffix(", with the value") == settled(LOOKED, how, 1, count), row


def test_the_numbers_on_the_effects_page_are_those_of_the_code() -> None:
    settings = SubscriberSettings()
    flat = " ".join(TEXT.split())
    for words in (
        f"at once ({settings.concurrency:,} in flight)",
        f"reading goes on up to {settings.window:,} messages ahead",
        f"its claim is over after {settings.lease_seconds:.0f} s",
        f"by `looks` ({LOOKS.max_attempts} in some eight minutes)",
        f"done or given up {KEEP_DEFAULT.removesuffix('d')} days ago",
        f"the default is `{LEDGER_DEFAULT}`",
    ):
        assert words in flat, words
    seconds = sum(min(LOOKS.max_delay, LOOKS.initial * LOOKS.factor**n) for n in range(LOOKS.max_attempts))
    assert round(seconds / 60) == 8

    async def kept() -> float:
        log = MemoryLog()
        topics = topics_of("desk", ["payments"])
        await ensure_topics(log, topics, 1)
        return (await keeping_of(log, topics, "payments")).seconds or 0

    assert f"for another 8 days: {asyncio.run(kept()) / 86_400:.0f} days" in flat


def test_the_codes_on_the_effects_page_are_used_by_the_engine() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "streams").rglob("*.py"))
    named = [name for row in rows("code") for name in re.findall(r"`([A-Z_]+)`", row[0])]
    assert len(named) == 7
    assert all(f'"{name}"' in code for name in named)


def test_every_command_on_the_effects_page_is_one() -> None:
    verbs = Verbs()
    for family in command_line._FAMILIES:
        family.add(verbs)
    lines = [
        line.removeprefix("$ streams ")
        for language, _, body in FENCE.findall(TEXT)
        if language == "console"
        for line in body.splitlines()
    ]
    assert len(lines) > 15
    for line in lines:
        assert verbs.parse(shlex.split(line)) is not None, line


# ---- services in other languages ------------------------------------------------------------------------------------


def test_the_replies_on_the_effects_page_are_commands() -> None:
    found = [
        decode_command(b"o-1", block(name).encode(), default_id="", offset=0) for name in ("reply.json", "refusal.json")
    ]
    value = json.dumps({"id": "p-7"}, separators=(",", ":")).encode()
    first, second = (command.request for command in found)
    assert first == Reply("2", "o-1@17/2", 1, 4, value, None)
    assert second == Reply("2", "o-1@17/2", 1, 4, None, ("terminal", "NO_MONEY", "the account is empty"))


@pytest.mark.postgres
def test_a_resource_refuses_an_older_token_of_an_effect(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(block("tables.sql"))

        def write(effect_id: str, epoch: int, attempt: int, body: str, id_: str = "d-1") -> int:
            values = {"effect_id": effect_id, "epoch": epoch, "attempt": attempt, "id": id_, "body": body}
            count = connection.execute(block("write.sql"), values).rowcount
            connection.commit()
            return count

        def body() -> Any:
            return connection.execute("SELECT body FROM documents WHERE id = 'd-1'").fetchone()[0]

        assert write("o-1@0/2", 4, 1, "first") == 1
        assert write("o-1@0/2", 4, 1, "the same attempt once more") == 1
        assert write("o-1@0/2", 4, 2, "second attempt") == 1
        assert write("o-1@0/2", 4, 1, "the first, thawed") == 0
        assert write("o-1@0/2", 3, 9, "of an older epoch") == 0
        assert body() == "second attempt"
        assert write("o-1@0/2", 5, 1, "a later epoch") == 1
        assert body() == "a later epoch"
        # Tokens of different ops do not compare.
        assert write("o-2@9/1", 1, 1, "another run") == 1
        assert body() == "another run"
        assert write("o-1@0/2", 4, 7, "old", id_="d-2") == 0
        assert connection.execute("SELECT count(*) FROM documents").fetchone() == (1,)


@pytest.mark.postgres
def test_of_two_writes_of_an_effect_at_once_the_older_one_waits_and_is_refused(database: str) -> None:
    async def main() -> tuple[int, str]:
        older, newer = [await psycopg.AsyncConnection.connect(database) for _ in range(2)]
        async with older, newer:
            await newer.execute(block("tables.sql"))
            await newer.commit()
            values: dict[str, Any] = {"effect_id": "o-1@0/2", "epoch": 4, "id": "d-1"}
            await newer.execute(block("write.sql"), values | {"attempt": 2, "body": "new"})
            waiting = asyncio.create_task(older.execute(block("write.sql"), values | {"attempt": 1, "body": "old"}))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done, "it waits for the other's commit"
            await newer.commit()
            cursor = await asyncio.wait_for(waiting, SECONDS_MAX)
            await older.commit()
            row = await (await newer.execute("SELECT body FROM documents")).fetchone()
            assert row is not None
            return cursor.rowcount, row[0]

    assert asyncio.run(main()) == (0, "new")


@pytest.mark.postgres
def test_a_ledger_of_ones_own_knows_a_key_and_tells_another_request_from_a_repeat(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(block("ledger.sql"))

        def claim(payload: bytes, response: str) -> Any:
            values = {"effect": "payments", "key": "pay/o-1", "payload": payload, "response": response}
            return connection.execute(block("claim.sql"), values).fetchone()

        def known(payload: bytes) -> Any:
            values = {"effect": "payments", "key": "pay/o-1", "payload": payload}
            return connection.execute(block("known.sql"), values).fetchone()

        assert claim(b'{"amount": 5}', "p-1") == ("p-1",)
        assert claim(b'{"amount": 5}', "p-2") is None
        assert known(b'{"amount": 5}') == ("p-1",)
        assert known(b'{"amount": 6}') is None
