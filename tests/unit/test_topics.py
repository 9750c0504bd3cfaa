"""The topics of an app and their settings: what is created, what is refused, what is warned of, and in which words."""

from __future__ import annotations

import shlex

import pytest

from streams import App
from streams.cli.topics import kept
from streams.errors import LogDamaged
from streams.kernel.run import Run
from streams.log.port import TopicInfo
from streams.runtime.marks import check_keys, check_number, marks_of, remembered_faults
from streams.runtime.partition import Hot, Partition, Stamp
from streams.runtime.policies import check_policies, lines, mend_commands, refusal
from streams.runtime.skew import ahead_seconds
from streams.wire.headers import read_headers
from streams.wire.partitioner import partition_of
from streams.wire.topics import topics_of

TOPICS = topics_of("shop", ("parcels", "mails"))
HOUR_SECONDS = 3600.0
KAFKA = {"replication.factor": "3", "min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
AUTO_CREATED = {  # what a broker gives a topic that comes to be because somebody names it
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "max.compaction.lag.ms": "9223372036854775807",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
}


def infos(**changed: dict[str, str]) -> dict[str, TopicInfo]:
    """All topics as they are created on a good cluster; by a topic's short name, what is otherwise."""
    found = {}
    for name, config in TOPICS.settings().items():
        more = changed.get(name.removeprefix("shop."), {})
        found[name] = TopicInfo(name, f"id of {name}", 12, {**config, "retention.bytes": "-1", **KAFKA, **more})
    return found


def told(age_seconds: float = HOUR_SECONDS, **changed: dict[str, str]) -> tuple[list[str], list[str]]:
    """Faults and warnings."""
    findings = check_policies(TOPICS, infos(**changed), age_seconds)
    wrong, risky = [f for f in findings if f.fault], [f for f in findings if not f.fault]
    return lines(wrong, len(TOPICS.settings())), lines(risky, len(TOPICS.settings()))


def shown(value: str) -> str:
    return value if value.isdigit() else repr(value)


def test_every_topic_of_the_design_is_there_with_its_policy():
    hours = {"partials": 1, "commands": 7 * 24, "effects.parcels": 7 * 24, "effects.mails": 7 * 24}
    months = {"dead-letters", "effects.parcels.dead", "effects.mails.dead"}
    settings = {name.removeprefix("shop."): config for name, config in TOPICS.settings().items()}
    assert set(settings) == {"events", "checkpoints", "leases"} | set(hours) | months
    for name in set(hours) | months:
        assert settings[name]["cleanup.policy"] == "delete"
        assert int(settings[name]["retention.ms"]) == hours.get(name, 30 * 24) * 3_600_000
    assert (settings["events"]["cleanup.policy"], settings["events"]["retention.ms"]) == ("delete", "-1")
    for name in ("checkpoints", "leases"):
        assert settings[name]["cleanup.policy"] == "compact"
        assert int(settings[name]["segment.bytes"]) == 32 * 2**20
        assert int(settings[name]["segment.ms"]) == 600_000
        assert int(settings[name]["max.compaction.lag.ms"]) <= 86_400_000
    assert {config["message.timestamp.type"] for config in settings.values()} == {"LogAppendTime"}


def test_no_effect_may_take_the_name_of_what_subscribers_gave_up_on():
    with pytest.raises(ValueError, match=r"no effect name ends in '\.dead'"):
        App("shop").effect("parcels.dead", str)


def test_topics_as_they_are_created_have_no_fault_and_no_risk():
    assert told() == ([], [])


@pytest.mark.parametrize(
    ("topic", "setting", "value", "words"),
    [
        ("checkpoints", "cleanup.policy", "delete", "must be 'compact', or data is lost"),
        ("checkpoints", "cleanup.policy", "compact,delete", "must be 'compact', or data is lost"),
        ("leases", "cleanup.policy", "delete", "must be 'compact', or data is lost"),
        ("events", "cleanup.policy", "compact", "must be 'delete', or data is lost"),
        ("effects.parcels", "cleanup.policy", "compact", "must be 'delete', or data is lost"),
        ("commands", "message.timestamp.type", "CreateTime", "must be 'LogAppendTime'"),
        ("effects.mails.dead", "message.timestamp.type", "CreateTime", "must be 'LogAppendTime'"),
        ("checkpoints", "segment.bytes", "1073741824", "must be at most 33554432"),
        ("checkpoints", "segment.ms", "604800000", "must be at most 600000"),
        ("leases", "max.compaction.lag.ms", "9223372036854775807", "must be at most 86400000"),
        ("checkpoints", "delete.retention.ms", "14399999", "must be at least 14400000"),
        ("events", "retention.ms", "14399999", "must be -1 or at least 14400000"),
        ("events", "retention.bytes", "1000000000", "must be -1, or a burst"),
        ("commands", "retention.bytes", "1000000000", "must be -1, or a burst"),
        ("dead-letters", "max.message.bytes", "999999", "must be at least 1000000"),
        ("events", "min.insync.replicas", "4", "must be at most 3: nothing can be written"),
    ],
)
def test_f21_a_setting_that_would_lose_data_is_one_line_and_one_command(topic, setting, value, words):
    faults, warnings = told(**{topic: {setting: value}})
    assert len(faults) == 1
    assert warnings == []
    assert faults[0].startswith(f"topic shop.{topic}: {setting} is {shown(value)} and {words}")
    assert "\n" not in faults[0]
    (command,) = mend_commands(check_policies(TOPICS, infos(**{topic: {setting: value}}), HOUR_SECONDS), "kafka://h:1")
    words_of = shlex.split(command)
    assert words_of[:3] == ["kafka-configs.sh", "--bootstrap-server", "h:1"]
    mended = dict([words_of[-1].split("=", 1)])
    assert told(**{topic: {setting: value} | mended}) == ([], []), "the command does not mend it"


def test_f21_a_topic_that_a_broker_has_created_by_itself_is_refused_for_all_that_is_wrong():
    faults, _ = told(checkpoints=AUTO_CREATED)
    settings = [line.split(": ")[1].split()[0] for line in faults]
    compaction = ["segment.bytes", "segment.ms", "max.compaction.lag.ms"]
    assert settings == ["cleanup.policy", "message.timestamp.type", *compaction]
    findings = check_policies(TOPICS, infos(checkpoints=AUTO_CREATED), HOUR_SECONDS)
    (command,) = mend_commands(findings, "kafka://h:1,i:2?sasl.username=u")
    assert "--bootstrap-server h:1,i:2 " in command
    assert all(f"{setting}=" in command for setting in settings)
    assert refusal(faults, [command]).endswith("and 2 more: streams topics check tells all, and what mends them")


def test_bounds_follow_the_age_that_a_checkpoint_may_have():
    day = {"retention.ms": "86400000", "delete.retention.ms": "86400000"}
    assert told(6 * HOUR_SECONDS, events=day, checkpoints=day) == ([], [])
    faults, _ = told(6 * HOUR_SECONDS + 1, events=day, checkpoints=day)
    assert [line.split()[1] for line in faults] == ["shop.events:", "shop.checkpoints:", "shop.leases:"]


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("replication.factor", "1", "should be 3: what is accepted is lost with its one broker"),
        ("min.insync.replicas", "1", "should be 2: what is accepted may be on one broker only"),
        ("unclean.leader.election.enable", "true", "should be 'false': a broker that is behind may lead"),
    ],
)
def test_risks_are_warned_of_and_do_not_refuse(setting, value, words):
    more = {setting: value} | ({"min.insync.replicas": "1"} if setting == "replication.factor" else {})
    faults, warnings = told(events=more)
    assert faults == []
    assert [line.startswith(f"topic shop.events: {setting} is {shown(value)} and {words}") for line in warnings] == [
        True
    ]
    everywhere = {name.removeprefix("shop."): more for name in TOPICS.settings()}
    assert [line.startswith(f"all 10 topics: {setting} is") for line in told(**everywhere)[1]] == [True]


