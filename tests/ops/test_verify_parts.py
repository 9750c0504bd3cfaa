"""The pure parts of verify: differences, shares, and joins whose memory stays bounded whatever is wrong."""

from __future__ import annotations

import pytest

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import OpPhase, OpState, Phase, Run
from streams.kernel.vector import Vector
from streams.log.port import Record, Span
from streams.ops.verify import effects as effects_module
from streams.ops.verify.commands import CommandJoin
from streams.ops.verify.diff import difference, short
from streams.ops.verify.effects import EffectJoin
from streams.ops.verify.findings import LISTED_MAX, Findings
from streams.ops.verify.index import DAMAGED, DELETED, NOTHING, Entry, Index, digest
from streams.ops.verify.place import Place
from streams.ops.verify.shares import BUCKETS, Counts, Share, bucket_of
from streams.wire.outbox import message_of
from streams.wire.records import EffectMessage, encode_effect
from streams.wire.topics import topics_of

PLACE = Place(topics_of("app", ["mails"]), 0, 1)
OP = OpState("1", "task", "work", b"[]", b"h", OpPhase.RUNNING, 5)
RUN = Run("r", "r@0", "order", 1, "c0de", Phase.ACTIVE, 7, ops={"1": OP}, journal=Vector((1, 2)))


@pytest.mark.parametrize(
    ("changed", "path", "expected", "found"),
    [
        (RUN._replace(version=2), "version", "1", "2"),
        (RUN._replace(phase=Phase.FAILED), "phase", "active", "failed"),
        (RUN._replace(ops={"1": OP._replace(attempt=3)}), "ops.1.attempt", "0", "3"),
        (RUN._replace(ops={}), "ops.1", "OpState(id=1, kind=task, name=work, args=2 bytes (", "(nothing)"),
        (RUN._replace(ops={"1": OP, "2": OP}), "ops.2", "(nothing)", "OpState(id=1"),
        (RUN._replace(journal=Vector((1,))), "journal.1", "2", "(nothing)"),
        (RUN._replace(journal=Vector((1, 2, 3))), "journal.2", "(nothing)", "3"),
        (RUN._replace(result=b"secret"), "result", "None", "6 bytes ("),
        (RUN._replace(cancel_requested=True), "cancel_requested", "False", "True"),
        (
            RUN._replace(error=ev.Failure("code", "C", "m" * 500)),
            "error",
            "None",
            "Failure(kind=code, code=C, message=",
        ),
    ],
)
def test_the_first_difference_is_a_path_and_two_short_values(changed: Run, path: str, expected: str, found: str):
    assert difference(RUN, RUN) is None
    differs = difference(RUN, changed)
    assert differs is not None
    assert differs.path == path
    assert differs.expected.startswith(expected)
    assert differs.found.startswith(found)
    assert len(differs.expected) <= 80
    assert len(differs.found) <= 80


def test_the_order_of_ops_counts_for_it_is_stored():
    one, other = {"1": OP, "2": OP}, {"2": OP, "1": OP}
    differs = difference(RUN._replace(ops=one), RUN._replace(ops=other))
    assert differs is not None
    assert (differs.path, differs.expected, differs.found) == ("ops", "in the order 1, 2", "in the order 2, 1")


def test_bytes_are_never_shown():
    assert "secret" not in short(b"secret")
    assert short(b"secret") != short(b"secreT")


def test_shares_split_the_runs_between_them_and_counts_follow():
    keys = [f"run{n}".encode() for n in range(1_000)]
    counts = Counts()
    for key in keys:
        counts.by_bucket[bucket_of(key)] += 1
    shares, whole = [Share()], Share()
    for _ in range(5):
        shares = [half for share in shares for half in share.split() or ()]
    assert len(shares) == 32
    assert all(sum(share.holds(key) for share in shares) == 1 for key in keys)
    assert sum(counts.of(share) for share in shares) == counts.of(whole) == len(keys)
    for share in shares:
        assert counts.of(share) == sum(share.holds(key) for key in keys)
    while (halves := whole.split()) is not None:
        whole = halves[1]
    assert whole == Share(12, BUCKETS - 1)


def test_the_index_keeps_the_order_of_the_topic_and_knows_its_size():
    index = Index()
    entries = [
        Entry(3, 1, digest(b"a")),
        Entry(DELETED, 2, NOTHING),
        Entry(2, 1 << 40, digest(b"b")),
        Entry(DAMAGED, 9, NOTHING),
    ]
    for entry in entries:
        index.add(b"r", entry)
    index.add(b"other", entries[0])
    assert index.of(b"r") == entries
    assert index.last(b"r") == entries[-1]
    assert index.last(b"nobody") is None
    full = index.bytes
    index.put(b"r", entries[:1])
    assert index.bytes == full - 3 * 32
    index.put(b"r", [])
    index.put(b"other", [])
    assert (index.bytes, len(index)) == (0, 0)


