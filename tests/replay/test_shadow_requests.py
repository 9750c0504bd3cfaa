"""What a shadow replay says of code whose requests were changed."""

from __future__ import annotations

from typing import Any

import pytest

from streams import App, Context, RequestFailed, Retry
from streams.ops.replay import Verdict, shadow_history
from tests.kernel.harness import SECOND, Harness


def build(
    *,
    cents: int = 5,
    reply: Any = str,
    attempts: int = 2,
    timeout: float = 10,
    effect: str = "payments",
    emits: bool = False,
) -> App:
    app = App("asks")
    payments: Any = app.effect(effect, int, reply=reply, retry=Retry(max_attempts=attempts))

    @app.workflow(version=1)
    async def pay(ctx: Context, name: str) -> Any:
        if emits:
            ctx.emit(payments, cents)
            return "told"
        try:
            return await ctx.request(payments, cents, timeout=timeout)
        except RequestFailed as failed:
            return failed.kind

    return app


def history(*, ended: bool = True, value: Any = "p1") -> Harness:
    """A request that ran out of time once, was put off once, and was then answered."""
    run = Harness(build(attempts=5))
    run.start("pay", "x")
    run.now += 10 * SECOND
    run.due("1")
    run.now += 60 * SECOND
    run.due("1")
    run.reply("1", error=("retryable", "BUSY", "later"))
    run.now += 60 * SECOND
    run.take_over()
    run.due("1")
    if ended:
        run.reply("1", value)
        assert run.result == value
    run.reply("1", "late", attempt=1, epoch=1)
    return run


@pytest.mark.parametrize("ended", [False, True])
def test_the_same_code_is_the_same(ended: bool) -> None:
    found = shadow_history(build(attempts=5), history(ended=ended).log)
    assert (found.verdict, found.ahead) == (Verdict.SAME, "" if ended else "goes on")


@pytest.mark.parametrize("change", [{"attempts": 2}, {"timeout": 99}])
@pytest.mark.parametrize("ended", [False, True])
def test_another_policy_is_told_and_the_run_goes_on(change: Any, ended: bool) -> None:
    found = shadow_history(build(**({"attempts": 5} | change)), history(ended=ended).log)
    assert (found.verdict, found.ahead) == (Verdict.DIFFERS, "" if ended else "goes on")
    (difference,) = found.differences
    assert difference.seq == 2
    assert found.kind.startswith("op.scheduled: ")


@pytest.mark.parametrize("change", [{"cents": 6}, {"effect": "charges"}, {"emits": True}])
@pytest.mark.parametrize("ended", [False, True])
def test_another_request_is_another_behaviour(change: Any, ended: bool) -> None:
    found = shadow_history(build(**({"attempts": 5} | change)), history(ended=ended).log)
    assert found.verdict is (Verdict.DIFFERS if ended else Verdict.WOULD_BLOCK)
    if not ended:
        assert found.block is not None
        assert found.block.code == "NON_DETERMINISM"


def test_a_reply_that_fits_no_more_is_told() -> None:
    found = shadow_history(build(attempts=5, reply=int), history().log)
    assert found.verdict is Verdict.DIFFERS
    assert "the reply is refused: INPUT_INVALID" in str(found.differences[0])


def test_an_operators_word_is_a_fact() -> None:
    run = Harness(build())
    run.start("pay", "x")
    run.reply("1", error=("unknown", "LOST", "lost"))
    run.retry("1")
    run.reply("1", error=("unknown", "LOST", "lost"))
    run.complete("1", "by hand")
    found = shadow_history(build(), run.log)
    assert found.verdict is Verdict.SAME
