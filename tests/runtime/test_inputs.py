"""Input that is late, early, repeated or contradicts what is known; offsets that are moved; leases that are lost."""

from __future__ import annotations

from typing import Any

import pytest

from streams import App, Context, Fail, TaskContext
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import Request
from streams.kernel.run import Phase
from streams.log.port import NewRecord, TopicPartition
from streams.ops.verify import verify
from streams.runtime.inputs import Sweep
from streams.wire.records import decode_command, decode_lease
from tests.runtime.checker import Checked, records_of
from tests.runtime.history import resume, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, case

app = App("inputs")
parcels = app.effect("parcels", str)
news = app.signal("news", int)
calls: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()


@app.task
async def work(ctx: TaskContext, what: str) -> str:
    calls.append(ctx.idempotency_key)
    return what.upper()


@app.workflow(version=1)
async def simple(ctx: Context, what: str) -> str:
    if what == "fail":
        raise Fail("ASKED_TO", "fail")
    found = await ctx.run(work, what)
    ctx.emit(parcels, found)
    if what == "wait":
        await ctx.interrupt("?")
    return found


@app.workflow(version=1)
async def other(ctx: Context, what: str) -> str:
    return "other"


@app.workflow(version=1)
async def hears(ctx: Context, _: None) -> list[int]:
    await ctx.sleep(0.05)  # its handler comes late
    return [await ctx.receive(news), await ctx.receive(news)]


# -- late ------------------------------------------------------------------------------------------------------------

LATE: dict[str, Request] = {
    "signal": signal("news", 1),
    "resume": resume("x"),
    "cancel": cmd.Cancel(),
    "cancel by force": cmd.Cancel(force=True),
    "retry": cmd.Retry(),
    "skip": cmd.Skip("1"),
    "complete": cmd.Complete("1", b'"x"'),
    "reply": cmd.Reply("1", "e", 1, 1, b"1"),
    "start again": start("simple", "something else"),
}


async def end_as(lab: Lab, run_id: str, phase: str) -> None:
    await lab.history.start("simple", run_id, {"failed": "fail", "cancelled": "wait"}.get(phase, "x"))
    if phase == "cancelled":
        await lab.history.seen(run_id, ev.OpScheduled, 2)
        await lab.history.send(run_id, cmd.Cancel())
    await lab.history.ended(run_id)


@case(app)
@pytest.mark.parametrize("phase", ["completed", "failed", "cancelled"])
async def test_f09_late_input_changes_nothing_of_a_run_that_has_ended(lab: Lab, phase: str):
    running = await lab.worker()
    await end_as(lab, "r", phase)
    before = await lab.check()
    for _ in range(2):
        for request in LATE.values():
            offset = await lab.history.send("r", request)
            answer = await lab.history.answered(offset, "r")
            assert isinstance(answer, ev.CommandRejected)
            assert answer.code in ("RUN_TERMINAL", "INPUT_CONFLICT")
    await running.stop()
    await lab.worker()
    offset = await lab.history.send("r", signal("news", 1))
    assert (await lab.history.answered(offset, "r")).code == "RUN_TERMINAL"
    after = await lab.check()
    assert after.runs["r"] == before.runs["r"]
    assert after.runs["r"].phase is Phase(phase)
    assert after.effects == before.effects


@case(app)
async def test_f09_outcomes_and_timers_of_a_run_ended_by_force_change_nothing(lab: Lab):
    await lab.worker()
    await lab.history.send_all([("r", start("hears", None)), ("r", cmd.Cancel(force=True))])
    await lab.history.send_all([("s", start("simple", "x")), ("s", cmd.Cancel(force=True))])
    await lab.history.ended("r", "s")
    await lab.history.start("hears", "later", None)  # its timer fires after that of r
    await lab.history.send_all([("later", signal("news", 1)), ("later", signal("news", 2))])
    assert await lab.history.result("later") == [1, 2]
    checked = await lab.check()
    assert checked.runs["r"].phase is checked.runs["s"].phase is Phase.CANCELLED
    assert checked.effects == []


# -- early -----------------------------------------------------------------------------------------------------------


@case(app)
@pytest.mark.parametrize("batches", ["one batch", "two batches", "over a crash", "over a graceful stop"])
async def test_f10_signals_from_before_the_start_are_kept_in_order(lab: Lab, batches: str):
    running = await lab.worker()
    early: list[tuple[str, Request]] = [("r", signal("news", 1)), ("r", signal("news", 2))]
    begin: list[tuple[str, Request]] = [("r", start("hears", None))]
    if batches == "one batch":
        await lab.history.send_all(early + begin)
    else:
        await lab.history.send_all(early)
        await lab.history.seen("r", ev.SignalReceived, 2)
        if batches == "over a crash":
            await running.kill()
        elif batches == "over a graceful stop":
            await running.stop()
        if batches != "two batches":
            await lab.worker()
        await lab.history.send_all(begin)
    assert await lab.history.result("r") == [1, 2]


