"""F22: the producer dies although nobody replaced it, or two are made at once; on brokers with short times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from streams.dev import Kafka, kill_kafka, start_kafka, stop_kafka
from streams.errors import LogUnavailable
from streams.kernel import bodies as ev
from tests.broker import SETTINGS as BROKER
from tests.kafka.apps import app, gate
from tests.kafka.lab import PARTITIONS, SETTINGS, KafkaLab, hang, kafka_case, kafka_lab, leave_open
from tests.runtime.history import resume, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

SHORT = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "300",
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    gate.clear()


@pytest.fixture(scope="module")
def hasty_kafka(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A broker that forgets producers within seconds."""
    broker = start_kafka(tmp_path_factory.mktemp("hasty") / "kafka", settings=BROKER | SHORT, tied=True, seconds=110.0)
    yield broker
    stop_kafka(broker)


def on(url: str, scenario: Callable[[KafkaLab], Any]) -> None:
    """Run a scenario in a lab on this log and prove the log right."""

    async def run() -> None:
        async with kafka_lab(app, url) as lab:
            await scenario(lab)
            for running in lab.running:
                if not running.task.done():
                    await running.stop()
            await lab.check()

    asyncio.run(run())


@pytest.mark.slow
def test_f22_a_worker_that_idles_past_the_expiry_of_its_id_goes_on(hasty_kafka: Kafka):
    async def scenario(lab: KafkaLab) -> None:
        running = await lab.worker()
        names = lab.runs_of(1, 3)
        ids = [running.worker.producer.id]
        for name in names:
            await asyncio.sleep(5.0)
            await lab.history.start("steps", name, 1)
            await lab.history.ended(name)
            ids.append(running.worker.producer.id)
        assert len(set(ids)) == 4, "the broker forgot nothing, so this test proves nothing"
        assert len(running.told.heard("redo")) <= 2 * len(names), running.told.heard("redo")
        assert not running.task.done()

    on(hasty_kafka.url + SETTINGS, scenario)


@pytest.mark.slow
def test_f22_a_transaction_slower_than_its_time_out_is_done_again(hasty_kafka: Kafka):
    async def scenario(lab: KafkaLab) -> None:
        running = await lab.worker()
        run_id = lab.runs_of(1)[0]
        transactor: Any = running.worker.producer._transactor
        end, slow = transactor._end, []

        def late() -> None:
            import time

            if not slow:
                slow.append(True)
                time.sleep(4.0)
            end()

        transactor._end = late
        await lab.history.start("steps", run_id, 1)
        assert await lab.history.result(run_id) == 4
        assert slow
        assert 1 <= len(running.told.heard("redo")) <= 4, running.told.heard("redo")
        await running.owns(PARTITIONS)

    on(hasty_kafka.url + SETTINGS + "&transaction.timeout.ms=1000", scenario)


@pytest.mark.slow
def test_f22_a_broker_that_restarts_while_a_producer_is_initialised_is_waited_for(own_kafka: Kafka):
    async def scenario(lab: KafkaLab) -> None:
        running = await lab.worker()
        run_id = lab.runs_of(1)[0]
        await lab.history.start("asks", run_id)
        await lab.history.seen(run_id, ev.OpScheduled)
        worker = running.worker
        make, down = worker._new_producer, asyncio.Event()
        tries: list[bool] = []

        async def while_down() -> Any:
            tries.append(True)
            await down.wait()
            return await make()

        worker._new_producer = while_down  # type: ignore[method-assign]
        thief = await lab.log.producer(worker.producer.id)
        await thief.close()
        await lab.history.send(run_id, resume("yes"))
        await until(lambda: tries)
        await asyncio.to_thread(kill_kafka, own_kafka)
        down.set()
        await asyncio.sleep(3.0)
        await asyncio.to_thread(
            lambda: start_kafka(
                own_kafka.folder, port=own_kafka.port, settings=own_kafka.settings, tied=False, seconds=110.0
            )
        )
        with suppress(LogUnavailable):
            await lab.history.read()
        assert await lab.history.result(run_id) == "yes"
        assert not running.task.done()
        assert len(tries) < 20

    on(own_kafka.url + SETTINGS, scenario)


@kafka_case(app)
async def test_f22_two_workers_that_settle_one_dead_owner_at_the_same_moment_both_go_on(lab: KafkaLab):
    first = await lab.worker()
    names = [lab.runs_of(number)[0] for number in range(PARTITIONS)]
    for name in names:
        await lab.history.start("asks", name)
        await lab.history.seen(name, ev.OpScheduled)
    left: list[Any] = []

    async def dies(snapshot: Any, turn: Any) -> list[int]:
        await hang(first.worker.producer, snapshot, turn.records, turn.offsets())  # type: ignore[arg-type]
        left.append(turn)
        await asyncio.sleep(3600)
        return []

    async with first.worker.turn_lock:
        first.worker.commit = dies  # type: ignore[method-assign]
        await lab.history.send_all([(name, resume("yes")) for name in names])
        await until(lambda: len(first.worker.inbox) == PARTITIONS)
    await until(lambda: left)
    assert len(left[0].offsets()) == PARTITIONS
    dead = first.worker.producer.id
    leave_open(first.worker.producer)
    await first.kill()
    both = [await lab.worker(owns=0), await lab.worker(owns=0)]
    await asyncio.gather(*(running.owns(2) for running in both))
    for name in names:
        assert await lab.history.result(name) == "yes"
    assert any(dead in str(running.told.heard("message")) for running in both)
    for running in both:
        assert not running.task.done()


@kafka_case(app)
async def test_f22_producers_made_at_once_under_one_id_leave_one_and_raise_nothing_when_settling(lab: KafkaLab):
    settler = await lab.log.producer(f"{lab.app.name}/settler")
    for n in range(3):
        id = f"{lab.app.name}/dead/{n}"
        await (await lab.log.producer(id)).close()
        await asyncio.gather(*(settler.settle([id]) for _ in range(4)))
