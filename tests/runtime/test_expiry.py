"""Runs that ended long ago: a result for a week, a stub for a month, then nothing, and nothing brings them back."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from streams import App, Context, Fail, TaskContext
from streams.cli import main
from streams.client import Client
from streams.clock import SystemClock
from streams.errors import ResultExpired, RunCancelled, UnknownRun
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.inputs import Due, Noted, Outcome, Recover, Returned
from streams.kernel.run import Phase, Run, is_result_gone, is_stub, is_terminal, stub_of
from streams.log.port import NewRecord, Record, TopicPartition
from streams.runtime import sweep as sweep_module
from streams.runtime.inputs import Happened, Sweep
from streams.runtime.partition import Partition
from streams.runtime.settings import WorkerSettings
from streams.wire.records import decode_checkpoint, decode_effect, encode_checkpoint
from tests.runtime.checker import records_of
from tests.runtime.faults import KINDS, Faults
from tests.runtime.history import resume, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, Running, case

app = App("ends")
parcels = app.effect("parcels", str)
news = app.signal("news", int)
calls: list[str] = []
gate = threading.Event()
DAY = 86_400.0
STUB, NOTHING = 7.5, 37.5
"""Days after the end."""
SWEEPS: dict[str, Any] = {"sweep_seconds": 0.05}


class Clock(SystemClock):
    """The machine's clocks, with wall time moved ahead."""

    def __init__(self) -> None:
        self.days = 0.0

    def now_us(self) -> int:
        return super().now_us() + int(self.days * DAY * 1_000_000)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    gate.clear()


@app.task
async def work(ctx: TaskContext, what: str) -> str:
    calls.append(ctx.idempotency_key)
    return what.upper()


@app.task
def hang(ctx: TaskContext, what: str) -> str:
    calls.append(what)
    if what == "old":
        gate.wait(60)
    return what


@app.workflow(version=1)
async def simple(ctx: Context, what: str) -> str:
    found = await ctx.run(work, what)
    ctx.emit(parcels, found)
    if what == "fail":
        raise Fail("ASKED_TO", "fail")
    if what == "wait":
        await ctx.interrupt("?")
    return found


@app.workflow(version=1)
async def other(ctx: Context, what: str) -> str:
    return "other"


@app.workflow(version=1)
async def hears(ctx: Context, _: None) -> int:
    return await ctx.receive(news)


@app.workflow(version=1)
async def hangs(ctx: Context, what: str) -> str:
    return await ctx.run(hang, what)


# -- what is in memory and in the log --------------------------------------------------------------------------------


def partition_of(running: Running, run_id: str, lab: Lab) -> Partition:
    return running.worker.owner.partitions[lab.history.partition(run_id)]


def in_memory(running: Running, lab: Lab, run_id: str) -> Run | None:
    hot = partition_of(running, run_id, lab).runs.get(run_id)
    return None if hot is None else hot.run


async def as_stub(running: Running, lab: Lab, *run_ids: str) -> None:
    def all_are() -> bool:
        runs = [in_memory(running, lab, run_id) for run_id in run_ids]
        return all(run is not None and is_stub(run) for run in runs)

    await until(all_are, "stubs")


async def last_checkpoint(lab: Lab, run_id: str) -> bytes | None:
    place = TopicPartition(lab.topics.checkpoints, lab.history.partition(run_id))
    values = [record.value for record in await records_of(lab.log, place) if record.key == run_id.encode()]
    return values[-1]


async def end(lab: Lab, run_id: str, ending: str) -> None:
    """Start a run and bring it to this end."""
    await lab.history.start("simple", run_id, {"completed": "x", "failed": "fail"}.get(ending, "wait"))
    if ending == "cancelled":
        await lab.history.seen(run_id, ev.OpScheduled, 2)
        await lab.history.send(run_id, cmd.Cancel(force=True))
    await lab.history.ended(run_id)
    await until(lambda: is_terminal(in_memory(lab.running[-1], lab, run_id) or Run("", "")), "the end to be adopted")


