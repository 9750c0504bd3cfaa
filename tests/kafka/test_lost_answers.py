"""Requests and answers that are lost between a client and the broker, above all those that end a transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streams import App, Context, TaskContext
from streams.dev import Kafka, stop_kafka
from streams.errors import CommitAborted, InDoubt, LogUnavailable
from streams.kernel.run import Phase
from streams.log.kafka import open_kafka, patience, transaction
from streams.log.kafka.transaction import State
from streams.log.port import Log
from tests.contract.worlds import World, case, new, values
from tests.kafka import proxy as kinds
from tests.kafka.follower_lab import lab
from tests.kafka.proxy import proxied_address, proxied_broker, proxy
from tests.runtime.history import start, until
from tests.runtime.lab import Running
from tests.system.processes import members, world

pytestmark = pytest.mark.kafka

BEFORE_END = {
    "produce": kinds.PRODUCE,
    "add partitions": kinds.ADD_PARTITIONS,
    "add offsets": kinds.ADD_OFFSETS,
    "offsets": kinds.OFFSETS,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker whose clients may go through a proxy. It looks for transactions that are too old twice a second."""
    found = proxied_broker(
        tmp_path_factory.mktemp("proxied"), **{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    )
    yield found
    stop_kafka(found)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gives up soon what it would try for a minute."""
    for name, seconds in {
        "END_SECONDS": 1.5,
        "SEND_SECONDS": 1.5,
        "ABORT_SECONDS": 1.5,
        "_CALL_SECONDS": 0.7,
    }.items():
        monkeypatch.setattr(transaction, name, seconds)
    monkeypatch.setattr(patience, "HANG_SECONDS", 1.5)


class Through:
    """Logs that are reached through a proxy."""

    settings = "session.timeout.ms=30000&heartbeat.interval.ms=500"

    @pytest.fixture(autouse=True)
    def _broker(self, broker: Kafka, impatient: None):
        self.kafka = broker

    @property
    def url(self) -> str:
        return f"kafka://{proxied_address(self.kafka)}?{self.settings}"

    async def open(self) -> Log:
        return await open_kafka(self.url)


class TestCommits(Through):
    @pytest.mark.parametrize("cut", [True, False], ids=["cut", "held"])
    @pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
    def test_f04_a_commit_without_an_answer_is_in_doubt_and_the_log_tells(self, done: bool, cut: bool):
        @case
        async def scenario(self: TestCommits, world: World) -> None:
            async with proxy(self.kafka) as wire:
                log = await world.log()
                commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
                a, producer = await world.owner(log, commands)
                wire.lose(kinds.END, done=done, client=producer.id, cut=cut)
                with pytest.raises(InDoubt, match="the log knows"):
                    await producer.commit(a.snapshot, [new(events, b"x")], {0: 1})
                assert wire.lost[kinds.END, done] > 0
                with pytest.raises(ValueError, match="in doubt"):
                    await producer.commit(a.snapshot, [new(events, b"x")], {0: 1})
                wire.heal()
                after = await world.producer(log, "after")
                await after.settle([producer.id])
                assert await values(log, events) == ([b"x"] if done else [])
                assert await a.member.committed(0) == (1 if done else None)
                await after.commit(a.snapshot, [new(events, b"y")], {0: 2})
                assert await values(log, events) == ([b"x", b"y"] if done else [b"y"])
                await world.close()

        scenario(self)

    @pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
    def test_f04_what_is_lost_once_the_client_asks_again(self, done: bool):
        @case
        async def scenario(self: TestCommits, world: World) -> None:
            async with proxy(self.kafka) as wire:
                log = await world.log()
                commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
                a, producer = await world.owner(log, commands)
                written = []
                for number, api in enumerate([kinds.END, *BEFORE_END.values()], 1):
                    wire.lose(api, done=done, client=producer.id, every=2)
                    for value in (b"%d-first" % number, b"%d-second" % number):
                        await committed(producer, a, [new(events, value)], number)
                        written.append(value)
                    wire.heal()
                    assert wire.lost[api, done] > 0, api
                assert await values(log, events) == written
                assert await a.member.committed(0) == 5
                await world.close()

        scenario(self)

    @pytest.mark.parametrize("api", BEFORE_END)
    def test_f04_before_the_end_nothing_is_written(self, api: str):
        """Also where the first send is still under way when the transaction is given up."""

        @case
        async def scenario(self: TestCommits, world: World) -> None:
            async with proxy(self.kafka) as wire:
                log = await world.log()
                commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
                a, producer = await world.owner(log, commands)
                wire.lose(BEFORE_END[api], done=True, client=producer.id, cut=False)
                with pytest.raises((CommitAborted, LogUnavailable, InDoubt)) as raised:
                    await producer.commit(a.snapshot, [new(events, b"lost")], {0: 1})
                wire.heal()
                if raised.type is InDoubt:  # the client did not come back
                    former, producer = producer, await world.producer(log, "after")
                    await producer.settle([former.id])
                await committed(producer, a, [new(events, b"once")], 1)
                assert await values(log, events) == [b"once"]
                assert await a.member.committed(0) == 1
                await world.close()

        scenario(self)


class TestHungCalls(Through):
    @case
    async def test_f24_a_call_that_never_returns_does_not_hold_up_the_worker(self, world: World):
        """The client's own time-out of this call is not always kept; what it does later writes nothing."""
        async with proxy(self.kafka):
            log = await world.log()
            commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
            a, producer = await world.owner(log, commands)
            await committed(producer, a, [new(events, b"before")], 1)
            client, back, over = producer._transactor._client, threading.Event(), threading.Event()
            producer._transactor._client = Hung(client, back, over)
            with pytest.raises(InDoubt, match="does not return"):
                await producer.commit(a.snapshot, [new(events, b"lost")], {0: 2})
            await asyncio.wait_for(producer.close(), 1.0)
            back.set()
            assert await asyncio.to_thread(over.wait, 10), "the call came back"
            after = await world.producer(log, "after")
            await after.settle([producer.id])
            await after.commit(a.snapshot, [new(events, b"after")], {0: 2})
            assert await values(log, events) == [b"before", b"after"]
            await world.close()


class Hung:
    """A client whose sending of offsets takes until it is told, and then goes through."""

    def __init__(self, client: Any, back: threading.Event, over: threading.Event) -> None:
        self._client, self._back, self._over = client, back, over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_offsets_to_transaction(self, *what: Any) -> None:
        self._back.wait()
        self._client.send_offsets_to_transaction(*what)
        self._over.set()


class TestTooOld(Through):
    settings = f"{Through.settings}&transaction.timeout.ms=1500"

    def test_f04_a_transaction_that_the_broker_gave_up_on_is_in_doubt_and_was_not_written(self, monkeypatch):
        monkeypatch.setattr(transaction, "END_SECONDS", 30.0)

        @case
        async def scenario(self: TestTooOld, world: World) -> None:
            async with proxy(self.kafka) as wire:
                log = await world.log()
                commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
                a, producer = await world.owner(log, commands)
                wire.lose(kinds.END, done=False, client=producer.id)
                commit = asyncio.create_task(producer.commit(a.snapshot, [new(events, b"x")], {0: 1}))
                await ended(log, events)
                wire.heal()
                with pytest.raises(InDoubt):
                    await commit
                assert producer._transactor.state is State.IN_DOUBT
                assert await values(log, events) == []
                await world.close()

        scenario(self)


async def ended(log: Log, topic: str) -> None:
    """Wait until a transaction has ended there: its mark is in the partition, and is all that is there."""
    while True:
        committed, all_there = await log.span(topic, 0), await log.span(topic, 0, "read_uncommitted")
        if committed.end == all_there.end > 0:
            return
        await asyncio.sleep(0.05)


async def committed(producer, worker, records, offset: int) -> None:
    """Commit for certain."""
    while True:
        try:
            await producer.commit(worker.snapshot, records, {0: offset})
            return
        except (CommitAborted, LogUnavailable):
            await worker.poll(0.1)


def steps_app() -> App:
    app = App(f"lost-{uuid4().hex[:8]}")
    parcels = app.effect("parcels", str)

    @app.task
    async def add(ctx: TaskContext, number: int) -> int:
        return number + 1

    @app.workflow(version=1)
    async def steps(ctx: Context, number: int) -> int:
        for _ in range(3):
            number = await ctx.run(add, number)
            ctx.emit(parcels, f"{ctx.run_id} {number}")
        return number

    return app


@pytest.mark.slow
class TestWorkers(Through):
    """Each command is applied once and each effect published once, whatever has happened to a commit."""

    @pytest.mark.parametrize(("done", "cut"), [(True, True), (False, False)], ids=["done", "not done"])
    def test_f04_a_worker_reads_the_log_to_learn_what_became_of_a_commit(self, done: bool, cut: bool):
        async def scenario() -> None:
            app = steps_app()
            async with proxy(self.kafka) as wire, lab(app, self.url) as found:
                worker = await found.worker()
                runs = [f"run{n}" for n in range(40)]
                await found.history.send_all([(run_id, start("steps", 1)) for run_id in runs[:20]])
                wire.lose(kinds.END, done=done, client=worker.worker.producer.id, cut=cut)
                await found.history.send_all([(run_id, start("steps", 1)) for run_id in runs[20:]])
                await until(lambda: doubts(worker), "a commit in doubt")
                wire.heal()
                await found.history.ended(*runs)
                assert wire.lost[kinds.END, done] > 0
                await worker.stop()
                checked = await found.check()
                assert {checked.runs[run_id].phase for run_id in runs} == {Phase.COMPLETED}
                assert len(checked.effects) == 3 * len(runs)
                assert max(leases[-1].epoch for leases in checked.leases.values()) == 2, "claimed again after the doubt"

        asyncio.run(scenario())

    def test_f04_a_worker_process_gets_through_a_lossy_network(self, tmp_path: Path):
        async def scenario() -> None:
            url = members(self.kafka, 6000).replace(self.kafka.bootstrap, proxied_address(self.kafka))
            async with proxy(self.kafka) as wire, world(tmp_path, self.kafka, url=url) as w:
                worker = await w.worker()
                await worker.owns(4)
                every = {
                    kinds.END: 5,
                    kinds.PRODUCE: 37,
                    kinds.ADD_PARTITIONS: 17,
                    kinds.ADD_OFFSETS: 11,
                    kinds.OFFSETS: 13,
                }
                for api, number in every.items():
                    wire.lose(api, done=True, every=number, client=w.app)
                    wire.lose(api, done=False, every=number + 2, client=w.app)
                runs = [f"steps{n}" for n in range(60)]
                for at in range(0, 60, 5):
                    await w.history.send_all([(run_id, start("steps", 1)) for run_id in runs[at : at + 5]])
                    await asyncio.sleep(0.05)
                await w.history.ended(*runs)
                wire.heal()
                assert await worker.stop() == 0
                checked = await w.check()
                assert {checked.runs[run_id].phase for run_id in runs} == {Phase.COMPLETED}
                assert len(checked.effects) == 120
                assert wire.lost[kinds.END, True], wire.lost
                assert wire.lost[kinds.END, False], wire.lost

        asyncio.run(scenario())


def doubts(worker: Running) -> list[tuple]:
    return [what for what in worker.told.heard("redo") if "the log knows" in what[1]]