@case(app)
async def test_f10_signal_cancel_and_start_in_one_batch(lab: Lab):
    await lab.worker()
    await lab.history.send_all([("r", signal("news", 1)), ("r", cmd.Cancel()), ("r", start("hears", None))])
    await lab.history.ended("r")
    assert (await lab.check()).runs["r"].phase is Phase.CANCELLED


@case(app)
async def test_f10_an_answer_before_its_question_is_refused_and_said_so(lab: Lab):
    await lab.worker()
    offsets = await lab.history.send_all(
        [("r", resume("too early")), ("r", start("simple", "wait")), ("r", resume("x"))]
    )
    assert (await lab.history.answered(offsets[0], "r")).code == "UNKNOWN_RUN"
    assert (await lab.history.answered(offsets[2], "r")).code == "NO_SUCH_INTERRUPT"
    await lab.history.seen("r", ev.OpScheduled, 2)
    await lab.history.send("r", resume("now"))
    assert await lab.history.result("r") == "WAIT"


@case(app)
async def test_two_sweeps_in_one_turn_expire_a_run_once(lab: Lab):
    running = await lab.worker(sweep_seconds=600.0, early_input_seconds=0.0)
    await lab.history.send("r", signal("news", 1))
    await lab.history.seen("r", ev.SignalReceived)
    (partition,) = (p for p in running.worker.owner.partitions.values() if "r" in p.runs)
    for _ in range(2):
        running.worker.put(Sweep(partition))
    await lab.history.seen("r", ev.RunExpired)
    assert len((await lab.check()).letters) == 1


@case(app)
async def test_f10_early_input_is_bounded_and_expires_into_the_dead_letters(lab: Lab):
    running = await lab.worker(sweep_seconds=0.1, early_input_seconds=1.0, checkpoint_age_seconds=0.1)
    await lab.history.send_all([("r", signal("news", n)) for n in range(101)] + [("c", cmd.Cancel())])
    rejected = await lab.history.seen("r", ev.CommandRejected)
    assert [body.code for body in rejected] == ["INBOX_FULL"]
    await lab.history.seen("r", ev.RunExpired)
    await lab.history.until(lambda h: h.bodies("c", ev.RunExpired) or h.end("c"))
    checked = await lab.check()
    found = [decode_command(x.key, x.value, default_id="", offset=x.offset).request for x in checked.letters]
    assert sorted(map(str, found)) == sorted(map(str, [*(signal("news", n) for n in range(100)), cmd.Cancel()]))
    assert all("to be started" in letter.reason for letter in checked.letters)
    assert "r" not in checked.runs
    # The name is free; a later run of it is another run, and restores as itself.
    await lab.history.start("simple", "r", "wait")
    await lab.history.until(lambda h: len(h.bodies("r", ev.OpScheduled)) == 2)
    await running.kill()
    await lab.worker()
    await lab.history.send("r", resume("x"))
    assert await lab.history.result("r") == "WAIT"
    (last,) = [event for event in lab.history.events["r"] if isinstance(event.body, ev.RunStarted)]
    assert last.seq == 1


# -- repeated --------------------------------------------------------------------------------------------------------


@case(app)
@pytest.mark.parametrize("how", ["one batch", "two batches", "after the end", "after a crash"])
@pytest.mark.parametrize("second", ["the same", "another input", "another workflow"])
async def test_f18_a_second_start_never_touches_the_first(lab: Lab, how: str, second: str):
    running = await lab.worker()
    what = "wait" if how in ("two batches", "after a crash") else "x"
    first = ("r", start("simple", what))
    again = (
        "r",
        {
            "the same": start("simple", what),
            "another input": start("simple", "other input"),
            "another workflow": start("other", what),
        }[second],
    )
    if how == "one batch":
        _, offset = await lab.history.send_all([first, again])
    else:
        await lab.history.send_all([first])
        await (lab.history.ended("r") if how == "after the end" else lab.history.seen("r", ev.OpScheduled, 2))
        if how == "after a crash":
            await running.kill()
            await lab.worker()
        (offset,) = await lab.history.send_all([again])
    answer = await lab.history.answered(offset, "r")
    assert isinstance(answer, ev.CommandRejected)
    assert answer.code == ("DUPLICATE" if second == "the same" else "INPUT_CONFLICT")
    if what == "wait":
        await lab.history.seen("r", ev.OpScheduled, 2)
        await lab.history.send("r", resume("x"))
    assert await lab.history.result("r") == what.upper()
    assert len(calls) == 1
    assert len((await lab.check()).effects) == 1


