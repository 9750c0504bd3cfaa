"""A coroutine is a cache: dropping it runs users' `finally`, changes nothing, and always comes to an end."""

from __future__ import annotations

from typing import Any

import pytest

from streams import App, Context, Evicted
from streams.errors import StreamsError
from streams.kernel import bodies as ev
from streams.kernel import closing
from tests.kernel.harness import Harness
from tests.kernel.test_ops import begin, double, greet, mail, words

calls: list[str] = []


async def tidy(ctx: Context, n: int) -> int:
    try:
        return await ctx.run(double, n)
    finally:
        calls.append("finally")


async def uses_ops(ctx: Context, n: int) -> int:
    try:
        return await ctx.run(double, n)
    finally:
        for use in (
            lambda: ctx.emit(mail, {}),
            lambda: ctx.sleep(1),
            ctx.now,
            ctx.random,
            ctx.uuid,
            lambda: ctx.all([]),
        ):
            try:
                use()
            except Evicted:
                calls.append("evicted")


async def awaits_in_finally(ctx: Context, n: int) -> int:
    try:
        return await ctx.run(double, n)
    finally:
        await ctx.run(greet, "clean")
        calls.append("not reached when evicted")


async def raises_in_finally(ctx: Context, n: int) -> int:
    try:
        return await ctx.run(double, n)
    finally:
        if len(calls) == n:
            raise ValueError("in finally")


async def stubborn(ctx: Context, n: int) -> int:
    while True:
        try:
            await ctx.run(double, n)
            return n
        except BaseException:  # noqa: BLE001
            calls.append("again")


async def stubborn_receive(ctx: Context, n: int) -> int:
    op = ctx.run(double, n)
    while True:
        try:
            await op
            return n
        except BaseException:  # noqa: BLE001
            ctx_calls = len(calls)
            calls.append(str(ctx_calls))


async def stubborn_emit(ctx: Context, n: int) -> int:
    while True:
        try:
            await ctx.run(double, n)
            return n
        except BaseException:  # noqa: BLE001
            try:
                ctx.emit(mail, {})
            except BaseException:  # noqa: BLE001
                calls.append("emit")


async def yields_when_dead(ctx: Context, n: int) -> int:
    class Bare:
        def __await__(self) -> Any:
            yield None

    try:
        return await ctx.run(double, n)
    except GeneratorExit:
        await Bare()
        raise


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (tidy, ["finally"]),
        (uses_ops, ["evicted"] * 6),
        (awaits_in_finally, []),
        (raises_in_finally, []),
        (stubborn, ["again"] * 101),
        (yields_when_dead, []),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_eviction_ends_and_changes_nothing(function: Any, expected: list[str]) -> None:
    run = begin(function, 0, checked=False)
    before = run.run
    calls.clear()
    run.evict()
    assert calls == expected
    assert run.run == before
    calls.append("x")
    run.done("1", 0)
    run.settle()
    assert run.result == 0


@pytest.mark.parametrize("function", [stubborn_receive, stubborn_emit])
def test_code_that_swallows_everything_is_abandoned(function: Any) -> None:
    calls.clear()
    abandoned = len(closing._ABANDONED)
    run = begin(function, 0, checked=False)
    run.evict()
    assert len(closing._ABANDONED) == abandoned + 1
    assert 1 <= len(calls) <= 102
    run.done("1", 0)
    assert run.result == 0


def test_branches_are_closed_after_their_children() -> None:
    async def w(ctx: Context, n: int) -> None:
        async def child(name: str) -> None:
            try:
                await ctx.sleep(1)
            finally:
                calls.append(name)

        async def parent() -> None:
            ctx.spawn(child("child"))
            await child("parent")

        ctx.spawn(parent())
        await child("main")

    run = begin(w, 0, checked=False)
    calls.clear()
    run.evict()
    assert calls == ["child", "parent", "main"]


def test_a_context_outside_a_drive_says_so() -> None:
    kept: list[Any] = []

    async def w(ctx: Context, n: int) -> None:
        kept.append(ctx)
        kept.append(ctx.receive(words))
        await kept[1]

    run = begin(w, 0, checked=False)
    ctx, op = kept
    for use in (lambda: ctx.sleep(1), op.cancel, lambda: op.__await__().send(None), ctx.now):
        with pytest.raises(StreamsError, match="while the engine drives it"):
            use()
    run.evict()
    with pytest.raises(Evicted):
        ctx.sleep(1)


def test_an_op_of_another_run_blocks() -> None:
    kept: list[Any] = []

    async def w(ctx: Context, n: int) -> Any:
        kept.append(ctx.receive(words))
        return await kept[0]

    first = begin(w, 0, checked=False)
    second = begin(w, 0, run_id="s", checked=False)
    assert first.blocked is None
    assert second.blocked == "WORKFLOW_BUG"


def test_many_runs_share_no_state() -> None:
    runs = [Harness(App("x"), run_id=str(i)) for i in range(3)]
    for run in runs:
        run.deploy(begin(tidy, 0).app)
        run.start("w", int(run.run_id))
    for run in reversed(runs):
        run.done("1", int(run.run_id))
        assert run.result == int(run.run_id)
        assert len(run.of(ev.OpCompleted)) == 1
