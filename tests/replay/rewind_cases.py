"""What `streams replay rewind` must do, on any log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams.clock import SystemClock
from streams.errors import LogUnavailable, Refused, UsageError
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.ops.replay import Counts, Goal, Verdict, places, plan_rewind, rewind, shadow
from tests.runtime.history import until
from tests.runtime.lab import PARTITIONS, Lab
from tests.runtime.rewinding import Known, known_log, nothing_has_changed, skipped, to_a_time

__all__ = [
    "expired_ones_are_counted",
    "forward_moves_are_refused",
    "to_a_time_is_what_was_asked_for",
    "to_the_start_changes_nothing",
    "workers_are_in_the_way",
]

START = Goal()


async def planned(lab: Lab, goal: Goal, **more: Any) -> Any:
    """A plan; a broker may need a moment to see that the last member has left."""
    return await _patiently(lambda: plan_rewind(lab.log, lab.topics.app, goal, **more))


async def _patiently(call: Any) -> Any:
    failure: LogUnavailable | None = None
    for _ in range(300):
        try:
            return await call()
        except LogUnavailable as error:
            failure = error
            await asyncio.sleep(0.1)
    raise AssertionError("the group never became empty") from failure


async def offsets(lab: Lab) -> dict[int, int]:
    return await lab.log.group_offsets(lab.topics.group, lab.topics.commands)


async def to_the_start_changes_nothing(lab: Lab) -> None:
    """The dry run tells what the workers then skip; every run is as it was; and a shadow replay finds it the same."""
    known = await known_log(lab)
    await lab.history.start("ships", "avro-done", "done")  # known too, but nobody has decided on it yet
    before = await offsets(lab)
    plan = await planned(lab, START)
    assert await offsets(lab) == before
    assert plan.total == Counts(known=len(known.commands) - 2, dead_lettered=2, new=1)
    assert plan.total.skipped == len(known.commands)
    assert {part.partition: part.applied for part in plan.parts} == known.applied
    await rewind(lab.log, plan)
    assert await offsets(lab) == before | {n: offset for n, offset in plan.offsets.items() if offset is not None}
    assert all(offset == 0 for offset in plan.offsets.values())
    again = await planned(lab, START)
    assert (again.total, again.offsets) == (plan.total, {})  # it stands there now
    report = await shadow(lab.log, lab.app)
    assert report.counts[Verdict.SAME] == report.runs > len(known.runs) - 2, str(report)
    await nothing_has_changed(lab, known, len(known.commands))


async def to_a_time_is_what_was_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By append times, in each partition; a time after everything leaves all as it is."""
    known = await known_log(lab)
    wanted = to_a_time(known)
    middle = sorted(record.timestamp for record in known.commands)[len(known.commands) // 2]
    for near in (0, 1, 3, 2_000):
        monkeypatch.setattr(places, "_NEAR", near)
        plan = await planned(lab, Goal(at_us=middle * 1_000))
        assert {part.partition: part.to for part in plan.parts} == wanted
    now = await planned(lab, Goal(at_us=SystemClock().now_us() + 60_000_000))
    assert (now.offsets, now.total) == ({}, Counts())
    await rewind(lab.log, plan)
    await nothing_has_changed(lab, known, sum(r.offset >= wanted[r.partition] for r in known.commands))


async def one_partition(lab: Lab) -> tuple[Known, int]:
    known = await known_log(lab)
    return known, max(known.applied, key=lambda number: known.applied[number])


async def forward_moves_are_refused(lab: Lab) -> None:
    """Whatever passes over commands, or names no place."""
    known, number = await one_partition(lab)
    before = await offsets(lab)
    applied = known.applied[number]
    with pytest.raises(Refused, match=rf"stands at {applied}, so {applied + 1} is ahead.*Rewind only goes back"):
        await planned(lab, Goal(offset=applied + 1), partition=number)
    with pytest.raises(UsageError, match="an offset means one partition"):
        await planned(lab, Goal(offset=0))
    with pytest.raises(UsageError, match=f"has the partitions 0 to {PARTITIONS - 1}, no 99"):
        await planned(lab, START, partition=99)
    with pytest.raises(UsageError, match="no app 'nobody'"):
        await plan_rewind(lab.log, "nobody", START)
    assert await offsets(lab) == before
    plan = await planned(lab, Goal(offset=1), partition=number)
    assert plan.offsets == {number: 1}
    await rewind(lab.log, plan)
    with pytest.raises(Refused, match="stands at 1, so 2 is ahead"):  # the way back forward is not needed
        await planned(lab, Goal(offset=2), partition=number)
    await nothing_has_changed(lab, known, sum(r.partition == number and r.offset >= 1 for r in known.commands))


async def workers_are_in_the_way(lab: Lab) -> None:
    """The refusal names them and says what to do; stopped, they skip what is known."""
    running = await lab.worker(stop_seconds=0.2)
    await lab.history.start("ships", "r", "done")
    assert await lab.history.result("r") == "DONE"
    with pytest.raises(LogUnavailable, match=r"has members.*w1.*stop them first"):
        await plan_rewind(lab.log, lab.topics.app, START)
    looked = await plan_rewind(lab.log, lab.topics.app, START, dry_run=True)  # a look disturbs nobody
    assert (looked.total.known, looked.total.new) == (1, 0)
    with pytest.raises(LogUnavailable, match="has members"):
        await rewind(lab.log, looked)
    await running.stop()
    plan = await planned(lab, START)
    running = await lab.worker(stop_seconds=0.2)
    with pytest.raises(LogUnavailable, match="has members"):
        await rewind(lab.log, plan)
    await running.stop()
    await _patiently(lambda: rewind(lab.log, plan))
    running = await lab.worker()
    await until(lambda: skipped(running) == 1, "the skipped command")


async def expired_ones_are_counted(lab: Lab) -> None:
    """Commands of runs that the app does not know any more."""
    running = await lab.worker(stop_seconds=0.2)
    await lab.history.start("ships", "r", "done")
    await lab.history.ended("r")
    offset = await lab.history.send("never-was", cmd.Cancel(force=False))
    await lab.history.answered(offset, "never-was")
    offset = await lab.history.send("nobody", cmd.Retry())
    assert isinstance(await lab.history.answered(offset, "nobody"), ev.CommandRejected)
    await running.stop()
    plan = await planned(lab, START)
    assert plan.total == Counts(known=2, expired=1)