LATE: list[Any] = [
    signal("news", 1),
    resume("x"),
    cmd.Cancel(),
    cmd.Cancel(force=True),
    cmd.Retry(),
    cmd.Skip("1"),
    cmd.Complete("1", b'"forged"'),
    cmd.Reply("1", "e", 1, 1, b'"forged"'),
]
HAPPENED: list[Any] = [
    Outcome("1", 1, b'"late"'),
    Due("1"),
    Due("2"),
    Noted("1", 1, b"1"),
    Returned("1", 1, "x"),
    Recover(),
]


async def deliver_late(lab: Lab, running: Running, run_id: str) -> list[str]:
    """Everything that can come late, each twice; the codes of the refusals."""
    partition = partition_of(running, run_id, lab)
    for item in HAPPENED * 2:
        running.worker.put(Happened(partition, run_id, item))
    requests = [(run_id, request) for request in LATE for _ in range(2)]
    answers = [await lab.history.answered(offset, run_id) for offset in await lab.history.send_all(requests)]
    assert all(isinstance(answer, ev.CommandRejected) for answer in answers), answers
    return sorted({answer.code for answer in answers})


async def result_of(lab: Lab, run_id: str) -> Any:
    async with Client(lab.log, app) as client:
        return await client.result(run_id, timeout=60)


async def all_of(lab: Lab, topic: str) -> list[Record]:
    return [record for n in range(PARTITIONS) for record in await records_of(lab.log, TopicPartition(topic, n))]


# -- the two stages --------------------------------------------------------------------------------------------------


@case(app)
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_f09_a_finished_run_leaves_a_stub_and_late_input_changes_nothing_of_it(lab: Lab, ending: str):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await end(lab, "r", ending)
    before = in_memory(running, lab, "r")
    assert before is not None
    clock.days = 6.5
    swept = len(running.told.heard("turn"))
    await until(lambda: len(running.told.heard("turn")) > swept + PARTITIONS, "a sweep")
    assert in_memory(running, lab, "r") == before  # a week has not gone by
    clock.days = STUB
    if ending != "cancelled":  # which leaves no result, but the code's fingerprint
        await until(lambda: is_result_gone(in_memory(running, lab, "r") or before), "the result to go")
    await as_stub(running, lab, "r")
    data = await last_checkpoint(lab, "r")
    stub = decode_checkpoint(data or b"")
    assert stub == stub_of(before)
    assert len(data or b"") < 160
    for _ in range(2):
        assert await deliver_late(lab, running, "r") == ["RUN_TERMINAL"]
        assert in_memory(running, lab, "r") == stub
        what = {"completed": "x", "failed": "fail"}.get(ending, "wait")
        again, conflict, elsewhere = await lab.history.send_all(
            [("r", start("simple", what)), ("r", start("simple", "no")), ("r", start("other", what))]
        )
        assert (await lab.history.answered(again, "r")).code == "DUPLICATE"
        assert (await lab.history.answered(conflict, "r")).code == "INPUT_CONFLICT"
        assert (await lab.history.answered(elsewhere, "r")).code == "INPUT_CONFLICT"
        # The same of one that has it from the log.
        await running.kill()
        running = await lab.worker(clock=clock, **SWEEPS)
        assert in_memory(running, lab, "r") == stub
    if ending == "cancelled":
        with pytest.raises(RunCancelled):
            await result_of(lab, "r")
    else:
        with pytest.raises(ResultExpired, match=f"run 'r' {ending} on .* not kept any more; `streams history r`"):
            await result_of(lab, "r")
    assert len((await lab.check()).effects) == 1
    assert len(calls) == 1