@case(app)
async def test_f18_the_same_command_id_counts_once_inside_one_batch_and_later(lab: Lab):
    await lab.worker()
    await lab.history.send_all([("r", start("hears", None))])
    await lab.history.send_all([("r", signal("news", 1)), ("r", signal("news", 1))], "one id")
    offset = await lab.history.send("r", signal("news", 1), "one id")
    assert (await lab.history.answered(offset, "r")).code == "DUPLICATE"
    await lab.history.send("r", signal("news", 2), "another id")
    assert await lab.history.result("r") == [1, 2]


# -- offsets and leases ----------------------------------------------------------------------------------------------


async def some_runs(lab: Lab, count: int = 20) -> Checked:
    running = await lab.worker()
    await lab.history.send_all([(f"r{n}", start("simple", "wait" if n % 2 else "x")) for n in range(count)])
    await lab.history.ended(*(f"r{n}" for n in range(0, count, 2)))
    for n in range(1, count, 2):
        await lab.history.seen(f"r{n}", ev.OpScheduled, 2)
    await running.stop()
    return await lab.check()


async def as_before(lab: Lab, before: Checked, count: int = 20) -> None:
    after = await lab.check()
    assert {run_id: run._replace(epoch=0) for run_id, run in after.runs.items()} == {
        run_id: run._replace(epoch=0) for run_id, run in before.runs.items()
    }
    assert after.effects == before.effects
    assert len(calls) == count
    await lab.history.send_all([(f"r{n}", resume("x")) for n in range(1, count, 2)])
    await lab.history.ended(*(f"r{n}" for n in range(count)))


@case(app)
@pytest.mark.parametrize("to", [0, None])
async def test_f21_rewinding_the_group_changes_no_run(lab: Lab, to: int | None):
    before = await some_runs(lab)
    await lab.log.rewind_group(lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), to))
    running = await lab.worker()
    await until(lambda: sum(told[2] for told in running.told.heard("skipped")) == 20, "20 known commands")
    await as_before(lab, before)


@case(app)
async def test_f21_a_forward_reset_is_reported_and_ignored(lab: Lab):
    before = await some_runs(lab)
    missed = await lab.history.send_all([(f"new{n}", start("simple", "x")) for n in range(8)])
    assert missed
    ends = {n: (await lab.log.span(lab.topics.commands, n)).end for n in range(PARTITIONS)}
    await lab.log.rewind_group(lab.topics.group, lab.topics.commands, ends)
    running = await lab.worker()
    assert "moved ahead" in str(running.told.heard("message"))
    await lab.history.ended(*(f"new{n}" for n in range(8)))
    checked = await lab.check()
    assert {run_id for run_id in checked.runs if run_id in before.runs} == set(before.runs)


async def last_lease(lab: Lab, partition: int) -> Any:
    return decode_lease((await records_of(lab.log, TopicPartition(lab.topics.leases, partition)))[-1].value or b"")


@case(app)
async def test_f21_lost_leases_are_made_good_from_the_events(lab: Lab):
    before = await some_runs(lab)
    epochs = {n: (await last_lease(lab, n)).epoch for n in range(PARTITIONS)}
    await lab.log.rewind_group(lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), None))
    await lab.log.append([NewRecord(lab.topics.leases, n, str(n).encode(), None) for n in range(PARTITIONS)])
    running = await lab.worker()
    assert "leases were lost" in str(running.told.heard("message"))
    for n in range(PARTITIONS):
        lease = await last_lease_written(lab, n)
        assert lease.epoch > epochs[n]
        assert lease.applied == (await lab.log.span(lab.topics.commands, n)).end or lease.applied > 0
    await until(lambda: sum(told[2] for told in running.told.heard("skipped")) == 20, "20 known commands")
    assert len(calls) == 20
    assert before.runs
    report = await verify(lab.log, lab.app.name)
    assert report.good, report.divergences  # no epoch was claimed that was another's
    lab.unchecked = True


async def last_lease_written(lab: Lab, partition: int) -> Any:
    records = await records_of(lab.log, TopicPartition(lab.topics.leases, partition))
    return decode_lease([record.value for record in records if record.value is not None][-1])


@case(app)
async def test_a_lease_that_cannot_be_read_refuses_its_partition_alone(lab: Lab):
    await some_runs(lab)
    await lab.log.append([NewRecord(lab.topics.leases, 1, b"1", b"garbage")])
    running = await lab.worker(owns=3, retry_refused_seconds=0.1)
    await until(lambda: running.told.heard("partition", 1, "refused"))
    assert "lease" in running.told.heard("partition", 1, "refused")[0][4]
    run_id = next(f"x{n}" for n in range(100) if lab.history.partition(f"x{n}") != 1)
    await lab.history.start("simple", run_id, "x")
    assert await lab.history.result(run_id) == "X"
    await lab.log.append([NewRecord(lab.topics.leases, 1, b"1", None)])  # an operator mends it
    await running.owns(4)
    lab.unchecked = True
