"""What every log promises, written once: a transport subclasses `LogContract` and inherits all cases.

The cases assume only what Kafka can do: offsets have gaps, markers follow a commit, polls and joins take several calls.
A commit that a rebalance overtakes may be refused as Fenced or as CommitAborted: Kafka often cannot tell which.
"""

from __future__ import annotations

import pytest

from streams.errors import CommitAborted, Fenced
from streams.log.port import TopicPartition
from tests.contract.group_cases import Groups
from tests.contract.topic_cases import TopicsAndAppends
from tests.contract.transaction_cases import Transactions
from tests.contract.worlds import World, case, new, read_all, until, values


class LogContract(TopicsAndAppends, Transactions, Groups):
    """Everything that any log promises."""


class EmbeddedContract(LogContract):
    """What a log inside this process, or beside it in a file, promises on top: it can tell exactly and act at once."""

    @case
    async def test_a_newer_owner_is_told_from_a_stale_snapshot(self, world: World):
        log, other = await world.log(), await world.log()
        commands, events = await world.topic(log, "commands"), await world.topic(log, "events")
        a, producer = await world.owner(log, commands)
        await self.freeze(log, a)  # type: ignore[attr-defined] - the transport's
        b = await world.worker(other, commands, "b")
        await until(lambda: b.owned == {0}, b)
        with pytest.raises(Fenced, match="belongs to b"):
            await producer.commit(a.snapshot, [new(events, b"zombie")], {0: 2})
        assert b.snapshot.owned[0] > a.snapshot.owned[0]
        stale = b.snapshot
        await b.member.close()
        with pytest.raises(CommitAborted, match="given up"):
            await producer.commit(stale, [new(events, b"stale")], {0: 2})
        assert await values(log, events) == []

    @case
    async def test_compaction_is_exact_and_leaves_holes(self, world: World):
        log = await world.log()
        name = await world.topic(log, "checkpoints", 2, cleanup_policy="compact,delete", delete_retention_ms="0")
        offsets = await log.append([new(name, b"%d" % n, key=b"k%d" % (n % 2)) for n in range(6)])
        await log.append([new(name, b"other", partition=1, key=b"k1"), new(name, None, key=b"k1")])
        end = (await log.span(name, 0)).end
        await log.compact(name)
        assert [(r.key, r.value, r.offset) for r in await read_all(log, name)] == [(b"k0", b"4", offsets[4])]
        assert (await log.span(name, 0)).end == end
        assert await values(log, name, [1]) == [b"other"]
        reader = log.reader({TopicPartition(name, 0): offsets[5]})
        assert await reader.read(10, 0) == []
        assert reader.position(TopicPartition(name, 0)) == end
        assert (await log.append([new(name, b"next")])) == [end]

    @case
    async def test_f15_a_tombstone_outlives_a_slow_reader(self, world: World):
        log = await world.log()
        name = await world.topic(log, "checkpoints", cleanup_policy="compact")
        await log.append([new(name, b"old", key=b"k"), new(name, b"x", key=b"j")])
        reader = log.reader({TopicPartition(name, 0): 0})
        assert [r.value for r in await reader.read(1, 1.0)] == [b"old"]
        await log.append([new(name, None, key=b"k")])
        await log.compact(name)
        assert [(r.key, r.value) for r in await reader.read(10, 1.0)] == [(b"j", b"x"), (b"k", None)]