@case(app)
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_f09_a_run_that_is_forgotten_does_not_come_back_and_its_name_is_free(lab: Lab, ending: str):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await end(lab, "r", ending)
    clock.days = STUB
    await as_stub(running, lab, "r")
    clock.days = NOTHING
    (expired,) = await lab.history.seen("r", ev.RunExpired)
    assert expired.reason == "it ended 37 days ago"
    await until(lambda: in_memory(running, lab, "r") is None, "the run to be forgotten")
    assert await last_checkpoint(lab, "r") is None
    codes = await deliver_late_to_nobody(lab, running, "r")
    assert codes == ["UNKNOWN_RUN"]
    for _ in range(2):
        await running.kill()
        running = await lab.worker(clock=clock, **SWEEPS)
        assert in_memory(running, lab, "r") is None
        async with Client(lab.log, app) as client:
            assert await client.get("r") is None
            with pytest.raises(UnknownRun):
                await client.result("r")
            assert [stored.event.type for stored in await client.history("r") if stored.event.seq][-1] == "run.expired"
    # A new run of the name has another identity, so nothing of it is taken for the old one's.
    await lab.history.start("simple", "r", "x")
    await until(lambda: (in_memory(running, lab, "r") or Run("", "")).phase is Phase.COMPLETED, "the next run")
    assert await result_of(lab, "r") == "X"
    checked = await lab.check()
    assert len({message.effect_id for message in checked.effects}) == len(calls) == 2
    assert len(set(calls)) == 2  # the idempotency keys
    await running.kill()
    running = await lab.worker(clock=clock, **SWEEPS)
    again = in_memory(running, lab, "r")
    assert again is not None
    assert again.identity == checked.runs["r"].identity
    assert again.phase is Phase.COMPLETED


async def deliver_late_to_nobody(lab: Lab, running: Running, run_id: str) -> list[str]:
    """As `deliver_late`, without what may come before a start."""
    partition = partition_of(running, run_id, lab)
    for item in HAPPENED * 2:
        running.worker.put(Happened(partition, run_id, item))
    requests = [
        (run_id, request) for request in LATE if not isinstance(request, (cmd.Signal, cmd.Cancel)) for _ in range(2)
    ]
    answers = [await lab.history.answered(offset, run_id) for offset in await lab.history.send_all(requests)]
    assert in_memory(running, lab, run_id) is None
    return sorted({answer.code for answer in answers})


@case(app, "sqlite")
async def test_the_command_line_says_what_is_left(lab: Lab, capsys: pytest.CaptureFixture[str]):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await end(lab, "r", "completed")

    async def streams(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, [*words, "--log", lab.log.url, "--app", app.name])
        out, err = capsys.readouterr()
        return code, out, err

    async def shown() -> dict[str, Any]:
        found = json.loads((await streams("show", "r", "--json"))[1])
        assert isinstance(found, dict)
        return found

    assert await streams("result", "r") == (0, '"X"\n', "")
    assert not (await shown())["result_expired"]
    clock.days = STUB
    await as_stub(running, lab, "r")
    code, _, err = await streams("result", "r")
    assert code == 1
    assert "run 'r' completed on" in err
    assert "its result is not kept any more; `streams history r`" in err
    found = await shown()
    assert (found["status"], found["result"], found["result_expired"]) == ("completed", None, True)
    assert "not kept any more" in (await streams("show", "r"))[1]
    assert "not kept any more" in (await streams("diagnose", "r"))[1]
    code, out, _ = await streams("start", "simple", "--run-id", "r", "--input", '"x"')
    assert code == 0
    assert "was started before with this input" in out
    code, _, err = await streams("start", "simple", "--run-id", "r", "--input", '"x"', "--wait")
    assert code == 1
    assert "not kept any more" in err
    code, _, err = await streams("start", "simple", "--run-id", "r", "--input", '"y"')
    assert code == 1
    assert "INPUT_CONFLICT" in err
    clock.days = NOTHING
    await lab.history.seen("r", ev.RunExpired)
    await until(lambda: in_memory(running, lab, "r") is None)
    for verb in ("result", "show", "diagnose"):
        code, _, err = await streams(verb, "r")
        assert code == 1
        assert "UNKNOWN_RUN" in err
    code, out, _ = await streams("history", "r")
    assert code == 0
    assert "run completed" in out
    assert "run expired: it ended 37 days ago" in out
    code, out, _ = await streams("start", "simple", "--run-id", "r", "--input", '"y"', "--wait")
    assert (code, out.strip()) == (0, '"Y"')


