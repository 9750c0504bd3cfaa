"""Timers, sweeps and restores: deadlines that are kept, and a tail that moves."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streams import App, Context, Retry, TaskContext, TimedOut
from streams.clock import SystemClock
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.events import Event
from streams.kernel.run import Phase
from streams.log.port import TopicPartition
from streams.wire.app_codec import make_codec
from streams.wire.records import decode_lease
from tests.runtime.checker import records_of, try_event
from tests.runtime.history import History, resume, signal, start
from tests.runtime.lab import PARTITIONS, Lab, case

app = App("timers")
news = app.signal("news", int)
parcels = app.effect("parcels", str)
HOUR = 3_600_000_000


class Clock(SystemClock):
    """The machine's clocks, with wall time moved by `offset` microseconds."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def now_us(self) -> int:
        return super().now_us() + self.offset


@app.task(retry=Retry(max_attempts=3, initial=600.0, max_delay=600.0))
async def flaky(ctx: TaskContext) -> int:
    if ctx.attempt < 2:
        raise RuntimeError("once")
    return ctx.attempt


@app.task
async def quick(ctx: TaskContext, number: int) -> int:
    return number


@app.workflow(version=1)
async def sleeps(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "awake"


@app.workflow(version=1)
async def many(ctx: Context, count: int) -> int:
    await ctx.all([ctx.sleep(0.001 * (n % 7)) for n in range(count)])
    return count


@app.workflow(version=1)
async def until_fixed(ctx: Context, at: str) -> str:
    await ctx.sleep_until(datetime.fromisoformat(at))
    return "awake"


@app.workflow(version=1)
async def patient(ctx: Context, seconds: float) -> int:
    heard = 0
    timer = ctx.sleep(seconds)
    while True:
        done, _ = await ctx.wait([timer, ctx.receive(news)])
        if timer.done:
            return heard
        heard += len(done)


@app.workflow(version=1)
async def asks(ctx: Context, seconds: float) -> str:
    try:
        return await ctx.interrupt("?", answer=str, timeout=seconds)
    except TimedOut:
        return "nobody answered"


@app.workflow(version=1)
async def retries(ctx: Context, _: None) -> int:
    return await ctx.run(flaky)


@app.workflow(version=1)
async def chatty(ctx: Context, rounds: int) -> int:
    for n in range(rounds):
        await ctx.run(quick, n)
        ctx.emit(parcels, f"{n}")
    await ctx.interrupt("?")
    return rounds


def fired(history: History, run_id: str) -> list[Event]:
    return [event for event in history.events.get(run_id, []) if isinstance(event.body, ev.TimerFired)]


@case(app)
async def test_f20_ten_thousand_timers_due_at_once_fire_once_each(lab: Lab):
    await lab.worker()
    runs = [f"r{n}" for n in range(1000)]
    for at in range(0, 1000, 200):
        await lab.history.send_all([(run_id, start("many", 10)) for run_id in runs[at : at + 200]])
    await lab.history.ended(*runs)
    assert {len(fired(lab.history, run_id)) for run_id in runs} == {10}


@case(app)
async def test_f20_timers_that_came_due_while_nobody_was_there_fire_once_in_order(lab: Lab):
    running = await lab.worker()
    for n in range(30):
        await lab.history.start("sleeps", f"r{n}", 600.0 + (n * 7) % 30)
    await lab.history.until(lambda h: all(h.bodies(f"r{n}", ev.OpScheduled) for n in range(30)))
    await running.kill()
    late = await lab.worker(clock=Clock(HOUR))
    await lab.history.ended(*(f"r{n}" for n in range(30)))
    await late.stop()
    for partition in range(PARTITIONS):
        place = TopicPartition(lab.topics.events, partition)
        order = [
            lab.history.bodies(event.run_id, ev.OpScheduled)[0].due
            for event in await events_of(lab, place)
            if isinstance(event.body, ev.TimerFired)
        ]
        assert order == sorted(order)
    assert {len(fired(lab.history, f"r{n}")) for n in range(30)} == {1}


async def events_of(lab: Lab, place: TopicPartition) -> list[Event]:
    await lab.history.read()
    offsets = {(event.run_id, event.seq): event for events in lab.history.events.values() for event in events}
    found = []
    for record in await records_of(lab.log, place):
        event = try_event(record)
        assert event is not None
        found.append(offsets[event.run_id, event.seq])
    return found


@case(app)
async def test_f20_a_deadline_is_fixed_by_the_first_event(lab: Lab):
    """A command each moment, and a restart near the end, move nothing."""
    running = await lab.worker()
    await lab.history.start("patient", "r", 600.0)
    (timer, _) = await lab.history.seen("r", ev.OpScheduled, 2)
    for n in range(5):
        await lab.history.send("r", signal("news", n))
        await lab.history.seen("r", ev.SignalTaken, n + 1)
    await running.kill()
    nearly = await lab.worker(clock=Clock(540 * 1_000_000))
    assert fired(lab.history, "r") == []
    await nearly.stop()
    await lab.worker(clock=Clock(601 * 1_000_000))
    assert await lab.history.result("r") == 5
    (event,) = fired(lab.history, "r")
    assert event.at >= timer.due
    assert lab.history.bodies("r", ev.OpScheduled)[0] == timer


@case(app)
async def test_f20_deadlines_of_questions_and_back_off_survive_restarts_too(lab: Lab):
    running = await lab.worker()
    await lab.history.start("asks", "asks", 600.0)
    await lab.history.start("retries", "retries", None)
    await lab.history.seen("asks", ev.OpScheduled)
    await lab.history.seen("retries", ev.AttemptFailed)
    await running.kill()
    await (await lab.worker()).stop()
    await lab.history.read()
    assert lab.history.bodies("retries", ev.AttemptStarted) == []
    await lab.worker(clock=Clock(HOUR))
    assert await lab.history.result("asks") == "nobody answered"
    assert await lab.history.result("retries") == 2


@case(app)
@pytest.mark.parametrize("seconds", [0, -5, 1e-9])
async def test_f20_a_sleep_of_nothing_wakes_at_once(lab: Lab, seconds: float):
    await lab.worker()
    await lab.history.start("sleeps", "r", seconds)
    assert await lab.history.result("r") == "awake"


@case(app, "memory")
async def test_f20_sleeping_until_what_has_passed_does_not_wait(lab: Lab):
    await lab.worker()
    await lab.history.start("until_fixed", "r", (datetime.now(UTC) - timedelta(days=400)).isoformat())
    assert await lab.history.result("r") == "awake"


@case(app, "memory")
async def test_f20_ten_years_are_waited_for_and_endless_time_is_refused(lab: Lab):
    await lab.worker()
    await lab.history.start("sleeps", "long", 10 * 365 * 86_400.0)
    await lab.history.seen("long", ev.OpScheduled)
    await lab.history.send("nan", cmd.Start("sleeps", make_codec((), {}).encode(float("nan"))))
    await lab.history.until(lambda h: h.blocked("nan") or h.bodies("nan", ev.CommandRejected))
    assert lab.history.end("long") is None


@case(app)
@pytest.mark.parametrize("hours", [-1, 1])
async def test_f20_a_clock_that_jumps_between_owners_goes_back_for_no_run(lab: Lab, hours: int):
    running = await lab.worker()
    await lab.history.start("asks", "r", 7200.0)
    await lab.history.start("sleeps", "s", 0.3)
    await lab.history.seen("r", ev.OpScheduled)
    await lab.history.seen("s", ev.OpScheduled)
    await running.kill()
    other = await lab.worker(clock=Clock(hours * HOUR))
    await lab.history.send("r", resume("yes"))
    assert await lab.history.result("r") == "yes"
    await other.stop()
    await lab.worker()
    assert await lab.history.result("s") == "awake"
    for run_id in ("r", "s"):
        times = [event.at for event in lab.history.events[run_id]]
        assert times == sorted(times)


@case(app, "memory")
async def test_f20_a_clock_that_goes_back_between_timer_and_turn_loses_no_timer(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock)
    await lab.history.start("sleeps", "r", 0.2)
    await lab.history.seen("r", ev.OpScheduled)
    put = running.worker.put

    def back(item: Any) -> None:
        running.worker.put = put  # type: ignore[method-assign]
        running.worker.timers._fire = running.worker._fire
        clock.offset = -500_000
        put(item)

    running.worker.put = back  # type: ignore[method-assign]
    assert await lab.history.result("r") == "awake"


# -- sweeps and restores ---------------------------------------------------------------------------------------------


async def leases(lab: Lab, partition: int) -> list[Any]:
    place = TopicPartition(lab.topics.leases, partition)
    return [decode_lease(record.value or b"") for record in await records_of(lab.log, place)]


@case(app)
async def test_a_sweep_writes_checkpoints_and_moves_the_tail(lab: Lab):
    running = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.06, checkpoint_bytes_min=1_000_000)
    runs = [f"r{n}" for n in range(40)]
    await lab.history.send_all([(run_id, start("chatty", 3)) for run_id in runs])
    await lab.history.until(lambda h: all(len(h.bodies(run_id, ev.OpScheduled)) == 4 for run_id in runs))
    await lab.history.read()

    async def tails() -> list[int]:
        return [(await leases(lab, n))[-1].tail for n in range(PARTITIONS)]

    ends = [(await lab.log.span(lab.topics.events, n)).end for n in range(PARTITIONS)]
    while not all(tail >= end - 1 for tail, end in zip(await tails(), ends, strict=True)):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    checked = await lab.check()
    assert set(checked.checkpoints) == set(runs)
    await running.kill()
    read: list[int] = []
    running = await lab.worker(owns=0)
    reader = running.log.reader

    def counted(places: Any, *more: Any) -> Any:
        read.extend(offset for place, offset in places.items() if place.topic == lab.topics.events)
        return reader(places, *more)

    running.log.reader = counted  # type: ignore[method-assign]
    await running.owns(4)
    assert all(offset >= min(ends) - 1 for offset in read)
    await lab.history.send_all([(run_id, resume("x")) for run_id in runs])
    await lab.history.ended(*runs)


