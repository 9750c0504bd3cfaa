"""A pipelined workflow: pure tasks run while a commit is under way; nothing that anybody could see leaves before it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streams import App, Context, Retry, TaskContext
from streams.authoring.durability import Durability
from streams.errors import CommitAborted, Fenced, InDoubt, SendRefused
from streams.kernel import bodies as ev
from streams.kernel.commands import Cancel
from streams.kernel.commands import Retry as RetryRun
from streams.kernel.events import Event
from streams.log.port import GroupSnapshot, NewRecord
from tests.runtime.history import resume, signal, start, until
from tests.runtime.lab import Lab, Running, case
from tests.runtime.test_overlap import Gate, names

app = App("pipelined")
parcels = app.effect("parcels", str)
words = app.signal("words", str)
called: list[tuple[str, str]] = []
gates: list[asyncio.Event] = []
failures: list[int] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    called.clear()
    failures[:] = [0]
    gates[:] = [asyncio.Event()]


@app.task(pure=True)
async def double(ctx: TaskContext, number: int) -> int:
    called.append((ctx.run_id, f"double {number}"))
    return number * 2


@app.task(pure=True)
def triple(ctx: TaskContext, number: int) -> int:
    called.append((ctx.run_id, f"triple {number}"))
    return number * 3


@app.task(pure=True)
async def slow(ctx: TaskContext, number: int) -> int:
    called.append((ctx.run_id, f"slow {number}"))
    await gates[0].wait()
    return number


@app.task(pure=True, retry=Retry(max_attempts=3, initial=0.01, max_delay=0.01))
async def shaky(ctx: TaskContext, number: int) -> int:
    called.append((ctx.run_id, f"shaky {ctx.attempt}"))
    if ctx.attempt <= failures[0]:
        raise RuntimeError("not yet")
    return number


@app.task
async def world(ctx: TaskContext, number: int) -> int:
    called.append((ctx.run_id, f"world {number}"))
    return number


async def _three(ctx: Context, number: int) -> int:
    for _ in range(3):
        number = await ctx.run(double, number)
    ctx.emit(parcels, str(number))
    return number


three = app.workflow(version=1, name="three", durability="pipelined")(_three)
three_plain = app.workflow(version=1, name="three-plain")(_three)


@app.workflow(version=1, durability="pipelined")
async def mixed(ctx: Context, number: int) -> int:
    number = await ctx.run(double, number)
    number = await ctx.run(world, number)
    return await ctx.run(double, number)


@app.workflow(version=1, durability="pipelined")
async def long(ctx: Context, number: int) -> int:
    return await ctx.run(slow, number)


@app.workflow(version=1, durability="pipelined")
async def endless(ctx: Context, number: int) -> int:
    for _ in range(1_000_000):
        number = await ctx.run(double, number % 1_000)
    return number


@app.workflow(version=1, durability="pipelined")
async def tries(ctx: Context, number: int) -> int:
    return await ctx.run(shaky, number)


@app.workflow(version=1, durability="pipelined")
async def wide(ctx: Context, width: int) -> int:
    found = await ctx.all([ctx.run(triple if n % 2 else double, n) for n in range(width)])
    return sum(await ctx.all([ctx.run(double, n) for n in found]))


@app.workflow(version=1, durability="pipelined")
async def asks(ctx: Context, number: int) -> int:
    number = await ctx.run(double, number)
    more = await ctx.interrupt("?", answer=int)
    return await ctx.run(double, number + more)


async def held(lab: Lab, name: str, workflow: str, value: Any, **settings: Any) -> tuple[Running, Gate]:
    """A worker whose first turn, with the start of `name`, is on its way and does not land."""
    running = await lab.worker(**settings)
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(name, start(workflow, value))
    await until(lambda: len(gate.tried) == 1, "the turn of the start")
    return running, gate


def all_free(running: Running) -> bool:
    settings = running.worker.engine.settings
    free = running.worker.dispatcher._free
    return free == {"loop": settings.loop_slots, "thread": settings.thread_slots}


@case(app)
async def test_three_steps_are_decided_beside_the_first_commit_and_make_one_more(lab: Lab):
    (first,) = names(lab, 0, 1)
    running, gate = await held(lab, first, "three", 1)
    await until(lambda: len(called) == 3, "all three steps")
    await asyncio.sleep(0.05)
    await lab.history.read()
    assert not lab.history.events.get(first), "something was visible before the commit"
    assert len(gate.tried) == 1
    gate.open.set()
    assert await lab.history.result(first) == 8
    await until(lambda: not running.worker.turn_lock.locked())
    assert len(gate.tried) == 2
    assert called == [(first, f"double {n}") for n in (1, 2, 4)]
    assert all_free(running)
    partition = running.worker.owner.partitions[0]
    assert partition.runs[first].run.seq == lab.history.events[first][-1].seq


@case(app)
async def test_every_step_waits_for_its_commit_whatever_its_tasks_are(lab: Lab):
    (first,) = names(lab, 0, 1)
    _, gate = await held(lab, first, "three-plain", 1)
    await asyncio.sleep(0.1)
    assert called == []
    gate.open.set()
    assert await lab.history.result(first) == 8
    assert len(gate.tried) == 4


@case(app)
async def test_a_task_that_is_not_pure_waits_for_the_commit_of_its_start(lab: Lab):
    (first,) = names(lab, 0, 1)
    _, gate = await held(lab, first, "mixed", 1)
    await until(lambda: called == [(first, "double 1")])
    gate.open.clear()
    await asyncio.sleep(0.05)
    assert called == [(first, "double 1")]
    gate.open.set()
    assert await lab.history.result(first) == 4
    at = [event.type for event in lab.history.events[first]]
    assert at.count("op.scheduled") == 3


@pytest.mark.parametrize("failure", [CommitAborted, Fenced, InDoubt])
@case(app)
async def test_a_turn_that_fails_takes_what_it_has_begun_and_what_follows_with_it(lab: Lab, failure: type[Exception]):
    (first,) = names(lab, 0, 1)
    running, gate = await held(lab, first, "three", 1)
    await until(lambda: len(called) == 3)
    gate.failure = failure("planned")
    gate.open.set()
    assert await lab.history.result(first) == 8
    if failure is CommitAborted:
        assert called == 2 * [(first, f"double {n}") for n in (1, 2, 4)], "the redo begins all of it anew"
    events = [event.type for event in lab.history.events[first]]
    assert events.count("op.completed") == 3
    assert "outcome.late" not in events
    await until(lambda: all_free(running), "all slots")


@case(app)
async def test_a_refused_record_of_the_second_turn_blocks_its_run_and_no_other(lab: Lab):
    first, other = names(lab, 0, 2)
    running, gate = await held(lab, first, "three", 1)
    await lab.history.send(other, start("three", 2))
    await until(lambda: len(called) == 6, "the steps of both")
    commit = running.worker.producer.commit

    async def refusing(snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]) -> list[int]:
        refused = [n for n, record in enumerate(records) if record.key == first.encode()]
        if len(gate.tried) == 1 and refused:
            gate.tried.append((records, offsets))
            raise SendRefused("planned", code="VALUE_TOO_LARGE", index=refused[0])
        return await commit(snapshot, records, offsets)

    running.worker.producer.commit = refusing  # type: ignore[method-assign]
    gate.open.set()
    assert await lab.history.result(other) == 16
    await lab.history.seen(first, ev.RunBlocked)
    await lab.history.send(first, RetryRun())
    assert await lab.history.result(first) == 8
    await until(lambda: all_free(running), "all slots")


@case(app)
async def test_an_outcome_that_comes_after_its_turn_was_dropped_counts_for_nothing(lab: Lab):
    (first,) = names(lab, 0, 1)
    running, gate = await held(lab, first, "long", 7)
    await until(lambda: called == [(first, "slow 7")])
    gates[0].set()
    # In one and the same moment the outcome arrives and the commit fails.
    gate.failure = CommitAborted("planned")
    gate.open.set()
    assert await lab.history.result(first) == 7
    assert called == 2 * [(first, "slow 7")], "the redo took the outcome of an attempt that never was"
    assert "outcome.late" not in [event.type for event in lab.history.events[first]]
    await until(lambda: all_free(running), "all slots")


@case(app)
async def test_a_long_pure_task_holds_no_turn_up(lab: Lab):
    first, other = names(lab, 0, 2)
    running, gate = await held(lab, first, "long", 7)
    await until(lambda: called == [(first, "slow 7")])
    gate.open.set()
    await lab.history.seen(first, ev.OpScheduled)
    await lab.history.send(other, start("three", 1))
    assert await lab.history.result(other) == 8
    gates[0].set()
    assert await lab.history.result(first) == 7
    assert called.count((first, "slow 7")) == 1, "what was begun early began again when its turn had landed"
    await until(lambda: all_free(running), "all slots")


@case(app)
async def test_a_command_is_not_starved_by_a_run_that_never_waits(lab: Lab):
    first, behind = names(lab, 0, 2)
    running = await lab.worker()
    await lab.history.send(first, start("endless", 1))
    await until(lambda: len(called) > 20)
    await lab.history.send_all([(first, signal("words", "x")), (behind, start("three", 1)), (first, Cancel())])
    assert await lab.history.result(behind) == 8
    await lab.history.ended(first)
    assert isinstance(lab.history.end(first), ev.RunCancelled)
    await until(lambda: all_free(running), "all slots")


@pytest.mark.parametrize("failing", [2, 3])
@case(app)
async def test_a_pure_task_that_raises_is_tried_again_under_its_policy(lab: Lab, failing: int):
    (first,) = names(lab, 0, 1)
    failures[0] = failing
    running, gate = await held(lab, first, "tries", 5)
    await until(lambda: called == [(first, "shaky 1")])
    await asyncio.sleep(0.1)
    assert called == [(first, "shaky 1")], "a back-off ended before the commit of what it began with"
    gate.open.set()
    await lab.history.ended(first)
    end = lab.history.end(first)
    if failing == 2:
        assert isinstance(end, ev.RunCompleted)
    else:
        assert isinstance(end, ev.RunFailed)
        assert end.error.code == "RETRIES_EXHAUSTED"
    assert [what for _, what in called] == ["shaky 1", "shaky 2", "shaky 3"]
    await until(lambda: all_free(running), "all slots")


@case(app)
async def test_more_steps_than_slots_and_plain_functions(lab: Lab):
    (first,) = names(lab, 0, 1)
    running = await lab.worker(loop_slots=2, thread_slots=1)
    await lab.history.send(first, start("wide", 9))
    assert await lab.history.result(first) == 2 * sum(n * (3 if n % 2 else 2) for n in range(9))
    await until(lambda: all_free(running), "all slots")


@case(app)
async def test_one_slot_serves_a_chain_of_steps_beside_one_commit(lab: Lab):
    (first,) = names(lab, 0, 1)
    _, gate = await held(lab, first, "three", 1, loop_slots=1)
    await until(lambda: len(called) == 3)
    gate.open.set()
    assert await lab.history.result(first) == 8
    assert len(gate.tried) == 2


@case(app)
async def test_an_answer_waits_until_the_turns_of_its_run_have_landed(lab: Lab):
    (first,) = names(lab, 0, 1)
    _, gate = await held(lab, first, "asks", 1)
    await until(lambda: len(called) == 1)
    await lab.history.send(first, resume(3))
    await asyncio.sleep(0.05)
    assert len(called) == 1
    gate.open.set()
    assert await lab.history.result(first) == 10


@case(app)
async def test_a_run_that_was_restored_is_driven_in_the_default_mode(lab: Lab):
    (first,) = names(lab, 0, 1)
    one = await lab.worker()
    await lab.history.send(first, start("asks", 1))
    await lab.history.seen(first, ev.OpScheduled, 2)
    await one.kill()
    running = await lab.worker()
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(first, resume(3))
    await until(lambda: len(gate.tried) == 1)
    await asyncio.sleep(0.1)
    assert called == [(first, "double 1")], "a task began before its start was durable, in a run that was restored"
    gate.open.set()
    assert await lab.history.result(first) == 10


@case(app)
async def test_a_command_that_lay_in_the_topic_begins_a_run_in_the_default_mode(lab: Lab):
    (first,) = names(lab, 0, 1)
    await lab.history.send(first, start("three", 1))
    running = await lab.worker(owns=0)
    held_up = asyncio.Event()
    tried: list[int] = []
    commit = running.worker.commit

    async def late(snapshot: Any, turn: Any) -> Any:
        if turn.working:
            tried.append(len(called))
            await held_up.wait()
        return await commit(snapshot, turn)

    running.worker.commit = late  # type: ignore[method-assign]
    await until(lambda: tried == [0], "the turn of the start")
    await asyncio.sleep(0.1)
    assert called == []
    held_up.set()
    assert await lab.history.result(first) == 8
    assert tried == [0, 1, 2, 3]


@case(app, "memory")
async def test_whoever_wants_the_lock_finds_nothing_begun_that_is_not_durable(lab: Lab):
    (first,) = names(lab, 0, 1)
    running, gate = await held(lab, first, "three", 1)
    await until(lambda: len(called) == 3)
    locked = asyncio.create_task(running.worker.turn_lock.acquire())
    await until(lambda: running.worker.turn_lock.wanted)
    gate.open.set()
    await locked
    assert len(gate.tried) == 1
    assert len(running.worker.inbox) == 1, "only the outcome of the step whose start is committed waits"
    await until(lambda: all_free(running), "all slots")
    running.worker.turn_lock.release()
    assert await lab.history.result(first) == 8


@case(app, "memory")
async def test_a_stop_hands_back_what_was_begun_early_and_has_landed(lab: Lab):
    (first,) = names(lab, 0, 1)
    running, gate = await held(lab, first, "long", 7, stop_seconds=0.1)
    await until(lambda: called == [(first, "slow 7")])
    gate.open.set()
    await running.stop()
    assert len(await lab.history.seen(first, ev.AttemptReturned)) == 1
    gates[0].set()
    await lab.worker()
    assert await lab.history.result(first) == 7


def without_times(events: list[Event]) -> str:
    """What was decided, and in which order; not when, nor under which command and name."""
    plain: list[Any] = []
    for event in events:
        body = event.body
        if isinstance(body, ev.RunStarted):
            body = body._replace(workflow="", code="", seed=b"", owner="")
        elif isinstance(body, ev.EffectEmitted):
            body = body._replace(hash=b"")  # of its key, which has the identity in it
        plain.append((event.seq, event.cause, event.epoch, body))
    return str(plain).replace(events[0].identity, "IDENTITY")


@case(app)
async def test_the_events_are_those_of_the_default_mode(lab: Lab):
    first, second = names(lab, 0, 2)
    await lab.worker()
    await lab.history.send(first, start("three", 1))
    assert await lab.history.result(first) == 8
    await lab.history.send(second, start("three-plain", 1))
    assert await lab.history.result(second) == 8
    assert without_times(lab.history.events[first]) == without_times(lab.history.events[second])


# -- declarations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("key", lambda: "x"), ("reconcile", lambda ctx: None), ("idempotent", False)],
)
def test_pure_does_not_go_with_what_speaks_of_the_world_outside(option: str, value: Any):
    declare: Any = App("refused").task
    with pytest.raises(ValueError, match=f"pure=True does not go with {option}"):

        @declare(pure=True, **{option: value})
        async def task(ctx: TaskContext) -> None: ...


def test_a_key_for_calls_of_a_pure_task_is_refused_too():
    with pytest.raises(ValueError, match="pure=True does not go with key"):
        double.with_options(key=lambda number: "x")


def test_a_mode_that_does_not_exist_is_refused_by_name():
    unknown: Any = "eventual"
    with pytest.raises(ValueError, match="durability='eventual'; it is one of 'every_step', 'pipelined'"):
        App("refused").workflow(version=1, durability=unknown)(_three)
    with pytest.raises(ValueError, match="durability='eventual'"):
        App("refused").graph("graph", state=dict, version=1, durability=unknown)


def test_the_default_is_every_step():
    mode: Durability = three_plain.durability
    assert mode == "every_step"
    assert not app.is_pipelined("three-plain", 1)
    assert app.is_pipelined("three", 1)
    assert not app.is_pipelined("three", 2)
