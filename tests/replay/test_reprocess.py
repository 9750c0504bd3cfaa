"""`streams replay reprocess` on the memory log and the sqlite log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.errors import Refused, UsageError
from streams.kernel import commands as cmd
from streams.log.port import TopicSpec
from streams.ops.replay import Outcome, Wanted, compare_results, reprocess
from streams.runtime.topics import ensure_topics
from streams.wire.origin import ORIGIN_CONFIG, decode_origin, encode_origin, origin_topic
from streams.wire.records import decode_command
from streams.wire.topics import topics_of
from tests.replay import reprocess_cases
from tests.replay.reprocess_cases import again, all_of, check_copy, name_of, renamed
from tests.replay.stories import app
from tests.runtime.history import send_raw
from tests.runtime.lab import Lab, case


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_OUTSIDE", str(tmp_path / "outside"))


@case(app)
async def test_everything_ends_as_before(lab: Lab):
    await reprocess_cases.everything_ends_as_before(lab)


@case(app)
async def test_effects_on_are_published_apart(lab: Lab):
    await reprocess_cases.effects_on_are_published_apart(lab)


@case(app)
async def test_f16_other_counts_are_partitioned_anew(lab: Lab):
    await reprocess_cases.other_counts_are_partitioned_anew(lab)


@case(app)
async def test_f18_a_copy_that_is_broken_off_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await reprocess_cases.a_copy_that_is_broken_off_goes_on(lab, monkeypatch, range(1, 9))


@case(app, "memory")
async def test_f18_an_id_that_came_from_the_place_is_written_into_the_copy(lab: Lab):
    value = json.dumps({"type": "start", "workflow": "ask", "input": {"questions": 1}}).encode()
    partition = lab.history.partition("r")
    await send_raw(lab.log, lab.topics.commands, partition, b"other", None)
    offset = await send_raw(lab.log, lab.topics.commands, partition, b"r", value, (("trace", b"7"),))
    await send_raw(lab.log, lab.topics.commands, partition, b"r", b"garbage", ((b"x".decode(), None),))
    topic_id = (await lab.log.describe_topics([lab.topics.commands]))[lab.topics.commands].id
    await again(lab, Wanted(runs=("r",)))
    start, garbage = await all_of(lab.log, topics_of(name_of(lab)).commands)
    command = decode_command(start.key, start.value, default_id="none", offset=0)
    assert command.command_id == f"{topic_id}/{partition}/{offset}"
    assert isinstance(command.request, cmd.Start)
    assert ("trace", b"7") in start.headers
    assert (garbage.key, garbage.value, garbage.headers[0]) == (b"r", b"garbage", ("x", None))
    third = f"{name_of(lab)}-and-again"
    await reprocess(lab.log, name_of(lab), third, [], Wanted(), now_us=0, idle_seconds=0)
    (copied, _) = await all_of(lab.log, topics_of(third).commands)
    assert copied.value == start.value  # and stays


@case(app, "memory")
async def test_what_was_wanted_is_what_is_copied(lab: Lab):
    for run_id in ("a", "b", "c"):
        await lab.history.start("grown", run_id, {})
    await again(lab, Wanted(runs=("b",)))
    assert [r.key for r in await all_of(lab.log, topics_of(name_of(lab)).commands)] == [b"b"]
    with pytest.raises(Refused, match=r"begun as a copy of 'chaos' from start.*the runs b, with effects off"):
        await again(lab)
    with pytest.raises(Refused, match="OTHER_COPY"):
        await again(lab, Wanted(runs=("b",), publishes=True))
    nothing = await reprocess(lab.log, app.name, "none", [], Wanted(until="1d"), now_us=_now(), rate=5)
    assert nothing.copied.commands == 0
    young = await reprocess(lab.log, app.name, "young", [], Wanted(from_="1d"), now_us=_now(), rate=100)
    assert young.copied.commands == 3


def _now() -> int:
    from streams.clock import SystemClock

    return SystemClock().now_us()


@case(app, "memory")
async def test_a_copy_needs_a_name_that_is_free(lab: Lab):
    with pytest.raises(UsageError, match="needs a name of its own"):
        await reprocess(lab.log, app.name, app.name, [], Wanted(), now_us=0)
    with pytest.raises(UsageError, match="no app 'nobody'"):
        await reprocess(lab.log, "nobody", "new", [], Wanted(), now_us=0)
    await ensure_topics(lab.log, topics_of("taken"), 2)
    with pytest.raises(UsageError, match="'taken' has topics already and is no copy of 'chaos'"):
        await reprocess(lab.log, app.name, "taken", [], Wanted(), now_us=0)


@case(app, "memory")
async def test_a_copy_that_was_hardly_begun_has_no_worker_that_could_publish(lab: Lab):
    await lab.log.create_topics([TopicSpec(origin_topic(name_of(lab)), 1, ORIGIN_CONFIG)])
    running = await lab.worker(renamed(lab.app, name_of(lab)), owns=0)
    with pytest.raises(UsageError, match="is empty, so app chaos-again is a copy that was hardly begun"):
        await running.task
    running.killed = True
    assert (await again(lab)).copied.commands == 0
    assert await lab.worker(renamed(lab.app, name_of(lab)))


@case(app, "memory")
async def test_repairs_and_refused_answers_are_left_out(lab: Lab):
    running = await lab.worker()
    await lab.history.start("ask", "r", {"questions": 1})
    offset = await lab.history.send("r", cmd.Retry())
    await lab.history.answered(offset, "r")
    offset = await lab.history.send("r", cmd.Resume(b"1", "nothing"))
    await lab.history.answered(offset, "r")
    await lab.history.send("r", cmd.Resume(b"1"))
    await lab.history.ended("r")
    await running.stop()
    running = await lab.worker(renamed(lab.app, name_of(lab)), owns=0)
    done = await again(lab, idle_seconds=60.0)
    assert (done.copied.commands, done.copied.repairs, done.copied.refused, done.copied.held) == (2, 1, 1, 0)
    await reprocess_cases.ended(lab)
    await check_copy(lab, topics_of(name_of(lab)))


@case(app, "memory")
async def test_results_are_compared(lab: Lab):
    running = await lab.worker()
    for run_id, number in (("same", 1), ("differs", 2), ("missing", 3)):
        await lab.history.start("chain", run_id, {"number": number, "ms": []})
    await lab.history.start("ask", "open", {"questions": 1})
    await lab.history.ended("same", "differs", "missing")
    await lab.history.start("doomed", "fails", {"how": "fail"})
    await lab.history.ended("fails")
    await running.stop()
    other = renamed(lab.app, "other")
    await ensure_topics(lab.log, topics_of("other", lab.app.effects), 3)
    history = type(lab.history)(lab.log, "other", (), 3)
    running = await lab.worker(other, owns=3)
    for run_id, number in (("same", 1), ("differs", 7), ("new", 3)):
        await history.start("chain", run_id, {"number": number, "ms": []})
    await history.start("doomed", "fails", {"how": "fail"})
    await history.ended("same", "differs", "new", "fails")
    found = await compare_results(lab.log, app.name, "other")
    kinds = {example.run_id: example.outcome for example in found.examples}
    expected = {"differs": Outcome.DIFFERS, "missing": Outcome.MISSING, "new": Outcome.NEW, "open": Outcome.MISSING}
    assert kinds == expected
    assert (found.runs, found.counts[Outcome.SAME], found.same) == (6, 2, False)
    assert (await compare_results(lab.log, app.name, "other", runs=["same", "fails"])).same
    assert not (await compare_results(lab.log, app.name, "other", runs=["nobody"])).same


def test_the_origin_comes_back_as_it_was() -> None:
    from streams.wire.origin import Origin

    origin = Origin("shop", "id", False, (1, 2), (3, 4), ("r", "ü"), "7d", "2h", 5)
    assert decode_origin(encode_origin(origin)) == origin