@case(app)
async def test_f18_a_repeated_signal_is_known_after_the_end_and_in_the_stub(lab: Lab):
    """Its sender, whose answer was lost, must not hear that it came too late."""
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await lab.history.start("hears", "r")
    await lab.history.send("r", signal("news", 7), "one id")
    assert await lab.history.result("r") == 7
    for days in (0.0, STUB):
        clock.days = days
        if days:
            await as_stub(running, lab, "r")
        offset = await lab.history.send("r", signal("news", 7), "one id")
        assert (await lab.history.answered(offset, "r")).code == "DUPLICATE"
        offset = await lab.history.send("r", signal("news", 7), f"another {days}")
        assert (await lab.history.answered(offset, "r")).code == "RUN_TERMINAL"


@case(app)
async def test_f09_a_late_signal_to_a_forgotten_run_is_early_input_and_ends_among_the_dead_letters(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await end(lab, "r", "completed")
    clock.days = NOTHING
    await until(lambda: in_memory(running, lab, "r") is None)
    await lab.history.send("r", signal("news", 1), "late")
    await until(lambda: in_memory(running, lab, "r") is not None)
    pending = in_memory(running, lab, "r")
    assert pending is not None
    assert (pending.phase, pending.seq, pending.result) == (Phase.PENDING, 1, None)
    clock.days = NOTHING + 1.1
    await lab.history.seen("r", ev.RunExpired, 2)
    (letter,) = (await lab.check()).letters
    assert letter.code == "EARLY_INPUT_EXPIRED"
    assert len(calls) == 1


@case(app)
async def test_runs_that_are_not_over_never_expire(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await lab.history.start("simple", "waits", "wait")
    await lab.history.seen("waits", ev.OpScheduled, 2)
    await end(lab, "over", "completed")
    clock.days = 400.0
    await lab.history.seen("over", ev.RunExpired)
    await lab.history.send("waits", resume("x"))
    assert await lab.history.result("waits") == "WAIT"
    assert running.told.heard("run_blocked") == []


@case(app)
async def test_a_run_that_nobody_swept_for_long_is_forgotten_at_once(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock)
    await end(lab, "r", "completed")
    await running.stop()
    clock.days = NOTHING
    running = await lab.worker(clock=clock, **SWEEPS)
    await lab.history.seen("r", ev.RunExpired)
    assert await last_checkpoint(lab, "r") is None


@case(app)
async def test_f15_a_command_in_the_very_turn_that_forgets_its_run_brings_nothing_back(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock)
    await end(lab, "r", "completed")
    clock.days = NOTHING
    partition = partition_of(running, "r", lab)
    async with running.worker.turn_lock:
        await lab.history.send("r", cmd.Signal("news", b"1"))
        await until(lambda: len(running.worker.inbox) == 1, "the command")
        running.worker.put(Sweep(partition))
    await until(lambda: in_memory(running, lab, "r") is None, "the run to be forgotten")
    (rejected,) = await lab.history.seen("r", ev.CommandRejected)
    assert rejected.code == "RUN_TERMINAL"
    assert await last_checkpoint(lab, "r") is None
    await running.stop()
    running = await lab.worker(clock=clock)
    assert in_memory(running, lab, "r") is None


@case(app)
async def test_for_good_is_for_good(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, result_kept_seconds=math.inf, **SWEEPS)
    await end(lab, "r", "completed")
    clock.days = 10_000.0
    turns = len(running.told.heard("turn"))
    await until(lambda: len(running.told.heard("turn")) > turns + 2 * PARTITIONS, "two sweeps")
    assert await result_of(lab, "r") == "X"


def test_a_stub_stays_as_long_as_the_commands_are_kept() -> None:
    settings = WorkerSettings()
    assert (settings.result_kept_seconds, settings.stub_kept_seconds) == (7 * DAY, 30 * DAY)
    assert settings.stub_seconds({"retention.ms": str(7 * 86_400_000)}) == 30 * DAY
    assert settings.stub_seconds({"retention.ms": str(90 * 86_400_000)}) == 90 * DAY
    assert settings.stub_seconds({"retention.ms": "-1"}) == math.inf
    assert settings.stub_seconds({}) == 30 * DAY


@case(app)
async def test_the_retention_of_the_commands_is_that_of_their_topic(lab: Lab):
    running = await lab.worker(stub_kept_seconds=1.0)
    assert running.worker.engine.stub_seconds == 7 * DAY


def test_a_stub_is_small_and_stays_what_it_is() -> None:
    ended = Run("r" * 24, "r" * 24 + "@12345", "fulfil", 3, "c" * 16, Phase.FAILED, 9, 1, 1, 2, 8, input_hash=b"h" * 16)
    full = ended._replace(
        error=ev.Failure("terminal", "X", "y" * 900),
        attributes=(("tenant", "acme"),),
        seen=("a", "b"),
        parent="p",
        size=9,
    )
    assert not is_stub(full)
    stub = stub_of(full)
    assert is_stub(stub)
    assert stub_of(stub) == stub
    assert (stub.phase, stub.seq, stub.identity, stub.input_hash, stub.seen) == (
        Phase.FAILED,
        9,
        full.identity,
        full.input_hash,
        ("a", "b"),
    )
    assert is_result_gone(stub)
    assert not is_result_gone(full)
    assert len(encode_checkpoint(stub)) < 180
    assert not is_stub(Run("r", "r@0", phase=Phase.ACTIVE))
    assert not is_result_gone(Run("r", "r@0", phase=Phase.CANCELLED))


# -- many at once ----------------------------------------------------------------------------------------------------


@case(app)
async def test_many_runs_that_are_due_at_once_take_many_small_turns(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, sweep_records_max=10, sweep_seconds=600.0)
    runs = [f"r{n}" for n in range(300)]
    await lab.history.send_all([(run_id, start("other", "x")) for run_id in runs])
    await ended_and_adopted(running, lab, runs)
    for days, done in ((STUB, as_stubs), (NOTHING, as_forgotten)):
        clock.days = days
        running.told.told.clear()
        partitions = list(running.worker.owner.partitions.values())
        for partition in partitions:
            running.worker.put(Sweep(partition))
        # Somebody comes while it goes on, and does not wait for its end.
        await lab.history.start("simple", f"new{days}", "x")
        await lab.history.ended(f"new{days}")
        await done(running, lab, runs)
        turns = [records for _, _, records, _ in running.told.heard("turn")]
        assert len(turns) >= 30
        assert max(turns) <= 2 * 10 + PARTITIONS + 12
    assert running.told.heard("redo") == []


async def ended_and_adopted(running: Running, lab: Lab, runs: list[str]) -> None:
    await lab.history.ended(*runs)
    await until(lambda: all(is_terminal(in_memory(running, lab, run_id) or Run("", "")) for run_id in runs))
    await until(lambda: not running.worker.inbox and not running.worker.turn_lock.locked(), "rest")


async def as_stubs(running: Running, lab: Lab, runs: list[str]) -> None:
    await as_stub(running, lab, *runs)


async def as_forgotten(running: Running, lab: Lab, runs: list[str]) -> None:
    await until(lambda: all(in_memory(running, lab, run_id) is None for run_id in runs), "all to be forgotten")


@case(app)
async def test_a_sweep_that_finds_nothing_goes_on_without_a_transaction(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep_module, "_LOOKS_MAX", 3)
    clock = Clock()
    running = await lab.worker(clock=clock, sweep_seconds=600.0)
    runs = [f"r{n}" for n in range(40)]
    await lab.history.send_all([(run_id, start("other", "x")) for run_id in runs])
    await ended_and_adopted(running, lab, runs)
    running.told.told.clear()
    partitions = list(running.worker.owner.partitions.values())
    leases = len(await all_of(lab, lab.topics.leases))
    for partition in partitions:
        running.worker.put(Sweep(partition))
    await until(lambda: sum(told[2] for told in running.told.heard("turn")) == PARTITIONS, "a lease each")
    assert len(await all_of(lab, lab.topics.leases)) == leases + PARTITIONS
    clock.days = NOTHING
    for partition in partitions:
        running.worker.put(Sweep(partition))
    await as_forgotten(running, lab, runs)


# -- crashes, aborts, losses -----------------------------------------------------------------------------------------


def strikes_nulls(kind: str, topic: str, wanted: bytes) -> Faults:
    """A fault in the first commits that hold such a record: a null, or the stub."""
    struck: list[int] = []

    def plan(number: int, records: Sequence[NewRecord]) -> str | None:
        hit = any(r.topic == topic and (r.value is None if wanted == b"null" else r.value is not None) for r in records)
        if hit and armed and len(struck) < 2:
            struck.append(number)
            return kind
        return None

    armed: list[bool] = []
    faults = Faults(plan)
    faults.armed = armed  # type: ignore[attr-defined]
    return faults


@case(app)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", ["stub", "null"])
async def test_a_commit_of_an_expiry_that_fails_is_done_again_once(lab: Lab, kind: str, stage: str):
    clock = Clock()
    faults = strikes_nulls(kind, lab.topics.checkpoints, stage.encode())
    running = await lab.worker(clock=clock, faults=faults, **SWEEPS)
    runs = [f"r{n}" for n in range(20)]
    await lab.history.send_all([(run_id, start("other", "x")) for run_id in runs])
    await lab.history.ended(*runs)
    faults.armed.append(True)  # type: ignore[attr-defined]
    clock.days = STUB

    def all_are() -> bool:
        owned = running.owned == set(range(PARTITIONS))
        found = [in_memory(running, lab, run_id) for run_id in runs] if owned else [None]
        return all(run is not None and is_stub(run) for run in found)

    await until(all_are, "stubs")
    clock.days = NOTHING
    await lab.history.until(lambda h: all(len(h.bodies(run_id, ev.RunExpired)) == 1 for run_id in runs))
    assert faults.struck
    await running.kill()
    running = await lab.worker(clock=clock)
    assert all(in_memory(running, lab, run_id) is None for run_id in runs)
    assert (await lab.check()).runs == {}


async def lose_leases(lab: Lab) -> None:
    await lab.log.rewind_group(lab.topics.group, lab.topics.commands, dict.fromkeys(range(PARTITIONS), None))
    await lab.log.append([NewRecord(lab.topics.leases, n, str(n).encode(), None) for n in range(PARTITIONS)])


@case(app)
async def test_f15_expired_runs_do_not_come_back_where_all_events_are_read_again(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    for run_id in ("stub", "gone", "again", "waits", "early"):
        await end(lab, run_id, "completed")
    clock.days = NOTHING
    for run_id in ("gone", "again", "waits", "early", "stub"):
        await lab.history.seen(run_id, ev.RunExpired)
    await until(lambda: in_memory(running, lab, "stub") is None)
    # Later runs of the same names: one that ends, one that waits, one that has ended and is a stub by now.
    await lab.history.send_all([("stub", start("other", "y")), ("waits", start("simple", "wait"))])
    await lab.history.until(lambda h: "other" in str(h.bodies("stub", ev.RunCompleted)))
    clock.days = NOTHING + STUB
    await as_stub(running, lab, "stub")
    await lab.history.start("other", "again", "z")
    await lab.history.until(lambda h: len(h.bodies("again", ev.RunCompleted)) == 2)
    await lab.history.until(lambda h: len(h.bodies("waits", ev.OpScheduled)) == 3)
    kept = {run_id: in_memory(running, lab, run_id) for run_id in ("stub", "again", "waits")}
    assert all(kept.values())
    await running.stop()
    await lose_leases(lab)
    running = await lab.worker(clock=clock, sweep_seconds=600.0)
    assert "leases were lost" in str(running.told.heard("message"))
    assert in_memory(running, lab, "gone") is None
    assert in_memory(running, lab, "early") is None
    for run_id, before in kept.items():
        found = in_memory(running, lab, run_id)
        assert found is not None
        assert before is not None
        assert (found.identity, found.seq, found.phase) == (before.identity, before.seq, before.phase)
    assert running.told.heard("run_blocked") == []
    # What was a stub may show its result again, until the next sweep.
    for partition in running.worker.owner.partitions.values():
        running.worker.put(Sweep(partition))
    await as_stub(running, lab, "stub")
    await lab.history.send("waits", resume("x"))
    await lab.history.until(lambda h: len(h.bodies("waits", ev.RunCompleted)) == 2)
    effects = [
        decode_effect(record.value or b"").effect_id for record in await all_of(lab, lab.topics.effect("parcels"))
    ]
    assert len(effects) == len(set(effects)) == len(calls) == 6
    lab.unchecked = True  # leases are gone


@case(app)
async def test_f15_a_run_that_is_gone_from_the_compacted_topic_is_gone_for_good(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await end(lab, "gone", "completed")
    await end(lab, "stays", "completed")
    clock.days = NOTHING
    await lab.history.seen("gone", ev.RunExpired)
    await lab.history.seen("stays", ev.RunExpired)
    await lab.history.start("other", "stays", "x")
    await lab.history.until(lambda h: len(h.bodies("stays", ev.RunCompleted)) == 2)
    await running.stop()
    await lab.log.compact(lab.topics.checkpoints)
    await lab.log.compact(lab.topics.leases)
    running = await lab.worker(clock=clock)
    assert in_memory(running, lab, "gone") is None
    assert in_memory(running, lab, "stays") is not None
    lab.unchecked = True  # superseded checkpoints are gone


@case(app)
async def test_a_run_expires_after_a_crash_between_its_two_stages(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, **SWEEPS)
    await end(lab, "r", "completed")
    clock.days = STUB
    await as_stub(running, lab, "r")
    await running.kill()
    running = await lab.worker(clock=clock, **SWEEPS)
    clock.days = NOTHING
    await lab.history.seen("r", ev.RunExpired)
    await running.stop()
    await lab.worker(clock=clock)


@case(app)
async def test_f09_a_task_that_outlives_its_run_ends_in_no_later_one(lab: Lab):
    clock = Clock()
    running = await lab.worker(clock=clock, stop_seconds=0.2, **SWEEPS)
    await lab.history.start("hangs", "r", "old")
    await until(lambda: calls == ["old"])
    await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.ended("r")
    clock.days = NOTHING
    await lab.history.seen("r", ev.RunExpired)
    await until(lambda: running.worker.dispatcher.running == 0, "the old attempt to be forgotten")
    await lab.history.start("hangs", "r", "old")  # the same op and attempt
    await until(lambda: calls == ["old", "old"])
    assert running.worker.dispatcher.running == 1
    gate.set()
    await lab.history.until(lambda h: h.bodies("r", ev.RunCompleted))
    await asyncio.sleep(0.05)
    await lab.history.read()
    assert len(lab.history.bodies("r", ev.OpCompleted)) == 1
    assert lab.history.bodies("r", ev.OutcomeLate) == []