def test_of_many_runs_that_differ_a_thousand_are_told_and_all_are_counted():
    findings = Findings()
    record = Record("app.events", 0, 5, 0, b"k", b"")
    for n in range(LISTED_MAX + 500):
        findings.add(f"r{n}".encode(), PLACE.event("event.seq", record, None, "x")._replace(run_id=f"r{n}"))
    told, count = Findings.merge([findings])
    assert (len(told), count) == (LISTED_MAX, LISTED_MAX + 500)
    assert findings.full


# -- joins -----------------------------------------------------------------------------------------------------------


def emit(join: EffectJoin, number: int) -> None:
    body = ev.EffectEmitted(str(number), "mails", b"1", "k", b"h")
    event = Event("r", "r@0", number, 1, None, None, 1, body)
    wanted = message_of(event, RUN)
    assert wanted is not None
    join.emitted(b"r", Record("app.events", 0, number, 0, b"r", b""), event, wanted, RUN)


def message(number: int, offset: int) -> Record:
    value = encode_effect(EffectMessage(f"r@0/{number}", "r", "mails", b"1", "k", 1, 1, "order", 1, str(number)))
    return Record("app.effects.mails", 0, offset, 0, b"r", value)


def kinds(findings: Findings) -> dict[str, int]:
    (found,) = findings.kinds.values() or [{}]
    return found


def test_a_join_gives_up_what_is_too_far_apart_and_tells_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(effects_module, "_WAITING_MAX", 5)
    findings = Findings()
    join = EffectJoin(PLACE, findings, "mails", Span(0, 100), 100)
    for number in range(20):  # nothing comes for them
        emit(join, number)
    assert len(join._awaiting) == 5
    join.feed([message(100 + number, number) for number in range(20)], Share())
    assert len(join._early) == 5
    orphans = join.finish(trimmed=False)
    join.judge(orphans, {"r@0/100"})
    assert kinds(findings) == {"effect.lost": 20, "effect.orphan": 19, "effect.twice": 1}
    assert join.compared.of(Share()) == 0


def test_a_join_does_not_mind_the_order_within_its_bounds():
    findings = Findings()
    join = EffectJoin(PLACE, findings, "mails", Span(0, 100), 100)
    join.feed([message(2, 0), message(1, 1)], Share())
    emit(join, 1)
    emit(join, 3)
    emit(join, 2)
    assert join.wants_more
    join.feed([message(3, 2)], Share())
    assert not join.wants_more
    assert join.finish(trimmed=False) == []
    assert not findings.kinds
    assert join.compared.of(Share()) == 3


def test_messages_behind_the_captured_end_of_the_events_are_not_judged():
    findings = Findings()
    join = EffectJoin(PLACE, findings, "mails", Span(0, 100), 7)
    join.feed([message(1, 6), message(2, 7), message(3, 8)], Share())
    assert [orphan.effect_id for orphan in join.finish(trimmed=False)] == ["r@0/1"]


def outcome(join: CommandJoin, offset: int, body: ev.Body = ev.RunCancelled(), key: bytes = b"r") -> None:  # noqa: B008
    event = Event(key.decode(), "r@0", 1, 1, None, offset, 1, body)
    join.outcome(Record("app.events", 0, offset, 0, key, b""), event)


def command(offset: int, key: bytes = b"r") -> Record:
    return Record("app.commands", 0, offset, 0, key, b"")


def test_outcomes_without_commands_are_not_gathered():
    findings = Findings()
    join = CommandJoin(PLACE, findings, Span(0, 0), trimmed=False)
    for offset in range(100):
        outcome(join, offset)
    assert len(join._outcomes) == 0
    assert kinds(findings) == {"command.unknown": 100}


def test_a_refusal_beside_the_first_outcome_of_its_command_is_no_second_one():
    findings = Findings()
    join = CommandJoin(PLACE, findings, Span(0, 10), trimmed=False)
    outcome(join, 0, ev.RunBlocked(ev.Failure("code", "C", "m")))
    outcome(join, 0, ev.CommandRejected("start", "C", "m"))
    assert not findings.kinds
    outcome(join, 0, ev.RunCancelled())
    assert kinds(findings) == {"command.twice": 1}


def test_commands_that_are_still_to_be_applied_are_not_missed():
    findings = Findings()
    join = CommandJoin(PLACE, findings, Span(0, 10), trimmed=False)
    outcome(join, 1)
    assert join.wants_more
    join.feed([command(offset) for offset in range(10)])
    assert not join.finish(4)
    join.end()
    assert kinds(findings) == {"command.lost": 3}  # 0, 2 and 3
    assert join.compared == 1


def test_commands_before_the_first_outcome_that_is_left_are_not_judged():
    findings = Findings()
    join = CommandJoin(PLACE, findings, Span(0, 10), trimmed=True)
    outcome(join, 3)
    join.feed([command(offset) for offset in range(5)])
    join.finish(5)
    assert (join.gone, join.compared) == (3, 1)
    assert kinds(findings) == {"command.lost": 1}  # 4, which was applied