@case(app)
async def test_checkpoints_and_commands_in_one_turn_lose_no_event(lab: Lab):
    """A sweep and the events of a run meet in one turn, over and over."""
    running = await lab.worker(sweep_seconds=0.001, checkpoint_age_seconds=0.0, checkpoint_bytes_min=1_000_000)
    runs = [f"r{n}" for n in range(20)]
    await lab.history.send_all([(run_id, start("chatty", 20)) for run_id in runs])
    await lab.history.until(lambda h: all(len(h.bodies(run_id, ev.OpScheduled)) == 21 for run_id in runs))
    await running.stop()
    checked = await lab.check()
    running = await lab.worker()
    restored = {r: hot for p in running.worker.owner.partitions.values() for r, hot in p.runs.items()}
    assert {run_id: hot.run for run_id, hot in restored.items()} == checked.runs
    assert running.told.heard("run_blocked") == []
    await lab.history.send_all([(run_id, resume("x")) for run_id in runs])
    await lab.history.ended(*runs)


@case(app)
@pytest.mark.parametrize(
    "settings", [{"checkpoint_bytes_min": 1}, {"checkpoint_bytes_min": 10**9}, {"live_runs_max": 1}], ids=str
)
async def test_a_thousand_runs_are_restored_as_they_were(lab: Lab, settings: dict[str, int]):
    running = await lab.worker(**settings)
    runs = [f"r{n}" for n in range(500)]
    await lab.history.send_all([(run_id, start("chatty", n % 3)) for n, run_id in enumerate(runs)])
    await lab.history.until(
        lambda h: all(any(b.kind == "interrupt" for b in h.bodies(run_id, ev.OpScheduled)) for run_id in runs)
    )
    await running.kill()
    checked = await lab.check()
    running = await lab.worker()
    restored = {r: hot.run for p in running.worker.owner.partitions.values() for r, hot in p.runs.items()}
    assert restored == checked.runs
    await lab.history.send_all([(run_id, resume("x")) for run_id in runs])
    await lab.history.ended(*runs)
    assert {run.phase for run in (await lab.check()).runs.values()} == {Phase.COMPLETED}


@case(app)
async def test_a_run_that_is_evicted_in_the_turn_that_moves_it_goes_on(lab: Lab):
    await lab.worker(live_runs_max=2)
    runs = [f"r{n}" for n in range(50)]
    await lab.history.send_all([(run_id, start("chatty", 5)) for run_id in runs])
    await lab.history.until(lambda h: all(len(h.bodies(run_id, ev.OpScheduled)) == 6 for run_id in runs))
    await lab.history.send_all([(run_id, resume("x")) for run_id in runs])
    await lab.history.ended(*runs)
    assert all(lab.history.blocked(run_id) is None for run_id in runs)


@case(app, "memory")
async def test_a_large_turn_is_cut_into_several(lab: Lab):
    running = await lab.worker(turn_bytes_max=10_000)
    runs = [f"r{n}" for n in range(200)]
    await lab.history.send_all([(run_id, start("chatty", 1)) for run_id in runs])
    await lab.history.until(lambda h: all(len(h.bodies(run_id, ev.OpScheduled)) == 2 for run_id in runs))
    assert len(running.told.heard("turn")) > 10
