"""The memory log passes the contract, and lets a test interfere at every step of a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from streams.errors import CommitAborted, Fenced, InDoubt, UsageError
from streams.log.memory import End, Hooks, MemoryLog, open_memory
from streams.log.port import GroupSnapshot, Log, TopicSpec
from tests.contract.log_contract import EmbeddedContract
from tests.contract.worlds import Worker, World, case, new, read_all, until, values


class MemoryConfig:
    @pytest.fixture(autouse=True)
    def _name(self):
        self.url = f"memory:{uuid4().hex}"

    async def open(self) -> Log:
        return await open_memory(self.url)

    async def freeze(self, log: MemoryLog, worker: Worker) -> None:
        log.expire(worker.group, worker.topic, worker.client_id)


class TestMemoryLog(MemoryConfig, EmbeddedContract):
    """All cases of the contract."""


class Interfering(Hooks):
    """Hooks that a test sets one by one."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.first = False
        self.delays: dict[str, float] = {}
        self.offsets_late = 0.0
        self.act: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.abort_early = False

    async def before_commit(self, producer: str, snapshot: GroupSnapshot) -> None:
        if self.abort_early:
            raise CommitAborted("the test says so")

    def offsets_first(self, producer: str) -> bool:
        return self.first

    async def between(self, producer: str) -> None:
        if self.act is not None:
            act, self.act = self.act, None
            await act()

    def end(self, producer: str) -> End:
        return self.ends.pop(0) if self.ends else "commit"

    def marker_delay(self, topic: str, partition: int) -> float:
        return self.delays.get(topic, 0.0)

    def offsets_delay(self, group: str) -> float:
        return self.offsets_late


