"""Records that are no command, damaged runs, nulls and empty values: each is set aside, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import pytest

from streams import App, Context, TaskContext
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.events import Event
from streams.kernel.evolve import _FOLDS, evolve
from streams.kernel.run import Phase, Run
from streams.log.port import NewRecord, TopicPartition
from streams.runtime import restore as restore_module
from streams.wire.partitioner import partition_of
from streams.wire.records import decode_lease, encode_checkpoint, encode_command, encode_event
from streams.wire.schemas import PREFIX_BYTES
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, case

app = App("bad")
news = app.signal("news", int)


@app.task
async def add(ctx: TaskContext, number: int) -> int:
    return number + 1


@app.workflow(version=1)
async def healthy(ctx: Context, number: int) -> int:
    return await ctx.run(add, number)


@app.workflow(version=1)
async def asking(ctx: Context, number: int) -> str:
    number = await ctx.run(add, number)
    return await ctx.interrupt(f"{number}?", answer=str)


def of_partition(partition: int, count: int, name: str = "run") -> list[str]:
    """Run ids that all belong to one partition."""
    ids = (f"{name}{n}" for n in range(10_000))
    return [run_id for run_id in ids if partition_of(run_id.encode(), PARTITIONS) == partition][:count]


KEY = b"some-run"
HOME = partition_of(KEY, PARTITIONS)
START = encode_command(start("healthy", 1), command_id="x")

GARBAGE: dict[str, tuple[bytes | None, bytes | None]] = {
    "random bytes": (KEY, b"\x93\x01\xffrandom"),
    "random bytes that begin like avro": (KEY, b"\xc3\x01" + b"\x07" * 40),
    "avro cut short": (KEY, START[:-3]),
    "avro with more behind it": (KEY, START + b"more"),
    "an unknown schema": (KEY, b"\xc3\x01" + b"12345678" + b"\x00" * 10),
    "json of another shape": (KEY, b'{"hello": ["world"]}'),
    "a json array": (KEY, b"[1, 2]"),
    "a json number": (KEY, b"17"),
    "json cut short": (KEY, b'{"type": "start", "workflow"'),
    "an unknown type": (KEY, b'{"type": "explode"}'),
    "an unknown field": (KEY, b'{"type": "cancel", "please": true}'),
    "a missing field": (KEY, b'{"type": "signal", "name": "news"}'),
    "a field of the wrong type": (KEY, b'{"type": "skip", "op": 3}'),
    "NaN": (KEY, b'{"type": "resume", "value": NaN}'),
    "json with a byte order mark": (KEY, b"\xef\xbb\xbf" + b'{"type": "cancel"}'),
    "utf-16": (KEY, '{"type": "cancel"}'.encode("utf-16")),
    "deeply nested json": (KEY, b'{"type": "resume", "value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a null key": (None, START),
    "an empty key": (b"", START),
    "a key that is not utf-8": (b"\xff\xfe", START),
    "a key with a line break": (b"a\nb", START),
    "a key that is too long": (b"k" * 201, START),
    "a huge key": (b"k" * 800_000, b"x" * 90_000),
    "a key with nothing but size": (b"\xff" * 899_000, None),
    "an empty value": (KEY, b""),
    "a null value": (KEY, None),
    "a huge value": (KEY, b"\xff" * 890_000),
    "an event": (KEY, encode_event(Event("r", "r@0", 1, 1, None, 0, 1, ev.RunCancelled()))),
}


@case(app)
@pytest.mark.parametrize("name", list(GARBAGE))
async def test_f06_what_is_no_command_goes_to_the_dead_letters(lab: Lab, name: str):
    key, value = GARBAGE[name]
    before, after, later = of_partition(HOME, 3)
    h = lab.history
    await h.start("healthy", before, 1)
    offset = await send_raw(lab.log, h.topics.commands, HOME, key, value, (("h", None), ("h", b"\xff"), ("h", b"2")))
    await h.start("healthy", after, 2)
    running = await lab.worker()
    assert await h.result(before) == 2
    assert await h.result(after) == 3
    await h.start("healthy", later, 3)
    assert await h.result(later) == 4
    checked = await lab.check()
    (letter,) = checked.letters
    assert (letter.topic, letter.partition, letter.offset) == (h.topics.commands, HOME, offset)
    assert letter.reason
    assert letter.code
    assert (letter.key or b"") == (key or b"")[: len(letter.key or b"")]
    assert (letter.value is None) == (value is None)
    assert running.told.heard("dead_letter", h.topics.commands, HOME, offset)
    await running.stop()
    again = await lab.worker()
    await h.start("healthy", "once more", 4)
    assert await h.result("once more") == 5
    assert again.told.heard("dead_letter") == []


@case(app)
async def test_f16_a_command_on_the_wrong_partition_is_a_dead_letter(lab: Lab):
    await lab.worker()
    wrong = (HOME + 1) % PARTITIONS
    offset = await send_raw(lab.log, lab.topics.commands, wrong, KEY, START)
    await until(lambda: lab.running[0].told.heard("dead_letter"))
    checked = await lab.check()
    (letter,) = checked.letters
    assert (letter.partition, letter.offset, letter.code) == (wrong, offset, "WRONG_PARTITION")
    assert "murmur2" in letter.reason
    assert "some-run" not in checked.runs


@case(app)
async def test_f06_many_bad_records_among_good_ones(lab: Lab):
    records = []
    good = [f"run{n}" for n in range(100)]
    for n, run_id in enumerate(good):
        records.append(NewRecord(lab.topics.commands, lab.history.partition(run_id), run_id.encode(), START))
        records.append(NewRecord(lab.topics.commands, n % PARTITIONS, None, b"\xffgarbage"))
    await lab.log.append(records)
    await lab.worker()
    await lab.history.ended(*good)
    assert len((await lab.check()).letters) == 100


@case(app)
async def test_f15_commands_in_plain_json_with_odd_headers_are_commands(lab: Lab):
    await lab.worker()
    headers = (("traceparent", None), ("a", b"\xff\xfe"), ("a", b"again"), ("", b""))
    value = json.dumps({"type": "start", "workflow": "healthy", "input": 4}).encode()
    await send_raw(lab.log, lab.topics.commands, HOME, KEY, value, headers)
    assert await lab.history.result(KEY.decode()) == 5


# -- damaged runs ----------------------------------------------------------------------------------------------------


async def damage(lab: Lab, run_id: str, kind: str) -> None:
    """Write into the events of a run what its owner never would."""
    events = lab.history.events[run_id]
    last = [event for event in events if event.seq is not None][-1]
    key = run_id.encode()

    def event(seq: int, body: ev.Body) -> bytes:
        return encode_event(Event(run_id, last.identity, seq, last.at, None, None, last.epoch, body))

    assert last.seq is not None
    values = {
        "a gap in seq": event(last.seq + 2, ev.RunOwned("a gap")),
        "random bytes": b"\x00\xff garbage",
        "json": b'{"type": "op.completed"}',
        "an empty value": b"",
        "a null": None,
        "the completion of a step never started": event(last.seq + 1, ev.OpCompleted("99", 1, b"1")),
    }
    await send_raw(lab.log, lab.topics.events, lab.history.partition(run_id), key, values[kind])


DAMAGES = [
    "a gap in seq",
    "random bytes",
    "json",
    "an empty value",
    "a null",
    "the completion of a step never started",
]


async def prepare(lab: Lab) -> tuple[str, str, str]:
    """A run that waits, and healthy ones of the same partition."""
    bad, good, new = of_partition(1, 3)
    running = await lab.worker()
    await lab.history.send_all([(good, start("asking", 1)), (bad, start("asking", 2))])
    for run_id in (good, bad):
        await lab.history.seen(run_id, ev.OpScheduled, 2)
    await running.stop()
    await lab.history.read()
    return bad, good, new


@case(app)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_f06_a_damaged_run_is_parked_and_ends_by_force(lab: Lab, kind: str):
    bad, good, new = await prepare(lab)
    lab.damaged.add(bad)
    await damage(lab, bad, kind)
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    # Its commands wait among the dead letters; its neighbours do not wait at all.
    await lab.history.send_all([(bad, resume("a")), (bad, cmd.Cancel())])
    await lab.history.send_all([(good, resume("yes")), (new, start("healthy", 1))])
    assert await lab.history.result(good) == "yes"
    assert await lab.history.result(new) == 2
    letters = (await lab.check()).letters
    assert [(letter.code, letter.key) for letter in letters] == [("RUN_DAMAGED", bad.encode())] * 2
    assert all("is damaged" in letter.reason for letter in letters)
    # It is damaged still after a crash, and after a restart that reads the tail only.
    await running.kill()
    running = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.0)
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    await running.stop()
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    # Two people use force at once.
    first, second = await lab.history.send_all([(bad, cmd.Cancel(force=True)), (bad, cmd.Cancel(force=True))])
    assert isinstance(await lab.history.answered(first, bad), ev.RunCancelled)
    assert await lab.history.answered(second, bad) == ev.CommandRejected(
        "cancel",
        "RUN_TERMINAL",
        lab.history.bodies(bad, ev.CommandRejected)[-1].message,
        lab.history.bodies(bad, ev.CommandRejected)[-1].command_id,
    )
    await running.stop()
    clean = await lab.worker()
    assert clean.told.heard("run_blocked") == []
    offset = await lab.history.send(bad, resume("late"))
    assert (await lab.history.answered(offset, bad)).code == "RUN_TERMINAL"


@case(app)
async def test_f06_a_forced_end_repeats_no_event_although_the_tail_has_left_them_behind(lab: Lab):
    bad, _, new = await prepare(lab)
    lab.damaged.add(bad)
    await damage(lab, bad, "a gap in seq")
    running = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.0)
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    await until(lambda: running.worker.owner.partitions[1].runs[bad].first_offset is None, "the mark of the damage")
    await lab.history.start("healthy", new, 1)
    assert await lab.history.result(new) == 2
    events = await records_of(lab.log, TopicPartition(lab.topics.events, 1))
    last = max(record.offset for record in events if record.key == bad.encode())
    tail = 0
    while tail <= last:  # from then on no event of the run is read again
        leases = await records_of(lab.log, TopicPartition(lab.topics.leases, 1))
        tail = decode_lease(leases[-1].value or b"").tail
        await asyncio.sleep(0.01)
    await running.stop()
    running = await lab.worker()
    offset = await lab.history.send(bad, cmd.Cancel(force=True))
    assert isinstance(await lab.history.answered(offset, bad), ev.RunCancelled)
    seqs = [event.seq for event in lab.history.events[bad] if event.seq is not None]
    assert seqs[-1] == max(seqs[:-1]) + 1
    assert len({event.identity for event in lab.history.events[bad] if event.seq is not None}) == 1


@case(app)
async def test_f06_a_repeated_event_changes_nothing(lab: Lab):
    bad, good, _ = await prepare(lab)
    lab.damaged.add(bad)
    for event in [event for event in lab.history.events[bad] if event.seq is not None]:
        await send_raw(lab.log, lab.topics.events, 1, bad.encode(), encode_event(event))
    running = await lab.worker()
    assert running.told.heard("run_blocked") == []
    await lab.history.send_all([(bad, resume("a")), (good, resume("b"))])
    assert await lab.history.result(bad) == "a"
    assert await lab.history.result(good) == "b"


@case(app)
@pytest.mark.parametrize("kind", DAMAGES)
async def test_f09_what_comes_after_the_end_of_a_run_changes_nothing_of_it(lab: Lab, kind: str):
    (ended,) = of_partition(1, 1)
    running = await lab.worker()
    await lab.history.start("healthy", ended, 1)
    assert await lab.history.result(ended) == 2
    await running.stop()
    lab.damaged.add(ended)
    await damage(lab, ended, kind)
    running = await lab.worker()
    assert running.told.heard("run_blocked") == []
    offset = await lab.history.start("healthy", ended, 1)
    assert (await lab.history.answered(offset, ended)).code == "DUPLICATE"


@case(app)
async def test_f06_garbage_under_the_key_of_nobody_harms_nobody(lab: Lab):
    _, good, new = await prepare(lab)
    for key in (None, b"", b"\xff\xfe", b"nobody"):
        await send_raw(lab.log, lab.topics.events, 1, key, b"garbage")
    lab.damaged |= {"", "\\xff\\xfe", "nobody"}
    running = await lab.worker()
    await lab.history.send_all([(good, resume("yes")), (new, start("healthy", 1))])
    assert await lab.history.result(good) == "yes"
    assert await lab.history.result(new) == 2
    await running.stop()
    await lab.worker()
    await lab.history.start("healthy", "later", 1)
    assert await lab.history.result("later") == 2


@case(app)
@pytest.mark.parametrize("value", [b"", b"garbage"])
async def test_f15_a_checkpoint_that_cannot_be_read_parks_its_run_and_is_not_taken_for_a_deletion(
    lab: Lab, value: bytes
):
    bad, good, _ = await prepare(lab)
    lab.damaged.add(bad)
    await send_raw(lab.log, lab.topics.checkpoints, 1, bad.encode(), value)
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    offset = await lab.history.start("asking", bad, 2)
    await until(lambda: running.told.heard("dead_letter", lab.topics.commands, 1, offset))
    await lab.history.send(good, resume("yes"))
    assert await lab.history.result(good) == "yes"
    await running.stop()
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    await lab.history.send(bad, cmd.Cancel(force=True))
    hot = running.worker.owner.partitions[1].runs[bad]
    await until(lambda: hot.damaged is None)
    assert hot.run.phase is Phase.CANCELLED


@case(app)
async def test_f15_a_null_checkpoint_removes_and_an_older_copy_does_not_bring_back(lab: Lab):
    """A tombstone that is gone while an older copy of the checkpoint remains: the tail says that the run expired."""
    (early, other) = of_partition(1, 2, "early")
    running = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.0, early_input_seconds=0.2)
    await lab.history.send(early, signal("news", 1))
    await lab.history.seen(early, ev.RunExpired)
    await lab.history.start("healthy", other, 1)
    await lab.history.ended(other)
    await running.stop()
    checked = await lab.check()
    assert early not in checked.runs
    assert early not in checked.checkpoints
    await lab.log.compact(lab.topics.checkpoints)
    running = await lab.worker()
    assert early not in running.worker.owner.partitions[1].runs
    offset = await lab.history.send(early, resume("x"))
    assert (await lab.history.answered(offset, early)).code == "UNKNOWN_RUN"


# -- records of a newer release ---------------------------------------------------------------------------------------

FOREIGN = b"\xc3\x01" + b"12345678"


def upgrade(monkeypatch: pytest.MonkeyPatch, name: str, known: bytes) -> None:
    """Make workers read what was written with the foreign schema, which is the known one by another name."""
    old = getattr(restore_module, name)

    def decode(data: bytes) -> Any:
        return old(known + data[PREFIX_BYTES:] if data.startswith(FOREIGN) else data)

    monkeypatch.setattr(restore_module, name, decode)


async def write_newer(lab: Lab, run_id: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> functools.partial[None]:
    """Write a record of a newer release for a run; return how to upgrade the workers."""
    events = [event for event in lab.history.events[run_id] if event.seq is not None]
    last = events[-1]
    assert last.seq is not None
    topic, name = lab.topics.events, "decode_event"
    # As an event that says nothing new about the run, so that an upgraded worker goes on from the same state.
    data = encode_event(last._replace(seq=last.seq + 1, offset=None, body=ev.RunOwned("w9")))
    if kind == "checkpoint":
        topic, name = lab.topics.checkpoints, "decode_checkpoint"
        data = encode_checkpoint(functools.reduce(evolve, events, Run(run_id, last.identity)))
    elif kind == "body":
        data = encode_event(last._replace(seq=last.seq + 1, offset=None, body=ev.RunForked("a", 1, "b", b"")))
    known = data[:PREFIX_BYTES]
    data = data if kind == "body" else FOREIGN + data[PREFIX_BYTES:]
    await send_raw(lab.log, topic, lab.history.partition(run_id), run_id.encode(), data)
    if kind == "body":
        return functools.partial(monkeypatch.setitem, _FOLDS, ev.RunForked, lambda *_: {})
    return functools.partial(upgrade, monkeypatch, name, known)


async def ends_of(lab: Lab, partition: int) -> list[int]:
    topics = (lab.topics.events, lab.topics.checkpoints, lab.topics.dead_letters)
    return [(await lab.log.span(topic, partition, "read_uncommitted")).end for topic in topics]


@case(app)
@pytest.mark.parametrize("kind", ["event", "body", "checkpoint"])
async def test_f06_a_record_of_a_newer_release_refuses_its_partition_until_the_upgrade(
    lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch
):
    newer, good, _ = await prepare(lab)
    lab.damaged.add(newer)  # the checker is not upgraded
    upgraded = await write_newer(lab, newer, kind, monkeypatch)
    before = await ends_of(lab, 1)
    running = await lab.worker(owns=3, retry_refused_seconds=0.05)
    await lab.history.send_all([(newer, resume("a")), (good, resume("yes"))])
    (other,) = of_partition(2, 1)
    await lab.history.start("healthy", other, 1)
    assert await lab.history.result(other) == 2
    await until(lambda: len(running.told.heard("partition", 1, "refused")) >= 3)
    message = running.told.heard("partition", 1, "refused")[0][4]
    assert "partition 1: the record at offset" in message
    assert "was written by a newer version of streams" in message
    assert running.told.heard("run_blocked") == []
    assert await ends_of(lab, 1) == before
    upgraded()
    await running.owns(4)
    assert await lab.history.result(newer) == "a"
    assert await lab.history.result(good) == "yes"
    assert running.told.heard("dead_letter") == []


@case(app, "memory")
async def test_f06_a_lease_of_a_newer_release_is_not_for_deletion(lab: Lab):
    await prepare(lab)
    await send_raw(lab.log, lab.topics.leases, 1, b"1", FOREIGN + b"\x00" * 10)
    running = await lab.worker(owns=3, retry_refused_seconds=0.05)
    await until(lambda: running.told.heard("partition", 1, "refused"))
    message = running.told.heard("partition", 1, "refused")[0][4]
    assert "run workers of that version" in message
    assert "Delete" not in message
    lab.unchecked = True


@case(app, "memory")
async def test_checkpoints_are_read_back_as_they_were_written(lab: Lab):
    await lab.worker(checkpoint_bytes_min=1)
    for n in range(20):
        await lab.history.start("asking", f"run{n}", n)
    for n in range(20):
        await lab.history.seen(f"run{n}", ev.OpScheduled, 2)
    checked = await lab.check()
    assert len(checked.checkpoints) == 20