def test_a_command_must_not_go_before_a_worker_could_come():
    faults, warnings = told(commands={"retention.ms": "3600000"})
    assert faults == []
    assert "a command that waits longer for a worker is deleted" in warnings[0]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, "for ever"),
        ({"cleanup.policy": "delete", "retention.ms": "604800000"}, "7 days"),
        ({"cleanup.policy": "delete", "retention.ms": "5400000"}, "90 minutes"),
        ({"cleanup.policy": "delete", "retention.ms": "1"}, "1 ms"),
        (
            {"cleanup.policy": "delete", "retention.ms": "86400000", "retention.bytes": "5000"},
            "1 day; at most 5,000 bytes a partition",
        ),
        ({"cleanup.policy": "compact", "delete.retention.ms": "86400000"}, "latest of a key, deletions 1 day"),
    ],
)
def test_how_long_a_topic_is_kept_is_said_in_words(config, words):
    assert kept(config) == words


# ---- what leases remember -------------------------------------------------------------------------------------------


def test_f16_a_count_that_was_raised_for_all_topics_is_known_by_the_leases():
    marks = read_headers(marks_of(TOPICS, infos()))
    assert remembered_faults(TOPICS, infos(), marks) == []
    raised = {name: info._replace(partitions=24) for name, info in infos().items()}
    (fault,) = remembered_faults(TOPICS, raised, marks)
    assert "runs spread over 12 partitions, and topic shop.commands has 24 now" in fault
    assert remembered_faults(TOPICS, raised, {}) == [], "a log without leases has no runs to start twice"