class TestInterference:
    """What only the memory log can show on demand."""

    @pytest.fixture(autouse=True)
    def _log(self):
        self.hooks = Interfering()
        self.first = MemoryLog(hooks=self.hooks, transaction_timeout=0.3)

    async def open(self) -> Log:
        return self.first.share()

    @case
    async def test_f01_an_aborted_transaction_leaves_holes(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        self.hooks.ends = ["abort", "commit", "abort"]
        for n in range(3):
            try:
                await producer.commit(worker.snapshot, [new(events, b"%d" % n)], {0: n})
            except CommitAborted:
                assert n != 1
        assert await values(log, events) == [b"1"]
        assert (await log.span(events, 0)).end == 6
        assert [r.value for r in await read_all(log, events, isolation="read_uncommitted")] == [b"0", b"1", b"2"]
        assert await worker.member.committed(0) == 1

    @case
    async def test_an_early_abort_writes_nothing_at_all(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        self.hooks.abort_early = True
        with pytest.raises(CommitAborted):
            await producer.commit(worker.snapshot, [new(events, b"x")], {0: 1})
        assert (await log.span(events, 0, "read_uncommitted")).end == 0

    @case
    async def test_f04_a_commit_in_doubt_may_have_happened_or_not(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, _ = await world.owner(log, commands)
        self.hooks.ends = ["in_doubt_committed", "in_doubt_aborted"]
        for n in range(2):
            producer = await world.producer(log)
            with pytest.raises(InDoubt):
                await producer.commit(worker.snapshot, [new(events, b"%d" % n)], {0: n})
            with pytest.raises(ValueError, match="in doubt"):
                await producer.commit(worker.snapshot, [], {0: n})
        assert await values(log, events) == [b"0"]
        assert await worker.member.committed(0) == 0

    @case
    async def test_f02_an_open_transaction_holds_readers_and_offsets_until_it_is_settled(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        await producer.commit(worker.snapshot, [new(events, b"0")], {0: 1})
        self.hooks.ends = ["in_doubt_open"]
        with pytest.raises(InDoubt):
            await producer.commit(worker.snapshot, [new(events, b"1")], {0: 2})
        await log.append([new(events, b"2")])
        committed, uncommitted = await log.span(events, 0), await log.span(events, 0, "read_uncommitted")
        assert committed.end < uncommitted.end
        assert [r.value for r in await read_all(log, events)] == [b"0"]
        waiting = asyncio.create_task(worker.member.committed(0))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        other = await world.producer(log, "other")
        await other.settle([producer.id])
        assert await waiting == 1
        assert await values(log, events) == [b"0", b"2"]

    @case
    async def test_an_open_transaction_ends_by_its_time_out(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        self.hooks.ends = ["in_doubt_open"]
        with pytest.raises(InDoubt):
            await producer.commit(worker.snapshot, [new(events, b"1")], {0: 2})
        assert await worker.member.committed(0) is None
        assert await values(log, events) == []

    @case
    async def test_markers_appear_in_each_partition_in_its_own_time(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        fast, slow = await world.topic(log, "fast"), await world.topic(log, "slow")
        worker, producer = await world.owner(log, commands)
        self.hooks.delays = {slow: 0.05}
        self.hooks.offsets_late = 0.1
        await producer.commit(worker.snapshot, [new(fast, b"f"), new(slow, b"s")], {0: 1})
        assert [r.value for r in await read_all(log, fast)] == [b"f"]
        assert await read_all(log, slow) == []
        assert await log.group_offsets(worker.group, commands) == {}
        assert await worker.member.committed(0) == 1
        assert [r.value for r in await read_all(log, slow)] == [b"s"]
        await producer.commit(worker.snapshot, [new(slow, b"t")], {0: 2})
        assert await values(log, slow) == [b"s", b"t"]

    @case
    async def test_offsets_accepted_before_the_take_over_let_late_records_in(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        b = await world.worker(log, commands, "b")
        stable: list[asyncio.Task[int | None]] = []

        async def take_over() -> None:
            log.expire(a.group, commands, "a")
            await until(lambda: b.owned == {0}, b)
            stable.append(asyncio.create_task(b.member.committed(0)))
            await asyncio.sleep(0.02)
            assert not stable[0].done()

        self.hooks.first = True
        self.hooks.act = take_over
        await producer.commit(a.snapshot, [new(events, b"late")], {0: 1})
        assert await stable[0] == 1
        assert await values(log, events) == [b"late"]

    @case
    async def test_records_written_before_a_refused_fence_stay_invisible(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        b = await world.worker(log, commands, "b")

        async def take_over() -> None:
            log.expire(a.group, commands, "a")
            await until(lambda: b.owned == {0}, b)

        self.hooks.act = take_over
        with pytest.raises(Fenced):
            await producer.commit(a.snapshot, [new(events, b"zombie")], {0: 1})
        assert await values(log, events) == []
        assert (await log.span(events, 0)).end == 2

    @case
    async def test_any_rebalance_costs_one_redo(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        old = worker.snapshot
        log.rebalance(worker.group, commands)
        await worker.poll()
        assert worker.snapshot.owned == old.owned
        with pytest.raises(CommitAborted, match="generation"):
            await producer.commit(old, [new(events, b"x")], {0: 1})
        await producer.commit(worker.snapshot, [new(events, b"x")], {0: 1})
        assert await values(log, events) == [b"x"]


class TestHandles:
    def test_named_logs_are_shared_and_nameless_ones_are_not(self):
        async def body() -> None:
            name = f"memory:{uuid4().hex}"
            one, two = await open_memory(name), await open_memory(name)
            world = World(self)
            topic = await world.topic(one, "t")
            assert await two.list_topics() == [topic]
            assert await (await open_memory()).list_topics() == []
            assert one.url == name

        asyncio.run(body())

    def test_the_clock_and_the_topic_ids_are_deterministic(self):
        async def body() -> tuple[str, int]:
            log = MemoryLog(clock=lambda: 1234)
            await log.create_topics([TopicSpec("t", 1, {})])
            await log.append([new("t", b"x")])
            return (await log.describe_topics(["t"]))["t"].id, (await read_all(log, "t"))[0].timestamp

        first, second = asyncio.run(body()), asyncio.run(body())
        assert first == second
        assert first[1] == 1234

    def test_another_scheme_is_refused(self):
        with pytest.raises(UsageError, match="memory:NAME"):
            MemoryLog("sqlite:///x")
