"""What a subscriber says at a terminal, as lines and as JSON: short, and with the command that helps."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from streams.cli import subscribe, watch_effects
from streams.cli.watch_effects import SubscriberObserver
from streams.errors import LedgerUnavailable
from streams.observer import Observer

URL = "postgresql://db/streams"
ABOUT = ("payments", "o-1@7/2", "o-1")
CASES: list[tuple[str, tuple[Any, ...], str, str, dict[str, Any]]] = [
    (
        "effect_failed",
        (*ABOUT, 2, "ProviderError", "503: busy", 1.25),
        "retry",
        "payments of o-1, try 2: ProviderError: 503: busy · again in 1.2 s",
        {"effect_id": "o-1@7/2", "delivery": 2, "again": 1.25},
    ),
    (
        "effect_parked",
        (*ABOUT, "OUTCOME_UNKNOWN", "who knows"),
        "parked",
        "OUTCOME_UNKNOWN: who knows · find out, then: streams ledger resolve (streams diagnose o-1 has the lines)",
        {"run_id": "o-1", "code": "OUTCOME_UNKNOWN"},
    ),
    (
        "effect_refused",
        ("payments", "shop.effects.payments[1]@3", "", "EFFECT_UNREADABLE", "no record\x1b[2J"),
        "dead",
        "payments shop.effects.payments[1]@3: EFFECT_UNREADABLE: no record\\x1b[2J · streams dead-letters list",
        {"what": "shop.effects.payments[1]@3", "run_id": ""},
    ),
    ("claim_lost", ABOUT, "note", "somebody else has it; what was done here is looked up", {"run_id": "o-1"}),
    ("ledger_away", (URL, "refused"), "ledger", f"{URL} does not answer, trying again: refused", {"away": True}),
    (
        "effect_partition",
        ("payments", 3, "refused", "the log begins at 9"),
        "refused",
        "payments, partition 3: the log begins at 9 (nothing is carried out there",
        {"partition": 3, "detail": "the log begins at 9"},
    ),
    ("message", ("the log answers again",), "note", "the log answers again", {"text": "the log answers again"}),
]


def told(capsys: pytest.CaptureFixture[str], *calls: tuple[str, tuple[Any, ...]], as_json: bool = False) -> str:
    async def tell() -> None:
        observer = SubscriberObserver(as_json=as_json)
        for name, arguments in calls:
            getattr(observer, name)(*arguments)
        await asyncio.sleep(0.05)

    asyncio.run(tell())
    return capsys.readouterr().out


@pytest.mark.parametrize(("name", "arguments", "kind", "part", "fields"), CASES, ids=lambda value: str(value)[:20])
def test_a_subscriber_says_what_happens_on_a_line_and_in_json(
    name: str, arguments: tuple[Any, ...], kind: str, part: str, fields: dict[str, Any], capsys
) -> None:
    line = told(capsys, (name, arguments))
    assert line.count("\n") == 1
    assert line.split()[1] == kind
    assert part in line
    found = json.loads(told(capsys, (name, arguments), as_json=True))
    assert found["kind"] == kind
    assert {key: found[key] for key in fields} == fields


def test_a_ledger_that_is_away_is_told_of_once_and_when_it_is_back(capsys) -> None:
    away = ("ledger_away", (URL, "refused"))
    back = ("ledger_back", (URL,))
    lines = told(capsys, back, away, away, back, back, away).splitlines()
    assert ["answers again" in line for line in lines] == [False, True, False]


def test_partitions_and_known_effects_of_a_subscriber_are_gathered(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(watch_effects, "_GATHER_SECONDS", 0.01)
    monkeypatch.setattr(watch_effects, "_COUNT_SECONDS", 0.01)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        *(("effect_partition", ("payments", number, "opening", "")) for number in range(3)),
        *(("effect_partition", ("payments", number, "open", "")) for number in range(3)),
        ("effect_partition", ("payments", 1, "closed", "")),
        ("effect_partition", ("mails", 0, "opening", "")),
        *(("effects_known", ("payments", 500)) for _ in range(3)),
        ("effects_known", ("mails", 1)),
    ]
    lines = [line.split(maxsplit=1)[1] for line in told(capsys, *calls).splitlines()]
    assert sorted(lines) == [
        "owns    payments: partitions 0, 2",
        "skipped mails: 1 message was known to the ledger; nothing was repeated",
        "skipped payments: 1,500 messages were known to the ledger; nothing was repeated",
    ]


def test_a_subscriber_is_quiet_about_what_goes_well(capsys) -> None:
    assert told(capsys, ("effect_done", (*ABOUT, 1))) == ""


def test_a_subscriber_that_starts_waits_for_its_ledger_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    asked: list[str] = []

    async def away(url: str) -> str:
        asked.append(url)
        if len(asked) < 3:
            raise LedgerUnavailable("refused")
        return "the ledger"

    monkeypatch.setattr(subscribe, "open_ledger", away)
    monkeypatch.setattr(subscribe, "PAUSE_SECONDS", 0.01)
    assert asyncio.run(subscribe.opened_ledger(URL)) == "the ledger"
    assert capsys.readouterr().err == "the ledger does not answer, trying again: refused\n"
    asked.clear()
    monkeypatch.setattr(subscribe, "START_SECONDS", 0.0)
    with pytest.raises(LedgerUnavailable):
        asyncio.run(subscribe.opened_ledger(URL))


def test_everything_that_needs_somebody_has_a_line_of_the_subscriber() -> None:
    quiet = {"effect_done"}
    effects = {name for name in vars(Observer) if name.startswith(("effect", "ledger", "claim"))}
    assert effects - quiet <= set(vars(SubscriberObserver))
