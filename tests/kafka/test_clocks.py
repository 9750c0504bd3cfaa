"""A worker's clock against the broker's: what is off by a little is told, and by more is not served."""

from __future__ import annotations

import pytest

from streams.clock import SystemClock
from streams.kernel import bodies as ev
from tests.kafka.topic_lab import Operator, running
from tests.runtime.history import resume, until
from tests.runtime.lab import PARTITIONS, Lab, Running

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

HOUR_SECONDS = 3600


class Clock(SystemClock):
    """The machine's clocks, with wall time moved by some seconds."""

    def __init__(self, seconds: float = 0) -> None:
        self.seconds = seconds

    def now_us(self) -> int:
        return super().now_us() + int(self.seconds * 1e6)


GUARDED = {"clock_refuse_seconds": 60.0, "retry_refused_seconds": 0.5}


def refusals(worker: Running) -> list[str]:
    return [told[4] for told in worker.told.heard("partition") if told[2] == "refused"]


@running
async def test_a_clock_that_is_off_by_seconds_is_told_once_and_served(lab: Lab, operator: Operator):
    worker = await lab.worker(clock=Clock(-20), **GUARDED)
    told = [text for _, text in worker.told.heard("message") if "clock" in text]
    assert len(told) == 1
    assert "the clock of this worker is 20 s behind the log's" in told[0]
    await lab.history.start("simple", "r", "a")
    assert await lab.history.result("r") == "A"


@running
async def test_a_right_clock_is_not_spoken_of(lab: Lab, operator: Operator):
    worker = await lab.worker(clock=Clock(0), **GUARDED)
    assert not [text for _, text in worker.told.heard("message") if "clock" in text]


@running
async def test_a_clock_that_is_wrong_is_refused_and_served_when_it_is_set_right(lab: Lab, operator: Operator):
    clock = Clock(90)
    worker = await lab.worker(clock=clock, owns=0, **GUARDED)
    await until(lambda: len(refusals(worker)) > PARTITIONS, "a second try")
    assert "the clock of this worker is 90 s ahead of the log's" in refusals(worker)[0]
    assert "over 60 s nothing is served" in refusals(worker)[0]
    await lab.history.start("simple", "r", "a")
    clock.seconds = 0
    assert await lab.history.result("r") == "A"


@running
async def test_a_clock_that_goes_wrong_under_a_worker_is_found_by_the_sweep(lab: Lab, operator: Operator):
    clock = Clock()
    worker = await lab.worker(clock=clock, sweep_seconds=0.3, **GUARDED)
    await lab.history.start("asks", "r", "a")
    await lab.history.seen("r", ev.OpScheduled, 2)
    clock.seconds = -HOUR_SECONDS
    await until(lambda: {told[1] for told in worker.told.heard("partition") if told[2] == "refused"} == {0, 1, 2, 3})
    assert worker.owned == set()
    assert "3,600 s behind the log's" in refusals(worker)[0]
    clock.seconds = 0
    await lab.history.send("r", resume("b"))
    assert await lab.history.result("r") == "A b"


@pytest.mark.parametrize("hours", [-1, 1])
def test_f20_an_owner_whose_clock_is_an_hour_off_touches_no_run(kafka, hours: int):
    @running
    async def scenario(lab: Lab, operator: Operator):
        first = await lab.worker()
        await lab.history.start("asks", "r", "a")
        await lab.history.start("naps", "n", 600.0)
        await lab.history.seen("r", ev.OpScheduled, 2)
        await lab.history.seen("n", ev.OpScheduled)
        await first.stop()
        await lab.history.read()
        before = {run_id: list(events) for run_id, events in lab.history.events.items()}
        wrong = await lab.worker(clock=Clock(hours * HOUR_SECONDS), owns=0, **GUARDED)
        await until(lambda: len(refusals(wrong)) >= 2 * PARTITIONS, "refusals")
        await lab.history.send("r", resume("b"))
        await lab.history.read()
        assert {run_id: list(events) for run_id, events in lab.history.events.items()} == before
        await wrong.stop()
        await lab.worker()
        assert await lab.history.result("r") == "A b"
        assert lab.history.end("n") is None, "the nap was shortened by the wrong clock"
        ends = [event.at for event in lab.history.events["r"]]
        assert ends == sorted(ends)

    scenario(kafka)
