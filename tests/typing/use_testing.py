"""How users type their crash tests. mypy --strict and pyright must accept every line but those marked `# E: why`."""

from __future__ import annotations

from typing import Any, assert_type

from streams import App, Context
from streams.testing import Report, Scenario, crash_everywhere

app = App("shop")
news = app.signal("news", int)


@app.workflow(version=1)
async def sell(ctx: Context, order: str) -> int:
    return await ctx.receive(news)


class Bank:
    def __init__(self) -> None:
        self.payments: dict[str, int] = {}


async def approved(s: Scenario) -> None:
    run = await s.start(sell, "o-1")
    assert_type(run, str)
    assert_type(await s.waiting(run, "news"), str)
    await s.signal(run, news, 1)
    await s.signal(run, "news", 1)
    await s.sleep(60)
    assert_type(await s.result(run), Any)
    await s.start("sell", {"any": "thing"}, run_id="o-2", attributes={"kind": "test"})
    await s.start(sell, 1)  # E: the input is text
    await s.signal(run, news, "one")  # E: the signal brings a number
    await s.start(sell)  # E: the input is missing


def checked(bank: Bank) -> dict[str, int]:
    return bank.payments


def told(done: int, total: int) -> None: ...


report = crash_everywhere(app, approved, resources=Bank, check=checked, progress=told)
assert_type(report, Report)
crash_everywhere(app, approved, resources=Bank, check=lambda bank: bank.payments, only=["turn.input:1"])
crash_everywhere(app, approved)
crash_everywhere(app, sell)  # E: no scenario
crash_everywhere(app, approved, resources=dict, check=checked)  # E: the check is of another world
crash_everywhere(app, approved, only=3)  # E: a position is text


def plain(s: Scenario) -> None: ...


crash_everywhere(app, plain)  # E: a scenario is an async function
