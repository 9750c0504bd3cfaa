"""New checkpoints from the log alone: as the old ones bit for bit, as the owner, and from wherever one broke off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streams.errors import CommitAborted, Refused, UsageError
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.run import Run, is_terminal, stub_of
from streams.log.port import NewRecord, TopicPartition
from streams.ops.rebuild import RebuildReport, rebuild
from streams.ops.rebuild import folding as folding_module
from streams.ops.rebuild import run as run_module
from streams.ops.verify import verify
from streams.runtime import crash, watch
from streams.runtime.marks import CHECKPOINTS, REBUILDING
from streams.runtime.rebuilding import RebuildWorker
from streams.runtime.settings import WorkerSettings
from streams.runtime.topics import check_topics
from streams.wire.records import Damaged, Lease, decode_checkpoint, decode_lease, encode_checkpoint
from tests.chaos.app import app as chaos
from tests.runtime.checker import records_of
from tests.runtime.history import resume, send_raw, signal, start, until
from tests.runtime.lab import PARTITIONS, Lab, case
from tests.runtime.test_bad_records import app as bad_app
from tests.runtime.test_bad_records import damage, of_partition, write_newer
from tests.runtime.test_expiry import Clock

SOON = WorkerSettings(checkpoint_age_seconds=0.0, sweep_seconds=0.05)


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_OUTSIDE", str(tmp_path / "outside"))


async def again(lab: Lab, **how: Any) -> RebuildReport:
    """A rebuild with a log of its own, as from another process."""
    log = await lab.open_log()
    try:
        return await rebuild(log, lab.app.name, members_seconds=0.5, **how)
    finally:
        await log.close()


async def checkpoints(lab: Lab) -> dict[bytes, bytes]:
    """The last checkpoint of each run, as it is stored."""
    found: dict[bytes, bytes] = {}
    for number in range(PARTITIONS):
        for record in await records_of(lab.log, TopicPartition(lab.topics.checkpoints, number)):
            found.pop(record.key or b"", None)
            if record.value is not None:
                found[record.key or b""] = record.value
    return found


async def wipe(lab: Lab, topic: str) -> None:
    """Delete every record of a compacted topic, as a wrong cleanup policy does."""
    for number in range(PARTITIONS):
        for key in {record.key for record in await records_of(lab.log, TopicPartition(topic, number))}:
            await send_raw(lab.log, topic, number, key, None)
    await lab.log.compact(topic)


async def make_anew(lab: Lab) -> None:
    """Let it look as if the topic of the checkpoints was deleted and created again: the leases name another one."""
    await wipe(lab, lab.topics.checkpoints)
    for number in range(PARTITIONS):
        last = (await records_of(lab.log, TopicPartition(lab.topics.leases, number)))[-1]
        headers = tuple((name, b"another" if name == CHECKPOINTS else value) for name, value in last.headers)
        await lab.log.append([NewRecord(lab.topics.leases, number, last.key, last.value, headers)])


async def faults(lab: Lab) -> list[str]:
    return (await check_topics(lab.log, lab.topics)).faults


async def marks(lab: Lab, number: int = 1) -> dict[str, bytes | None]:
    return dict((await records_of(lab.log, TopicPartition(lab.topics.leases, number)))[-1].headers)


async def states(lab: Lab) -> dict[str, Run]:
    """What a worker makes of the log."""
    running = await lab.worker(stop_seconds=0.1)
    found = {run_id: hot.run for part in running.worker.owner.partitions.values() for run_id, hot in part.runs.items()}
    await running.stop()
    return found


INPUTS: dict[str, tuple[str, Any]] = {
    "chain-1": ("chain", {"number": 1, "ms": [1, 2]}),
    "fan-1": ("fan", {"ms": [1, 5, 2]}),
    "race-1": ("race", {"ms": [1, 20, 20]}),
    "nap-1": ("nap", {"seconds": [0.01, 0.03]}),
    "ask-1": ("ask", {"questions": 2}),
    "both-1": ("ask_both", {}),
    "both-2": ("ask_both", {}),
    "listen-1": ("listen", {"count": 2}),
    "listen-2": ("listen", {"count": 3}),
    "stopped-1": ("stopped", {"number": 1, "ms": 2}),
    "stopped-2": ("stopped", {"number": 1, "ms": 60_000}),
    "buy-1": ("buy", {"order": "o-1", "amount": 3, "ms": 2}),
    "buy-2": ("buy", {"order": "o-2", "amount": 3, "ms": 600}),
    "flaky-1": ("flaky", {}),
    "doomed-1": ("doomed", {"how": "task"}),
    "doomed-2": ("doomed", {"how": "code"}),
    "late-1": ("late", {"seconds": 0.02}),
    "story-1": ("story", {"rounds": 2, "width": 3, "done": 0, "lines": []}),
    "missing-1": ("no such workflow", 1),
}
OPEN = {"both-2", "listen-2", "stopped-2", "missing-1", "early-1"}


async def histories(lab: Lab) -> None:
    """Runs of all kinds, some ended and some open, over a crash and over a stop."""
    running = await lab.worker(stop_seconds=0.1)
    h = lab.history
    early = [("early-1", signal("word", 1)), ("listen-1", signal("word", 1)), ("listen-1", signal("word", 2))]
    await h.send_all([*early, *((run_id, start(*how)) for run_id, how in INPUTS.items())])
    await h.seen("buy-2", ev.OpScheduled)
    await running.kill()
    running = await lab.worker(stop_seconds=0.1)
    await h.seen("ask-1", ev.OpScheduled)
    await h.seen("both-1", ev.OpScheduled, 2)
    answers = [("ask-1", resume(1)), ("both-1", resume(1, "left")), ("both-1", resume(2, "right"))]
    offsets = await h.send_all([*answers, ("both-2", resume(2, "right")), ("listen-2", signal("word", 5))])
    await h.answered(offsets[-1], "listen-2")
    await h.seen("ask-1", ev.OpScheduled, 2)
    await h.send_all([("ask-1", resume(3)), ("stopped-1", cmd.Cancel()), ("missing-1", resume(1))])
    await h.ended(*(run_id for run_id in INPUTS if run_id not in OPEN))
    await running.stop()
    await h.read()


@case(chaos)
async def test_f21_new_checkpoints_are_the_old_ones_bit_for_bit(lab: Lab):
    await histories(lab)
    # Let a sweep write what is not covered yet, so that there is an old checkpoint of every run to compare with.
    running = await lab.worker(sweep_seconds=0.05, checkpoint_age_seconds=0.0, stop_seconds=0.1)
    parts = running.worker.owner.partitions
    hots = [hot for part in parts.values() for hot in part.runs.values()]
    await until(lambda: all(hot.first_offset is None for hot in hots), "the sweep")
    await running.stop()
    await lab.history.read()
    old = await checkpoints(lab)
    bodies = {type(event.body) for events in lab.history.events.values() for event in events}
    assert len(bodies) >= 20, bodies
    same = await again(lab)
    assert (same.total("missing"), same.total("unreadable"), same.total("deleted")) == (0, 0, 0)
    assert same.total("behind") <= 1  # the attempt of a long task that was handed back
    old = await checkpoints(lab)
    assert (await again(lab)).total("written") == 0
    live = {key.decode(): decode_checkpoint(data) for key, data in old.items()}
    assert same.total("runs") == len(live) == len(INPUTS) + 1
    assert same.good
    await make_anew(lab)
    report = await again(lab)
    new = await checkpoints(lab)
    assert new == old
    assert set(new) == {run_id.encode() for run_id in live}
    assert report.total("missing") == report.total("written") == len(live)
    assert await faults(lab) == []
    restored = await states(lab)
    assert restored.keys() == live.keys()
    assert [run_id for run_id in live if restored[run_id] != live[run_id]] in ([], ["stopped-2"])  # it runs again
    lab.unchecked = True  # a wiped topic is no proof of anything


@case(bad_app)
async def test_f21_workers_refuse_until_each_partition_was_rebuilt(lab: Lab):
    lab.unchecked = True
    names = [of_partition(number, 1)[0] for number in range(PARTITIONS)]
    running = await lab.worker()
    await lab.history.send_all([(name, start("asking", 1)) for name in names])
    for name in names:
        await lab.history.seen(name, ev.OpScheduled, 2)
    await running.stop()
    await make_anew(lab)
    (fault,) = await faults(lab)
    assert "was deleted and created again since the last owner" in fault
    assert "streams rebuild --app bad" in fault
    dry = await again(lab, dry_run=True)
    assert dry.total("missing") == PARTITIONS
    assert await checkpoints(lab) == {}
    await again(lab, partitions=[1])
    assert len(await faults(lab)) == 1
    await again(lab, partitions=[0, 2])
    assert len(await faults(lab)) == 1
    report = await again(lab, partitions=[3])
    assert (report.total("runs"), report.total("written"), report.good) == (1, 1, True)
    assert await faults(lab) == []
    await lab.worker()
    await lab.history.send_all([(name, resume("yes")) for name in names])
    for name in names:
        assert await lab.history.result(name) == "yes"


@case(bad_app)
async def test_f21_the_lease_after_a_rebuild_has_the_right_tail_and_nothing_is_folded_twice(lab: Lab):
    (name,) = of_partition(1, 1)
    running = await lab.worker()
    await lab.history.start("asking", name, 1)
    await lab.history.seen(name, ev.OpScheduled, 2)
    await running.stop()
    before = await lease_of(lab, 1)
    await again(lab)
    record = (await records_of(lab.log, TopicPartition(lab.topics.leases, 1)))[-1]
    lease = decode_lease(record.value or b"")
    assert lease.tail == (await lab.log.span(lab.topics.events, 1)).end
    assert (lease.applied, lease.topic_id, lease.released) == (before.applied, before.topic_id, True)
    assert lease.epoch == before.epoch + 1
    assert REBUILDING not in dict(record.headers)
    assert await lab.log.group_offsets(lab.topics.group, lab.topics.commands) != {}
    await lab.worker()
    await lab.history.send(name, resume("yes"))
    assert await lab.history.result(name) == "yes"


@case(bad_app)
@pytest.mark.parametrize("value", [b"", b"garbage"])
async def test_f06_only_damaged_checkpoints_are_replaced_and_what_waited_is_sent_back_once(lab: Lab, value: bytes):
    bad, good = of_partition(1, 2)
    running = await lab.worker()
    await lab.history.send_all([(bad, start("asking", 1)), (good, start("asking", 2))])
    for run_id in (bad, good):
        await lab.history.seen(run_id, ev.OpScheduled, 2)
    await running.stop()
    await again(lab)
    lab.damaged.add(bad)
    await send_raw(lab.log, lab.topics.checkpoints, 1, bad.encode(), value)
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    await lab.history.send(bad, resume("yes"))
    await until(lambda: running.told.heard("dead_letter"))
    await running.stop()
    dry = await again(lab, dry_run=True)
    report = await again(lab)
    for found in (dry, report):
        assert (found.total("written"), found.total("unreadable"), found.total("sent_back")) == (1, 1, 1)
    assert (await again(lab)).total("sent_back") == 0
    assert (await verify(lab.log, lab.app.name)).good
    running = await lab.worker()
    assert running.told.heard("run_blocked") == []
    assert await lab.history.result(bad) == "yes"


@case(bad_app)
async def test_f06_after_a_rebuild_verify_finds_no_fault_with_a_checkpoint_that_was_wrong(lab: Lab):
    lab.unchecked = True
    (name,) = of_partition(1, 1)
    running = await lab.worker()
    await lab.history.start("asking", name, 1)
    await lab.history.seen(name, ev.OpScheduled, 2)
    await running.stop()
    await again(lab)
    state = decode_checkpoint((await records_of(lab.log, TopicPartition(lab.topics.checkpoints, 1)))[-1].value or b"")
    assert isinstance(state, Run)
    wrong = encode_checkpoint(state._replace(code="other"))
    await send_raw(lab.log, lab.topics.checkpoints, 1, name.encode(), wrong)
    found = await verify(lab.log, lab.app.name)
    assert [divergence.kind for divergence in found.divergences] == ["checkpoint.differs"]
    assert (await again(lab)).total("behind") == 1
    found = await verify(lab.log, lab.app.name)
    assert found.good, found.divergences
    assert found.not_compared.checkpoints == 2
    await send_raw(lab.log, lab.topics.checkpoints, 1, name.encode(), wrong)
    assert not (await verify(lab.log, lab.app.name)).good  # what comes after the rebuild is no history


@case(bad_app)
async def test_f21_lost_leases_are_made_good_with_an_epoch_above_all_events(lab: Lab):
    (name,) = of_partition(1, 1)
    for _ in range(2):
        running = await lab.worker()
        await running.stop()
    running = await lab.worker()
    await lab.history.start("asking", name, 1)
    await lab.history.seen(name, ev.OpScheduled, 2)
    epoch = running.worker.owner.partitions[1].epoch
    await running.stop()
    await wipe(lab, lab.topics.leases)
    await wipe(lab, lab.topics.checkpoints)
    assert (await again(lab)).total("missing") == 1
    lab.unchecked = True
    records = await records_of(lab.log, TopicPartition(lab.topics.leases, 1))
    lease = decode_lease(records[-1].value or b"")
    assert lease.epoch == epoch + 1
    assert all(decode_lease(record.value or b"").epoch > epoch for record in records if record.value)
    assert lease.applied == 1
    assert lease.tail == (await lab.log.span(lab.topics.events, 1)).end
    await lab.worker()
    await lab.history.send(name, resume("yes"))
    assert await lab.history.result(name) == "yes"


@case(bad_app)
async def test_f21_a_lease_that_cannot_be_read_is_made_good(lab: Lab):
    lab.unchecked = True
    (name,) = of_partition(1, 1)
    running = await lab.worker()
    await lab.history.start("asking", name, 1)
    await lab.history.seen(name, ev.OpScheduled, 2)
    await running.stop()
    await send_raw(lab.log, lab.topics.leases, 1, b"1", b"garbage")
    running = await lab.worker(owns=3, retry_refused_seconds=0.05)
    await until(lambda: running.told.heard("partition", 1, "refused"))
    assert "streams rebuild --app bad --partition 1" in running.told.heard("partition", 1, "refused")[0][4]
    await running.stop()
    assert [found.kind for found in (await verify(lab.log, lab.app.name)).divergences] == ["lease.unreadable"]
    assert (await again(lab, partitions=[1])).good
    report = await verify(lab.log, lab.app.name)
    assert report.good, report.divergences  # with an epoch above that of all leases
    await lab.worker()
    await lab.history.send(name, resume("yes"))
    assert await lab.history.result(name) == "yes"


@case(bad_app)
async def test_f06_a_run_with_a_bad_event_stays_marked_and_is_named(lab: Lab):
    bad, good = of_partition(1, 2)
    running = await lab.worker()
    await lab.history.send_all([(bad, start("asking", 1)), (good, start("asking", 2))])
    for run_id in (bad, good):
        await lab.history.seen(run_id, ev.OpScheduled, 2)
    await running.stop()
    await lab.history.read()
    lab.damaged.add(bad)
    await damage(lab, bad, "a gap in seq")
    await wipe(lab, lab.topics.checkpoints)
    report = await again(lab)
    assert not report.good
    (trouble,) = report.partitions[1].damaged
    assert trouble.run_id == bad
    assert isinstance(decode_checkpoint((await checkpoints(lab))[bad.encode()]), Damaged)
    running = await lab.worker()
    assert running.told.heard("run_blocked", bad, "RUN_DAMAGED")
    await lab.history.send(good, resume("yes"))
    assert await lab.history.result(good) == "yes"


@case(bad_app, "memory")
async def test_f21_runs_whose_first_events_are_gone_live_on_by_a_checkpoint_or_are_named(lab: Lab):
    lab.unchecked = True
    old, lost, later = of_partition(1, 3)
    running = await lab.worker()
    await lab.history.send_all([(old, start("asking", 1)), (lost, start("asking", 2))])
    for run_id in (old, lost):
        await lab.history.seen(run_id, ev.OpScheduled, 2)
    await running.stop()
    await again(lab)
    cut = (await lab.log.span(lab.topics.events, 1)).end
    running = await lab.worker()
    await lab.history.start("asking", later, 3)
    await lab.history.seen(later, ev.OpScheduled, 2)
    await lab.history.send_all([(lost, signal("news", 1)), (old, signal("news", 1))])
    await lab.history.seen(old, ev.SignalReceived)
    await lab.history.seen(lost, ev.SignalReceived)
    await running.stop()
    part: Any = lab.log._store.partition(lab.topics.events, 1)  # type: ignore[attr-defined]
    part._entries = [entry for entry in part._entries if entry.offset >= cut]
    span = part.span
    part.span = lambda isolation: span(isolation)._replace(start=cut)
    await send_raw(lab.log, lab.topics.checkpoints, 1, lost.encode(), b"garbage")
    report = await again(lab)
    (trouble,) = report.partitions[1].lost
    assert trouble.run_id == lost
    assert any("are gone" in note for note in report.partitions[1].notes)
    running = await lab.worker()
    assert [told[1] for told in running.told.heard("run_blocked")] == [lost]
    await lab.history.send_all([(old, resume("a")), (later, resume("b"))])
    assert await lab.history.result(old) == "a"
    assert await lab.history.result(later) == "b"


@case(bad_app)
async def test_f21_expired_runs_get_no_checkpoint_and_old_ones_a_stub(lab: Lab):
    clock = Clock()
    ids = of_partition(1, 4)
    lab.unchecked = True  # a topic that was wiped by nulls is none that a worker has left
    running = await lab.worker(clock=clock)
    await lab.history.start("healthy", ids[0], 1)
    await lab.history.ended(ids[0])
    clock.days = 40.0
    await running.stop()
    running = await lab.worker(clock=clock, sweep_seconds=0.05)
    await lab.history.seen(ids[0], ev.RunExpired)
    await running.stop()
    running = await lab.worker(clock=clock)  # one that will not have expired when its time has come
    await lab.history.start("healthy", ids[1], 1)
    await lab.history.ended(ids[1])
    clock.days = 72.0
    await lab.history.start("healthy", ids[2], 1)
    await lab.history.ended(ids[2])
    clock.days = 80.0
    await lab.history.start("healthy", ids[3], 1)
    await lab.history.ended(ids[3])
    await running.stop()
    await wipe(lab, lab.topics.checkpoints)
    how: dict[str, Any] = {"clock": clock, "settings": WorkerSettings(clock_refuse_seconds=1e12)}
    report = await again(lab, **how)
    assert (report.total("runs"), report.total("missing"), report.total("deleted")) == (3, 3, 0)
    found = {key.decode(): decode_checkpoint(data) for key, data in (await checkpoints(lab)).items()}
    assert set(found) == set(ids[1:])
    runs = [found[run_id] for run_id in ids[1:]]
    assert all(isinstance(run, Run) and is_terminal(run) for run in runs)
    assert runs[0] == stub_of(runs[0])  # type: ignore[arg-type]
    assert runs[1] == stub_of(runs[1])  # type: ignore[arg-type]
    assert runs[2] != stub_of(runs[2])  # type: ignore[arg-type]
    assert (await again(lab, **how)).total("written") == 0


@case(bad_app)
async def test_f21_the_checkpoint_of_an_expired_run_is_deleted(lab: Lab):
    clock = Clock()
    (name,) = of_partition(1, 1)
    running = await lab.worker(clock=clock)
    await lab.history.start("healthy", name, 1)
    await lab.history.ended(name)
    await running.stop()
    stale = (await checkpoints(lab))[name.encode()]
    clock.days = 40.0
    running = await lab.worker(clock=clock, sweep_seconds=0.05)
    await lab.history.seen(name, ev.RunExpired)
    await running.stop()
    await send_raw(lab.log, lab.topics.checkpoints, 1, name.encode(), stale)
    lab.damaged.add(name)
    how: dict[str, Any] = {"clock": clock, "settings": WorkerSettings(clock_refuse_seconds=1e12)}
    report = await again(lab, **how)
    assert (report.total("deleted"), report.total("runs")) == (1, 0)
    assert await checkpoints(lab) == {}


@case(bad_app)
@pytest.mark.parametrize("kind", ["event", "body", "checkpoint"])
async def test_f25_a_partition_with_a_record_of_a_newer_release_is_left_as_it_is(
    lab: Lab, kind: str, monkeypatch: pytest.MonkeyPatch
):
    newer, other = of_partition(1, 1)[0], of_partition(2, 1)[0]
    lab.damaged.add(newer)
    running = await lab.worker()
    await lab.history.send_all([(name, start("asking", 1)) for name in (newer, other)])
    for name in (newer, other):
        await lab.history.seen(name, ev.OpScheduled, 2)
    await running.stop()
    await lab.history.read()
    upgraded = await write_newer(lab, newer, kind, monkeypatch)
    before, stood = await lease_of(lab, 1), await marks(lab)
    written = await checkpoints(lab)
    report = await again(lab)
    assert "was written by a newer version of streams" in report.partitions[1].refused
    assert not report.good
    after = await lease_of(lab, 1)
    assert (after.tail, after.applied, after.epoch, after.released) == (
        before.tail,
        before.applied,
        before.epoch + 1,
        True,
    )
    assert await marks(lab) == stood
    assert {key for key, data in (await checkpoints(lab)).items() if written.get(key) != data} == {other.encode()}
    upgraded()
    await lab.worker()
    await lab.history.send_all([(newer, resume("a")), (other, resume("b"))])
    assert await lab.history.result(newer) == "a"
    assert await lab.history.result(other) == "b"


async def lease_of(lab: Lab, number: int) -> Lease:
    """The last one."""
    return decode_lease((await records_of(lab.log, TopicPartition(lab.topics.leases, number)))[-1].value or b"")


@case(bad_app)
async def test_f24_a_checkpoint_that_no_record_can_hold_holds_the_tail_back(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await some_runs(lab)
    await wipe(lab, lab.topics.checkpoints)
    monkeypatch.setattr(folding_module, "RECORD_BYTES_MAX", 300)
    report = await again(lab)
    assert (report.total("written"), report.total("runs")) == (0, 8)
    assert sum("is over the limit of a record" in note for part in report.partitions for note in part.notes) == 8
    assert {(await lease_of(lab, number)).tail for number in range(PARTITIONS)} == {0}
    assert await faults(lab) == []
    monkeypatch.undo()
    await all_go_on(lab)


@case(bad_app, "memory")
async def test_f20_a_wrong_clock_rebuilds_nothing(lab: Lab):
    """By it, results would be taken for old and thrown away."""
    await some_runs(lab)
    await wipe(lab, lab.topics.checkpoints)
    clock = Clock()
    clock.days = 10.0
    report = await again(lab, clock=clock)
    assert all("clock" in part.refused for part in report.partitions)
    assert await checkpoints(lab) == {}
    assert (await again(lab)).good
    await all_go_on(lab)


# -- the owner -------------------------------------------------------------------------------------------------------


@case(bad_app)
async def test_f21_a_rebuild_beside_a_worker_is_refused_and_names_it(lab: Lab):
    running = await lab.worker()
    with pytest.raises(Refused, match="others are at work") as refused:
        await again(lab)
    assert refused.value.code == "WORKERS_RUNNING"
    assert "w1" in refused.value.message
    await lab.history.start("healthy", "r", 1)
    assert await lab.history.result("r") == 2
    assert running.told.heard("partition", 1, "restoring") == running.told.heard("partition", 1, "restoring")[:1]


@case(bad_app)
async def test_f21_of_two_rebuilds_at_once_none_harms_the_other(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await some_runs(lab)
    await wipe(lab, lab.topics.checkpoints)
    monkeypatch.setattr("streams.runtime.rebuilding._JOIN_SECONDS", 1.0)
    found = await asyncio.gather(*(again(lab) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, (RebuildReport, Refused)) for one in found), found
    assert (await again(lab)).good
    assert len(await checkpoints(lab)) == 8
    await all_go_on(lab)


async def some_runs(lab: Lab) -> None:
    lab.unchecked = True
    running = await lab.worker()
    names = [name for number in range(PARTITIONS) for name in of_partition(number, 2)]
    await lab.history.send_all([(name, start("asking", 1)) for name in names])
    for name in names:
        await lab.history.seen(name, ev.OpScheduled, 2)
    await running.stop()


async def all_go_on(lab: Lab) -> None:
    await lab.worker()
    names = [name for number in range(PARTITIONS) for name in of_partition(number, 2)]
    await lab.history.send_all([(name, resume(name)) for name in names])
    for name in names:
        assert await lab.history.result(name) == name


class Stop(BaseException):
    """Ends a rebuild as a kill does, at the point where it is thrown."""


@case(bad_app)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("point", ["commit.before", "commit.after", "acquire.claimed"])
async def test_f21_a_rebuild_that_breaks_off_is_simply_run_again(
    lab: Lab, point: str, count: int, monkeypatch: pytest.MonkeyPatch
):
    await some_runs(lab)
    await make_anew(lab)
    monkeypatch.setattr(run_module, "_RECORDS_MAX", 1)
    left = count

    def hook(name: str) -> None:
        nonlocal left
        left -= name == point
        if left == 0:
            raise Stop

    crash.install(hook)
    broken = False
    try:
        await again(lab)
    except Stop:
        broken = True
    finally:
        crash.install(None)
    if broken:  # nobody serves what is not done
        assert await faults(lab) != [] or len(await checkpoints(lab)) == 8
    assert (await again(lab)).good
    assert await faults(lab) == []
    assert len(await checkpoints(lab)) == 8
    await all_go_on(lab)


@case(bad_app, "memory")
async def test_f21_a_partition_whose_rebuild_has_not_ended_is_served_by_nobody(lab: Lab):
    """Also by a worker that looked at the topics before the rebuild began, and joined the group after it broke off."""
    await some_runs(lab)
    await wipe(lab, lab.topics.checkpoints)
    last = (await records_of(lab.log, TopicPartition(lab.topics.leases, 1)))[-1]
    record = NewRecord(lab.topics.leases, 1, last.key, last.value, (*last.headers, (REBUILDING, b"1")))
    before = watch.ensure_topics

    async def late(*args: Any, **more: Any) -> Any:
        found = await before(*args, **more)
        await lab.log.append([record])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "ensure_topics", late)
        running = await lab.worker(owns=3, retry_refused_seconds=0.05)
    await until(lambda: running.told.heard("partition", 1, "refused"))
    assert "has begun and not ended" in running.told.heard("partition", 1, "refused")[0][4]
    await running.stop()
    assert (await again(lab)).good
    await all_go_on(lab)


@case(bad_app)
async def test_f21_a_worker_that_comes_in_the_middle_takes_over_nothing_half_done(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    await some_runs(lab)
    await wipe(lab, lab.topics.checkpoints)
    started: list[Any] = []
    folding = folding_module.Folding.emit_open

    def slow(self: Any, run_ids: Any) -> None:
        if not started:
            started.append(asyncio.ensure_future(lab.worker(owns=0, retry_refused_seconds=0.05)))
        folding(self, run_ids)

    async def breathe(*_: Any) -> None:
        await asyncio.sleep(0.2)

    monkeypatch.setattr(folding_module.Folding, "emit_open", slow)
    monkeypatch.setattr(run_module._Job, "_breathe", breathe)
    try:
        report: Any = await again(lab)
    except Refused as refused:
        report = refused
    running = await started[0]
    await stop(running)
    monkeypatch.undo()
    assert isinstance(report, (Refused, RebuildReport))
    assert (await again(lab)).good
    await all_go_on(lab)


async def stop(running: Any) -> None:
    running.worker.stop()
    await asyncio.wait([running.task])
    running.killed = True  # the lab need not end it
    if running.task.exception() is not None:  # it was refused at its start, with the words that it should hear
        assert "has begun and not ended" in str(running.task.exception())


@case(bad_app, "memory")
async def test_f21_a_commit_that_is_aborted_is_done_again(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    await some_runs(lab)
    await wipe(lab, lab.topics.checkpoints)
    commit, count = RebuildWorker.commit, 0

    async def sometimes(self: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count % 2:
            raise CommitAborted("a rebalance")
        return await commit(self, *args)

    monkeypatch.setattr(RebuildWorker, "commit", sometimes)
    assert (await again(lab)).good
    assert count == 16
    await all_go_on(lab)


@case(bad_app, "memory")
async def test_f21_without_events_there_is_nothing_to_rebuild_from(lab: Lab):
    with pytest.raises(UsageError, match=r"no topic nobody\.events"):
        await rebuild(lab.log, "nobody")
    with pytest.raises(UsageError, match="no partition 7"):
        await again(lab, partitions=[7])