@pytest.mark.parametrize("name", [TOPICS.events, TOPICS.checkpoints])
def test_f21_a_state_topic_that_was_deleted_is_known_by_the_leases(name):
    marks = read_headers(marks_of(TOPICS, infos()))
    again = infos() | {name: infos()[name]._replace(id="another")}
    (fault,) = remembered_faults(TOPICS, again, marks)
    assert fault.startswith(f"topic {name} was deleted and created again since the last owner")
    without = {other: info for other, info in infos().items() if other != name}
    (fault,) = remembered_faults(TOPICS, without, marks)
    assert fault.startswith(f"topic {name} was deleted since the last owner")


@pytest.mark.parametrize(("strays", "refused"), [(0, False), (1, False), (5, True), (9, True)])
def test_f16_keys_that_lie_elsewhere_than_they_should_tell_of_a_changed_count(strays, refused):
    partition = Partition(3, 1)
    names = [f"r{number}" for number in range(200)]
    right = [name for name in names if partition_of(name.encode(), 12) == 3]
    wrong = [name for name in names if partition_of(name.encode(), 12) != 3]
    for name in [*wrong[:strays], *right[: 10 - strays]]:
        partition.runs[name] = Hot(Run(name, f"{name}@0"))
    if refused:
        with pytest.raises(LogDamaged, match=rf"belongs to partition \d+ of 12, as {strays} of 10 runs"):
            check_keys(partition, 12)
    else:
        check_keys(partition, 12)


def test_f16_a_partition_beyond_the_count_of_the_start_is_refused():
    check_number(11, 12)
    with pytest.raises(LogDamaged, match="the count was raised since"):
        check_number(12, 12)


# ---- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "appended", "ahead"),
    [
        (100.0, 100.1, 100.05, 0.0),
        (160.0, 160.1, 100.0, 59.999),  # the millisecond of the append time is the log's
        (40.0, 40.1, 100.0, -59.9),
        (40.0, 140.0, 100.0, 0.0),  # a log that was away for long, or a frozen process, makes no clock wrong
        (100.0, 4000.0, 100.0, 0.0),
    ],
)
def test_f20_only_what_no_slow_commit_explains_is_a_wrong_clock(before, after, appended, ahead):
    stamp = Stamp(7, int(before * 1e6), int(after * 1e6))
    assert ahead_seconds(stamp, int(appended * 1000)) == pytest.approx(ahead)
