"""Repair of a damaged run: a correcting event mends it, what waited comes back in order and once, and history stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.client import Client
from streams.errors import LogDamaged, LogUnavailable, Refused, UnknownRun, UsageError, ValueTooLarge
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.restate import changes_of
from streams.kernel.run import REPAIRED, RUN_BYTES_MAX, Status
from streams.log.port import TopicPartition
from streams.ops.diagnose import diagnose
from streams.ops.repair import RepairPlan, plan_repair
from streams.ops.timeline import timeline
from streams.ops.verify import verify
from streams.runtime import sendback
from streams.wire.headers import SENT_BACK
from streams.wire.records import decode_event
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal, until
from tests.runtime.lab import Lab, Running, case
from tests.runtime.test_bad_records import DAMAGES, damage, of_partition, write_newer

app = App("mend")
news = app.signal("news", int)
letters = app.effect("letters", str)
done: list[str] = []


@app.task
async def add(ctx: TaskContext, number: int) -> int:
    done.append(f"add {ctx.run_id}")
    return number + 1


@app.task(idempotent=False)
async def pay(ctx: TaskContext, number: int) -> int:
    done.append(f"pay {ctx.run_id} {ctx.attempt}")
    if number < 0:
        await asyncio.sleep(3600)
    return number


@app.workflow(version=1)
async def asking(ctx: Context, number: int) -> list[Any]:
    number = await ctx.run(add, number)
    answer = await ctx.interrupt(f"{number}?", answer=str)
    got = [await ctx.receive(news) for _ in range(2)]
    return [answer, *got]


@app.workflow(version=1)
async def paying(ctx: Context, number: int) -> int:
    return await ctx.run(pay, number)


@app.workflow(version=1)
async def sending(ctx: Context, number: int) -> str:
    await ctx.interrupt("first?", answer=str)
    ctx.emit(letters, f"letter {number}", idempotency_key=f"letter/{ctx.run_id}")
    return await ctx.interrupt("second?", answer=str)


@asynccontextmanager
async def client_of(lab: Lab) -> AsyncIterator[Client]:
    client = Client(lab.log, lab.app)
    try:
        yield client
    finally:
        await client.close()


async def mend(lab: Lab, run_id: str, *, parked: bool = False, **how: Any) -> RepairPlan:
    """Plan a repair and have it done."""
    async with client_of(lab) as client:
        plan = await plan_repair(client, run_id, **how)
        sent = await client.repair(run_id, plan.request("a test", parked=parked), operator="ada")
        assert await client.accepted(sent, timeout=60)
    return plan


async def waiting_run(lab: Lab, workflow: str = "asking", number: int = 1) -> str:
    """A run that waits at its first question, and a worker that has stopped."""
    (bad,) = of_partition(1, 1)
    running = await lab.worker()
    await lab.history.start(workflow, bad, number)
    await lab.history.until(lambda h: any(b.kind == "interrupt" for b in h.bodies(bad, ev.OpScheduled)))
    await running.stop()
    await lab.history.read()
    lab.damaged.add(bad)
    return bad


async def found_damaged(lab: Lab, run_id: str, **settings: Any) -> Running:
    running = await lab.worker(**settings)
    assert running.told.heard("run_blocked", run_id, "RUN_DAMAGED")
    return running


async def view_of(lab: Lab, run_id: str) -> Any:
    async with client_of(lab) as client:
        return await client.get(run_id)


def hot(running: Running, run_id: str) -> Any:
    return running.worker.owner.partitions[1].runs[run_id]


@case(app)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_f06_a_damaged_run_is_repaired_and_what_waited_comes_back_in_order_and_once(lab: Lab, kind: str):
    bad = await waiting_run(lab)
    await damage(lab, bad, kind)
    running = await found_damaged(lab, bad)
    waited: list[Any] = [signal("news", 1), resume("yes"), signal("news", 2), signal("news", 3)]
    offsets = await lab.history.send_all([(bad, request) for request in waited])
    await until(lambda: len(running.told.heard("dead_letter")) == 4)
    plan = await mend(lab, bad)
    assert plan.waiting == 4
    assert plan.risks == []
    assert len(plan.lost) == 1
    assert await lab.history.result(bad) == ["yes", 1, 2]
    assert await sent_back(lab) == offsets
    # The history is as it was, and the repair stands behind it; it names who did it, and why.
    (repaired,) = lab.history.bodies(bad, ev.RunRepaired)
    assert (repaired.operator, repaired.reason) == ("ada", "a test")
    await running.stop()
    again = await lab.worker()
    assert again.told.heard("run_blocked") == []
    assert again.told.heard("dead_letter") == []
    assert hot(again, bad).run.phase == "completed"
    report = await verify(lab.log, lab.app.name)
    # What was wrong with the history is dealt with; only that a stranger has signed as an owner is still said.
    assert {found.kind for found in report.divergences} == ({"event.owner"} if kind == "a gap in seq" else set())
    assert report.damaged == 1


@case(app)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_f06_a_fold_of_the_whole_log_comes_to_the_repaired_state(lab: Lab, kind: str):
    bad = await waiting_run(lab)
    await damage(lab, bad, kind)
    running = await found_damaged(lab, bad)
    await mend(lab, bad, parked=True)
    await lab.history.until(lambda h: (blocked := h.blocked(bad)) and blocked.code == REPAIRED)
    await until(lambda: hot(running, bad).run.blocked.code == REPAIRED)
    live = hot(running, bad).run
    await running.stop()
    # From the checkpoint and the tail, and, with neither checkpoints nor leases, from the first event on.
    again = await lab.worker()
    assert hot(again, bad).run == live
    await again.stop()
    assert (await view_of(lab, bad)).run == live
    for topic in (lab.topics.checkpoints, lab.topics.leases):
        await send_nulls(lab, topic)
    last = await lab.worker()
    assert hot(last, bad).run == live
    assert hot(last, bad).damaged is None
    lab.unchecked = True


async def send_nulls(lab: Lab, topic: str) -> None:
    for number in range(4):
        for key in {record.key for record in await records_of(lab.log, TopicPartition(topic, number))}:
            await send_raw(lab.log, topic, number, key, None)
    await lab.log.compact(topic)


# -- what waits ------------------------------------------------------------------------------------------------------


async def sent_back(lab: Lab) -> list[int]:
    commands = await records_of(lab.log, TopicPartition(lab.topics.commands, 1))
    return [int(value or b"0") for record in commands for name, value in record.headers if name == SENT_BACK]


@case(app)
@pytest.mark.parametrize("turns", range(4))
async def test_f06_a_crash_around_a_repair_sends_nothing_back_twice(lab: Lab, turns: int):
    bad = await waiting_run(lab)
    await damage(lab, bad, "random bytes")
    running = await found_damaged(lab, bad)
    waited: list[Any] = [signal("news", 1), signal("news", 2), resume("yes")]
    offsets = await lab.history.send_all([(bad, request) for request in waited])
    await until(lambda: len(running.told.heard("dead_letter")) == 3)
    async with client_of(lab) as client:
        plan = await plan_repair(client, bad)
        before = len(running.told.heard("turn"))
        await client.repair(bad, plan.request("a test", parked=False))
        await until(lambda: len(running.told.heard("turn")) >= before + turns)
    await running.kill()
    again = await lab.worker()
    assert await lab.history.result(bad) == ["yes", 1, 2]
    assert await sent_back(lab) == offsets
    assert len(lab.history.bodies(bad, ev.RunRepaired)) == 1
    # One more crash, before any lease has moved the tail beyond the damage: the checkpoint after it counts.
    await again.kill()
    last = await lab.worker()
    assert last.told.heard("run_blocked", bad, "RUN_DAMAGED") == []
    assert hot(last, bad).run.phase == "completed"
    view = await view_of(lab, bad)
    assert (view.status, view.damage) == (Status.COMPLETED, None)


@case(app)
async def test_f06_a_command_without_an_id_comes_back_with_that_of_its_first_place(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "json")
    running = await found_damaged(lab, bad)
    raw = b'{"type": "signal", "name": "news", "value": 7}'
    offset = await send_raw(lab.log, lab.topics.commands, 1, bad.encode(), raw, (("trace", b"1"),))
    await until(lambda: running.told.heard("dead_letter"))
    await mend(lab, bad)
    await lab.history.seen(bad, ev.SignalReceived)
    (received,) = lab.history.bodies(bad, ev.SignalReceived)
    topic_id = (await lab.log.describe_topics([lab.topics.commands]))[lab.topics.commands].id
    assert received.command_id == f"{topic_id}/1/{offset}"
    assert received.value == b"7"


@case(app)
async def test_f06_commands_in_the_batch_of_the_repair_meet_the_repaired_run(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "a gap in seq")
    running = await found_damaged(lab, bad)
    await lab.history.send(bad, signal("news", 1))
    await until(lambda: running.told.heard("dead_letter"))
    async with client_of(lab) as client:
        plan = await plan_repair(client, bad)
    more: list[Any] = [plan.request("a test", parked=False), resume("yes"), cmd.Retry(), signal("news", 2)]
    offsets = await lab.history.send_all([(bad, request) for request in more])
    assert isinstance(await lab.history.answered(offsets[0], bad), ev.RunRepaired)
    assert (await lab.history.answered(offsets[2], bad)).code == "REPAIR_PENDING"
    assert sorted((await lab.history.result(bad))[1:]) == [1, 2]
    assert len(running.told.heard("dead_letter")) == 1


@case(app)
async def test_f06_a_command_that_was_too_large_to_be_kept_stays_among_the_dead_letters_and_is_told(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "json")
    running = await found_damaged(lab, bad)
    raw = b'{"type": "signal", "name": "news", "value": 7' + b" " * 880_000 + b"}"
    offset = await send_raw(lab.log, lab.topics.commands, 1, bad.encode(), raw)
    await lab.history.send(bad, resume("yes"))
    await until(lambda: len(running.told.heard("dead_letter")) == 2)
    assert "streams rebuild" in running.told.heard("dead_letter")[0][4]
    await mend(lab, bad)
    await lab.history.seen(bad, ev.InterruptAnswered)
    assert await sent_back(lab) == [offset + 1]
    assert any(f"its command at offset {offset} was too large" in told[1] for told in running.told.heard("message"))


@case(app)
@pytest.mark.parametrize("error", [LogUnavailable, LogDamaged])
async def test_f06_dead_letters_that_cannot_be_read_for_a_while_are_waited_for(
    lab: Lab, error: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    bad = await waiting_run(lab)
    await damage(lab, bad, "json")
    running = await found_damaged(lab, bad)
    await lab.history.send_all([(bad, signal("news", 1)), (bad, signal("news", 2)), (bad, resume("yes"))])
    await until(lambda: len(running.told.heard("dead_letter")) == 3)
    read, tries = sendback.waiting_commands, 0

    async def at_last(*args: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise error("it is busy")
        return await read(*args)

    monkeypatch.setattr(sendback, "waiting_commands", at_last)
    async with client_of(lab) as client:
        plan = await plan_repair(client, bad)
        await client.repair(bad, plan.request("a test", parked=False))
    assert await lab.history.result(bad) == ["yes", 1, 2]
    assert tries == 3


# -- what is not known -----------------------------------------------------------------------------------------------


@case(app, "memory")
async def test_f06_what_has_left_with_lost_events_is_told_and_the_run_waits_for_an_operator(lab: Lab):
    bad = await waiting_run(lab, "sending")
    running = await lab.worker()
    await lab.history.send(bad, resume("one"))
    await lab.history.seen(bad, ev.OpScheduled, 2)
    await running.stop()
    lab.unchecked = True
    part: Any = lab.log._store.partition(lab.topics.events, 1)  # type: ignore[attr-defined]
    entries = part._entries
    own = [n for n, entry in enumerate(entries) if entry.record is not None and entry.record.key == bad.encode()]
    answered = next(n for n in own if isinstance(decode_event(entries[n].record.value).body, ev.InterruptAnswered))
    entries[answered] = entries[answered]._replace(record=entries[answered].record._replace(value=b"torn"))
    for topic in (lab.topics.checkpoints, lab.topics.leases):
        await send_nulls(lab, topic)
    running = await found_damaged(lab, bad)
    async with client_of(lab) as client:
        plan = await plan_repair(client, bad)
        assert [item.effect.effect for item in plan.lost if item.effect] == ["letters"]
        assert any("letters" in risk and "sent again" in risk for risk in plan.risks)
        assert any("nobody knows" in risk for risk in plan.risks)
        request = plan.request("a test", parked=False)
        assert request.parked
        assert await client.accepted(await client.repair(bad, request), timeout=60)
        await lab.history.until(lambda h: (blocked := h.blocked(bad)) and blocked.code == REPAIRED)
        assert f"streams retry {bad}" in (await client.get(bad)).run.blocked.message  # type: ignore[union-attr]
        await client.retry(bad)
    await lab.history.send(bad, resume("once more"))
    await lab.history.seen(bad, ev.EffectEmitted, 2)
    first, second = (e for e in lab.history.events[bad] if isinstance(e.body, ev.EffectEmitted))
    assert (first.identity, first.body) == (second.identity, second.body)  # the ledger knows it by its key
    await lab.history.send(bad, resume("end"))
    assert await lab.history.result(bad) == "end"
    report = await verify(lab.log, lab.app.name)
    # Neither the command whose outcome was lost nor the effect that has left twice is held against the repaired run.
    assert report.good, report.divergences
    assert (report.damaged, report.effects) == (1, 2)


@case(app)
@pytest.mark.parametrize("parked", [False, True])
async def test_f06_a_running_task_of_the_repaired_state_is_looked_up_or_parked_and_nothing_runs_before(
    lab: Lab, parked: bool
):
    done.clear()
    (bad,) = of_partition(1, 1)
    lab.damaged.add(bad)
    running = await lab.worker()
    await lab.history.start("paying", bad, -1)
    await lab.history.seen(bad, ev.OpScheduled)
    await until(lambda: done)
    await running.kill()
    await lab.history.read()
    await damage(lab, bad, "an empty value")
    running = await found_damaged(lab, bad)
    await mend(lab, bad, parked=parked)
    if parked:
        await lab.history.until(lambda h: (blocked := h.blocked(bad)) and blocked.code == REPAIRED)
        await running.kill()
        running = await lab.worker()
        await asyncio.sleep(0.1)
        assert lab.history.bodies(bad, ev.OpParked) == []
        assert hot(running, bad).run.ops["1"].phase == "running"
        await lab.history.send(bad, cmd.Retry())
    (reason,) = [body.reason for body in await lab.history.seen(bad, ev.OpParked)]
    assert reason.code == "OUTCOME_UNKNOWN"
    assert done == [f"pay {bad} 1"]
    await lab.history.send(bad, cmd.Complete("1", b"5"))
    assert await lab.history.result(bad) == 5


@case(app)
async def test_f06_timers_and_retries_of_a_parked_run_wait_for_its_retry(lab: Lab):
    (bad,) = of_partition(1, 1)
    lab.damaged.add(bad)
    running = await lab.worker()
    await lab.history.start("napping", bad, 0.3)
    await lab.history.seen(bad, ev.OpScheduled)
    await running.stop()
    await lab.history.read()
    await damage(lab, bad, "random bytes")
    running = await found_damaged(lab, bad)
    await mend(lab, bad, parked=True)
    await lab.history.until(lambda h: (blocked := h.blocked(bad)) and blocked.code == REPAIRED)
    await asyncio.sleep(0.5)
    await lab.history.read()
    assert lab.history.bodies(bad, ev.TimerFired) == []
    await lab.history.send(bad, cmd.Retry())
    assert await lab.history.result(bad) == "awake"


@app.workflow(version=1)
async def napping(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


# -- places ----------------------------------------------------------------------------------------------------------


@case(app)
async def test_f06_a_repair_to_an_earlier_event_and_one_without_a_record(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "random bytes")
    await found_damaged(lab, bad)
    async with client_of(lab) as client:
        whole = await plan_repair(client, bad)
        asked = next(e.seq for e in lab.history.events[bad] if getattr(e.body, "kind", "") == "interrupt")
        assert whole.state.seq == whole.seq == asked
        assert asked is not None
        earlier = await plan_repair(client, bad, to=asked - 1)
        assert (earlier.state.seq, earlier.seq) == (asked - 1, whole.seq)
        assert [item.event.seq for item in earlier.lost if item.event] == [asked]
        offset = whole.lost[0].offset
        without = await plan_repair(client, bad, skip=[offset])
        assert [item.reason for item in without.lost] == ["it is to be skipped"]
        with pytest.raises(Refused, match=f"up to event {asked}, not {asked + 5}"):
            await plan_repair(client, bad, to=asked + 5)
        with pytest.raises(UsageError, match="--skip 99999"):
            await plan_repair(client, bad, skip=[99_999])
        sent = await client.repair(bad, without.request("a test", parked=False))
        assert await client.accepted(sent, timeout=60)
    await lab.history.send_all([(bad, resume("yes")), (bad, signal("news", 1)), (bad, signal("news", 2))])
    assert await lab.history.result(bad) == ["yes", 1, 2]


@case(app)
async def test_f15_a_run_whose_checkpoint_cannot_be_read_is_repaired_under_live_workers(lab: Lab):
    bad = await waiting_run(lab)
    running = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.0)
    await until(lambda: hot(running, bad).first_offset is None, "its checkpoint")
    await running.stop()
    await send_raw(lab.log, lab.topics.checkpoints, 1, bad.encode(), b"garbage")
    running = await found_damaged(lab, bad)
    plan = await mend(lab, bad)
    assert plan.lost == []
    await lab.history.send_all([(bad, resume("yes")), (bad, signal("news", 1)), (bad, signal("news", 2))])
    assert await lab.history.result(bad) == ["yes", 1, 2]
    seqs = [e.seq for e in lab.history.events[bad] if e.seq is not None]
    assert seqs == list(range(1, len(seqs) + 1))


# -- refusals --------------------------------------------------------------------------------------------------------


@case(app)
async def test_f06_a_repair_of_what_is_not_damaged_is_refused(lab: Lab):
    lab.damaged.clear()
    (good, ended) = of_partition(1, 2)
    await lab.worker()
    await lab.history.start("asking", good, 1)
    await lab.history.seen(good, ev.OpScheduled, 2)
    await lab.history.start("paying", ended, 1)
    assert await lab.history.result(ended) == 1
    run = (await view_of(lab, good)).run
    request = cmd.Repair(run.identity, run.seq, changes_of(run), "for fun")
    offset = await lab.history.send(good, request)
    assert (await lab.history.answered(offset, good)).code == "NOT_DAMAGED"
    offset = await lab.history.send(ended, request)
    assert (await lab.history.answered(offset, ended)).code == "RUN_TERMINAL"
    offset = await lab.history.send("nobody", request)
    assert (await lab.history.answered(offset, "nobody")).code == "UNKNOWN_RUN"
    async with client_of(lab) as client:
        with pytest.raises(Refused) as refused:
            await plan_repair(client, good)
        assert refused.value.code == "NOT_DAMAGED"
        with pytest.raises(UnknownRun):
            await plan_repair(client, "nobody")
    await lab.history.send_all([(good, resume("yes")), (good, signal("news", 1)), (good, signal("news", 2))])
    assert await lab.history.result(good) == ["yes", 1, 2]


@case(app)
async def test_f06_a_repair_of_a_state_that_has_moved_on_or_is_none_is_refused_and_changes_nothing(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "a gap in seq")
    running = await found_damaged(lab, bad)
    async with client_of(lab) as client:
        plan = await plan_repair(client, bad)
    good = plan.request("a test", parked=False)
    large = plan.state._replace(result=b"x" * 100, size=RUN_BYTES_MAX + 1)
    wrong: list[tuple[cmd.Repair, str]] = [
        (good._replace(seq=good.seq - 1), "REPAIR_STALE"),
        (good._replace(identity=f"{bad}@99"), "REPAIR_STALE"),
        (good._replace(reason=" "), "REPAIR_INVALID"),
        (good._replace(changes=(*good.changes, ev.Change("seq", "set", b"7"))), "REPAIR_INVALID"),
        (good._replace(changes=(ev.Change("ops", "set", b'[["1"]]'),)), "REPAIR_INVALID"),
        (good._replace(changes=changes_of(plan.state._replace(offset=10**9))), "REPAIR_INVALID"),
        (good._replace(changes=changes_of(large)), "VALUE_TOO_LARGE"),
    ]
    for request, code in wrong:
        offset = await lab.history.send(bad, request)
        assert (await lab.history.answered(offset, bad)).code == code
    assert hot(running, bad).damaged
    assert lab.history.bodies(bad, ev.RunRepaired) == []
    offset = await lab.history.send(bad, good)
    assert isinstance(await lab.history.answered(offset, bad), ev.RunRepaired)
    offset = await lab.history.send(bad, good)  # a second operator, a moment later
    assert (await lab.history.answered(offset, bad)).code == "NOT_DAMAGED"


@case(app, "memory")
async def test_f06_a_state_that_no_record_can_hold_is_refused_before_anything_is_written(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "json")
    await found_damaged(lab, bad)
    async with client_of(lab) as client:
        plan = await plan_repair(client, bad)
        state = plan.state._replace(result=b"\xff" * 500_000)
        with pytest.raises(ValueTooLarge):
            await client.repair(bad, plan._replace(state=state).request("a test", parked=False))


@case(app)
@pytest.mark.parametrize("kind", ["event", "body"])
async def test_f25_what_a_newer_release_wrote_is_no_damage_and_not_repaired(
    lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch
):
    bad = await waiting_run(lab)
    await write_newer(lab, bad, kind, monkeypatch)
    running = await lab.worker(owns=3, retry_refused_seconds=60.0)
    assert running.told.heard("run_blocked") == []
    async with client_of(lab) as client:
        with pytest.raises(Refused) as refused:
            await plan_repair(client, bad)
    assert refused.value.code == "SCHEMA_VERSION_UNSUPPORTED"


@case(app, "memory")
async def test_f06_a_run_of_which_nothing_is_left_can_only_be_ended(lab: Lab):
    bad = await waiting_run(lab)
    part: Any = lab.log._store.partition(lab.topics.events, 1)  # type: ignore[attr-defined]
    part._entries = [e for e in part._entries if e.record is None or e.record.key != bad.encode()]
    await send_raw(lab.log, lab.topics.events, 1, bad.encode(), b"garbage")
    await send_nulls(lab, lab.topics.leases)
    lab.unchecked = True
    await found_damaged(lab, bad)
    async with client_of(lab) as client:
        with pytest.raises(Refused) as refused:
            await plan_repair(client, bad)
    assert refused.value.code == "NOT_REPAIRABLE"
    assert "--force" in refused.value.message


@case(app)
async def test_f06_who_looks_at_a_damaged_run_is_told_of_the_repair(lab: Lab):
    bad = await waiting_run(lab)
    await damage(lab, bad, "random bytes")
    await found_damaged(lab, bad)
    async with client_of(lab) as client:
        found = await diagnose(client, bad, now=0)
        assert found is not None
        assert found.status == "blocked"
        assert f"streams rebuild {bad} --reason TEXT" in found.advice[0].commands
        unread: list[int] = []
        history = await client.history(bad, unreadable=lambda offset, _: unread.append(offset))
        assert len(unread) == 1
        assert len(history) >= 4
        await mend(lab, bad, parked=True)
        await lab.history.until(lambda h: (blocked := h.blocked(bad)) and blocked.code == REPAIRED)
        later = await diagnose(client, bad, now=0)
        assert later is not None
        assert f"streams retry {bad}" in later.advice[0].commands
        entries = timeline(await client.history(bad, unreadable=lambda *_: None), client.values.codec)
        assert any("repaired" in entry.text for entry in entries)
