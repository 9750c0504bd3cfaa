"""Kill -9 of a real worker at every named crash point, in the middle of many runs; another one takes over."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from streams.dev import Kafka
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import Phase
from streams.runtime import crash
from streams.runtime.restore import owner_ids
from tests.effects.real.test_subscriber_kills import DEATHS, LOOKS
from tests.runtime.history import History, resume, start
from tests.runtime.history import signal as news
from tests.system.processes import World, world

COUNTS = {
    "turn.taken": (1, 12),
    "turn.decided": (1, 9),
    "commit.before": (1, 15),
    "commit.after": (1, 11),
    "turn.adopted": (1, 13),
    "task.started": (1, 25),
    "task.returned": (1, 25),
    "task.returned/plain": (8,),
    "acquire.claimed": (1, 3),
    "acquire.restored": (1, 4),
    "release.before": (1,),
}
"""At which passes of a point the worker dies: the first, and one in the middle of things."""

KAFKA_COUNTS = {
    "commit.before": 15,
    "commit.begun": 14,
    "commit.produced": 13,
    "commit.flushed": 12,
    "commit.fenced": 9,
    "commit.ended": 10,
    "commit.after": 11,
}
"""The same for each part of a transaction of Kafka. What is not here dies in the chain of `CHAIN`."""

CHAIN = (
    *("commit.begun:1", "commit.produced:2", "commit.flushed:3"),  # claims
    *("commit.fenced:1", "settle.before:1", "settle.after:1"),  # the next one has to end what this one left open
    *("commit.ended:1", "acquire.claimed:2", "acquire.restored:3", "turn.taken:4", "turn.decided:2", "turn.adopted:2"),
    *("task.started:5", "task.returned:9", "release.before:1"),
)
"""Crash points at which one worker after the other dies on Kafka."""

CHAINS: dict[str, tuple[str, ...]] = {
    "acquire": (
        *("acquire.stable:2", "acquire.captured:3", "acquire.visible:1", "acquire.lease_read:4", "acquire.claiming:2"),
        *("acquire.checkpoints_read:3", "acquire.events_read:2", "acquire.recovered:2", "acquire.opened:3"),
    ),
    "turn": (
        *("turn.input:9", "turn.effect:2", "turn.finished:4", "turn.states_adopted:3", "turn.dispatched:2"),
        *("turn.timers_armed:2", "task.told:3"),
    ),
    "commit": ("commit.begun:6", "commit.checked:7", "commit.written:8", "commit.ended:6"),
    "release": (
        *("release.taken:1", "release.handed_back:1", "release.committing:1", "release.committed:1"),
        *("release.closed:1", "stop.drained:1", "stop.left:1"),
    ),
}
"""The same on a sqlite log, in the middle of all runs; `release` and `stop` are passed by who is asked to stop."""

REBUILT = ("turn.undone", "producer.distrusted", "producer.closed", "producer.made", "producer.settled")
REBUILT = (*REBUILT, "producer.replaced")
"""Points of a worker whose producer was fenced."""

LOOKED_UP = ("task.looking_up/order", "task.looked_up/order")
EARLY = "task.begun_early/twice"
"""Points of a worker that meets an attempt which may have done its work."""

SWEPT = (
    "sweep.begun:3",
    "sweep.checkpointed:2",
    "sweep.done:5",
    "sweep.letter:2",
    "sweep.expired:2",
    "sweep.stripped:2",
)
"""Points of a sweep: checkpoints of what is old, input of runs that nobody starts, results that nobody reads."""

RUNS: dict[str, tuple[str, object, object]] = {
    **{f"steps{i}": ("steps", i, (i + 3) * 2) for i in range(8)},
    **{f"fan{i}": ("fan", 5, [0, 2, 4, 4, 8]) for i in range(3)},
    **{f"sleeper{i}": ("sleeper", 0.05 * i, 3) for i in range(5)},
    **{f"asker{i}": ("asker", i, [10, 11, 20]) for i in range(5)},
    **{f"listener{i}": ("listener", 3, [1, 2, 3]) for i in range(4)},
    **{f"story{i}": ("story", {}, None) for i in range(3)},
}
CANCELLED = [f"cancelled{i}" for i in range(3)]


async def drive(history: History) -> None:
    """What the outside world asks of the runs, while workers die."""
    await history.send_all([(f"listener{i}", news("news", 1)) for i in range(4)])
    await history.send_all([(run_id, start(workflow, value)) for run_id, (workflow, value, _) in RUNS.items()])
    await history.send_all([(run_id, start("cancelled", 7)) for run_id in CANCELLED])
    await history.send_all([(f"listener{i}", news("news", number)) for i in range(4) for number in (2, 3)])
    await asyncio.gather(*(answer(history, f"asker{i}") for i in range(5)), *(call_off(history, r) for r in CANCELLED))


async def answer(history: History, run_id: str) -> None:
    for key, value, count in (("first", 10, 1), ("second", 20, 2)):
        await history.until(lambda h, count=count: len(asked(h, run_id)) >= count, f"question {key} of {run_id}")
        await history.send(run_id, resume(value, key))


def asked(history: History, run_id: str) -> list[ev.OpScheduled]:
    return [body for body in history.bodies(run_id, ev.OpScheduled) if body.kind == "interrupt"]


async def call_off(history: History, run_id: str) -> None:
    await history.until(lambda h: asked(h, run_id), f"the wait of {run_id}")
    await history.send(run_id, cmd.Cancel())


async def prove(world: World) -> None:
    """Everything has come to its right end, and the outside has seen all work at least once."""
    checked = await world.check()
    for run_id, (_, _, result) in RUNS.items():
        run = checked.runs[run_id]
        assert run.phase is Phase.COMPLETED, (run_id, run)
        if result is not None:
            assert await world.history.result(run_id) == result
    for run_id in CANCELLED:
        assert checked.runs[run_id].phase is Phase.CANCELLED
    effects = {message.run_id for message in checked.effects}
    assert effects == {*RUNS, *CANCELLED}
    assert len(checked.effects) == len(RUNS) + len(CANCELLED) + 8
    done = dict(world.outside("SELECT run, count(DISTINCT key) FROM attempts GROUP BY run"))
    wanted = {"steps": 4, "fan": 5, "sleeper": 1, "asker": 1, "story": 3, "cancelled": 1}
    for run_id in (*RUNS, *CANCELLED):
        assert done.get(run_id, 0) == wanted.get(run_id.rstrip("0123456789"), 0), run_id


def test_every_point_has_its_case() -> None:
    chains = [point for chain in CHAINS.values() for point in chain]
    places = [*COUNTS, *chains, *REBUILT, *LOOKED_UP, EARLY, *SWEPT]
    on_sqlite = {place.partition(":")[0].partition("/")[0] for place in places}
    on_kafka = {place.partition(":")[0] for place in CHAIN} | set(KAFKA_COUNTS)
    of_subscribers = {*(point for point in DEATHS.values() if point), *LOOKS}
    assert all(point.startswith("effect.") for point in of_subscribers)
    assert on_sqlite | on_kafka | of_subscribers == crash.POINTS
    assert on_sqlite & crash.LOG_POINTS == crash.SQLITE_POINTS
    assert on_kafka & crash.LOG_POINTS == crash.KAFKA_POINTS
    assert on_kafka - on_sqlite == {*(crash.KAFKA_POINTS - crash.SQLITE_POINTS), "settle.before", "settle.after"}


async def die_and_go_on(w: World, point: str) -> None:
    """A worker dies at a point in the middle of all runs, another one brings them to their end."""
    first = await w.worker(point, checkpoint_bytes_min=1000)
    driving = asyncio.create_task(drive(w.history))
    if point.startswith("release.before"):
        await first.owns(4)
        await w.history.seen("steps0", ev.OpCompleted)
        first.signal(signal.SIGTERM)
    assert await first.gone() == -signal.SIGKILL
    second = await w.worker(checkpoint_bytes_min=1000)
    await driving
    await w.history.ended(*RUNS, *CANCELLED)
    assert await second.stop() == 0
    await prove(w)
    running = {line[1] for line in second.heard("partition") if line[2] == "running"}
    assert running == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("point", COUNTS)
def test_a_worker_killed_at_a_crash_point_loses_and_doubles_nothing(tmp_path: Path, point: str):
    async def scenario(count: int) -> None:
        folder = tmp_path / str(count)
        folder.mkdir()
        async with world(folder) as w:
            await die_and_go_on(w, f"{point}:{count}")

    async def at_once() -> None:
        await asyncio.gather(*(scenario(count) for count in COUNTS[point]))

    asyncio.run(at_once())


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("point", KAFKA_COUNTS)
def test_f02_a_worker_killed_in_a_transaction_of_kafka_loses_and_doubles_nothing(
    tmp_path: Path, kafka: Kafka, point: str
):
    async def scenario() -> None:
        async with world(tmp_path, kafka) as w:
            await die_and_go_on(w, f"{point}:{KAFKA_COUNTS[point]}")

    asyncio.run(scenario())


async def die_one_after_another(w: World, points: tuple[str, ...]) -> None:
    """Workers die at these points, each in its place; the last one brings all runs to their end."""
    driving = asyncio.create_task(drive(w.history))
    for point in points:
        worker = await w.worker(point, checkpoint_bytes_min=1000)
        if point.startswith(("release.", "stop.")):
            await worker.owns(4)
            worker.signal(signal.SIGTERM)
        assert await worker.gone() == -signal.SIGKILL, point
    last = await w.worker(checkpoint_bytes_min=1000)
    await last.owns(4)
    await driving
    await w.history.ended(*RUNS, *CANCELLED)
    assert await last.stop() == 0
    await prove(w)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_chains_of_workers_that_die_at_every_other_point_on_sqlite(tmp_path: Path):
    async def scenario(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        async with world(folder) as w:
            await die_one_after_another(w, CHAINS[name])

    async def at_once() -> None:
        await asyncio.gather(*map(scenario, CHAINS))

    asyncio.run(at_once())


@pytest.mark.slow
def test_workers_that_die_while_they_replace_a_fenced_producer(tmp_path: Path):
    async def scenario() -> None:
        async with world(tmp_path) as w:
            for count, point in enumerate(REBUILT):
                worker = await w.worker(point)
                await worker.owns(4)
                for id in await owner_ids(w.log, w.history.topics, w.history.partition(f"steps{count}")):
                    await w.log.producer(id)  # as a successor does that takes the worker for dead
                await w.history.start("steps", f"steps{count}", count)
                assert await worker.gone() == -signal.SIGKILL, point
            last = await w.worker()
            await last.owns(4)
            for count in range(len(REBUILT)):
                assert await w.history.result(f"steps{count}") == (count + 3) * 2
            assert await last.stop() == 0
            checked = await w.check()
            assert len(checked.effects) == 2 * len(REBUILT)

    asyncio.run(scenario())


@pytest.mark.slow
def test_workers_that_die_around_the_look_up_of_what_may_have_happened(tmp_path: Path):
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.history.start("uncertain", "uncertain", "found")
            for point in ("task.returned/order", *LOOKED_UP):
                assert await (await w.worker(point)).gone() == -signal.SIGKILL, point
            last = await w.worker()
            await last.owns(4)
            assert await w.history.result("uncertain") == "made by attempt 1"
            assert await last.stop() == 0
            await w.check()
            assert len(w.attempts("uncertain", "order")) == 1
            assert len(w.attempts("uncertain", "find")) == 2

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_worker_that_dies_with_an_attempt_whose_start_is_not_durable(tmp_path: Path):
    async def scenario() -> None:
        async with world(tmp_path) as w:
            worker = await w.worker(EARLY)
            await worker.owns(4)
            await w.history.start("early", "early", 5)
            assert await worker.gone() == -signal.SIGKILL
            last = await w.worker()
            await last.owns(4)
            assert await w.history.result("early") == 20
            assert await last.stop() == 0
            await w.check()
            assert len(w.attempts("early", "twice")) == 2

    asyncio.run(scenario())


@pytest.mark.slow
def test_workers_that_die_in_the_middle_of_sweeps(tmp_path: Path):
    sweeps = {"sweep_seconds": 0.1, "checkpoint_age_seconds": 0.1, "early_input_seconds": 0.4}

    async def scenario() -> None:
        async with world(tmp_path) as w:
            early = [f"early{number}" for number in range(8)]
            steps = [f"steps{number}" for number in range(8)]
            await w.history.send_all([(f"asker{number}", start("asker", number)) for number in range(8)])
            for point in SWEPT:
                await w.history.send_all([(run_id, news("news", 1)) for run_id in early])
                await w.history.send_all([(run_id, start("steps", 1)) for run_id in steps])
                # A result that nobody keeps, where that is what is swept.
                kept = {"result_kept_seconds": 0.3} if point.startswith("sweep.stripped") else {}
                assert await (await w.worker(point, **sweeps, **kept)).gone() == -signal.SIGKILL, point
            last = await w.worker(**sweeps, result_kept_seconds=0.3)
            await last.owns(4)
            for number in range(8):
                await answer(w.history, f"asker{number}")
                assert await w.history.result(f"asker{number}") == [10, 11, 20]
                assert await w.history.result(f"steps{number}") == 8
            await w.history.until(lambda h: all(h.bodies(run_id, ev.RunExpired) for run_id in early), "what expires")
            assert await last.stop() == 0
            checked = await w.check()
            assert len(checked.effects) == 8 + 2 * 8

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_f02_a_chain_of_workers_that_die_at_every_other_point_on_kafka(tmp_path: Path, kafka: Kafka):
    async def inside() -> None:
        async with world(tmp_path, kafka) as w:
            await die_one_after_another(w, CHAIN)

    asyncio.run(inside())
