"""A copy of an app whose runs have asked: with effects off the old replies answer, with effects on its own do."""

from __future__ import annotations

from typing import Any

from streams import App, Context, RequestFailed, Retry
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.log.port import TopicPartition
from streams.ops.replay import Wanted, compare_results
from streams.ops.verify import verify
from streams.wire.partitioner import partition_of
from streams.wire.records import EffectMessage, decode_effect
from streams.wire.topics import topics_of
from tests.replay.reprocess_cases import again, ended, name_of, renamed
from tests.runtime.checker import records_of
from tests.runtime.history import History, encoded
from tests.runtime.lab import PARTITIONS, Lab, case

app = App("asking")
payments = app.effect("payments", int, reply=str, retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01))


@app.workflow(version=1)
async def pay(ctx: Context, cents: int) -> Any:
    try:
        return await ctx.request(payments, cents, idempotency_key=f"pay/{ctx.run_id}")
    except RequestFailed as failed:
        return [failed.kind, failed.code]


async def message(lab: Lab, name: str, run_id: str, attempt: int) -> EffectMessage:
    place = TopicPartition(topics_of(name, app.effects).effect("payments"), partition_of(run_id.encode(), PARTITIONS))
    found = [decode_effect(record.value or b"") for record in await records_of(lab.log, place)]
    (wanted,) = [one for one in found if (one.run_id, one.attempt) == (run_id, attempt)]
    return wanted


async def reply(
    lab: Lab, history: History, run_id: str, attempt: int, value: Any = None, *, error: Any = None
) -> ev.Body:
    m = await message(lab, history.topics.app, run_id, attempt)
    data = None if error else encoded(value)
    offset = await history.send(run_id, cmd.Reply(m.op, m.effect_id, attempt, m.epoch, data, error))
    return await history.answered(offset, run_id)


async def tell(lab: Lab) -> None:
    """Runs that were answered at once, at the second attempt, never with success, and not at all."""
    h = lab.history
    running = await lab.worker()
    for run_id in ("at once", "again", "refused", "spent", "open"):
        await h.start("pay", run_id, 5)
        await h.seen(run_id, ev.OpScheduled)
    await running.kill()
    running = await lab.worker()  # the copy has other epochs, and other offsets
    await reply(lab, h, "at once", 1, "p-1")
    await reply(lab, h, "at once", 1, "p-9")
    await reply(lab, h, "again", 1, error=("retryable", "BUSY", "later"))
    await h.seen("again", ev.AttemptStarted)
    await reply(lab, h, "again", 2, "p-2")
    await reply(lab, h, "refused", 1, error=("terminal", "DECLINED", "no money"))
    for attempt in (1, 2, 3):
        await h.seen("spent", ev.AttemptStarted, attempt - 1)
        await reply(lab, h, "spent", attempt, error=("retryable", "BUSY", "later"))
    await h.ended("at once", "again", "refused", "spent")
    await running.stop()


@case(app)
async def test_with_effects_off_the_old_replies_answer_the_new_requests(lab: Lab):
    await tell(lab)
    await again(lab)
    held = await again(lab)
    assert set(held.copied.holding) == {"at once", "again", "refused", "spent"}
    running = await lab.worker(renamed(app, name_of(lab)))
    done = await again(lab, idle_seconds=60.0)
    assert (done.copied.held, done.copied.refused, done.copied.replies) == (0, 1, 0)
    await ended(lab)
    await running.stop()
    results = await compare_results(lab.log, app.name, name_of(lab))
    assert not results.examples
    assert (await verify(lab.log, name_of(lab))).divergences == ()


@case(app)
async def test_with_effects_on_the_copy_gets_its_own_replies(lab: Lab):
    await tell(lab)
    await again(lab, Wanted(publishes=True))
    running = await lab.worker(renamed(app, name_of(lab)))
    done = await again(lab, Wanted(publishes=True), idle_seconds=60.0)
    assert (done.copied.held, done.copied.before, done.copied.replies) == (0, 5, 7)
    history = History(lab.log, name_of(lab), tuple(app.effects))
    await history.seen("again", ev.OpScheduled)
    await reply(lab, history, "again", 1, "another")
    assert await history.result("again") == "another"
    await running.stop()
    assert (await verify(lab.log, name_of(lab))).divergences == ()
