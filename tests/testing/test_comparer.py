"""The comparison finds each thing that may not differ, in executions that are spoilt by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from streams import App, Context
from streams.authoring.task import NotFound, TaskContext
from streams.kernel import bodies as ev
from streams.kernel.bodies import Failure
from streams.kernel.events import Event
from streams.kernel.run import Phase
from streams.testing import Scenario
from streams.testing.crash.calls import Call
from streams.testing.crash.compare import Comparer
from streams.testing.crash.everywhere import Runner, usual_settings
from streams.testing.crash.positions import Position, parse_plan
from streams.testing.crash.world import Execution, Seen, Struck
from tests.testing import good_apps as good

RUN = "run-1"
Spoil = Callable[[Execution], Execution]


@pytest.fixture(scope="module")
def base() -> Execution:
    return runner().run()


def runner() -> Runner:
    return Runner(good.app, good.SCENARIOS["order"], good.Bank, len_of_payments, usual_settings(), 0)


def len_of_payments(bank: good.Bank) -> int:
    return len(bank.payments)


def run_with(**changes: Any) -> Spoil:
    return lambda found: found._replace(runs={RUN: found.runs[RUN]._replace(**changes)})


def events_with(change: Callable[[list[Event]], list[Event]]) -> Spoil:
    return lambda found: found._replace(events={RUN: change(list(found.events[RUN]))})


def body_with(kind: type, op: str, **changes: Any) -> Spoil:
    def change(events: list[Event]) -> list[Event]:
        return [
            event._replace(body=event.body._replace(**changes))
            if isinstance(event.body, kind) and event.body.op == op
            else event
            for event in events
        ]

    return events_with(change)


def effects_with(change: Callable[[list[Any]], list[Any]]) -> Spoil:
    return lambda found: found._replace(effects={RUN: change(list(found.effects[RUN]))})


def called(task: str, found: Execution, *, look_up: bool = False, answer: object = None) -> Call:
    key = next(call.key for call in found.calls if call.task == task)
    call = Call(TaskContext(RUN, idempotency_key=key), task, look_up=look_up)
    call.answer = answer
    return call


def calls_with(*tasks: str, strikes: int = 0, settled: tuple[str, ...] = (), not_found: bool = False) -> Spoil:
    def spoil(found: Execution) -> Execution:
        ops = {b.name: b.op for e in found.events[RUN] if isinstance(b := e.body, ev.OpScheduled)}
        at = len(found.calls)
        struck = Struck(Position("x", 1), at, frozenset((RUN, ops[name]) for name in settled), "")
        more = [called(task, found) for task in tasks]
        looked = [called(task, found, look_up=True, answer=NotFound()) for task in tasks if not_found]
        return found._replace(calls=[*found.calls, *looked, *more], strikes=[struck] * strikes)

    return spoil


SPOILT: dict[str, tuple[Spoil, str]] = {
    "status": (run_with(phase=Phase.FAILED, error=Failure("terminal", "LOST", "x")), "the status"),
    "blocked": (
        run_with(phase=Phase.ACTIVE, blocked=Failure("code", "NON_DETERMINISM", "x")),
        "the status",
    ),
    "result": (run_with(result=b'["x"]'), "the result"),
    "run is missing": (lambda found: found._replace(runs={}), "the run"),
    "another run": (lambda found: found._replace(runs={**found.runs, "x": found.runs[RUN]}), "the run"),
    "no effect": (effects_with(lambda _: []), "effect 1"),
    "an effect twice": (effects_with(lambda effects: effects * 2), "effect 2"),
    "payload": (effects_with(lambda effects: [effects[0]._replace(payload=b"{}")]), "effect 1"),
    "key of an effect": (effects_with(lambda effects: [effects[0]._replace(idempotency_key="x")]), "effect 1"),
    "op is missing": (events_with(lambda e: [x for x in e if getattr(x.body, "name", "") != "pay"]), "pay (op 4)"),
    "key of an op": (body_with(ev.OpScheduled, "4", key="x"), "pay (op 4)"),
    "outcome": (body_with(ev.OpCompleted, "4", value=b'"x"'), "the outcome of pay"),
    "no outcome": (
        events_with(lambda e: [x for x in e if not isinstance(x.body, ev.InterruptAnswered)]),
        "the outcome of approval (op 3)",
    ),
    "signal": (
        events_with(lambda e: [*e, e[-1]._replace(body=ev.SignalReceived("news", b"1"))]),
        "what reached it",
    ),
    "cancel": (events_with(lambda e: [*e, e[-1]._replace(body=ev.CancelRequested(force=True))]), "what reached it"),
    "call without a crash": (calls_with("pay"), "task pay"),
    "two calls, one crash": (calls_with("pay", "pay", strikes=1), "task pay"),
    "call after the outcome": (calls_with("pay", strikes=1, settled=("pay",)), "task pay (pay/o-1) after its outcome"),
    "not idempotent": (calls_with("transfer", strikes=1), "task transfer"),
    "check": (lambda found: found._replace(seen=Seen(3, "3", same=False)), "what the check returned"),
    "error": (lambda found: found._replace(errors=[AssertionError("x")]), "an error"),
    "stuck": (lambda found: found._replace(stuck="the end of run-1"), "the end"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_it_finds(base: Execution, name: str) -> None:
    spoil, what = SPOILT[name]
    found = Comparer(good.app, base, lambda value: value).differences(spoil(base))
    assert len(found) == 1, found
    assert found[0].what.startswith(what)
    assert found[0].without != found[0].found


ALLOWED: dict[str, Spoil] = {
    "nothing": lambda found: found,
    "one more call for a crash": calls_with("pay", strikes=1),
    "two for two": calls_with("pay", "pay", strikes=2),
    "after a look-up": calls_with("transfer", strikes=1, not_found=True),
    "epochs, times, attempts": lambda found: found._replace(
        events={
            RUN: [
                *(event._replace(epoch=9, at=event.at + 1, offset=None, cause=None) for event in found.events[RUN]),
                found.events[RUN][0]._replace(body=ev.RunOwned("somebody else")),
                found.events[RUN][0]._replace(body=ev.AttemptStarted("pay/1", 2)),
                found.events[RUN][0]._replace(body=ev.CommandRejected("start", "DUPLICATE", "")),
            ]
        }
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_it_allows(base: Execution, name: str) -> None:
    assert Comparer(good.app, base, lambda value: value).differences(ALLOWED[name](base)) == []


def test_effects_of_branches_may_leave_in_another_order_if_their_outcomes_came_in_another() -> None:
    base = Runner(good.app, good.SCENARIOS["branches"], good.Bank, None, usual_settings(), 0).run()
    comparer = Comparer(good.app, base, lambda value: value)
    turned = base._replace(effects={RUN: base.effects[RUN][::-1]})
    assert [difference.what for difference in comparer.differences(turned)] == ["effect 1"]
    events = list(base.events[RUN])
    ends = [index for index, event in enumerate(events) if isinstance(event.body, ev.TimerFired)]
    events[ends[0]], events[ends[1]] = events[ends[1]], events[ends[0]]
    assert comparer.differences(turned._replace(events={RUN: events})) == []


def test_a_plan_reads_as_it_is_written() -> None:
    text = "task.started/my task:2+doubt.open:1"
    assert "+".join(map(str, parse_plan(text))) == text
    assert [position.kills for position in parse_plan(text)] == [True, False]


def test_a_death_runs_no_clean_up_code_of_tasks() -> None:
    """What a task does in `finally` is not done by a dead worker: the world is looked at as it was left."""
    app = App("tidy")

    class Desk:
        def __init__(self) -> None:
            self.told: list[str] = []

    @app.task
    async def tidy(ctx: TaskContext) -> None:
        ctx.resources.told.append(f"begin {ctx.attempt}")
        try:
            await asyncio.sleep(1)
            await asyncio.sleep(1)
        finally:
            ctx.resources.told.append(f"end {ctx.attempt}")

    @app.workflow(version=1)
    async def work(ctx: Context, _: None) -> None:
        await ctx.run(tidy)

    async def scenario(s: Scenario) -> None:
        await s.ended(await s.start(work, None))

    for plan, told in (
        ("task.waited/tidy:1", ["begin 1", "begin 2", "end 2"]),
        ("task.started/tidy:1", ["begin 2", "end 2"]),
        ("task.returned/tidy:1", ["begin 1", "end 1", "begin 2", "end 2"]),
        ("task.told/tidy:1", ["begin 1", "end 1", "begin 2", "end 2"]),
    ):
        made = Runner(app, scenario, Desk, lambda desk: tuple(desk.told), usual_settings(), 0)
        assert list(made.run(parse_plan(plan)).seen.value) == told, plan
