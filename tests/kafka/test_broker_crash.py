"""A broker that is killed and comes back, and ids that it forgets: worker processes go on and are not started anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from streams.dev import Kafka, kill_kafka, read_kafka, start_kafka, stop_kafka
from streams.errors import LogUnavailable
from streams.kernel.run import Phase
from tests.broker import SETTINGS
from tests.runtime.history import start
from tests.system.processes import Process, World, members, world

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(240)]

EXPIRY = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "500",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker of this module alone, which soon forgets ids that are not in use."""
    folder = tmp_path_factory.mktemp("mortal")
    start_kafka(folder, settings=SETTINGS | EXPIRY, tied=True, seconds=110.0)
    yield read_kafka(folder)
    stop_kafka(read_kafka(folder))


def run(folder: Path, kafka: Kafka, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with world(folder, kafka, url=members(kafka, 6000)) as w:
            await scenario(w)

    asyncio.run(inside())


def restart(kafka: Kafka) -> None:
    """Kill -9, and start on the same port with the same data."""
    kill_kafka(read_kafka(kafka.folder))
    start_kafka(kafka.folder, port=kafka.port, tied=True, seconds=110.0)


async def send(w: World, runs: list[str]) -> None:
    while True:
        try:
            await w.history.send_all([(run_id, start("steps", 1)) for run_id in runs])
            return
        except LogUnavailable:
            await asyncio.sleep(0.2)


async def prove(w: World, runs: list[str], *workers: Process) -> None:
    await w.history.ended(*runs)
    for worker in workers:
        assert worker.process.returncode is None, "a worker had to be started anew"
        assert await worker.stop() == 0
    checked = await w.check()
    assert {checked.runs[run_id].phase for run_id in runs} == {Phase.COMPLETED}
    assert {message.run_id for message in checked.effects} == set(runs)
    assert len(checked.effects) == 2 * len(runs)


def test_a_broker_that_is_killed_under_load_and_at_rest_loses_and_doubles_nothing(tmp_path: Path, broker: Kafka):
    """At rest the clients lose their brokers without any call under way, and must find them again all the same."""
    runs = [f"steps{n}" for n in range(220)]

    async def scenario(w: World) -> None:
        workers = await w.worker(), await w.worker()
        await asyncio.gather(*(worker.owns(2) for worker in workers))
        for at in range(0, 100, 10):
            await send(w, runs[at : at + 10])
            await asyncio.sleep(0.05)
        restart(broker)
        for at in range(100, 200, 10):
            await send(w, runs[at : at + 10])
            await asyncio.sleep(0.05)
        await w.history.ended(*runs[:200])
        restart(broker)
        await send(w, runs[200:])
        await prove(w, runs, *workers)

    run(tmp_path, broker, scenario)


def test_f22_a_producer_that_the_broker_has_forgotten_goes_on(tmp_path: Path, broker: Kafka):
    """Idle past the expiry of its transactional id, then a command."""
    runs = [f"steps{n}" for n in range(40)]

    async def scenario(w: World) -> None:
        worker = await w.worker()
        await send(w, runs[:20])
        await w.history.ended(*runs[:20])
        await asyncio.sleep(6.0)
        await send(w, runs[20:])
        await w.history.ended(*runs)
        assert worker.heard("redo") or worker.heard("message"), (
            "the id was not forgotten, so this test has shown nothing"
        )
        await prove(w, runs, worker)

    run(tmp_path, broker, scenario)
