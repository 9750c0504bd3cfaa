"""The contract of every log, part one: topics, appends, reads."""

from __future__ import annotations

import asyncio
import time

import pytest

from streams.errors import LogDamaged, SendRefused, UsageError
from streams.log.port import RECORD_BYTES_MAX, NewRecord, TopicPartition, TopicSpec
from tests.contract.worlds import World, case, new, read_all, values


class TopicsAndAppends:
    """Topics, appends, reads: no group and no transaction."""

    @case
    async def test_topics_are_created_once_and_described(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 3, cleanup_policy="compact")
        first = await log.describe_topics([name, world.name("missing")])
        await log.create_topics([TopicSpec(name, 7, {})])
        assert list(first) == [name]
        assert first[name].partitions == 3
        assert first[name].config["cleanup.policy"] == "compact"
        assert first == await log.describe_topics([name])
        other = await world.topic(log, "another")
        names = await log.list_topics()
        assert {name, other} <= set(names)
        assert names == sorted(names)
        assert (await log.describe_topics([other]))[other].id != first[name].id

    @case
    async def test_unknown_topics_and_partitions_are_named(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 2)
        with pytest.raises(UsageError, match="no topic"):
            await log.span(world.name("missing"), 0)
        with pytest.raises(UsageError, match="no partition 2"):
            await log.span(name, 2)
        with pytest.raises(SendRefused) as refused:
            await log.append([new(name, b"fine"), new(name, b"nowhere", partition=2)])
        assert refused.value.index == 1
        assert await values(log, name) == []

    @case
    async def test_appends_keep_their_order_and_say_their_offsets(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 2)
        offsets = []
        for batch in (range(7), range(7, 8), range(8, 60)):
            offsets += await log.append([new(name, b"%d" % n, partition=n % 2) for n in batch])
        records = await read_all(log, name, [0, 1])
        for partition in (0, 1):
            mine = [record for record in records if record.partition == partition]
            assert [record.value for record in mine] == [b"%d" % n for n in range(partition, 60, 2)]
            assert [record.offset for record in mine] == offsets[partition::2]
            assert offsets[partition::2] == sorted(set(offsets[partition::2]))

    @case
    async def test_many_appends_at_once_lose_nothing(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 3)
        appends = [log.append([new(name, b"%d.%d" % (n, i), partition=n % 3) for i in (0, 1)]) for n in range(200)]
        written = await asyncio.gather(*appends)
        found = {(r.partition, r.offset): r.value for r in await read_all(log, name, range(3))}
        assert len(found) == 400
        for n, offsets in enumerate(written):
            assert [found[n % 3, offset] for offset in offsets] == [b"%d.0" % n, b"%d.1" % n]

    @case
    async def test_records_come_back_as_they_were_written(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events")
        odd = (("a", b"1"), ("a", None), ("a", b"\xff\xfe"), ("", b""), ("żółć", b"\x00"))
        written = [
            NewRecord(name, 0, None, b"no key", ()),
            NewRecord(name, 0, b"", b"", odd),
            NewRecord(name, 0, b"\x00\xff", None, (("a", None),)),
        ]
        before = time.time() * 1000
        await log.append(written)
        records = await read_all(log, name)
        assert [NewRecord(r.topic, r.partition, r.key, r.value, r.headers) for r in records] == written
        assert all(abs(record.timestamp - before) < 60_000 for record in records)

    @case
    async def test_a_record_over_the_limit_is_refused_before_anything_is_written(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", max_message_bytes="1000000")
        header = ("h", bytes(1000))
        fits = NewRecord(name, 0, b"key", bytes(RECORD_BYTES_MAX - 1004), (header,))
        too_big = fits._replace(value=bytes(RECORD_BYTES_MAX - 1003))
        with pytest.raises(SendRefused, match="900001 bytes") as refused:
            await log.append([new(name, b"first"), too_big])
        assert refused.value.index == 1
        assert await values(log, name) == []
        await log.append([fits])
        assert await values(log, name) == [fits.value]

    @case
    async def test_a_header_name_that_is_no_text_is_refused(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events")
        with pytest.raises(SendRefused) as refused:
            await log.append([NewRecord(name, 0, b"k", b"v", (("\ud800", b""),))])
        assert refused.value.index == 0
        assert await values(log, name) == []

    @case
    async def test_a_compacted_topic_takes_no_record_without_a_key(self, world: World):
        log = await world.log()
        name = await world.topic(log, "checkpoints", cleanup_policy="compact")
        with pytest.raises(SendRefused) as refused:
            await log.append([new(name, b"x", key=None)])
        assert refused.value.index in (0, None)
        assert await values(log, name) == []

    @case
    async def test_an_empty_append_writes_nothing(self, world: World):
        log = await world.log()
        assert await log.append([]) == []

    @case
    async def test_a_reader_begins_anywhere_and_takes_no_more_than_asked(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events")
        offsets = await log.append([new(name, b"%d" % n) for n in range(10)])
        place = TopicPartition(name, 0)
        reader = log.reader({place: offsets[4]})
        taken = []
        while len(taken) < 6:
            some = await reader.read(2, 1.0)
            assert len(some) <= 2
            taken += some
        assert [record.value for record in taken] == [b"%d" % n for n in range(4, 10)]
        assert reader.position(place) == (await log.span(name, 0)).end
        await reader.close()

    @case
    async def test_a_reader_without_news_returns_empty_after_its_time(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 2)
        reader = log.reader({TopicPartition(name, p): 0 for p in (0, 1)})
        began = time.monotonic()
        assert await reader.read(10, 0.2) == []
        assert time.monotonic() - began >= 0.19
        assert await reader.read(10, 0) == []
        await reader.close()

    @case
    async def test_a_waiting_reader_wakes_for_news(self, world: World):
        log, other = await world.log(), await world.log()
        name = await world.topic(log, "events")
        reader = log.reader({TopicPartition(name, 0): 0})
        began = time.monotonic()
        waiting = asyncio.create_task(reader.read(10, 60.0))
        await asyncio.sleep(0.1)
        await other.append([new(name, b"news")])
        assert [record.value for record in await waiting] == [b"news"]
        assert time.monotonic() - began < 30
        await reader.close()

    @case
    async def test_a_reader_takes_partitions_on_and_gives_them_up(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 2)
        offsets = await log.append([new(name, b"%d" % n, partition=1) for n in range(3)])
        first, second = TopicPartition(name, 0), TopicPartition(name, 1)
        reader = log.reader({first: 0})
        began = time.monotonic()
        waiting = asyncio.create_task(reader.read(2, 60.0))
        await asyncio.sleep(0.1)
        reader.add(second, offsets[1])
        taken = await waiting
        while len(taken) < 2:
            taken += await reader.read(2, 1.0)
        assert [record.value for record in taken] == [b"1", b"2"]
        assert time.monotonic() - began < 30
        assert reader.position(second) == (await log.span(name, 1)).end
        reader.remove(second)
        await log.append([new(name, b"unread", partition=1), new(name, b"read")])
        assert [record.value for record in await reader.read(10, 10.0)] == [b"read"]
        reader.add(second, offsets[2] + 1)
        assert [record.value for record in await reader.read(10, 10.0)] == [b"unread"]
        await reader.close()

    @case
    async def test_a_full_partition_does_not_starve_the_others(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", 2)
        await log.append([new(name, b"%d" % n) for n in range(500)] + [new(name, b"rare", partition=1)])
        reader = log.reader({TopicPartition(name, p): 0 for p in (0, 1)})
        seen = []
        while b"rare" not in seen:
            seen += [record.value for record in await reader.read(100, 1.0)]
        assert len(seen) <= 501
        await reader.close()

    @case
    async def test_f01_an_empty_partition_is_at_its_end_at_once(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events")
        assert await log.span(name, 0) == (0, 0)
        assert await log.span(name, 0, "read_uncommitted") == (0, 0)
        assert await read_all(log, name) == []

    @case
    async def test_f21_a_reader_never_resets_by_itself(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events")
        await log.append([new(name, b"x")])
        reader = log.reader({TopicPartition(name, 0): 1000})
        with pytest.raises(LogDamaged, match="1000"):
            for _ in range(100):
                await reader.read(10, 0.1)
        await reader.close()

    @case
    async def test_compaction_never_changes_what_a_fold_gives(self, world: World):
        log = await world.log()
        settings = {"cleanup_policy": "compact", "delete_retention_ms": "0"}
        name = await world.topic(log, "checkpoints", **settings)
        await log.append([new(name, b"%d" % n, key=b"k%d" % (n % 3)) for n in range(12)])
        await log.append([new(name, b"", key=b"k1"), new(name, None, key=b"k2"), new(name, None, key=b"k9")])
        before, end = await read_all(log, name), (await log.span(name, 0)).end
        await log.compact(name)
        after = await read_all(log, name)
        assert set(after) <= set(before)
        assert (await log.span(name, 0)).end == end
        fold = {record.key: record.value for record in after}
        assert {key: value for key, value in fold.items() if value is not None} == {b"k0": b"9", b"k1": b""}
        await log.append([new(name, b"new", key=b"k2")])
        assert (await read_all(log, name))[-1][-3:-1] == (b"k2", b"new")

    @case
    async def test_only_a_compacted_topic_is_compacted(self, world: World):
        log = await world.log()
        name = await world.topic(log, "events", cleanup_policy="delete")
        with pytest.raises(ValueError, match="cleanup"):
            await log.compact(name)
