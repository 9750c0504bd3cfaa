"""Cancel as a delivery (F19): it is never lost, clean-up runs once and may use ops, and the end says what happened."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

from streams import App, Cancelled, Context, Fail, TaskFailed, TimedOut, Withdrawn
from streams.kernel import bodies as ev
from streams.kernel.inputs import Due
from streams.kernel.run import OpPhase, Phase, Status
from tests.kernel.harness import SECOND, Harness, failure
from tests.kernel.test_ops import app, begin, double, explode, greet, mail, rejection, words

STOPPED = failure("STOPPED", "cancelled")


def cancelled_end(run: Harness) -> Status:
    """Let what was asked to stop do so, and clean-up run to its end."""
    for _ in range(200):
        if run.run.phase is not Phase.ACTIVE:
            return run.status
        asked = [op for op in run.ops(OpPhase.RUNNING) if op.asked]
        if asked:
            run.fail(asked[0].id, STOPPED)
        else:
            assert run.step(), run.run.ops
    raise AssertionError("no end")


async def everything(ctx: Context, n: int) -> list[Any]:
    """A workflow with a wait of every kind, and clean-up in each of its branches."""
    log: list[str] = []

    async def branch(name: str) -> str:
        try:
            await ctx.sleep(1)
            await ctx.run(greet, name)
            child = ctx.spawn(leaf(name))
            await ctx.timeout(ctx.receive(words), 2, default="")
            return await child
        finally:
            log.append(f"end of {name}")
            await ctx.run(greet, f"clean {name}")
            ctx.emit(mail, {"clean": name})

    async def leaf(name: str) -> str:
        try:
            await ctx.sleep(5)
        finally:
            log.append(f"end of leaf {name}")
        return name

    try:
        a = ctx.spawn(branch("a"))
        b = ctx.spawn(branch("b"))
        got: list[Any] = [await ctx.interrupt("?", timeout=3) if n else 0]
        got += await ctx.all(a, b)
        won = await ctx.first(ctx.run(double, 1), ctx.sleep(50))
        got += [won.index]
        return got
    except TimedOut:
        return ["nobody answered", await ctx.all(a, b)]
    finally:
        await ctx.run(greet, "clean main")
        ctx.emit(mail, {"clean": "main", "log": log})


def points(n: int) -> int:
    """How many decisions the workflow takes when nobody cancels it."""
    run = begin(everything, n)
    count = 1
    while run.run.phase is Phase.ACTIVE:
        assert run.step()
        count += 1
    assert run.status is Status.COMPLETED
    return count


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("disturb", ["none", "evict", "take over"])
def test_f19_cancel_at_every_point(n: int, disturb: str) -> None:
    ends: set[Status] = set()
    for point in range(points(n)):
        run = begin(everything, n)
        for _ in range(point):
            run.step()
        if run.run.phase is not Phase.ACTIVE:
            run.cancel()
            assert rejection(run) == "RUN_TERMINAL"
            continue
        begun = any(b"clean main" in (body.args or b"") for body in run.of(ev.OpScheduled))
        run.cancel()
        assert run.run.cancel_requested
        run.cancel()
        assert rejection(run) in ("DUPLICATE", "RUN_TERMINAL")
        for turn in itertools.count():
            if run.run.phase is not Phase.ACTIVE:
                break
            if disturb == "evict":
                run.evict()
            elif disturb == "take over" and turn % 4 == 0:  # not oftener, or it would use up the attempts
                run.take_over()
            asked = [op for op in run.ops(OpPhase.RUNNING) if op.asked]
            if asked:
                run.fail(asked[0].id, STOPPED)
            elif run.run.phase is Phase.ACTIVE:
                assert run.step()
        ends.add(run.status)
        cleaned = [run.codec.decode(body.payload)["clean"] for body in run.of(ev.EffectEmitted)]
        assert cleaned.count("main") == 1 or begun, point
        assert run.status is Status.CANCELLED or run.of(ev.RunCompleted)[0].cancel_requested
        assert len(cleaned) == len(set(cleaned)), "clean-up ran twice"
    assert Status.CANCELLED in ends


def test_children_before_parents() -> None:
    async def w(ctx: Context, n: int) -> None:
        async def branch(name: str, depth: int) -> None:
            if depth:
                ctx.spawn(branch(name + "x", depth - 1))
            try:
                await ctx.sleep(100)
            finally:
                ctx.emit(mail, {"end": name})

        try:
            await ctx.all(ctx.spawn(branch("a", 2)), ctx.spawn(branch("b", 1)))
        finally:
            ctx.emit(mail, {"end": "main"})

    run = begin(w, 1)
    run.cancel()
    assert run.status is Status.CANCELLED
    ends = [run.codec.decode(body.payload)["end"] for body in run.of(ev.EffectEmitted)]
    assert set(ends) == {"a", "ax", "axx", "b", "bx", "main"}
    for child, parent in (("axx", "ax"), ("ax", "a"), ("bx", "b"), ("a", "main"), ("b", "main")):
        assert ends.index(child) < ends.index(parent)


def test_f10_f19_cancel_before_the_start() -> None:
    run = Harness(app)
    run.cancel()
    assert run.status is Status.PENDING
    run.cancel()
    assert rejection(run) == "DUPLICATE"
    run.signal("words", "x")
    own = App("ops")

    @own.workflow(version=1)
    async def w(ctx: Context, n: int) -> None:
        raise AssertionError("it must not run")

    run.deploy(own)
    run.start("w", 1)
    assert run.status is Status.CANCELLED
    assert run.types()[-2:] == ["run.started", "run.cancelled"]
    run.start("w", 1)
    assert rejection(run) == "DUPLICATE"


def test_cancel_by_force_before_the_start() -> None:
    run = Harness(app)
    run.cancel(force=True)
    assert run.status is Status.CANCELLED
    run.start("w", 1)
    assert rejection(run) == "RUN_TERMINAL"


def test_cancel_swallowed_is_completed_with_the_request_on_record() -> None:
    async def w(ctx: Context, n: int) -> str:
        try:
            await ctx.sleep(100)
        except Cancelled:
            await ctx.sleep(1)
        return "went on"

    run = begin(w, 1)
    run.cancel()
    assert run.status is Status.CANCELLING
    run.evict()
    run.settle()
    assert run.result == "went on"
    assert run.of(ev.RunCompleted) == [ev.RunCompleted(b'"went on"', cancel_requested=True)]


def test_after_a_swallowed_cancel_other_asked_tasks_do_not_fail_the_run() -> None:
    async def w(ctx: Context, n: int) -> str:
        ctx.run(double, 1)
        with contextlib.suppress(Cancelled):
            await ctx.sleep(100)
        return "went on"

    run = begin(w, 1)
    run.cancel()
    run.fail("1", STOPPED)
    assert run.result == "went on"


def test_failing_clean_up_fails_the_run() -> None:
    async def w(ctx: Context, in_branch: bool) -> None:
        async def body() -> None:
            try:
                await ctx.sleep(100)
            finally:
                await ctx.run(explode, "CLEAN_UP")

        await (ctx.spawn(body()) if in_branch else body())

    for in_branch in (True, False):
        run = begin(w, in_branch)
        run.cancel()
        run.settle()
        assert run.status is Status.FAILED
        assert run.run.error is not None
        assert run.run.error.code == "CLEAN_UP"
        assert run.of(ev.RunFailed)[0].cancel_requested


def test_a_failure_from_before_the_cancel_does_not_make_it_fail() -> None:
    async def w(ctx: Context, n: int) -> None:
        op = ctx.run(explode, "BEFORE")
        await ctx.sleep(100)
        await op

    run = begin(w, 1)
    run.step()
    run.cancel()
    assert run.status is Status.CANCELLED


@pytest.mark.parametrize("outcome", ["done", "stopped", "fails"])
@pytest.mark.parametrize("grouped", ["plain", "timeout", "first", "all"])
def test_the_outcome_of_a_cancelled_task_can_be_awaited_in_clean_up(outcome: str, grouped: str) -> None:
    async def w(ctx: Context, n: int) -> None:
        op = ctx.run(double, 21)
        try:
            if grouped == "plain":
                await op
            elif grouped == "timeout":
                await ctx.timeout(op, 60)
            elif grouped == "first":
                await ctx.first(op, ctx.interrupt("?"))
            else:
                await ctx.all(op, ctx.receive(words))
        finally:
            try:
                ctx.emit(mail, {"value": await op})
            except TaskFailed as error:
                ctx.emit(mail, {"code": error.code})

    run = begin(w, 1)
    run.cancel()
    assert run.open() == {"1": "task"}
    assert run.run.ops["1"].asked
    run.evict()
    if outcome == "done":
        run.done("1", 42)
    else:
        run.fail("1", STOPPED if outcome == "stopped" else failure("OTHER"))
    assert run.status is Status.CANCELLED
    (effect,) = run.of(ev.EffectEmitted)
    expected = {"done": {"value": 42}, "stopped": {"code": "STOPPED"}, "fails": {"code": "OTHER"}}
    assert run.codec.decode(effect.payload) == expected[outcome]


@pytest.mark.parametrize("how", ["queued", "backoff", "parked"])
def test_an_op_that_is_not_running_settles_at_once_when_cancelled(how: str) -> None:
    async def w(ctx: Context, n: int) -> None:
        await ctx.run(double, 1)

    run = begin(w, 1, slots=0 if how == "queued" else 1)
    if how != "queued":
        run.fail("1", failure("VALUE_TOO_LARGE", "terminal") if how == "parked" else None)
    assert run.run.ops["1"].phase == how
    run.cancel()
    assert run.status is Status.CANCELLED


def test_clean_up_survives_a_crash_in_its_middle() -> None:
    async def w(ctx: Context, n: int) -> None:
        try:
            await ctx.sleep(100)
        finally:
            for step in range(3):
                await ctx.run(greet, f"clean {step}")

    run = begin(w, 1)
    run.cancel()
    for _ in range(3):
        run.take_over()
        (op,) = run.run.ops.values()
        assert not op.asked
        run.due(op.id)
        run.step()
    assert run.status is Status.CANCELLED
    assert len(run.of(ev.OpCompleted)) == 3


def test_clean_up_of_a_losing_branch_is_not_broken_off_by_a_cancel() -> None:
    async def w(ctx: Context, n: int) -> None:
        async def body() -> None:
            try:
                await ctx.sleep(100)
            finally:
                await ctx.run(greet, "clean")
                ctx.emit(mail, {"clean": True})

        await ctx.first(ctx.spawn(body()), ctx.interrupt("?"))
        await ctx.sleep(1_000)

    run = begin(w, 1)
    run.resume("stop")
    run.cancel()
    run.done("1/2", "clean")
    assert run.status is Status.CANCELLED
    assert len(run.of(ev.EffectEmitted)) == 1


def test_cancel_force_ends_at_once_and_outcomes_come_late() -> None:
    async def w(ctx: Context, n: int) -> None:
        try:
            await ctx.run(double, 1)
        finally:
            await ctx.run(greet, "never")

    for asked_before in (False, True):
        run = begin(w, 1)
        if asked_before:
            run.cancel()
        run.cancel(force=True)
        assert run.status is Status.CANCELLED
        assert run.of(ev.RunCancelled) == [ev.RunCancelled(forced=True)]
        run.feed(Due("1"))
        assert run.status is Status.CANCELLED


def test_a_branch_that_waits_for_what_the_cancel_ended_is_told_withdrawn_only_after_cancelled() -> None:
    async def w(ctx: Context, n: int) -> list[str]:
        seen: list[str] = []
        timer = ctx.sleep(100)
        try:
            await timer
        except Cancelled:
            seen.append("cancelled")
            try:
                await timer
            except Exception as error:  # noqa: BLE001
                seen.append(type(error).__name__)
        return seen

    run = begin(w, 1)
    run.cancel()
    assert run.result == ["cancelled", "Withdrawn"]


def test_a_time_out_that_the_cancel_ended_has_not_expired() -> None:
    async def w(ctx: Context, n: int) -> str:
        op = ctx.timeout(ctx.run(double, 1), 60, default="expired")
        try:
            await op
        except Cancelled:
            try:
                return str(await op)
            except Withdrawn as error:
                return error.code
        return "?"

    run = begin(w, 1)
    run.cancel()
    run.fail("1", STOPPED)
    assert run.result == "WITHDRAWN"


def test_a_timer_of_clean_up_works_after_the_cancel() -> None:
    async def w(ctx: Context, n: int) -> None:
        try:
            await ctx.receive(words)
        finally:
            won = await ctx.first(ctx.receive(words), ctx.sleep(10))
            ctx.emit(mail, {"index": won.index})

    run = begin(w, 1)
    run.cancel()
    run.take_over()
    run.signal("words", "x")
    assert run.status is Status.CANCELLED
    assert run.codec.decode(run.of(ev.EffectEmitted)[0].payload) == {"index": 0}


def test_a_workflow_that_raises_cancelled_by_itself_ends_cancelled() -> None:
    async def w(ctx: Context, n: int) -> None:
        raise Cancelled

    assert begin(w, 1).status is Status.CANCELLED


def test_fail_in_clean_up_beats_cancelled() -> None:
    async def w(ctx: Context, n: int) -> None:
        try:
            await ctx.sleep(SECOND)
        except Cancelled:
            raise Fail("TOO_LATE", "the goods have left") from None

    run = begin(w, 1)
    run.cancel()
    assert run.status is Status.FAILED


def test_an_asked_task_that_comes_back_from_a_graceful_stop_is_not_started_again() -> None:
    async def w(ctx: Context, n: int) -> None:
        await ctx.run(double, 1)

    run = begin(w, 1)
    run.cancel()
    run.returned("1")
    assert run.status is Status.CANCELLED
    assert not run.of(ev.AttemptReturned)
