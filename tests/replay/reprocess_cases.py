"""What `streams replay reprocess` must do, on any log."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from streams import App
from streams.clock import SystemClock
from streams.errors import InDoubt
from streams.kernel import bodies as ev
from streams.log.port import Log, NewRecord, Record, TopicPartition
from streams.ops.replay import (
    COPIED_FROM,
    CopyInterrupted,
    Outcome,
    Reprocessed,
    Verdict,
    Wanted,
    compare_results,
    copying,
    reprocess,
    shadow,
)
from streams.ops.verify import verify
from streams.wire.origin import origin_topic
from streams.wire.partitioner import partition_of
from streams.wire.records import decode_command, decode_effect
from streams.wire.topics import Topics, topics_of
from tests.replay.stories import STARTS, quiet, tell
from tests.runtime.checker import records_of, try_event
from tests.runtime.history import HANG_SECONDS
from tests.runtime.lab import PARTITIONS, Lab

__all__ = [
    "a_copy_that_is_broken_off_goes_on",
    "effects_on_are_published_apart",
    "everything_ends_as_before",
    "other_counts_are_partitioned_anew",
]

ALL = Wanted()
RACES = {"race"}
"""Runs whose end depends on who is faster."""


def renamed(app: App, name: str) -> App:
    """The same code as another app."""
    other = copy.copy(app)
    other.name = name
    return other


def name_of(lab: Lab) -> str:
    return f"{lab.app.name}-again"


async def again(lab: Lab, wanted: Wanted = ALL, log: Log | None = None, **more: Any) -> Reprocessed:
    """Copy to the new app; without a worker nothing is waited for."""
    settings = {"idle_seconds": 0.0, "now_us": SystemClock().now_us()} | more
    return await reprocess(log or lab.log, lab.app.name, name_of(lab), lab.app.effects, wanted, **settings)


async def all_of(log: Log, topic: str, partitions: int = PARTITIONS) -> list[Record]:
    return [record for n in range(partitions) for record in await records_of(log, TopicPartition(topic, n))]


async def events_of(lab: Lab, partitions: int = PARTITIONS) -> list[Any]:
    found = await all_of(lab.log, topics_of(name_of(lab)).events, partitions)
    return [event for event in map(try_event, found) if event is not None]


def place_of(record: Record) -> str:
    (found,) = [value for name, value in record.headers if name == COPIED_FROM]
    assert found is not None
    return found.decode()


async def check_copy(lab: Lab, topics: Topics, partitions: int = PARTITIONS) -> None:
    """Each command stands there once at most, under its key and partition, in the order of its run."""
    found = await lab.log.describe_topics([lab.topics.commands])
    topic_id = found[lab.topics.commands].id
    source = {f"{topic_id}/{r.partition}/{r.offset}": r for r in await all_of(lab.log, lab.topics.commands)}
    copies = await all_of(lab.log, topics.commands, partitions)
    assert max(Counter(map(place_of, copies)).values()) == 1
    order: dict[bytes | None, int] = {}
    for record in copies:
        old = source[place_of(record)]
        assert record.key == old.key
        assert order.get(record.key, -1) < old.offset
        order[record.key] = old.offset
        if record.key is not None:
            assert record.partition == partition_of(record.key, partitions)
            before = decode_command(old.key, old.value, default_id=place_of(record), offset=0)
            now = decode_command(record.key, record.value, default_id="none", offset=0)
            assert now == before
            if b'"command_id"' in (old.value or b"") or not (old.value or b"").startswith(b"{"):
                assert record.value == old.value


async def everything_ends_as_before(lab: Lab) -> None:
    """With a worker at work, answers and cancels come after their questions; nothing is published."""
    await tell(lab)
    await quiet(lab)
    await again(lab)  # what waits for a worker waits, and the second call goes on with it
    new = topics_of(name_of(lab))
    held = await again(lab)
    assert held.copied.commands == 0
    assert {"ask", "both", "stopped"} <= set(held.copied.holding)
    running = await lab.worker(renamed(lab.app, name_of(lab)))
    assert any("effects off" in told[1] for told in running.told.heard("message"))
    done = await again(lab, idle_seconds=60.0)
    assert (done.copied.held, done.copied.strays, done.copied.too_large) == (0, 0, 0)
    await ended(lab)
    await running.stop()
    await check_copy(lab, new)
    results = await compare_results(lab.log, lab.app.name, name_of(lab))
    other = [example for example in results.examples if example.run_id not in RACES]
    assert not other, other
    assert results.counts[Outcome.SAME] >= len(STARTS) - len(RACES)
    assert any(isinstance(event.body, ev.EffectEmitted) for event in await events_of(lab))
    assert not [name for name in await lab.log.list_topics() if name.startswith(f"{name_of(lab)}.effects")]
    report = await shadow(lab.log, lab.app, name=name_of(lab))
    assert report.counts[Verdict.SAME] == report.runs == len(STARTS), str(report)
    proof = await verify(lab.log, name_of(lab))
    assert proof.divergences == ()
    assert proof.not_compared.effects > 0
    finished = await again(lab)
    assert (finished.copied.commands, finished.copied.held) == (0, 0)


async def ended(lab: Lab) -> None:
    """Wait until the runs of the copy stand where those of the first app do."""
    for _ in range(int(HANG_SECONDS * 10)):
        results = await compare_results(lab.log, lab.app.name, name_of(lab))
        if {example.run_id for example in results.examples} <= RACES:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(results)


async def effects_on_are_published_apart(lab: Lab) -> None:
    """On topics of their own, under keys that say the same where they are business keys."""
    await tell(lab)
    await quiet(lab)
    await again(lab, Wanted(publishes=True))
    running = await lab.worker(renamed(lab.app, name_of(lab)))
    await again(lab, Wanted(publishes=True), idle_seconds=60.0)
    await ended(lab)
    await running.stop()
    new = topics_of(name_of(lab), lab.app.effects)
    for effect in ("mails", "parcels"):
        old_ones = [decode_effect(r.value or b"") for r in await all_of(lab.log, lab.topics.effect(effect))]
        new_ones = [decode_effect(r.value or b"") for r in await all_of(lab.log, new.effect(effect))]
        assert Counter(e.run_id for e in new_ones) == Counter(e.run_id for e in old_ones)
        for one in new_ones:
            assert one.effect_id.startswith(f"{one.run_id}@")
            assert one.idempotency_key in (one.effect_id, "ship/o-1") or one.idempotency_key.startswith("woke/")
    assert not any("effects off" in told[1] for told in running.told.heard("message"))


async def other_counts_are_partitioned_anew(lab: Lab) -> None:
    """The copy has more partitions; every command lies where a worker takes it."""
    await tell(lab)
    await quiet(lab)
    count = 7
    await again(lab, partitions=count)
    running = await lab.worker(renamed(lab.app, name_of(lab)), owns=count)
    done = await again(lab, idle_seconds=60.0)
    assert (done.partitions, done.copied.held) == (count, 0)
    await ended(lab)
    await running.stop()
    await check_copy(lab, topics_of(name_of(lab)), count)
    assert not await all_of(lab.log, topics_of(name_of(lab)).dead_letters, count)


class _Breaks:
    """A log whose producers break at one commit: before it, or after it without saying so."""

    def __init__(self, log: Any, at: int, how: str) -> None:
        self._log, self._at, self._how = log, at, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def producer(self, id_: str) -> Any:
        producer = await self._log.producer(id_)
        whole = producer.commit
        count = 0

        async def commit(snapshot: Any, records: Sequence[NewRecord], offsets: Any) -> list[int]:
            nonlocal count
            count += 1
            if count == self._at and self._how == "before":
                raise InDoubt("a test broke it")
            done: list[int] = await whole(snapshot, records, offsets)
            if count == self._at:
                raise InDoubt("a test broke it afterwards")
            return done

        producer.commit = commit
        return producer


async def a_copy_that_is_broken_off_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch, places: Sequence[int]) -> None:
    """Before or after any commit: what was copied is not copied again, and the rest is."""
    await tell(lab)
    await quiet(lab)
    monkeypatch.setattr(copying, "BATCH_MAX", 4)
    broken = 0
    for at in places:
        for how in ("before", "after"):
            log: Any = _Breaks(lab.log, at, how)
            try:
                await again(lab, log=log)
            except CopyInterrupted as error:
                broken += "give the same command again" in str(error)
    assert broken >= 2
    whole = await again(lab)
    assert whole.copied.before + whole.copied.commands == len(await all_of(lab.log, topics_of(name_of(lab)).commands))
    await check_copy(lab, topics_of(name_of(lab)))
    running = await lab.worker(renamed(lab.app, name_of(lab)))
    await again(lab, idle_seconds=60.0)
    await ended(lab)
    await running.stop()
    await check_copy(lab, topics_of(name_of(lab)))
    assert origin_topic(name_of(lab)) in await lab.log.list_topics()
