"""The verbs ledger and dead-letters on the embedded pair: a mistake is one line, and each word does what it says."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from streams.cli import main
from streams.cli.ledgers import open_ledger
from streams.effects.port import Key, Status
from streams.effects.sqlite import open_sqlite_ledger
from streams.log.sqlite import open_sqlite
from streams.runtime.topics import ensure_topics
from streams.wire.records import decode_command
from tests.ops.outboxes import APP, EFFECT, PARTITIONS, TOPICS, Shop, message

LOG, LEDGER = "sqlite:///streams.db", "sqlite:///streams-ledger.db"
RESOLVE = ["ledger", "resolve", "pay/o-1", "--effect", EFFECT]
SHOP = """
from dataclasses import dataclass
from streams import App, EffectContext

app = App("shop")

@dataclass
class Paid:
    id: str

payments = app.effect("payments", dict, reply=Paid)
letters = app.effect("letters", dict)

@app.subscriber(payments)
async def pay(ctx: EffectContext, payload: dict) -> Paid:
    return Paid("p-1")
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("streams.cli.logs.APPEAR_SECONDS", 0.2)
    monkeypatch.setattr("streams.cli.ledger.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("STREAMS_LOG", "STREAMS_APP", "STREAMS_DEBUG", "STREAMS_LEDGER"):
        monkeypatch.delenv(name, raising=False)


def run(*argv: str) -> int:
    return main(argv)


def set_up(story: Callable[[Shop], Awaitable[Any]]) -> Any:
    """The pair as a subscriber leaves it."""

    async def main_() -> Any:
        log = await open_sqlite(LOG)
        ledger = await open_sqlite_ledger(LEDGER)
        try:
            await ensure_topics(log, TOPICS, PARTITIONS)
            await ledger.migrate()
            shop = Shop(log, ledger)
            async with shop.client:
                return await story(shop)
        finally:
            await ledger.close()
            await log.close()

    return asyncio.run(main_())


async def nothing(_: Shop) -> None:
    """An empty pair."""


async def parked(shop: Shop) -> None:
    """A payment that a person has to find out about; the subscriber has passed it."""
    offset = await shop.put(message("o-1"))
    await shop.entry(message("o-1"), Status.PARKED)
    await shop.set_aside(message("o-1"), offset)
    await shop.take("o-1")


def entry(key: str = "pay/o-1") -> Any:
    async def look(shop: Shop) -> Any:
        return (await shop.ledger.look([Key(APP, EFFECT, key)]))[Key(APP, EFFECT, key)]

    return set_up(look)


def replies() -> list[Any]:
    async def read(shop: Shop) -> list[Any]:
        found = await shop.records(TOPICS.commands, shop.partition("o-1"))
        return [decode_command(r.key, r.value, default_id="", offset=0).request for r in found]

    return list(set_up(read))


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# ---- usage ----------------------------------------------------------------------------------------------------------

WRONG = [  # arguments, a part of the one line
    (["ledger"], "missing: ACTION; see: streams ledger --help"),
    (["ledger", "frob"], "invalid choice: 'frob'"),
    (["ledger", "list", "--ledger", "sqlite:///no.db"], "there is no ledger at sqlite:///no.db; name another with"),
    (["ledger", "list", "--ledger", "redis://x"], "'redis://x' is no address of a ledger; write sqlite:///PATH or"),
    (["ledger", "list", "--ledger", "sqlite:x.db"], "sqlite:///"),
    (["ledger", "list", "--ledger"], "--ledger: expected one argument"),
    (["ledger", "list", "--status", "odd"], "--status: invalid choice: 'odd'"),
    (["ledger", "list", "--run", ""], "a run id must not be empty"),
    (["ledger", "list", "--effect"], "--effect: expected one argument"),
    (["ledger", "show"], "missing: KEY, --effect"),
    (["ledger", "show", "k"], "missing: --effect"),
    (["ledger", "resolve", "k"], "missing: --effect"),
    (RESOLVE, "one of the arguments --done --not-done --give-up is required"),
    ([*RESOLVE, "--done", "yes"], "--done: 'yes' is no JSON"),
    ([*RESOLVE, "--done", "1", "--not-done"], "--not-done: not allowed with argument --done"),
    ([*RESOLVE, "--give-up"], "--give-up: expected one argument"),
    ([*RESOLVE, "--give-up", " "], "--give-up: it must say something"),
    ([*RESOLVE, "--give-up", "a\udcff"], "--give-up: it must not hold control characters"),
    ([*RESOLVE, "--give-up", "x" * 4_001], "--give-up: it takes 4,001 bytes, at most 4000 are allowed"),
    (["ledger", "show", "a\udcff", "--effect", EFFECT], "an idempotency key must not hold control characters"),
    (["ledger", "show", "", "--effect", EFFECT], "an idempotency key must not be empty"),
    (["ledger", "show", "k", "--effect", "a b"], "--effect: 'a b' is no name of an effect"),
    (["ledger", "list", "--effect", "\udcff"], "--effect: '\\udcff' is no name of an effect"),
    (["dead-letters", "list", "--effect", "a/b"], "--effect: 'a/b' is no name of an effect"),
    ([*RESOLVE, "--not-done", "--code", "shop.py:app"], "--code is for --done, whose response it checks"),
    ([*RESOLVE, "--done", "1", "--code", "nowhere.py:app"], "there is no file nowhere.py"),
    (["ledger", "clean", "--older-than", "long"], "--older-than: 'long' is no length of time, such as 60d"),
    (["ledger", "clean", "--older-than", "40d"], "--older-than 40 d is less than 47 d; --force does it all the same"),
    (["ledger", "clean", "--effect", "no"], "there is no topic shop.effects.no that says how long"),
    (["dead-letters"], "missing: ACTION"),
    (["dead-letters", "drop"], "invalid choice: 'drop'"),
    (["dead-letters", "list", "--effect", "no"], "app 'shop' has no effect 'no' in the log; there are: payments"),
    (["dead-letters", "list", "--run", "a\nb"], "a run id must not hold control characters"),
    (["dead-letters", "show"], "missing: --at"),
    (["dead-letters", "show", "--at", "17"], "--at: '17' is no PARTITION@OFFSET, such as 3@17"),
    (["dead-letters", "send-back"], "one of the arguments --at --run --all is required"),
    (["dead-letters", "send-back", "--all", "--run", "o-1"], "--run: not allowed with argument --all"),
    (["dead-letters", "send-back", "--all", "--effect", EFFECT, "--ledger", "x"], "'x' is no address of a ledger"),
    (["dead-letters", "send-back", "--all", "--ledger", "x"], "--ledger is for --effect NAME"),
    (["dead-letters", "list", "--log", "sqlite:///none.db"], "there is no log at sqlite:///none.db"),
    (["diagnose", "o-1", "--ledger", "x"], "'x' is no address of a ledger"),
]


@pytest.mark.parametrize(
    ("argv", "part"), WRONG, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_a_mistake_about_the_ledger_is_one_line_and_exit_code_2(argv: list[str], part: str, capsys) -> None:
    set_up(nothing)
    code = run(*argv)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("streams: ")
    assert part in err


REFUSED = [
    (["ledger", "show", "k", "--effect", EFFECT], "UNKNOWN_KEY: the ledger has no entry of effect 'payments'"),
    (["ledger", "resolve", "k", "--effect", EFFECT, "--not-done"], "UNKNOWN_KEY"),
    (["dead-letters", "show", "--at", "0@7"], "NO_SUCH_LETTER: shop.dead-letters has no letter at 0@7"),
    (["dead-letters", "send-back", "--at", "0@7"], "NO_SUCH_LETTER"),
    (["dead-letters", "send-back", "--at", "99@0", "--effect", EFFECT], "NO_SUCH_LETTER"),
]


@pytest.mark.parametrize(
    ("argv", "part"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_what_the_ledger_or_the_log_does_not_have_is_refused_with_1(argv: list[str], part: str, capsys) -> None:
    set_up(nothing)
    assert run(*argv) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_the_ledger_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("STREAMS_LEDGER", "sqlite:///other.db")
    set_up(nothing)
    assert run("ledger", "list") == 2
    assert "there is no ledger at sqlite:///other.db" in capsys.readouterr().err


def test_a_ledger_of_a_newer_release_is_told_of(capsys) -> None:
    async def spoil() -> None:
        ledger = await open_ledger(LEDGER)
        await ledger.close()

    asyncio.run(spoil())  # a file without tables
    assert run("ledger", "list") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Traceback" not in err


# ---- looking --------------------------------------------------------------------------------------------------------


async def several(shop: Shop, skip: int = 0) -> None:
    if not skip:
        await shop.entry(message("o-1"), Status.PARKED)
    await shop.entry(message("o-2"), Status.DONE, response=b'{"id":"p-2"}')
    await shop.entry(message("o-3"), Status.FAILED, due_in=3_600.0)
    await shop.entry(message("o-4"), Status.UNCERTAIN, due_in=3_600.0)


def test_the_ledger_is_listed_by_status_run_and_effect(capsys) -> None:
    set_up(several)
    assert run("ledger", "list", "--json") == 0
    assert [line["key"] for line in lines(capsys)] == ["pay/o-1", "pay/o-2", "pay/o-3", "pay/o-4"]
    for argv, keys in [
        (["--status", "parked"], ["pay/o-1"]),
        (["--run", "o-3"], ["pay/o-3"]),
        (["--effect", "other"], []),
        (["--app", "other"], []),
        (["--app", APP, "--effect", EFFECT, "--status", "done"], ["pay/o-2"]),
    ]:
        assert run("ledger", "list", "--json", *argv) == 0
        assert [line["key"] for line in lines(capsys)] == keys
    assert run("ledger", "list") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["key", "effect", "status", "tries", "run", "changed", "error"]
    assert "OUTCOME_UNKNOWN: who knows" in out
    assert run("ledger", "list", "--status", "claimed") == 0
    assert capsys.readouterr().err == "nothing like that in the ledger\n"


def test_a_long_ledger_is_read_page_by_page(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("streams.cli.ledger._PAGE", 2)
    monkeypatch.setattr("streams.cli.ledger.ROWS_MAX", 3)
    set_up(several)
    assert run("ledger", "list", "--json") == 0
    assert len(lines(capsys)) == 4
    assert run("ledger", "list") == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), "these are the first 3" in err) == (4, True)


def test_one_operation_of_the_ledger_is_shown_with_what_can_be_done(capsys) -> None:
    set_up(several)
    assert run("ledger", "show", "pay/o-1", "--effect", EFFECT) == 0
    out = capsys.readouterr().out
    assert "parked" in out
    assert "streams ledger resolve pay/o-1 --effect payments --not-done" in out
    assert run("ledger", "show", "pay/o-2", "--effect", EFFECT, "--json") == 0
    (shown,) = lines(capsys)
    assert (shown["status"], shown["response"], shown["run_id"]) == ("done", {"id": "p-2"}, "o-2")
    assert shown["due"] is None
    assert run("ledger", "show", "pay/o-2", "--effect", EFFECT, "--app", "other") == 1


# ---- a person's word ------------------------------------------------------------------------------------------------


def test_done_is_written_into_the_ledger_and_the_reply_goes_to_the_run(capsys) -> None:
    set_up(parked)
    assert run(*RESOLVE, "--done", '{"id": "p-7"}', "--json") == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert (shown["status"], shown["response"], shown["new"], shown["replied"]) == ("done", {"id": "p-7"}, True, True)
    assert (shown["published"], bool(shown["operator"])) == (True, True)
    assert "no worker" in err or "taken" in err
    (reply,) = replies()
    assert (reply.op, reply.effect_id, reply.attempt, reply.epoch) == ("2", "o-1@7/2", 1, 4)
    assert json.loads(reply.value) == {"id": "p-7"}
    assert run(*RESOLVE, "--done", '{"id": "p-7"}') == 0
    assert "that was known, and nothing changed" in capsys.readouterr().out
    assert run(*RESOLVE, "--done", '{"id": "p-8"}') == 1
    assert "NOTHING_TO_RESOLVE" in capsys.readouterr().err
    assert len(replies()) == 1


def test_a_response_is_checked_by_the_code_before_the_ledger_takes_it(tmp_path: Path, capsys) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    set_up(parked)
    assert run(*RESOLVE, "--done", '{"identity": 1}', "--code", "shop.py:app") == 1
    assert "INPUT_INVALID" in capsys.readouterr().err
    assert entry().status is Status.PARKED
    assert run("ledger", "resolve", "k", "--effect", "mails", "--done", "1", "--code", "shop.py:app") == 2
    assert "shop.py:app has no effect 'mails'; it has: letters, payments" in capsys.readouterr().err
    assert run(*RESOLVE, "--done", '{"id": "p-7"}', "--code", "shop.py:app", "--json") == 0
    assert entry().response == b'{"$":"Paid","v":{"id":"p-7"}}'


def test_not_done_opens_the_entry_of_the_ledger_and_sends_the_message_again(capsys) -> None:
    set_up(parked)
    assert run(*RESOLVE, "--not-done", "--json") == 0
    (shown,) = lines(capsys)
    assert (shown["status"], shown["replied"]) == ("failed", False)
    assert shown["due"] is not None
    assert shown["sent_to"].startswith("shop.effects.payments[")
    assert run(*RESOLVE, "--not-done") == 0
    assert "its subscriber has the message still before it" in capsys.readouterr().out
    assert run("dead-letters", "list", "--json") == 0
    assert [line["sent_back"] for line in lines(capsys)] == [1]


def test_given_up_is_written_into_the_ledger_with_its_words(capsys) -> None:
    set_up(parked)
    assert run(*RESOLVE, "--give-up", "the bank is gone") == 0
    assert "payments pay/o-1 is failed; the reply is in the log" in capsys.readouterr().out
    (reply,) = replies()
    assert reply.error == ("terminal", "GIVEN_UP", "the bank is gone")


# ---- dead letters ---------------------------------------------------------------------------------------------------


async def letters(shop: Shop) -> None:
    await parked(shop)
    await shop.set_aside(message("o-2"), 0, code="RETRIES_EXHAUSTED")
    await shop.refuse(b"o-3", b'{"type": "frob"}', partition=shop.partition("o-3"))


def test_dead_letters_of_commands_and_effects_are_listed(capsys) -> None:
    set_up(letters)
    assert run("dead-letters", "list", "--json") == 0
    found = lines(capsys)
    assert sorted((line["effect"], line["run_id"], line["code"]) for line in found if line["effect"]) == [
        ("payments", "o-1", "OUTCOME_UNKNOWN"),
        ("payments", "o-2", "RETRIES_EXHAUSTED"),
    ]
    assert [(line["run_id"], line["code"]) for line in found if not line["effect"]] == [("o-3", "COMMAND_INVALID")]
    assert run("dead-letters", "list", "--run", "o-2", "--effect", EFFECT) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:4] == ["of", "at", "since", "run"]
    assert len(out.splitlines()) == 2
    assert run("dead-letters", "list", "--run", "nobody") == 0
    assert capsys.readouterr().err == "no dead letters like that\n"


def test_a_dead_letter_of_an_effect_is_shown_with_its_content(capsys) -> None:
    set_up(letters)
    assert run("dead-letters", "list", "--effect", EFFECT, "--run", "o-2", "--json") == 0
    (line,) = lines(capsys)
    at = f"{line['partition']}@{line['offset']}"
    assert run("dead-letters", "show", "--effect", EFFECT, "--at", at, "--json") == 0
    (shown,) = lines(capsys)
    assert (shown["payload"], shown["idempotency_key"]) == ({"amount": 5}, "pay/o-2")
    assert run("dead-letters", "show", "--effect", EFFECT, "--at", at) == 0
    assert "RETRIES_EXHAUSTED" in capsys.readouterr().out


def test_dead_letters_of_effects_go_back_and_the_ledger_keeps_what_is_parked(capsys) -> None:
    set_up(letters)
    assert run("dead-letters", "send-back", "--effect", EFFECT, "--all") == 1
    out = capsys.readouterr().out
    assert "1 sent back, 0 were before, 1 refused" in out
    assert "streams ledger resolve pay/o-1 --effect payments" in out
    assert run("dead-letters", "send-back", "--effect", EFFECT, "--run", "o-2") == 0
    assert "0 sent back, 1 were before, 0 refused" in capsys.readouterr().out
    assert run("dead-letters", "send-back", "--effect", EFFECT, "--run", "o-2", "--again", "--json") == 0
    (line,) = lines(capsys)
    assert (line["outcome"], line["run_id"], line["sent_back"]) == ("sent", "o-2", 1)


def test_a_ledger_that_is_away_keeps_dead_letters_of_effects_from_going_back(capsys) -> None:
    set_up(letters)
    away = "postgresql://streams@127.0.0.1:1/streams?connect_timeout=2"
    assert run("dead-letters", "send-back", "--effect", EFFECT, "--all", "--ledger", away) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "it knows what only a person may repeat, so nothing was sent back" in err


# ---- the same on a server -------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_the_verbs_work_on_a_ledger_in_postgres(database: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("STREAMS_LEDGER", database)
    assert run("ledger", "list") == 1
    assert "has no tables of a ledger" in capsys.readouterr().err

    async def story(shop: Shop) -> None:
        shop.ledger = await open_ledger(database)
        await shop.ledger.migrate()
        await letters(shop)
        await several(shop, skip=1)
        await shop.ledger.close()

    set_up(story)
    assert run("ledger", "list", "--json") == 0
    assert [line["status"] for line in lines(capsys)] == ["parked", "done", "failed", "uncertain"]
    assert run("dead-letters", "send-back", "--effect", EFFECT, "--all") == 1
    assert "1 sent back, 0 were before, 1 refused" in capsys.readouterr().out
    assert run(*RESOLVE, "--done", '{"id": "p-7"}', "--json") == 0
    assert lines(capsys)[0]["response"] == {"id": "p-7"}
    assert len(replies()) == 1
    assert run("ledger", "show", "pay/o-1", "--effect", EFFECT) == 0
    assert "p-7" in capsys.readouterr().out
    assert run("ledger", "clean", "--older-than", "0s", "--force", "--json") == 0
    assert lines(capsys)[0]["deleted"] == {EFFECT: 2}


# ---- forgetting -----------------------------------------------------------------------------------------------------


def test_the_ledger_forgets_what_is_done_and_old_and_says_how_much(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    set_up(several)
    assert run("ledger", "clean", "--json") == 0
    (shown,) = lines(capsys)
    assert shown == {"app": APP, "older_than_seconds": 60 * 86_400.0, "deleted": {EFFECT: 0}}
    assert run("ledger", "clean", "--older-than", "0s") == 2
    monkeypatch.setattr("streams.cli.ledger._BATCH", 1)
    assert run("ledger", "clean", "--older-than", "0s", "--force") == 0
    assert capsys.readouterr().out == "1 operations older than 0 ms forgotten\n"
    assert run("ledger", "list", "--json") == 0
    assert [line["status"] for line in lines(capsys)] == ["parked", "failed", "uncertain"]


def test_a_topic_that_keeps_its_effects_for_ever_keeps_the_ledger_too(capsys) -> None:
    async def for_ever(_: Shop) -> None:
        from streams.log.port import TopicSpec

        log = await open_sqlite(LOG)
        specs = [TopicSpec(name, PARTITIONS, {"cleanup.policy": "delete", "retention.ms": ms}) for name, ms in KEPT]
        await log.create_topics(specs)
        await log.close()

    set_up(for_ever)
    assert run("ledger", "clean", "--older-than", "9999d", "--effect", "letters") == 2
    assert "shop.effects.letters keeps its messages for ever" in capsys.readouterr().err
    assert run("ledger", "clean", "--effect", "letters", "--force", "--json") == 0
    assert lines(capsys)[0]["deleted"] == {"letters": 0}


KEPT = [("shop.effects.letters", "-1"), ("shop.effects.letters.dead", "1000")]


def test_values_of_users_in_the_ledger_cannot_move_the_cursor(capsys) -> None:
    async def nasty(shop: Shop) -> None:
        await shop.entry(message("o-1", key="pay/\x1b[2J"), Status.DONE)
        await shop.entry(message("o-2", key="it's here"), Status.PARKED)
        await shop.entry(message("o-3"), Status.DONE, response=b'"\\u001b[31m"')

    set_up(nasty)
    assert run("ledger", "list") == 0
    assert run("ledger", "show", "pay/o-3", "--effect", EFFECT) == 0
    assert run("ledger", "show", "it's here", "--effect", EFFECT) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    line = next(line for line in out.splitlines() if line.startswith("streams ledger resolve") and "--not-done" in line)
    assert shlex.split(line)[3] == "it's here"
