"""A worker that starts while its log is being restarted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from streams.errors import LogUnavailable
from streams.observer import Observer
from streams.runtime import starting
from streams.runtime.starting import at_start


class Teller(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


class Log:
    """Not there for the first few times; each asking takes ten seconds of the clock."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def ask(self) -> str:
        self.now += 10.0
        self.left -= 1
        if self.left >= 0:
            raise LogUnavailable("no broker")
        return "there"


def start(log: Log, teller: Teller) -> str:
    return asyncio.run(at_start(SimpleNamespace(clock=log, observer=teller), log.ask))


def test_a_log_that_comes_back_is_waited_for_and_told_of_once(monkeypatch) -> None:
    monkeypatch.setattr(starting, "_PAUSE_SECONDS", 0.0)
    teller = Teller()
    assert start(Log(3), teller) == "there"
    assert teller.said == ["the log cannot be reached, trying again: no broker"]


def test_a_log_that_stays_away_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(starting, "_PAUSE_SECONDS", 0.0)
    log = Log(100)
    with pytest.raises(LogUnavailable):
        start(log, Teller())
    assert log.now == starting.START_SECONDS
