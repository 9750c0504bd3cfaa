"""The contract of every log, part three: membership, hand-over, fencing, delivery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest

from streams.errors import CommitAborted, Fenced, LogDamaged, LogUnavailable
from streams.log.port import GroupSnapshot, Log
from tests.contract.worlds import HANG_SECONDS, REFUSED, Worker, World, case, new, settled, until, values


class Groups:
    """Membership, ownership, delivery."""

    @case
    async def test_calls_before_joining_and_after_closing_are_errors(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        worker = Worker(log, world.name("group"), commands, "a")
        with pytest.raises(ValueError, match="join"):
            await worker.poll()
        await worker.member.join(worker)
        with pytest.raises(ValueError, match="joined already"):
            await worker.member.join(worker)
        await worker.member.close()
        await worker.member.close()
        with pytest.raises(ValueError, match="close"):
            await worker.poll()

    @case
    async def test_a_new_partition_is_paused_until_it_is_resumed(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands", 2)
        first = await log.append([new(commands, b"%d" % n) for n in range(4)])
        worker = await world.worker(log, commands)
        await until(lambda: worker.owned == {0, 1}, worker)
        for _ in range(5):
            await worker.poll()
        assert worker.records == []
        await worker.member.resume(0, first[1])
        await until(lambda: len(worker.records) == 3, worker)
        assert worker.values == [b"1", b"2", b"3"]
        await log.append([new(commands, b"4"), new(commands, b"other", partition=1)])
        await until(lambda: len(worker.records) == 4, worker)
        await worker.member.pause(0)
        await log.append([new(commands, b"5")])
        for _ in range(5):
            await worker.poll()
        assert worker.values[3:] == [b"4"]
        await worker.member.resume(0, first[3])
        await until(lambda: len(worker.records) == 7, worker)
        assert worker.values[4:] == [b"3", b"4", b"5"]

    @case
    async def test_a_poll_for_nothing_answers_the_group_and_loses_nothing(self, world: World):
        """A worker that has enough to do still lets partitions go, and goes on where it was."""
        log = await world.log()
        commands = await world.topic(log, "commands", 2)
        await log.append([new(commands, b"%d" % n, partition=n % 2) for n in range(10)])
        worker = await world.worker(log, commands)
        await until(lambda: worker.owned == {0, 1}, worker)
        for partition in (0, 1):
            await worker.member.resume(partition, (await log.span(commands, partition)).start)
        await until(lambda: len(worker.records) == 10, worker)
        await log.append([new(commands, b"%d" % n, partition=n % 2) for n in range(10, 20)])
        other = Worker(await world.log(), world.name("group"), commands, "b")
        await other.member.join(other)
        deadline = time.monotonic() + HANG_SECONDS / 2
        while len(worker.owned) != 1 or len(other.owned) != 1:
            assert time.monotonic() < deadline, (worker.calls, other.calls)
            batch = await worker.member.poll(0, 0.0)
            assert batch.records == []
            worker.snapshot = batch.snapshot
            await other.poll(0.05)
        (kept,) = worker.owned
        await until(lambda: len(worker.records) == 15, worker, other)
        expected = [b"%d" % n for n in range(10, 20) if n % 2 == kept]
        assert worker.values[10:] == expected, "each once, in order"

    @case
    async def test_f24_a_poll_wakes_for_records_and_for_a_resume(self, world: World):
        log, other = await world.log(), await world.log()
        commands = await world.topic(log, "commands")
        worker, _ = await world.owner(log, commands)
        await log.append([new(commands, b"1")])
        for act in (worker.member.resume(0, 0), other.append([new(commands, b"2")])):
            count, began = len(worker.records), time.monotonic()
            waiting = asyncio.create_task(worker.poll(60.0))
            await asyncio.sleep(0.1)
            await act
            await waiting
            await until(lambda count=count: len(worker.records) > count, worker)
            assert time.monotonic() - began < 30
        assert worker.values == [b"1", b"2"]

    @case
    async def test_f21_an_offset_outside_the_log_is_never_reset(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        await log.append([new(commands, b"1"), new(commands, b"2")])
        worker, _ = await world.owner(log, commands)
        end = (await log.span(commands, 0)).end
        for outside in (end + 1, end + 1000, -1):
            with pytest.raises(LogDamaged, match="outside"):
                await worker.member.resume(0, outside)
        await worker.member.resume(0, end)
        with pytest.raises(Fenced):
            await worker.member.resume(1, 0)
        await log.append([new(commands, b"3")])
        await until(lambda: worker.values == [b"3"], worker)

    @case
    async def test_members_share_partitions_and_keep_what_they_can(self, world: World):
        log, other = await world.log(), await world.log()
        commands = await world.topic(log, "commands", 5)
        a = await world.worker(log, commands, "a")
        await until(lambda: len(a.owned) == 5, a)
        before = dict(a.snapshot.owned)
        b = await world.worker(other, commands, "b")
        await until(lambda: len(a.owned) in (2, 3) and a.owned | b.owned == set(range(5)), a, b)
        assert not a.owned & b.owned
        assert {p: a.snapshot.owned[p] for p in a.owned} == {p: before[p] for p in a.owned}
        assert set(a.told("revoked")) == b.owned
        assert not a.told("lost")
        kept = dict(b.snapshot.owned)
        await a.member.close()
        assert set(a.told("revoked")) == set(range(5))
        await until(lambda: b.owned == set(range(5)), b)
        assert kept.items() <= b.snapshot.owned.items()
        assert not b.told("revoked")

    @case
    async def test_more_members_than_partitions_leave_some_idle(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands", 2)
        workers = [await world.worker(log, commands, f"w{n}") for n in range(3)]
        await until(lambda: sorted(len(w.owned) for w in workers) == [0, 1, 1], *workers)
        assert set().union(*(w.owned for w in workers)) == {0, 1}

    @case
    async def test_the_incarnation_grows_at_each_assignment(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands", 2)
        a = await world.worker(log, commands, "a")
        await until(lambda: a.owned == {0, 1}, a)
        first = dict(a.snapshot.owned)
        b = await world.worker(log, commands, "b")
        await until(lambda: len(a.owned) == len(b.owned) == 1, a, b)
        (moved,) = b.owned
        (kept,) = a.owned
        assert a.snapshot.owned[kept] == first[kept]
        await b.member.close()
        await until(lambda: a.owned == {0, 1}, a)
        assert a.snapshot.owned[moved] > first[moved]
        assert a.snapshot.owned[kept] == first[kept]

    @case
    async def test_f05_what_is_given_up_is_drained_inside_the_callback(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands", 2), await world.topic(log, "events", 2)
        a, producer = await world.owner(log, commands, 2)
        b = await world.worker(other, commands, "b")
        drained: list[int] = []

        async def drain(snapshot: GroupSnapshot, partitions: Mapping[int, int]) -> None:
            await asyncio.sleep(0.2)
            for partition in partitions:
                assert partition not in b.owned
                record = new(events, b"drained", partition=partition)
                await producer.commit(snapshot, [record], {partition: 7})
                drained.append(partition)

        a.on_revoked = drain
        await until(lambda: len(b.owned) == 1, a, b)
        assert set(drained) == b.owned
        (moved,) = b.owned
        assert await b.member.committed(moved) == 7
        assert await values(log, events, [moved]) == [b"drained"]
        assert set(a.told("revoked")) == {moved}

    @case
    async def test_a_snapshot_from_before_the_hand_over_writes_nothing(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands", 2), await world.topic(log, "events", 2)
        a, producer = await world.owner(log, commands, 2)
        stale = a.snapshot
        b = await world.worker(other, commands, "b")
        await until(lambda: len(a.owned) == len(b.owned) == 1, a, b)
        (moved,), (kept,) = b.owned, a.owned
        records = [new(events, b"stale", partition=p) for p in (0, 1)]
        with pytest.raises(REFUSED):
            await producer.commit(stale, records, {0: 9, 1: 9})
        with pytest.raises(REFUSED):
            await producer.commit(stale, [records[moved]], {moved: 9})
        with pytest.raises(ValueError, match="owned"):
            await producer.commit(a.snapshot, [records[moved]], {moved: 9})
        await producer.commit(a.snapshot, [new(events, b"kept", partition=kept)], {kept: 1})
        theirs = await world.producer(other, "b")
        await theirs.commit(b.snapshot, [new(events, b"moved", partition=moved)], {moved: 2})
        assert await values(log, events, [kept]) == [b"kept"]
        assert await values(log, events, [moved]) == [b"moved"]
        assert await log.group_offsets(a.group, commands) == {kept: 1, moved: 2}

    @case
    async def test_f05_a_frozen_owner_loses_and_publishes_nothing(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands", 2), await world.topic(log, "events", 2)
        a, producer = await world.owner(log, commands, 2)
        first = dict(a.snapshot.owned)
        await producer.commit(a.snapshot, [new(events, b"before")], {0: 1})
        await self.freeze(log, a)  # type: ignore[attr-defined] - the transport's
        b = await world.worker(other, commands, "b")
        await until(lambda: b.owned == {0, 1}, b)
        assert await b.member.committed(0) == 1
        with pytest.raises(REFUSED):
            await producer.commit(a.snapshot, [new(events, b"zombie")], {0: 2})
        theirs = await world.producer(other, "b")
        await theirs.commit(b.snapshot, [new(events, b"after")], {0: 3})
        await until(lambda: bool(a.told("lost")), a, b)
        assert a.told("lost") == first
        assert not a.told("revoked")
        assert await values(log, events) == [b"before", b"after"]
        await until(lambda: len(a.owned) == len(b.owned) == 1, a, b)
        assert await b.member.committed(0) == 3

    @case
    async def test_after_a_refusal_a_later_snapshot_redoes_the_turn(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands", 2), await world.topic(log, "events", 2)
        a, _ = await world.owner(log, commands, 2)
        await world.worker(other, commands, "b")
        await until(lambda: len(a.owned) == 1, a)
        (kept,) = a.owned
        b = await world.worker(other, commands, "c")
        await b.member.close()
        for attempt in range(50):
            producer = await world.producer(log, f"p{attempt}")
            try:
                await producer.commit(a.snapshot, [new(events, b"once", partition=kept)], {kept: 1})
                break
            except CommitAborted:
                await a.poll()
        assert await values(log, events, [kept]) == [b"once"]

    @case
    async def test_groups_do_not_know_of_each_other(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        await log.append([new(commands, b"1"), new(commands, b"2")])
        one, two = [await world.worker(log, commands, "a", group) for group in ("one", "two")]
        one.resume_from = two.resume_from = 0
        await until(lambda: len(one.records) == len(two.records) == 2, one, two)
        producer = await world.producer(log)
        await producer.commit(one.snapshot, [], {0: 2})
        assert await one.member.committed(0) == 2
        assert await two.member.committed(0) is None
        assert await log.group_offsets(two.group, commands) == {}

    @case
    async def test_a_group_is_rewound_only_while_nobody_is_in_it(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands", 3)
        worker, producer = await world.owner(log, commands, 3)
        await producer.commit(worker.snapshot, [], {0: 5, 1: 6})
        with pytest.raises(LogUnavailable, match="members"):
            await log.rewind_group(worker.group, commands, {0: 1})
        assert await log.group_offsets(worker.group, commands) == {0: 5, 1: 6}
        await worker.member.close()
        await rewind(log, worker.group, commands, {0: 2, 1: None, 2: 3})
        assert await log.group_offsets(worker.group, commands) == {0: 2, 2: 3}
        again = await world.worker(log, commands, "again")
        await until(lambda: again.owned == {0, 1, 2}, again)
        assert [await again.member.committed(p) for p in range(3)] == [2, None, 3]

    @case
    async def test_a_member_reads_on_across_holes(self, world: World):
        log = await world.log()
        commands = await world.topic(log, "commands")
        worker, producer = await world.owner(log, commands)
        for n in range(3):
            await producer.commit(worker.snapshot, [new(commands, b"%d" % n)], {0: 0})
        await settled(log, commands)
        await worker.member.resume(0, 0)
        await until(lambda: len(worker.records) == 3, worker)
        await producer.commit(worker.snapshot, [new(commands, b"3")], {0: worker.records[-1].offset + 1})
        await until(lambda: len(worker.records) == 4, worker)
        assert worker.values == [b"0", b"1", b"2", b"3"]


async def rewind(log: Log, group: str, topic: str, offsets: Mapping[int, int | None]) -> None:
    """A broker may need a moment to see that the last member has left."""
    for _ in range(300):
        try:
            return await log.rewind_group(group, topic, offsets)
        except LogUnavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the group never became empty")
