"""Each change of code is told as what it is: harmless, another behaviour, or a run that would be blocked (F14)."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from typing import Any

import pytest

from streams import App, Context
from streams.kernel import bodies as ev
from streams.ops.replay import Shadowed, Verdict, shadow_history
from tests.kernel.harness import Harness, failure
from tests.replay.changes import GRAPHS, WORKFLOWS, app_of, graph_of


def history(app: App, *, answered: bool, retried: bool = False, name: str = "order", value: Any = "tea") -> Harness:
    """A run of the original code, that waits for its answer or has ended."""
    run = Harness(app)
    run.start(name, value)
    if retried:
        run.fail("1", failure("BUSY"))
    run.settle()
    if answered:
        run.resume("yes")
        run.settle()
    return run


def shadowed(app: App, run: Harness) -> Shadowed:
    return shadow_history(app, run.log)


def original(**more: Any) -> App:
    return app_of(WORKFLOWS["original"], **more)


SAME, DIFFERS, BLOCKS = Verdict.SAME, Verdict.DIFFERS, Verdict.WOULD_BLOCK
CASES = {  # change -> verdict of a run that has ended with its kind, and of one that waits
    "original": (SAME, "", SAME, "goes on"),
    "comment_only": (SAME, "", SAME, "goes on"),
    "rewritten": (SAME, "", SAME, "goes on"),
    "step_at_the_end": (DIFFERS, "run.completed → op.scheduled", SAME, "goes on"),
    "step_removed": (DIFFERS, "op.scheduled → effect.emitted", BLOCKS, "NON_DETERMINISM"),
    "reordered": (DIFFERS, "op.scheduled → effect.emitted", BLOCKS, "NON_DETERMINISM"),
    "argument": (DIFFERS, "op.scheduled: args", BLOCKS, "NON_DETERMINISM"),
    "payload": (DIFFERS, "effect.emitted: payload", BLOCKS, "NON_DETERMINISM"),
    "result": (DIFFERS, "run.completed: result", SAME, "goes on"),
    "new_branch": (SAME, "", SAME, "goes on"),
    "broken": (BLOCKS, "WORKFLOW_BUG", BLOCKS, "WORKFLOW_BUG"),
    "stops_early": (DIFFERS, "effect.emitted → run.completed", BLOCKS, "NON_DETERMINISM"),
}


@pytest.mark.parametrize("change", list(CASES))
def test_f14_a_changed_workflow_is_told_as_what_it_is(change: str) -> None:
    ended, kind, waiting, ahead = CASES[change]
    app = app_of(WORKFLOWS[change])
    found = shadowed(app, history(original(), answered=True))
    assert (found.verdict, found.kind, found.status) == (ended, kind, "completed"), found
    found = shadowed(app, history(original(), answered=False))
    assert (found.verdict, found.status) == (waiting, "waiting"), found
    if waiting is BLOCKS:
        assert found.block is not None
        assert found.block.code == ahead
        assert found.ahead == "would block at the next delivery"
    else:
        assert found.ahead == ahead


def test_a_branch_that_the_recorded_values_take_is_another_behaviour() -> None:
    found = shadowed(app_of(WORKFLOWS["new_branch"]), history(original(), answered=True, value="coffee"))
    assert (found.verdict, found.kind) == (DIFFERS, "op.scheduled: kind, name, args, due, key")
    (difference,) = found.differences
    assert difference.seq == 4
    assert difference.after == "op.completed (event 3)"
    assert str(difference.recorded) == "op.scheduled task charge as op 2"
    assert str(difference.now) == "op.scheduled timer timer as op 2"


def test_f14_both_sides_are_named_with_their_values() -> None:
    found = shadowed(app_of(WORKFLOWS["argument"]), history(original(), answered=False))
    (difference,) = found.differences
    changed = {change.field: (change.recorded, change.now) for change in difference.changes}
    assert changed["args"] == ([[3]], [[4]])
    assert difference.seq == 4
    assert found.block is not None
    assert "the recorded run did task 'charge' as op 2" in found.block.message
    assert "the code now does task 'charge' as op 2" in found.block.message
    assert found.plain()["differences"][0]["fields"][0]["field"] == "args"


def test_f14_a_bug_is_told_with_what_the_recorded_run_did_instead() -> None:
    found = shadowed(app_of(WORKFLOWS["broken"]), history(original(), answered=True))
    assert found.block is not None
    assert found.block.code == "WORKFLOW_BUG"
    assert "no such key 3" in found.block.message
    assert "the recorded run went on with op.completed (event 3), then op.scheduled (event 4)" in found.block.message


def test_f14_a_workflow_that_is_gone_would_block() -> None:
    for answered in (False, True):
        found = shadowed(app_of(None), history(original(), answered=answered))
        assert (found.verdict, found.kind) == (BLOCKS, "WORKFLOW_UNKNOWN"), found
        assert found.workflow == "order"


def test_f14_a_version_that_was_raised_would_block_unless_the_old_one_is_kept() -> None:
    run = history(original(), answered=False)
    found = shadowed(original(version=2), run)
    assert (found.verdict, found.kind, found.version) == (BLOCKS, "VERSION_UNSUPPORTED", 1)
    both = original(version=1)
    both.workflow(version=2, name="order")(WORKFLOWS["step_removed"](both))
    assert shadowed(both, run).verdict is SAME


def test_a_code_that_never_waits_would_block() -> None:
    app, run = app_of(WORKFLOWS["endless"]), history(original(), answered=True)
    found = shadow_history(app, run.log, drive_seconds=0.2)
    assert (found.verdict, found.kind) == (BLOCKS, "WORKFLOW_BUG")
    assert found.block is not None
    assert "ran for too long" in found.block.message


# -- attempts --------------------------------------------------------------------------------------------------------


def test_another_back_off_is_another_behaviour_and_the_comparison_goes_on() -> None:
    run = history(original(), answered=True, retried=True)
    assert shadowed(original(), run).verdict is SAME
    found = shadowed(original(initial=9.0), run)
    assert (found.verdict, found.kind) == (DIFFERS, "attempt.failed: due")
    assert len(found.differences) == 1  # and nothing else was found up to the end
    both = app_of(WORKFLOWS["result"], initial=9.0)
    assert [d.kind for d in shadowed(both, run).differences] == ["attempt.failed: due", "run.completed: result"]
    waiting = shadowed(original(initial=9.0), history(original(), answered=False, retried=True))
    assert (waiting.verdict, waiting.ahead) == (DIFFERS, "goes on")


def test_a_smaller_budget_is_another_behaviour() -> None:
    found = shadowed(original(attempts=1), history(original(), answered=True, retried=True))
    assert (found.verdict, found.kind) == (DIFFERS, "attempt.failed: task 'quote' fails for good")


def test_a_larger_budget_is_another_behaviour() -> None:
    old = app_of(WORKFLOWS["failing"], attempts=2)
    run = Harness(old)
    run.start("order", "tea")
    for _ in range(2):
        run.fail("1", failure("BUSY"))
        run.step()
    assert run.result == "RETRIES_EXHAUSTED"
    assert shadowed(app_of(WORKFLOWS["failing"], attempts=2), run).verdict is SAME
    found = shadowed(app_of(WORKFLOWS["failing"], attempts=5), run)
    assert (found.verdict, found.kind) == (DIFFERS, "op.failed: task 'quote' is tried again")


# -- answers, signals, inputs ----------------------------------------------------------------------------------------


def test_an_answer_that_the_new_code_refuses_is_told() -> None:
    found = shadowed(app_of(WORKFLOWS["other_answer"]), history(original(), answered=True))
    assert found.verdict is DIFFERS
    assert found.kind == "op.scheduled: ref"


def test_a_signal_that_is_declared_no_more_is_told() -> None:
    run = history(original(), answered=False)
    run.signal("hurry", 1)
    gone = App("shop")
    gone.effect("shipped", str)
    for name in ("quote", "charge"):
        task = original().task_named(name)
        gone.add_task(task.function, name, {})
    gone.workflow(version=1, name="order")(WORKFLOWS["original"](gone))
    found = shadowed(gone, run)
    assert (found.verdict, found.ahead) == (DIFFERS, "goes on")
    assert found.kind == "signal.received: the signal is refused: UNKNOWN_SIGNAL: no signal 'hurry' is declared"


def typed(*more: Any, answer: Any = str) -> App:
    """A workflow that takes an `Order`, and a graph whose state it is, with these fields more than before."""
    fields = [("sku", str), ("count", int, field(default=1)), *more]
    order = make_dataclass("Order", fields, namespace={"__module__": __name__})
    app = App("typed")

    async def buy(ctx: Context, value: Any) -> str:
        return f"{value.sku} {await ctx.interrupt('well?', answer=answer)}"

    buy.__annotations__ = {"ctx": Context, "value": order, "return": str}
    app.workflow(version=1)(buy)
    graph: Any = app.graph("report", state=order, version=1)

    async def ask(ctx: Context, state: Any) -> dict[str, Any]:
        return {"sku": await ctx.interrupt("good?", answer=answer)}

    ask.__annotations__ = {"ctx": Context, "state": order, "return": dict}
    graph.flow(ask)
    return app


@pytest.mark.parametrize("name", ["buy", "report"])
@pytest.mark.parametrize("answered", [False, True])
def test_f14_a_field_with_a_default_is_harmless(name: str, answered: bool) -> None:
    run = history(typed(), answered=answered, name=name, value={"sku": "tea"})
    assert shadowed(typed(), run).verdict is SAME
    found = shadowed(typed(("note", str, field(default="none"))), run)
    if name == "report" and answered:  # the result is the whole state, and has the field now
        assert (found.verdict, found.kind) == (DIFFERS, "run.completed: result")
    else:
        assert found.verdict is SAME, found


def test_f14_a_field_without_a_default_is_told() -> None:
    run = history(typed(), answered=False, name="buy", value={"sku": "tea"})
    found = shadowed(typed(("note", str, field(kw_only=True))), run)
    assert (found.verdict, found.kind) == (BLOCKS, "VALUE_UNREADABLE")
    assert found.differences[0].note.startswith("the input is refused: INPUT_INVALID")
    assert found.ahead == "would block at the next delivery"


def test_an_answer_of_another_type_is_told() -> None:
    found = shadowed(typed(answer=int), history(typed(), answered=True, name="report", value={"sku": "tea"}))
    assert (found.verdict, found.differences[0].kind) == (DIFFERS, "op.scheduled: ref")


# -- graphs ----------------------------------------------------------------------------------------------------------

GRAPH_CASES = {
    "original": (SAME, "", SAME, "goes on"),
    "node added": (DIFFERS, "state.advanced: active", DIFFERS, "goes on"),
    "node added at the end": (DIFFERS, "run.completed → state.advanced", SAME, "goes on"),
    "reducer": (DIFFERS, "state.advanced: changes", DIFFERS, "goes on"),
    "question": (DIFFERS, "op.scheduled: args", BLOCKS, "would block at the next delivery"),
}


@pytest.mark.parametrize("change", GRAPHS)
def test_f14_a_changed_graph_is_told_as_what_it_is(change: str) -> None:
    ended, kind, waiting, ahead = GRAPH_CASES[change]
    value = {"text": "", "notes": [], "score": 1}
    app = graph_of(change)
    found = shadowed(app, history(graph_of("original"), answered=True, name="report", value=value))
    assert (found.verdict, found.kind) == (ended, kind), found
    found = shadowed(app, history(graph_of("original"), answered=False, name="report", value=value))
    assert (found.verdict, found.ahead) == (waiting, ahead), found


# -- what cannot be compared, and what was blocked ------------------------------------------------------------------


def test_a_history_that_was_cut_is_not_compared() -> None:
    run = history(original(), answered=True)
    found = shadow_history(original(), run.log[2:])
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert "the retention of the events has cut its history" in found.reason


def test_a_history_with_a_hole_is_not_compared() -> None:
    run = history(original(), answered=True)
    found = shadow_history(original(), [*run.log[:3], *run.log[4:]])
    assert found.verdict is Verdict.NOT_COMPARABLE
    assert "cannot be folded" in found.reason


def test_a_run_that_a_bug_has_blocked_is_told_what_a_retry_would_do() -> None:
    run = Harness(app_of(WORKFLOWS["broken"]))
    run.start("order", "tea")
    run.settle()
    assert run.blocked == "WORKFLOW_BUG"
    found = shadowed(app_of(WORKFLOWS["broken"]), run)
    assert (found.verdict, found.status) == (SAME, "blocked")
    assert found.ahead.startswith("is blocked; a retry would block it again: WORKFLOW_BUG")
    found = shadowed(original(), run)
    assert (found.verdict, found.ahead) == (SAME, "is blocked; a retry would let it go on")


def test_a_run_that_was_mended_by_a_deployment_is_compared_from_there_on() -> None:
    run = Harness(app_of(WORKFLOWS["broken"]))
    run.start("order", "tea")
    run.settle()
    run.deploy(original())
    run.retry()
    run.settle()
    run.resume("yes")
    assert run.result == "tea yes"
    assert shadowed(original(), run).verdict is SAME
    assert shadowed(app_of(WORKFLOWS["result"]), run).kind == "run.completed: result"


def test_a_run_that_has_expired_is_compared_as_any_other() -> None:
    run = history(original(), answered=True)
    last = run.log[-1]
    expired = last._replace(seq=(last.seq or 0) + 1, body=ev.RunExpired("it was old"))
    found = shadow_history(original(), [*run.log, expired])
    assert (found.verdict, found.status) == (SAME, "completed")


def test_a_history_that_was_mended_by_hand_is_not_compared() -> None:
    run = history(original(), answered=False)
    last = run.log[-1]
    mended = last._replace(seq=(last.seq or 0) + 1, body=ev.RunRewound(3))
    found = shadow_history(original(), [*run.log, mended])
    assert (found.verdict, found.reason) == (Verdict.NOT_COMPARABLE, "its history was mended by hand (run.rewound)")
