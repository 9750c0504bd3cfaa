"""The guide's section on requests: its code runs as it stands, and does what the text beside it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from streams import App, Context, RequestFailed, Retry
from streams.kernel.run import OpPhase
from tests.kernel.harness import SECOND, Harness

TEXT = (Path(__file__).parents[2] / "docs" / "guide.md").read_text("utf-8")


@dataclass(frozen=True)
class Order:
    id: str
    cents: int


@dataclass(frozen=True)
class Charge:
    order: str
    cents: int


@dataclass(frozen=True)
class Payment:
    id: str


@pytest.fixture
def run() -> Harness:
    (code,) = re.findall(r"## Requests\n.*?```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict[str, Any] = {"app": App("shop"), "timedelta": timedelta}
    names |= {kind.__name__: kind for kind in (Order, Charge, Payment, Context, RequestFailed, Retry)}
    exec(compile(code, "guide.md", "exec", dont_inherit=True), names)
    run = Harness(names["app"])
    run.start("order", Order("o-1", 500))
    return run


def test_a_reply_gives_the_value(run: Harness) -> None:
    assert run.messages["1", 1].idempotency_key == "pay/o-1"
    run.reply("1", {"id": 5})
    run.reply("1", {"id": "p-1"})
    assert run.result == "p-1"


def test_the_error_is_what_was_replied(run: Harness) -> None:
    run.reply("1", error=("terminal", "DECLINED", "no money"))
    assert run.result == "terminal: DECLINED"


def test_without_a_reply_it_is_asked_again_under_the_same_key_and_then_a_person_is(run: Harness) -> None:
    for attempt in (1, 2, 3):
        assert run.run.ops["1"].due == run.now + 3_600 * SECOND
        run.now += 3_600 * SECOND
        run.due("1")
        if attempt < 3:
            run.now += 60 * SECOND
            run.due("1")
    assert {message.idempotency_key for message in run.messages.values()} == {"pay/o-1"}
    assert run.run.ops["1"].phase is OpPhase.PARKED
    run.skip("1")
    assert run.result == "terminal: SKIPPED"
