"""A good log has no divergence: beside live workers, after compaction and retention, in one pass or in many."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streams.cli import main
from streams.errors import LogUnavailable, UsageError
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.events import Event
from streams.log.memory import Hooks, open_memory
from streams.log.port import NewRecord, TopicPartition
from streams.log.sqlite import open_sqlite
from streams.log.sqlite.place import parse_url
from streams.ops.verify import Report, ends, verify
from streams.ops.verify.index import Index
from streams.ops.verify.partition import PartitionCheck
from streams.ops.verify.shares import Share
from streams.runtime.topics import ensure_topics
from streams.wire.partitioner import partition_of
from streams.wire.records import decode_checkpoint, decode_event, decode_lease, encode_checkpoint, encode_event
from tests.ops.good import app, fill
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal
from tests.runtime.lab import PARTITIONS, Lab, case

ROOT = Path(__file__).resolve().parents[2]


async def right(lab: Lab, **options: Any) -> Report:
    report = await verify(lab.log, lab.app.name, **options)
    assert report.divergences == ()
    return report


def same(one: Report, other: Report) -> bool:
    return one == other._replace(seconds=one.seconds, passes=one.passes)


@case(app)
async def test_every_kind_of_run_is_right_in_one_pass_or_in_many(lab: Lab):
    await fill(lab)
    whole = await right(lab)
    assert whole.passes == PARTITIONS
    assert not any(whole.not_compared)
    for limit in (1, 2_500, 4_000):
        some = await right(lab, memory_bytes_max=limit)
        assert some.passes > PARTITIONS, limit
        assert same(whole, some), limit


@case(app)
async def test_partitions_can_be_verified_one_by_one(lab: Lab):
    await fill(lab, 2)
    whole = await right(lab)
    parts = [await right(lab, partitions=[number]) for number in range(PARTITIONS)]
    for name in ("runs", "events", "checkpoints", "effects", "commands", "leases", "dead_letters"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts), name
    with pytest.raises(UsageError, match="there is no partition 4; the app has 4, from 0 on"):
        await verify(lab.log, lab.app.name, partitions=[4])


@case(app)
async def test_an_app_without_topics_is_a_usage_error(lab: Lab):
    with pytest.raises(UsageError, match=r"app 'nobody' has no topic nobody\.events"):
        await verify(lab.log, "nobody")


@case(app)
async def test_an_empty_log_is_right(lab: Lab):
    report = await right(lab)
    assert (report.runs, report.events, report.passes) == (0, 0, PARTITIONS)


@case(app)
async def test_it_runs_beside_workers_that_go_on_writing(lab: Lab):
    await lab.worker(checkpoint_bytes_min=300, sweep_seconds=0.05, checkpoint_age_seconds=0.1)
    writing = asyncio.create_task(_write_on(lab))
    events = 0
    looks = 0
    while not writing.done() or looks < 5:
        report = await right(lab, memory_bytes_max=5_000 if looks % 2 else 10**9)
        assert report.events >= events
        events = report.events
        looks += 1
    await writing
    assert events > 100


async def _write_on(lab: Lab) -> None:
    for n in range(40):
        await lab.history.start("order", f"order{n}", "a")
        await lab.history.start("story", f"story{n}", {"rounds": 2})
        if n % 5 == 0:
            await lab.history.ended(f"order{n}")


def test_it_runs_beside_workers_whose_markers_appear_late(tmp_path: Path) -> None:
    """As on Kafka, where the partitions of one transaction become visible one after another."""
    delays = iter(range(1_000_000))

    class Late(Hooks):
        def marker_delay(self, topic: str, partition: int) -> float:
            return 0.002 * (next(delays) % 5)

    async def scenario() -> None:
        first = await open_memory(hooks=Late())

        async def share() -> Any:
            return first.share()

        lab = Lab(app, share, first)
        await ensure_topics(lab.log, lab.topics, PARTITIONS)
        try:
            await lab.worker(checkpoint_bytes_min=300)
            writing = asyncio.create_task(_write_on(lab))
            while not writing.done():
                await right(lab)
            await writing
        finally:
            await lab.end()

    asyncio.run(scenario())


@case(app, "memory")
async def test_what_an_aborted_transaction_has_written_is_no_part_of_the_log(lab: Lab):
    await fill(lab, 2)
    before = await right(lab)
    run_id = "order0"
    partition = lab.history.partition(run_id)
    key = run_id.encode()
    (event, *_), topics = lab.history.events[run_id], lab.topics
    store = lab.log._store
    transaction = store.begin("a dead worker", store.initialise("a dead worker"))
    records = [
        NewRecord(topics.events, partition, key, encode_event(event)),
        NewRecord(topics.checkpoints, partition, key, b"junk"),
        NewRecord(topics.effect("mails"), partition, key, b"junk"),
    ]
    store.write(records, transaction)
    store.end(transaction, committed=False)
    after = await right(lab)
    assert same(before, after)


@case(app, "memory")
async def test_a_transaction_that_hangs_is_told_of(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await fill(lab, 1)
    monkeypatch.setattr(ends, "_PATIENCE_SECONDS", 0.05)
    store = lab.log._store
    transaction = store.begin("a frozen worker", store.initialise("a frozen worker"))
    store.write([NewRecord(lab.topics.events, 1, b"k", b"v")], transaction)
    with pytest.raises(LogUnavailable, match=r"a transaction hangs in good.events\[1\] below offset"):
        await verify(lab.log, lab.app.name)
    store.end(transaction, committed=False)


@case(app)
async def test_compaction_leaves_nothing_to_complain_of(lab: Lab):
    await fill(lab)
    before = await right(lab)
    for topic in (lab.topics.checkpoints, lab.topics.leases):
        await lab.log.compact(topic)
    lab.unchecked = True  # its checker wants every lease
    after = await right(lab)
    assert after.checkpoints < before.checkpoints
    assert after.leases == PARTITIONS
    assert (after.runs, after.events, after.effects) == (before.runs, before.events, before.effects)


# -- damage ----------------------------------------------------------------------------------------------------------


async def _waiting(lab: Lab) -> int:
    worker = await lab.worker()
    await lab.history.start("asking", "r", "?")
    await lab.history.seen("r", ev.OpScheduled, 2)
    await worker.stop()
    return lab.history.partition("r")


@case(app)
@pytest.mark.parametrize("value", [b"garbage", b"", None])
async def test_a_damaged_run_is_told_of_until_an_operator_has_ended_it(lab: Lab, value: bytes | None):
    partition = await _waiting(lab)
    lab.damaged.add("r")
    offset = await send_raw(lab.log, lab.topics.events, partition, b"r", value)
    worker = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.0)
    await lab.history.send("r", resume("x"))
    (found,) = (await verify(lab.log, app.name)).divergences
    assert (found.kind, found.run_id, found.offset) == ("event.unreadable", "r", offset)
    assert "streams diagnose r" in found.advice
    forced = await lab.history.send("r", cmd.Cancel(force=True))
    await lab.history.answered(forced, "r")
    await worker.stop()
    report = await right(lab)
    assert report.damaged == 1


@case(app)
async def test_a_run_whose_checkpoint_cannot_be_read_is_told_of_until_it_was_ended(lab: Lab):
    partition = await _waiting(lab)
    lab.damaged.add("r")
    offset = await send_raw(lab.log, lab.topics.checkpoints, partition, b"r", b"garbage")
    (found,) = (await verify(lab.log, app.name)).divergences
    assert (found.kind, found.topic, found.offset) == ("checkpoint.unreadable", lab.topics.checkpoints, offset)
    worker = await lab.worker()
    await lab.history.answered(await lab.history.send("r", cmd.Cancel(force=True)), "r")
    await worker.stop()
    assert (await right(lab)).damaged == 1


@case(app)
async def test_a_run_that_has_expired_leaves_nothing_and_its_name_is_free_for_another(lab: Lab):
    settings = {"early_input_seconds": 0.1, "sweep_seconds": 0.05}
    worker = await lab.worker(**settings)
    for count in (1, 2):
        await lab.history.send("ghost", signal("news", count))
        await lab.history.seen("ghost", ev.RunExpired, count)
    await lab.history.start("order", "ghost", "a")
    assert await lab.history.result("ghost") == "A"
    await worker.stop()
    assert (await right(lab)).runs == 3
    await lab.log.compact(lab.topics.checkpoints)
    assert (await right(lab)).runs == 3


# -- retention -------------------------------------------------------------------------------------------------------


def delete_before(lab: Lab, topic: str, partition: int, offset: int) -> None:
    """What Kafka's retention does, in the file of the embedded log."""
    connection = sqlite3.connect(parse_url(lab.log.url).path)
    place = (topic, partition)
    (pid,) = connection.execute("SELECT pid FROM partitions WHERE topic = ? AND partition = ?", place).fetchone()
    connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (pid << 40, (pid << 40) + offset))
    connection.execute("UPDATE partitions SET start = ? WHERE pid = ?", (offset, pid))
    connection.commit()
    connection.close()


