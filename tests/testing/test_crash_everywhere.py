"""`crash_everywhere` passes apps that are right, and finds what is wrong in others, at the point where it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.errors import UsageError
from streams.log.memory.producer import MemoryProducer
from streams.runtime import crash as points
from streams.runtime import owner, restore
from streams.runtime.owner import Owner
from streams.runtime.settings import WorkerSettings
from streams.testing import CrashTestFailed, Report, Scenario, crash_everywhere
from tests.testing import faulty_apps as faulty
from tests.testing import good_apps as good

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run_good(name: str, **options: Any) -> Report:
    options = {"resources": good.Bank, "check": lambda bank: bank.payments} | options
    return crash_everywhere(good.app, good.SCENARIOS[name], **options)


def tight() -> WorkerSettings:
    """Limits so small that everything waits for something."""
    return WorkerSettings(
        partitions=1,
        sweep_seconds=1e8,
        loop_slots=1,
        thread_slots=1,
        live_runs_max=1,
        checkpoint_bytes_min=1,
        turn_inputs_max=1,
        stop_seconds=0.1,
    )


@pytest.mark.parametrize("name", good.SCENARIOS)
def test_no_crash_changes_a_good_app(name: str) -> None:
    report = run_good(name, points_max=120)
    assert report.ok, str(report)
    assert len(report.positions) > 50
    assert not report.parked


def test_a_worker_that_is_stopped_hands_over_what_runs() -> None:
    """Those that run for longer than a stop waits are handed back, and begun anew without using up an attempt."""
    settings = WorkerSettings(partitions=1, sweep_seconds=1e8, stop_seconds=0.1)
    report = run_good("order", settings=settings, only=[f"handover:{number}" for number in range(1, 7)])
    assert report.ok, str(report)
    assert len(report.positions) == 6
    three = WorkerSettings(partitions=3, sweep_seconds=1e8, stop_seconds=0.3, drain_seconds=0.2)
    several = run_good("several", settings=three, only=["handover:1", "handover:2"])
    assert several.ok, str(several)
    again = run_good("fan", settings=tight(), only=["handover:1+handover:3", "handover:1+turn.adopted:3"])
    assert again.ok, str(again)
    assert "handover:1" in run_good("helped").positions
    assert not any(position.startswith("handover") for position in run_good("helped", handovers=False).positions)


def test_two_crashes_in_a_row_change_nothing_either() -> None:
    report = run_good("order", crashes=2, points_max=120)
    assert report.ok, str(report)
    pairs = [position.split("+") for position in report.positions if "+" in position]
    assert len(pairs) == 120
    seconds = {second.partition(":")[0].partition("/")[0] for _, second in pairs}
    assert {"acquire", "turn", "commit"} <= {point.partition(".")[0] for point in seconds}
    assert "120 more" not in str(report)
    assert report.left_out > 1_000


def test_a_worker_dies_at_every_point_that_a_memory_log_has() -> None:
    """Those of a look-up, a settled transaction and a replaced producer come after a first crash."""
    first = run_good("order", crashes=2, points_max=1_000_000, only=["doubt.open:3", "commit.fenced:3"]).positions
    assert first == ("doubt.open:3", "commit.fenced:3")
    seen = {point.partition(":")[0].partition("/")[0] for point in run_good("order").positions}
    seen |= {point.partition(":")[0].partition("/")[0] for point in run_good("piped").positions}
    after_doubt = ["producer.distrusted", "producer.closed", "producer.made", "producer.settled", "producer.replaced"]
    second = [f"doubt.open:3+{point}:1" for point in ("turn.undone", *after_doubt)]
    second += [f"task.returned/transfer:1+{point}/transfer:1" for point in ("task.looking_up", "task.looked_up")]
    second += [f"commit.fenced:3+{point}:1" for point in ("settle.before", "settle.after")]
    second += [f"handover:2+{point}:1" for point in points.POINTS if point.startswith(("release.", "stop."))]
    report = run_good("order", only=second)
    assert report.ok, str(report)
    seen |= {point.partition("+")[2].partition(":")[0].partition("/")[0] for point in report.positions}
    sweeps = {point for point in points.POINTS if point.startswith("sweep.")}
    of_subscribers = {point for point in points.POINTS if point.startswith("effect.")}  # see test_serving.py
    elsewhere = points.LOG_POINTS - {"commit.begun", "commit.produced", "commit.fenced"}
    assert points.POINTS - seen == sweeps | elsewhere | of_subscribers


# -- what is wrong ---------------------------------------------------------------------------------------------------


def start_of(workflow: Any, value: Any = None) -> Callable[[Scenario], Any]:
    async def scenario(s: Scenario) -> None:
        await s.start(workflow, value)

    return scenario


FAULTY: dict[str, tuple[Any, Any, str, str]] = {
    "by_chance": (faulty.by_chance, None, "NON_DETERMINISM", "task.started/step:1"),
    "by_lot": (faulty.by_lot, None, "NON_DETERMINISM", "task.started/step:2"),
    "by_the_clock": (faulty.by_the_clock, None, "NON_DETERMINISM", "turn.adopted:1"),
    "telling": (faulty.telling, None, "'it is done', 'it is done'", "task.waited/send:1"),
    "paying": (faulty.paying, "o-1", "pay/o-1/2", "task.returned/pay:1"),
    "paying_somehow": (faulty.paying_somehow, "o-1", "with key 'pay/o-1/", "turn.input:1"),
    "looking": (faulty.looking, "o-1", "pay/o-1/1", "task.returned/pay_blindly:1"),
    "hasty": (faulty.hasty, 1, "failed (RETRIES_EXHAUSTED", "task.started/frail:1"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_where_it_shows(name: str) -> None:
    workflow, value, words, position = FAULTY[name]
    scenario = start_of(workflow, value)

    def run(**options: Any) -> Report:
        return crash_everywhere(
            faulty.app, scenario, resources=faulty.Provider, check=lambda p: (p.payments, p.mails), **options
        )

    report = run()
    assert not report.ok
    assert words in str(report), str(report)
    assert position in report.failed, str(report)
    again = run(only=position)
    assert again.failed == again.positions == (position,)
    with pytest.raises(CrashTestFailed, match=f"only='{position}'"):
        again.raise_if_failed()


def test_the_world_touched_in_workflow_code_is_found() -> None:
    def fresh() -> list[str]:
        faulty.outside.clear()
        return faulty.outside

    report = crash_everywhere(faulty.app, start_of(faulty.posting), resources=fresh, check=len)
    assert "what the check returned: without a crash 1; with it 2" in str(report)


def test_a_check_that_raises_is_a_finding_and_one_that_is_false_too() -> None:
    def one_payment(provider: faulty.Provider) -> None:
        assert len(provider.payments) == 1, f"paid {len(provider.payments)} times"

    for check, words in ((one_payment, "AssertionError: paid 2 times"), (lambda p: len(p.payments) == 1, "False")):
        scenario = start_of(faulty.paying, "o-1")
        report = crash_everywhere(
            faulty.app, scenario, resources=faulty.Provider, check=check, only="task.returned/pay:1"
        )
        assert words in str(report)


def test_what_needs_a_person_is_told_and_is_no_fault() -> None:
    def check(provider: faulty.Provider) -> None:
        assert len(provider.payments) == 1

    report = crash_everywhere(faulty.app, faulty.asking_scenario, resources=faulty.Provider, check=check)
    assert report.ok, str(report)
    assert {(parked.run_id, parked.code) for parked in report.parked} == {("run-1", "OUTCOME_UNKNOWN")}
    assert "task.returned/once:1" in {parked.position for parked in report.parked}
    assert "waits for a person" in str(report)


def test_a_scenario_can_be_the_person() -> None:
    def paid_once(provider: faulty.Provider) -> int:
        return len(provider.payments)

    report = crash_everywhere(faulty.app, faulty.mending_scenario, resources=faulty.Provider, check=paid_once)
    assert report.ok, str(report)
    assert not report.parked


# -- how it is asked -------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_report() -> None:
    told: list[tuple[int, int]] = []
    first = run_good("fan", points_max=30, seed=7, progress=lambda done, total: told.append((done, total)))
    assert first == run_good("fan", points_max=30, seed=7)
    assert first.positions != run_good("fan", points_max=30, seed=8).positions
    assert told == [(number, 30) for number in range(1, 31)]
    assert (len(first.positions), first.executions) == (30, 31)
    assert f"({first.left_out:,} more were left out)" in str(first)
    assert len(run_good("fan", doubts=False).positions) < 30 + first.left_out


def test_several_partitions_and_small_limits() -> None:
    settings = WorkerSettings(partitions=3, loop_slots=1, thread_slots=1, live_runs_max=1, checkpoint_bytes_min=1)
    report = run_good("several", settings=settings, points_max=40)
    assert report.ok, str(report)


def test_the_lifespan_of_the_app_is_entered_by_each_worker() -> None:
    from contextlib import asynccontextmanager

    entered: list[str] = []

    @asynccontextmanager
    async def lifespan(app: App):
        entered.append(app.name)
        yield "open"

    app = App("alive", lifespan=lifespan)

    @app.task
    async def look(ctx: TaskContext) -> str:
        return str(ctx.resources)

    @app.workflow(version=1)
    async def looking(ctx: Context, _: None) -> str:
        return await ctx.run(look)

    async def scenario(s: Scenario) -> None:
        assert await s.result(await s.start(looking, None)) == "open"

    assert crash_everywhere(app, scenario, only="turn.input:1").ok
    assert entered == ["alive"] * 3


def test_times_in_results_differ_unless_they_are_taken_out() -> None:
    app = App("timely")

    @app.workflow(version=1)
    async def timely(ctx: Context, _: None) -> dict[str, Any]:
        await ctx.sleep(1)
        return {"at": ctx.now(), "number": 1}

    scenario = start_of(timely)
    position = "commit.fenced:2"  # the start is decided anew once the open transaction is ended, a second later
    assert "the result" in {finding.what for finding in crash_everywhere(app, scenario, only=position).findings}
    assert crash_everywhere(app, scenario, only=position, normal=lambda value: value and value["number"]).ok


@pytest.mark.parametrize(
    ("only", "words"),
    [("commit.after", "only='commit.after': write POINT:N"), ("a b:1", "write POINT:N"), ("turn.input:0", "POINT:N")],
)
def test_only_is_a_position(only: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_good("order", only=only)


def test_a_position_that_is_not_passed_is_refused_or_after_a_crash_a_finding() -> None:
    with pytest.raises(UsageError, match=r"does not pass task\.retuned/pay:1; it does pass task\.returned/pay:1, "):
        run_good("order", only="task.retuned/pay:1")
    report = run_good("order", only="turn.input:1+turn.input:999")
    assert "position turn.input:999: without a crash it is passed; with it it was not passed" in str(report)


def test_what_is_wrong_without_a_crash_is_raised() -> None:
    async def wrong(s: Scenario) -> None:
        assert await s.ended(await s.start(good.helped, 1)) == "failed"

    async def waiting_in_vain(s: Scenario) -> None:
        await s.waiting(await s.start(good.helped, 1), "approval")

    async def nothing(s: Scenario) -> None:
        await s.sleep(1)

    with pytest.raises(AssertionError):
        crash_everywhere(good.app, wrong)
    with pytest.raises(UsageError, match="waits in vain for run-1 to wait for 'approval'\n  run-1 is completed"):
        crash_everywhere(good.app, waiting_in_vain)
    with pytest.raises(UsageError, match="has started no run"):
        crash_everywhere(good.app, nothing)
    with pytest.raises(UsageError, match="the check returned False without any crash"):
        run_good("order", check=lambda _: False)


def test_it_is_not_called_in_a_coroutine() -> None:
    async def test() -> None:
        run_good("order")

    with pytest.raises(UsageError, match="call it from a plain function"):
        asyncio.run(test())


def test_the_hook_of_the_process_is_free_again() -> None:
    run_good("order", only="turn.input:1")
    assert points._hooks == []


def test_what_the_check_returns_is_judged_before_dead_tasks_are_cleaned_up() -> None:
    app = App("tidy")

    @app.task
    async def tidy(ctx: TaskContext) -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ctx.resources.append("cleaned up")

    @app.workflow(version=1)
    async def work(ctx: Context, _: None) -> None:
        await ctx.run(tidy)

    report = crash_everywhere(app, start_of(work), resources=list, check=lambda told: told, only="task.waited/tidy:1")
    assert report.ok, str(report)


# -- faults of the engine, planted -----------------------------------------------------------------------------------


def test_it_finds_unfinished_ops_that_are_not_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "recover", lambda *_: None)
    report = run_good("order", points_max=60)
    assert "it waits in vain for the end of run-1" in str(report)


def test_it_finds_events_after_the_checkpoints_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> restore.Found:
        return restore.Found(0, 0, [])

    monkeypatch.setattr(restore, "_read_events", nothing)
    assert len(run_good("order", points_max=60).failed) > 20


def test_it_finds_old_memory_that_is_carried_on_with_after_a_doubtful_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_: Owner) -> None:
        return

    monkeypatch.setattr(Owner, "all_again", nothing)
    report = run_good("order", only=[f"doubt.committed:{number}" for number in range(2, 7)])
    assert report.failed == report.positions, str(report)
    assert "does not follow on" in str(report)


def test_it_finds_a_record_of_the_outbox_outside_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MemoryProducer.commit

    async def leaking(self: MemoryProducer, snapshot: Any, records: Any, offsets: Any) -> list[int]:
        effects = [record for record in records if ".effects." in record.topic]
        leaked = dict(zip(effects, self._store.write(effects, None), strict=True))
        others = [record for record in records if record not in effects]
        written = dict(zip(others, await commit(self, snapshot, others, offsets), strict=True))
        return [(leaked | written)[record] for record in records]

    monkeypatch.setattr(MemoryProducer, "commit", leaking)
    report = run_good("order", only=["commit.begun:7", "commit.fenced:7", "commit.before:6"])
    assert report.failed == ("commit.begun:7", "commit.fenced:7"), str(report)
    assert "effect 2: without a crash missing" in str(report)


def test_a_worker_that_cannot_start_is_raised() -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(_: App):
        raise RuntimeError("no database")
        yield

    app = App("broken", lifespan=lifespan)

    @app.workflow(version=1)
    async def idle(ctx: Context, _: None) -> None:
        await ctx.sleep(1)

    with pytest.raises(RuntimeError, match="no database"):
        crash_everywhere(app, start_of(idle))


def test_what_a_callback_of_a_task_raises_is_raised_without_a_crash() -> None:
    app = App("calling")

    @app.task
    async def late(ctx: TaskContext) -> None:
        def fail() -> None:
            raise RuntimeError("in a callback")

        asyncio.get_running_loop().call_later(0.1, fail)

    @app.workflow(version=1)
    async def calling(ctx: Context, _: None) -> None:
        await ctx.run(late)
        await ctx.sleep(1)

    with pytest.raises(RuntimeError, match="in a callback"):
        crash_everywhere(app, start_of(calling))


def test_tasks_may_use_all_of_asyncio() -> None:
    app = App("busy")

    @app.task
    async def busy(ctx: TaskContext, count: int) -> list[int]:
        async def one(number: int) -> int:
            await asyncio.sleep(0.1 * number)
            return number

        async with asyncio.TaskGroup() as group:
            found = [group.create_task(one(number)) for number in range(count)]
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(60)
        except TimeoutError:
            found.append(asyncio.ensure_future(one(count)))
        return [*await asyncio.gather(*found), await asyncio.to_thread(abs, -7)]

    @app.workflow(version=1)
    async def working(ctx: Context, count: int) -> list[int]:
        return await ctx.run(busy, count)

    async def scenario(s: Scenario) -> None:
        assert await s.result(await s.start(working, 3)) == [0, 1, 2, 3, 7]

    report = crash_everywhere(app, scenario, doubts=False)
    assert report.ok, str(report)
    assert "task.waited/busy:3" in report.positions
