"""While one turn commits, the next decides for other runs: it is committed after the first, or dropped with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.errors import CommitAborted, Fenced, InDoubt, SendRefused
from streams.kernel import bodies as ev
from streams.log.port import GroupSnapshot, NewRecord
from streams.runtime.inputs import Arrived, Item, Sweep
from streams.runtime.turn import Turn
from streams.runtime.turns import Turns
from tests.runtime.history import resume, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, Running, case

app = App("overlap")
parcels = app.effect("parcels", str)
words = app.signal("words", str)
driven: list[str] = []
called: list[str] = []
gates: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    driven.clear()
    called.clear()
    gates[:] = [asyncio.Event()]


@app.task
async def work(ctx: TaskContext) -> str:
    called.append(ctx.run_id)
    return ctx.run_id


@app.task
async def patient(ctx: TaskContext) -> None:
    await gates[0].wait()


@app.workflow(version=1)
async def waits(ctx: Context, number: int) -> str:
    await ctx.run(patient)
    return "done"


@app.workflow(version=1)
async def asks(ctx: Context, number: int) -> str:
    driven.append(ctx.run_id)
    await ctx.run(work)
    answer: str = await ctx.interrupt("?", answer=str)
    ctx.emit(parcels, answer)
    return answer


@app.workflow(version=1)
async def twice(ctx: Context, number: int) -> list[str]:
    first = await ctx.interrupt("?", answer=str)
    return [first, await ctx.interrupt("??", answer=str)]


class Gate:
    """Holds the commits of a worker back, and may let one fail; notes what each would write."""

    def __init__(self, running: Running) -> None:
        self.tried: list[tuple[Sequence[NewRecord], Mapping[int, int]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Exception | None = None
        self._commit = running.worker.producer.commit
        running.worker.producer.commit = self.commit  # type: ignore[method-assign]

    async def commit(
        self, snapshot: GroupSnapshot, records: Sequence[NewRecord], offsets: Mapping[int, int]
    ) -> list[int]:
        self.tried.append((records, offsets))
        await self.open.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        return await self._commit(snapshot, records, offsets)

    def runs(self, number: int) -> set[bytes]:
        return {record.key for record in self.tried[number][0] if record.key is not None}


def names(lab: Lab, partition: int, count: int) -> list[str]:
    found = (f"r{number}" for number in range(1000))
    return [name for name in found if lab.history.partition(name) == partition][:count]


async def first_held(lab: Lab, name: str, **settings: Any) -> tuple[Running, Gate]:
    """A worker whose first turn for `name` is on its way and does not land."""
    running = await lab.worker(**settings)
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(name, start("asks", 1))
    await until(lambda: len(gate.tried) == 1, "the turn of the first run")
    return running, gate


async def all_end(lab: Lab, *runs: str) -> None:
    for name in runs:
        await lab.history.seen(name, ev.OpScheduled, 2)
    await lab.history.send_all([(name, resume("yes")) for name in runs])
    for name in runs:
        assert await lab.history.result(name) == "yes"
    assert sorted(called) == sorted(runs), "a task was dispatched for a turn that was dropped"


@case(app)
async def test_other_runs_are_decided_and_sent_after_the_first(lab: Lab):
    (first,), (second,) = names(lab, 0, 1), names(lab, 1, 1)
    _, gate = await first_held(lab, first)
    await lab.history.send(second, start("asks", 2))
    await until(lambda: driven == [first, second], "the decision for the second run")
    assert len(gate.tried) == 1, "two commits are on their way at once"
    assert called == []
    gate.open.set()
    await all_end(lab, first, second)
    assert gate.runs(1) == {second.encode()}


@case(app)
async def test_what_is_for_a_run_under_way_waits_and_so_do_the_commands_behind_it(lab: Lab):
    first, behind = names(lab, 0, 2)
    (elsewhere,) = names(lab, 1, 1)
    _, gate = await first_held(lab, first)
    offset = (await lab.history.send_all([(first, resume("early")), (behind, start("asks", 2))]))[0]
    await lab.history.send(elsewhere, start("asks", 3))
    await until(lambda: driven == [first, elsewhere], "the decision for the run of another partition")
    gate.open.set()
    await all_end(lab, first, behind, elsewhere)
    following = gate.tried[1][1]
    assert following.get(0, offset) == offset, "the second turn passes over a command that had no outcome"


@case(app)
async def test_a_turn_that_applies_no_command_carries_the_offset_of_the_one_before(lab: Lab):
    first, other = names(lab, 0, 2)
    running = await lab.worker()
    await lab.history.send(other, start("waits", 1))
    await lab.history.seen(other, ev.OpScheduled)
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(first, start("asks", 1))
    await until(lambda: len(gate.tried) == 1)
    gates[0].set()
    await until(lambda: not len(running.worker.inbox) and driven == [first])
    await asyncio.sleep(0.05)
    gate.open.set()
    assert await lab.history.result(other) == "done"
    assert gate.runs(1) == {other.encode()}
    assert gate.tried[1][1][0] == gate.tried[0][1][0], "the group was moved back over a command that is applied"
    await all_end(lab, first)


@case(app)
async def test_commands_that_had_no_room_come_before_those_that_were_held(lab: Lab):
    """In the other order the second one would lie below the applied offset, and be passed over as known."""
    first, second, third = names(lab, 0, 3)
    running = await lab.worker(turn_bytes_max=1)
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(first, start("asks", 1))
    await until(lambda: len(gate.tried) == 1)
    await lab.history.send_all([(second, start("asks", 2)), (third, start("asks", 3)), (first, resume("early"))])
    await until(lambda: driven == [first, second])
    await asyncio.sleep(0.05)
    gate.open.set()
    await all_end(lab, first, second, third)


@case(app, "memory")
async def test_a_mistake_in_the_program_releases_nothing_from_before_the_turn_under_way(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    (first, other), (elsewhere,) = names(lab, 0, 2), names(lab, 1, 1)
    running = await lab.worker()
    await lab.history.send_all([(first, start("waits", 1)), (other, start("waits", 1))])
    for name in (first, other):
        await lab.history.seen(name, ev.OpScheduled)
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(first, signal("words", "early"))
    await until(lambda: len(gate.tried) == 1)
    gates[0].set()
    await asyncio.sleep(0.05)

    take = Turn.take

    def broken(self: Turn, items: Sequence[Item], **more: Any) -> int:
        if any(isinstance(item, Arrived) for item in items):
            raise RuntimeError("planned")
        return take(self, items, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Turn, "take", broken)
        asyncio.get_running_loop().call_later(0.2, gate.open.set)
        await lab.history.send(elsewhere, start("asks", 2))
        with pytest.raises(RuntimeError, match="planned"):
            await asyncio.wait_for(running.task, 20)
    lab.running.remove(running)
    await running.log.close()
    await lab.worker()
    for name in (first, other):
        assert await lab.history.result(name) == "done"
    await all_end(lab, elsewhere)


@case(app, "memory")
async def test_a_stop_waits_for_what_the_turn_under_way_begins(lab: Lab):
    (first,) = names(lab, 0, 1)
    running, gate = await first_held(lab, first, drain_seconds=0.1)
    running.worker.stop()
    await asyncio.sleep(0.5)
    assert not running.task.done()
    gate.open.set()
    await asyncio.wait_for(running.task, 20)
    assert "without a release record" not in str(running.told.heard("message"))
    assert called == [], "a task was begun to be cut off at once"
    await lab.worker()
    await all_end(lab, first)


@pytest.mark.parametrize("failure", [CommitAborted, Fenced, InDoubt, SendRefused])
@case(app)
async def test_f03_the_second_turn_is_dropped_with_the_first(lab: Lab, failure: type[Exception]):
    (first, same), (second,) = names(lab, 0, 2), names(lab, 1, 1)
    _, gate = await first_held(lab, first)
    await lab.history.send_all([(same, start("asks", 2)), (second, start("asks", 3))])
    await until(lambda: {first, same, second} <= set(driven), "the decisions for the others")
    gate.failure = failure("planned")
    gate.open.set()
    if failure is SendRefused:
        # Which record it was is not said, and the turn had one input.
        assert await lab.history.seen(first, ev.CommandRejected)
        await all_end(lab, same, second)
    else:
        await all_end(lab, first, same, second)
    for name in (first, same, second):
        assert len({event.offset for event in lab.history.events[name] if event.offset is not None}) == (
            1 if called.count(name) == 0 else 2
        ), "a command was applied twice, or not at all"


@case(app, "memory")
async def test_whoever_wants_the_lock_finds_nothing_under_way(lab: Lab):
    (first,), (second,) = names(lab, 0, 1), names(lab, 1, 1)
    running, gate = await first_held(lab, first)
    await lab.history.send(second, start("asks", 2))
    await until(lambda: driven == [first, second])
    locked = asyncio.create_task(running.worker.turn_lock.acquire())
    await until(lambda: running.worker.turn_lock.wanted)
    gate.open.set()
    await locked
    assert len(gate.tried) == 1, "a turn was sent although somebody waits"
    assert any(isinstance(item, Arrived) for item in running.worker.inbox), "what was decided and not sent is lost"
    assert running.worker.owner.partitions[0].runs.keys() == {first}, "the turn that landed was not adopted"
    running.worker.turn_lock.release()
    await all_end(lab, first, second)


@case(app, "memory")
async def test_waiting_for_a_commit_takes_no_time_of_the_processor(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    looks = 0
    extend = Turns._extend

    def counted(self: Turns, *arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return extend(self, *arguments)

    (first,), (second,), (third,) = names(lab, 0, 1), names(lab, 1, 1), names(lab, 2, 1)
    running, gate = await first_held(lab, first)
    await lab.history.send(second, start("asks", 2))
    await until(lambda: driven == [first, second])
    monkeypatch.setattr(Turns, "_extend", counted)
    locked = asyncio.create_task(running.worker.turn_lock.acquire())
    await lab.history.send(third, start("asks", 3))
    await until(lambda: len(running.worker.inbox) == 2)
    await asyncio.sleep(0.3)
    assert 0 < looks < 20
    gate.open.set()
    await locked
    running.worker.turn_lock.release()
    await all_end(lab, first, second, third)


@case(app)
async def test_a_sweep_does_not_see_a_run_as_it_was_before_the_turn_under_way(lab: Lab):
    (first,) = names(lab, 0, 1)
    settings: dict[str, Any] = {"checkpoint_bytes_min": 1_000_000, "checkpoint_age_seconds": 0.0}
    running = await lab.worker(**settings, sweep_seconds=600.0)
    await lab.history.send(first, start("asks", 1))
    await lab.history.seen(first, ev.OpScheduled, 2)
    partition = running.worker.owner.partitions[0]
    partition.runs[first].first_at = 0  # it has gone long without a checkpoint
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(first, resume("yes"))
    await until(lambda: len(gate.tried) == 1)
    running.worker.put(Sweep(partition))
    await asyncio.sleep(0.05)
    gate.open.set()
    await until(lambda: any(lab.topics.leases in {r.topic for r in records} for records, _ in gate.tried), "the sweep")
    assert await lab.history.result(first) == "yes"
    await until(lambda: not running.worker.turn_lock.locked())
    assert partition.runs[first].run.seq == lab.history.events[first][-1].seq


@case(app)
async def test_a_coroutine_in_the_second_turn_is_not_evicted_by_the_first(lab: Lab):
    (first,), (second,) = names(lab, 0, 1), names(lab, 1, 1)
    running = await lab.worker(live_runs_max=1)
    await lab.history.send(second, start("twice", 2))
    await lab.history.seen(second, ev.OpScheduled)
    gate = Gate(running)
    gate.open.clear()
    await lab.history.send(first, start("twice", 1))
    await until(lambda: len(gate.tried) == 1)
    await lab.history.send(second, resume("one"))
    await until(lambda: not running.worker.inbox)
    await asyncio.sleep(0.05)
    gate.open.set()
    await lab.history.seen(second, ev.OpScheduled, 2)
    assert sum(hot.live is not None for p in running.worker.owner.partitions.values() for hot in p.runs.values()) == 1
    for name, answers in ((second, ["two"]), (first, ["one", "two"])):
        for answer in answers:
            await lab.history.send(name, resume(answer))
        assert await lab.history.result(name) == ["one", "two"]


@case(app)
async def test_many_runs_at_once_end_right_under_aborts(lab: Lab):
    running = await lab.worker()
    gate = Gate(running)
    runs = [f"r{number}" for number in range(200)]
    sending = asyncio.create_task(lab.history.send_all([(name, start("asks", 1)) for name in runs]))
    for _ in range(10):
        await asyncio.sleep(0.02)
        gate.failure = CommitAborted("planned")
    await sending
    await all_end(lab, *runs)
    assert {number for _, offsets in gate.tried for number in offsets} == set(range(PARTITIONS))
