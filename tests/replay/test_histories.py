"""Histories are handed out once, whole and in order, whatever memory there is."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.log.memory import open_memory
from streams.log.port import NewRecord, TopicSpec
from streams.ops.replay.histories import Filter, History, read_histories
from streams.wire.records import decode_event, encode_event

TOPIC = "app.events"
RUNS = [f"run-{number}" for number in range(12)]

steps = st.lists(
    st.tuples(
        st.sampled_from(RUNS), st.sampled_from(["go", "go", "go", "end", "expire", "reject"]), st.integers(0, 400)
    ),
    max_size=120,
)


def story(drawn: list[tuple[str, str, int]]) -> list[Event]:
    """Events of runs that go on, end, expire, and begin again under the same id."""
    seqs: dict[str, int] = {}
    ended: set[str] = set()
    lives: dict[str, int] = defaultdict(int)
    events = []
    for place, (run_id, what, size) in enumerate(drawn):
        identity = f"{run_id}@{lives[run_id]}"
        seq = seqs.get(run_id, 0) + 1
        if what == "reject":
            body: ev.Body = ev.CommandRejected("signal", "X", "")
            events.append(Event(run_id, identity, None, place, None, place, 1, body))
            continue
        if run_id in ended:
            if what != "expire":
                continue
            body = ev.RunExpired("old")
            ended.discard(run_id)
            lives[run_id] += 1
        elif what == "end":
            body = ev.RunCompleted(b'"%s"' % (b"x" * size))
            ended.add(run_id)
        else:
            body = ev.SignalReceived("word", b'"%s"' % (b"x" * size))
        events.append(Event(run_id, identity, seq, place, None, None, 1, body))
        seqs[run_id] = 0 if isinstance(body, ev.RunExpired) else seq
    return events


async def read(events: list[Event], wanted: Filter, bytes_max: int) -> list[History]:
    log = await open_memory()
    try:
        await log.create_topics([TopicSpec(TOPIC, 1, {})])
        if events:
            await log.append([NewRecord(TOPIC, 0, e.run_id.encode(), encode_event(e)) for e in events])
        return [history async for history in read_histories(log, TOPIC, 0, wanted, bytes_max=bytes_max)]
    finally:
        await log.close()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(drawn=steps, bytes_max=st.sampled_from([1, 400, 1_000, 3_000, 10_000, 10**9]))
def test_each_history_comes_once_and_whole(drawn: list[Any], bytes_max: int) -> None:
    events = story(drawn)
    expected: dict[str, list[Event]] = {}
    for event in events:
        if event.seq is not None and not isinstance(event.body, ev.RunExpired):
            expected.setdefault(event.identity, []).append(event)
    found = asyncio.run(read(events, Filter(), bytes_max))
    assert sorted(history.identity for history in found) == sorted(expected)
    for history in found:
        if history.flaw:
            assert "is larger than" in history.flaw
            assert bytes_max < 10**9
            assert sum(len(encode_event(event)) for event in expected[history.identity]) + 300 > bytes_max
            assert len(history.events) == 1
        else:
            assert [decode_event(data) for data in history.events] == expected[history.identity]


@pytest.mark.parametrize("bytes_max", [600, 10**9])
def test_only_what_is_wanted(bytes_max: int) -> None:
    events = story([(run_id, "go", 1) for run_id in RUNS] + [(run_id, "end", 1) for run_id in RUNS[:6]])
    by_name = asyncio.run(read(events, Filter([b"run-3", b"run-9", b"nobody"]), bytes_max))
    assert sorted(history.run_id for history in by_name) == ["run-3", "run-9"]
    young = asyncio.run(read(events, Filter(since_us=10), bytes_max))
    assert sorted(history.run_id for history in young) == ["run-10", "run-11"]


def test_a_run_that_begins_again_without_an_end_is_told() -> None:
    first = story([("run-1", "go", 1), ("run-1", "go", 1)])
    second = [event._replace(identity="run-1@9") for event in first]
    found = asyncio.run(read([*first, *second], Filter(), 10**9))
    assert [history.flaw for history in found] == ["another run of the same id began before its end", ""]
    assert [history.identity for history in found] == ["run-1@0", "run-1@9"]
