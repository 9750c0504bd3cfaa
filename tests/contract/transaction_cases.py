"""The contract of every log, part two: what one owner's commits promise."""

from __future__ import annotations

import asyncio

import pytest

from streams.errors import Fenced, SendRefused
from streams.log.port import RECORD_BYTES_MAX, GroupSnapshot, NewRecord
from tests.contract.worlds import REFUSED, World, case, new, read_all, values


class Transactions:
    """One owner and its commits."""

    @case
    async def test_a_transaction_covers_several_topics_and_the_offsets(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands", 2), await world.topic(log, "events", 2)
        worker, producer = await world.owner(log, commands, 2)
        records = [new(events, b"e0"), new(events, b"e1", partition=1), new(commands, b"c"), new(events, b"e2")]
        offsets = await producer.commit(worker.snapshot, records, {0: 5, 1: 0})
        assert await values(log, events) == [b"e0", b"e2"]
        assert await values(log, events, [1]) == [b"e1"]
        assert await values(log, commands) == [b"c"]
        found = {(r.topic, r.partition, r.offset): r.value for r in await read_all(log, events, [0, 1])}
        for record, offset in zip(records, offsets, strict=True):
            assert found.get((record.topic, record.partition, offset), b"c") == record.value
        assert await worker.member.committed(0) == 5
        assert await log.group_offsets(worker.group, commands) == {0: 5, 1: 0}

    @case
    async def test_a_transaction_of_offsets_alone(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        worker, producer = await world.owner(log, commands)
        assert await worker.member.committed(0) is None
        assert await producer.commit(worker.snapshot, [], {0: 3}) == []
        assert await producer.commit(worker.snapshot, [], {0: 4}) == []
        assert await worker.member.committed(0) == 4

    @case
    async def test_f03_one_record_that_cannot_be_written_dooms_all(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        compacted = await world.topic(log, "checkpoints", cleanup_policy="compact")
        worker, producer = await world.owner(log, commands)
        await producer.commit(worker.snapshot, [new(events, b"before")], {0: 1})
        doomed = [
            [new(events, b"a"), new(compacted, b"c"), new(events, bytes(RECORD_BYTES_MAX)), new(events, b"d")],
            [new(events, b"a"), new(compacted, b"c"), new(compacted, bytes(RECORD_BYTES_MAX)), new(events, b"d")],
        ]
        for records in doomed:
            with pytest.raises(SendRefused) as refused:
                await producer.commit(worker.snapshot, records, {0: 9})
            assert refused.value.index == 2
        assert await values(log, events) == [b"before"]
        assert await values(log, compacted) == []
        assert await worker.member.committed(0) == 1
        await producer.commit(worker.snapshot, [new(events, b"after")], {0: 2})
        assert await values(log, events) == [b"before", b"after"]

    @case
    async def test_a_commit_without_a_fence_is_a_programming_error(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands", 2), await world.topic(log, "events", 2)
        worker, producer = await world.owner(log, commands, 2)
        unjoined = log.member(world.name("group"), commands, client_id="x").snapshot()
        wrong: list[tuple[GroupSnapshot, list[NewRecord], dict[int, int]]] = [
            (worker.snapshot, [new(events, b"x")], {}),
            (worker.snapshot, [], {}),
            (worker.snapshot, [new(events, b"x")], {0: -1}),
            (worker.snapshot, [new(events, b"x")], {0: -1001}),
            (worker.snapshot, [new(events, b"x", partition=1)], {0: 1}),
            (worker.snapshot, [new(events, b"x")], {0: 1, 2: 1}),
            (unjoined, [new(events, b"x")], {0: 1}),
        ]
        for snapshot, records, offsets in wrong:
            with pytest.raises(ValueError, match=r"fence|owned|offset"):
                await producer.commit(snapshot, records, offsets)
        assert await values(log, events, [0, 1]) == []
        assert await log.group_offsets(worker.group, commands) == {}

    @case
    async def test_f01_a_reader_reaches_the_end_after_refused_transactions(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, producer = await world.owner(log, commands)
        await producer.commit(worker.snapshot, [new(events, b"1"), new(events, b"2")], {0: 1})
        for _ in range(3):
            with pytest.raises(SendRefused):
                await producer.commit(worker.snapshot, [new(events, b"x"), new(events, bytes(10**6))], {0: 2})
        stale = worker.snapshot
        await worker.member.close()
        with pytest.raises(REFUSED):
            await producer.commit(stale, [new(events, b"stale")], {0: 2})
        assert await values(log, events) == [b"1", b"2"]
        await log.append([new(events, b"3")])
        assert await values(log, events) == [b"1", b"2", b"3"]

    @case
    async def test_a_used_transactional_id_fences_the_one_before(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, old = await world.owner(log, commands)
        young = await world.producer(log)
        with pytest.raises(Fenced):
            await old.commit(worker.snapshot, [new(events, b"old")], {0: 1})
        await young.commit(worker.snapshot, [new(events, b"young")], {0: 1})
        assert await values(log, events) == [b"young"]

    @case
    async def test_settling_an_id_fences_whoever_lives_under_it(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        worker, old = await world.owner(log, commands)
        await old.commit(worker.snapshot, [new(events, b"1")], {0: 1})
        other = await world.producer(log, "other")
        await other.settle([old.id])
        with pytest.raises(Fenced):
            await old.commit(worker.snapshot, [new(events, b"2")], {0: 2})
        await other.commit(worker.snapshot, [new(events, b"3")], {0: 3})
        assert await values(log, events) == [b"1", b"3"]
        for producer in (old, other):
            await producer.close()

    @case
    async def test_producers_of_one_owner_commit_side_by_side(self, world: World):
        log = await world.log()
        commands, events = await world.topic(log, "commands", 4), await world.topic(log, "events", 4)
        worker, _ = await world.owner(log, commands, 4)
        producers = [await world.producer(log, f"p{p}") for p in range(4)]

        async def turns(partition: int) -> None:
            for turn in range(5):
                record = new(events, b"%d" % turn, partition=partition)
                await producers[partition].commit(worker.snapshot, [record], {partition: turn})

        await asyncio.gather(*map(turns, range(4)))
        for partition in range(4):
            assert await values(log, events, [partition]) == [b"%d" % turn for turn in range(5)]