async def _events_of(lab: Lab, partition: int) -> list[tuple[int, Event]]:
    records = await records_of(lab.log, TopicPartition(lab.topics.events, partition))
    return [(record.offset, decode_event(record.value or b"")) for record in records]


@case(app, "sqlite")
async def test_runs_whose_first_events_are_gone_begin_with_their_checkpoint(lab: Lab):
    """The tail of the lease says how far events may go: everything before it is in a checkpoint."""
    await fill(lab)
    whole = await right(lab)
    lab.unchecked = True  # its checker wants every event
    cut = 0
    for partition in range(PARTITIONS):
        leases = await records_of(lab.log, TopicPartition(lab.topics.leases, partition))
        tail = decode_lease(leases[-1].value or b"").tail
        events = await _events_of(lab, partition)
        for offset in (events[5][0], events[len(events) // 2][0], events[-3][0], tail):
            delete_before(lab, lab.topics.events, partition, min(offset, tail))
            report = await right(lab)
            assert same(report, await right(lab, memory_bytes_max=1))
            cut += report.not_compared.runs
    assert cut > 0
    assert report.events < whole.events
    assert report.not_compared.checkpoints > 0


@case(app, "sqlite")
async def test_a_checkpoint_is_compared_although_the_first_events_are_gone(lab: Lab):
    worker = await lab.worker(checkpoint_bytes_min=1)
    await lab.history.start("asking", "r", "?")
    await lab.history.seen("r", ev.OpScheduled, 2)
    await lab.history.send("r", resume("yes"))
    assert await lab.history.result("r") == "yes"
    await worker.stop()
    lab.unchecked = True
    partition = lab.history.partition("r")
    place = TopicPartition(lab.topics.checkpoints, partition)
    states = [decode_checkpoint(r.value or b"") for r in await records_of(lab.log, place) if r.key == b"r"]
    offset = next(offset for offset, event in await _events_of(lab, partition) if event.seq == states[0].seq + 1)
    delete_before(lab, lab.topics.events, partition, offset)
    report = await right(lab)
    assert (report.runs, report.not_compared.runs, report.checkpoints) == (1, 1, len(states) - 1)
    await send_raw(lab.log, *place, b"r", encode_checkpoint(states[-1]._replace(result=b"3")))
    (found,) = (await verify(lab.log, app.name)).divergences
    assert (found.kind, found.field, found.seq) == ("checkpoint.differs", "result", states[-1].seq)


@case(app, "sqlite")
async def test_events_that_no_checkpoint_covers_may_not_be_gone(lab: Lab):
    partition = await _waiting(lab)
    lab.unchecked = True
    leases = await records_of(lab.log, TopicPartition(lab.topics.leases, partition))
    tail = decode_lease(leases[-1].value or b"").tail
    delete_before(lab, lab.topics.events, partition, tail + 1)
    report = await verify(lab.log, app.name)
    assert [(d.kind, d.field, d.partition) for d in report.divergences] == [("lease.tail", "tail", partition)]
    assert report.not_compared.runs_unknown == 1


@case(app, "sqlite")
async def test_messages_and_commands_that_retention_has_deleted_are_counted_and_not_missed(lab: Lab):
    await fill(lab)
    whole = await right(lab)
    lab.unchecked = True
    gone = {"mails": 0, "commands": 0}
    for partition in range(PARTITIONS):
        for name, topic in (("mails", lab.topics.effect("mails")), ("commands", lab.topics.commands)):
            records = await records_of(lab.log, TopicPartition(topic, partition))
            keep = len(records) // 2 if partition else len(records)
            start = records[keep].offset if keep < len(records) else (await lab.log.span(topic, partition)).end
            delete_before(lab, topic, partition, start)
            gone[name] += keep
    report = await right(lab)
    assert report.not_compared.effects == gone["mails"]
    assert report.effects == whole.effects - gone["mails"]
    assert report.not_compared.commands == gone["commands"]
    assert same(report, await right(lab, memory_bytes_max=1))
    # What is missing behind the first one that is left was not deleted by age.
    for partition in range(1, PARTITIONS):
        records = await records_of(lab.log, TopicPartition(lab.topics.effect("mails"), partition))
        if len(records) > 2:
            break
    connection = sqlite3.connect(parse_url(lab.log.url).path)
    place = (lab.topics.effect("mails"), partition)
    (pid,) = connection.execute("SELECT pid FROM partitions WHERE topic = ? AND partition = ?", place).fetchone()
    connection.execute("DELETE FROM records WHERE id = ?", ((pid << 40) + records[1].offset,))
    connection.commit()
    connection.close()
    (found,) = (await verify(lab.log, app.name)).divergences
    assert (found.kind, found.run_id) == ("effect.lost", (records[1].key or b"").decode())


@case(app, "sqlite")
async def test_what_retention_deletes_meanwhile_is_noticed_before_each_pass(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await fill(lab)
    lab.unchecked = True
    deleted: set[int] = set()
    begin = PartitionCheck._pass

    async def delete_first(self: PartitionCheck, share: Share, *, first: bool) -> Any:
        done = await begin(self, share, first=first)
        for number in range(self._place.number + 1, PARTITIONS):  # partitions whose turn is still to come
            effects = await records_of(lab.log, TopicPartition(lab.topics.effect("mails"), number))
            if len(effects) > 1:
                delete_before(lab, lab.topics.effect("mails"), number, effects[-1].offset)
                deleted.add(number)
        return done

    monkeypatch.setattr(PartitionCheck, "_pass", delete_first)
    report = await right(lab, memory_bytes_max=3_000)
    assert deleted
    assert report.not_compared.effects > 0


# -- memory ----------------------------------------------------------------------------------------------------------


@case(app, "sqlite")
async def test_no_pass_holds_more_than_the_limit_and_a_run(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await fill(lab)
    seen: list[int] = []
    index_of = Index.add

    def add(self: Index, *arguments: Any) -> None:
        index_of(self, *arguments)
        seen.append(len(self))

    whole = await right(lab)
    monkeypatch.setattr(Index, "add", add)
    some = await right(lab, memory_bytes_max=4_000)
    assert same(whole, some)
    assert some.passes > PARTITIONS
    assert max(seen) < whole.runs


# -- the command line ------------------------------------------------------------------------------------------------


def _file(folder: Path) -> str:
    """A small log with one run that has ended and one that waits; its address."""
    url = f"sqlite:///{folder}/log.db"

    async def work() -> None:
        lab = Lab(app, lambda: open_sqlite(url), await open_sqlite(url))
        await ensure_topics(lab.log, lab.topics, PARTITIONS)
        try:
            worker = await lab.worker()
            await lab.history.start("order", "o-1", "a")
            await lab.history.start("asking", "a-1", "?")
            await lab.history.ended("o-1")
            await lab.history.seen("a-1", ev.OpScheduled, 2)
            await worker.stop()
        finally:
            await lab.end()

    asyncio.run(work())
    return url


def _spoil(url: str) -> None:
    async def work() -> None:
        log = await open_sqlite(url)
        partition = partition_of(b"o-1", PARTITIONS)
        (record,) = [r for r in await records_of(log, TopicPartition("good.checkpoints", partition)) if r.key == b"o-1"]
        state = decode_checkpoint(record.value or b"")
        forged = encode_checkpoint(state._replace(result=b'"forged"'))
        await log.append([NewRecord("good.checkpoints", partition, b"o-1", forged)])
        await log.close()

    asyncio.run(work())


def test_the_command_line_says_that_all_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url = _file(tmp_path)
    assert main(["verify", "--log", url]) == 0
    out = capsys.readouterr().out
    assert "2 runs, 14 events, 1 checkpoint, 2 effects, 2 commands" in out
    assert "✓ nothing differs" in out
    assert main(["verify", "--log", url, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert {"runs", "events", "checkpoints", "divergences", "effects", "commands", "passes", "seconds"} <= set(found)
    assert (found["runs"], found["events"], found["checkpoints"], found["divergences"]) == (2, 14, 1, [])


def test_the_command_line_names_what_differs_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url = _file(tmp_path)
    _spoil(url)
    report = tmp_path / "report.json"
    assert main(["verify", "--log", url, "--report", str(report)]) == 1
    out = capsys.readouterr().out
    assert "✗ run o-1  checkpoint.differs: the checkpoint is not what its events fold to" in out
    assert "field  result: expected 3 bytes (" in out
    assert "code   order v1, code " in out
    assert "streams rebuild" in out
    found = json.loads(report.read_text("utf-8"))
    (divergence,) = found["divergences"]
    assert found["divergent"] == 1
    assert (divergence["run_id"], divergence["kind"], divergence["field"]) == ("o-1", "checkpoint.differs", "result")
    assert {"partition", "offset", "seq", "expected", "found", "code", "advice"} <= set(divergence)
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []
    assert main(["verify", "--log", url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["divergences"] == found["divergences"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--partition", "9"], "there is no partition 9; the app has 4, from 0 on"),
        (["--partition", "x"], "--partition: 'x' is no whole number"),
        (["--memory", "0"], "--memory: '0' is no whole number from 1 to"),
        (["--app", "nobody"], "no app 'nobody' has topics"),
        (["nofile.py:app"], "there is no file nofile.py"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
):
    assert main(["verify", "--log", _file(tmp_path), *arguments]) == 2
    (complaint,) = capsys.readouterr().err.splitlines()
    assert line in complaint


@pytest.mark.slow
@pytest.mark.parametrize("which", ["order", "report"])
def test_the_log_of_the_demo_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str):
    url = f"sqlite:///{tmp_path}/demo.db"
    command = [sys.executable, "-m", "streams", "demo", which, "--approve", "--log", url, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert main(["verify", "--log", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 1
    assert found["divergences"] == []
    assert found["effects"] == json.loads(done.stdout.splitlines()[-1])["effects"]
