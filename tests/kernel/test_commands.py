"""Commands: duplicates, conflicts, terminal runs, and what comes too early or too late (F09, F10, F18)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from streams import App, Cancelled, Context, Fail, TaskContext
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.inputs import Due, Outcome, Recover, Returned
from streams.kernel.run import SEEN_MAX, Status
from tests.kernel.harness import Harness

app = App("commands")
words = app.signal("words", str)


@dataclass(frozen=True)
class Order:
    id: str
    amount: int = 1


class State(TypedDict, total=False):
    a: int
    b: int


@app.task
async def echo(ctx: TaskContext, value: Any) -> Any:
    return value


@app.workflow(version=1)
async def order(ctx: Context, order: Order) -> str:
    await ctx.run(echo, 1)
    return order.id


@app.workflow(version=1)
async def anything(ctx: Context, value: Any) -> Any:
    await ctx.interrupt("?")
    return value


@app.workflow(version=1)
async def ends(ctx: Context, how: str) -> str:
    if how == "failed":
        raise Fail("NO", "no")
    if how == "cancelled":
        raise Cancelled
    if how == "blocked":
        raise ValueError("a bug")
    op = ctx.run(echo, 1)
    await ctx.sleep(1)
    return str(await op)


graph = app.graph("graph", state=State, version=1)


@graph.node
async def node(ctx: TaskContext, state: State) -> State:
    return {}


def code(run: Harness) -> str:
    body = run.records[-1].body
    assert isinstance(body, ev.CommandRejected)
    return body.code


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    ("workflow", "first", "again", "expected"),
    [
        ("order", {"id": "a"}, {"id": "a"}, "DUPLICATE"),
        ("order", {"id": "a"}, {"amount": 1, "id": "a"}, "DUPLICATE"),
        ("order", {"id": "a"}, Order("a"), "DUPLICATE"),
        ("order", {"id": "a"}, {"id": "b"}, "INPUT_CONFLICT"),
        ("order", {"id": "a"}, {"ix": "b"}, "INPUT_CONFLICT"),
        ("anything", {"x": [1], "y": 2}, {"y": 2, "x": [1]}, "DUPLICATE"),
        ("anything", [1, 2], [2, 1], "INPUT_CONFLICT"),
        ("anything", 1, True, "INPUT_CONFLICT"),
        ("anything", None, 0, "INPUT_CONFLICT"),
        ("graph", {"a": 1, "b": 2}, {"b": 2, "a": 1}, "DUPLICATE"),
        ("graph", {"a": 1}, {"b": 1}, "INPUT_CONFLICT"),
        ("graph", {"a": 1}, {"a": 2}, "INPUT_CONFLICT"),
        ("unknown", {"a": 1, "b": 2}, {"b": 2, "a": 1}, "DUPLICATE"),
        ("unknown", {"a": 1}, {"a": 2}, "INPUT_CONFLICT"),
    ],
)
def test_f18_a_second_start(workflow: str, first: Any, again: Any, expected: str, ended: bool) -> None:
    run = Harness(app)
    run.start(workflow, first)
    if ended:
        run.cancel(force=True)
    before = run.run
    run.start(workflow, again)
    assert code(run) == expected
    run.start("ends", first)
    assert code(run) == "INPUT_CONFLICT"
    assert run.run == before
    run.take_over()


def test_a_start_is_checked() -> None:
    run = Harness(app)
    for bad in ({"id": 5}, {"id": "a", "more": 1}, "a", None, []):
        run.start("order", bad)
        assert code(run) == "INPUT_INVALID", bad
        assert run.run.seq == 0
    run.start("order", {"id": "a"})
    assert run.status is Status.RUNNING


def test_early_input_and_then_a_bad_start_and_then_a_good_one() -> None:
    run = Harness(app)
    run.signal("words", "x")
    run.start("order", {"id": 5})
    assert code(run) == "INPUT_INVALID"
    assert run.status is Status.PENDING
    run.start("order", {"id": "a"})
    assert run.run.identity == "r@0"
    assert run.settle().result == "a"


@pytest.mark.parametrize(
    "request_",
    [cmd.Resume(b"1"), cmd.Retry(), cmd.Skip("1"), cmd.Complete("1", b"1"), cmd.Reply("1", "e", 1, 1)],
    ids=lambda request: type(request).__name__,
)
@pytest.mark.parametrize("pending", [False, True])
def test_commands_for_a_run_that_is_not_started(request_: Any, pending: bool) -> None:
    run = Harness(app)
    if pending:
        run.signal("words", "x")
    before = run.run
    run.command(request_)
    assert code(run) == "UNKNOWN_RUN"
    assert run.run == before


def ended(how: str) -> Harness:
    run = Harness(app)
    run.start("ends", "completed" if how == "forced" else how)
    if how == "forced":
        run.cancel(force=True)
    elif how == "completed":
        run.settle()
    assert run.status is Status(how if how != "forced" else "cancelled")
    return run


LATE: dict[str, Callable[[Harness], Any]] = {
    "signal": lambda run: run.signal("words", "x"),
    "resume": lambda run: run.resume(1),
    "resume by id": lambda run: run.resume(1, "1"),
    "cancel": lambda run: run.cancel(),
    "cancel force": lambda run: run.cancel(force=True),
    "retry": lambda run: run.retry(),
    "retry op": lambda run: run.retry("1"),
    "skip": lambda run: run.skip("1"),
    "complete": lambda run: run.complete("1", 1),
    "timer": lambda run: run.feed(Due("2")),
    "slot": lambda run: run.feed(Due("1")),
    "outcome": lambda run: run.feed(Outcome("1", 1, b"1")),
    "failure": lambda run: run.feed(Outcome("1", 1, None, ev.Failure("unknown", "X", "x"))),
    "returned": lambda run: run.feed(Returned("1", 1, "stop")),
    "recover": lambda run: run.feed(Recover()),
}


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "forced"])
@pytest.mark.parametrize("late", LATE)
def test_f09_nothing_brings_an_ended_run_back(how: str, late: str) -> None:
    run = ended(how)
    before = run.run
    for _ in range(2):
        count = len(run.records)
        LATE[late](run)
        assert run.run == before
        if late in ("timer", "slot", "returned", "recover"):
            assert len(run.records) == count
        elif late in ("outcome", "failure"):
            assert isinstance(run.records[-1].body, ev.OutcomeLate)
        else:
            assert code(run) == "RUN_TERMINAL"
    run.take_over()
    assert run.run == before


def test_f10_signal_cancel_and_start_in_every_order() -> None:
    steps: dict[str, Callable[[Harness], Any]] = {
        "signal": lambda run: run.signal("words", "x"),
        "cancel": lambda run: run.cancel(),
        "start": lambda run: run.start("anything", 5),
    }
    for order_ in itertools.permutations(steps):
        run = Harness(app)
        for step in order_:
            steps[step](run)
            run.evict()
        assert run.status is Status.CANCELLED, order_


def test_an_answer_is_refused_before_its_question_is_asked() -> None:
    run = Harness(app)
    run.resume("yes")
    run.start("ends", "completed")
    run.resume("yes", "2")
    assert code(run) == "NO_SUCH_INTERRUPT"


def test_f18_command_ids_of_signals_are_remembered_within_a_bound() -> None:
    run = Harness(app, checked=False)
    run.start("anything", 5)
    for i in range(SEEN_MAX + 5):
        run.signal("words", "x", f"s{i}")
    assert len(run.run.seen) == SEEN_MAX
    run.signal("words", "x", f"s{SEEN_MAX + 4}")
    assert code(run) == "DUPLICATE"
    run.signal("words", "x", "s5")
    assert code(run) == "DUPLICATE"
    run.signal("words", "x", "s4")
    assert run.run.seen[-1] == "s4"


def test_unsupported_commands_are_refused_by_name() -> None:
    run = Harness(app)
    run.command(cmd.Unsupported("rewind"))
    assert code(run) == "NOT_SUPPORTED"
    assert "'rewind'" in run.records[-1].body.message  # type: ignore[union-attr]


def test_a_refusal_keeps_the_coroutine() -> None:
    run = Harness(app, checked=False)
    run.start("anything", 5)
    live = run.live
    assert live is not None
    run.resume(1, "99")
    run.retry("5")
    run.start("anything", 6)
    assert run.live is live


def test_the_first_event_under_a_new_epoch_says_who_owns_the_run() -> None:
    run = Harness(app)
    run.start("anything", 5)
    run.take_over()
    assert "run.owned" not in run.types()
    run.signal("words", "x")
    run.signal("words", "y")
    assert run.types()[-3:] == ["run.owned", "signal.received", "signal.received"]
    run.take_over()
    run.resume(1)
    assert run.types()[-3:] == ["run.owned", "interrupt.answered", "run.completed"]
