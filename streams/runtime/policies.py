"""The settings of topics: what would lose data, what is risky, and the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from streams.log.port import RECORD_BYTES_MAX, TopicInfo
from streams.wire.topics import Topics

__all__ = ["CHECKPOINT_AGE_SECONDS", "Finding", "check_policies", "lines", "mend_commands", "refusal", "servers_of"]

CHECKPOINT_AGE_SECONDS = 3_600.0
"""The age that no event without a checkpoint outlives, unless a worker is told another one."""
MARGIN = 4
"""How many times that age events and deletions must be kept at least."""
MESSAGE_BYTES_MIN = RECORD_BYTES_MAX + 100_000
"""What a topic must take: the largest record, and the batch of the client that is filled up to about as much."""
_DAY_MS = 24 * 3600 * 1000
_COMMANDS_MS_MIN = _DAY_MS
_COMPACTION_LAG_MS_MAX = _DAY_MS
_SHOWN_MAX = 3


class Finding(NamedTuple):
    """One setting of one topic that is wrong (a fault) or risky (a warning)."""

    topic: str
    setting: str
    value: str
    wanted: str
    why: str
    mend: str = ""
    """The value that mends it; empty where no setting does."""
    fault: bool = True

    def __str__(self) -> str:
        """The one line of it."""
        return f"topic {self.topic}: {self._said()}"

    def _said(self) -> str:
        value = self.value if self.value.lstrip("-").isdigit() else repr(self.value)
        return f"{self.setting} is {value} and {'must' if self.fault else 'should'} be {self.wanted}{self.why}"

    def shared(self, by: Sequence[str], *, all_: bool) -> str:
        """The one line of a finding that several topics share."""
        if len(by) == 1:
            return str(self)
        names = f"all {len(by)} topics" if all_ else f"topics {', '.join(by)}"
        return f"{names}: {self._said()}"


class _Rule(NamedTuple):
    setting: str
    fits: Callable[[int], bool]
    wanted: str
    why: str
    mend: str
    fault: bool = True


def check_policies(topics: Topics, found: Mapping[str, TopicInfo], age_seconds: float) -> list[Finding]:
    """Everything that is wrong or risky with the settings of the topics that exist.

    A setting that the log does not tell of has no meaning there, as `segment.bytes` in a file of SQLite.
    """
    findings: list[Finding] = []
    for name, plan in topics.plans().items():
        info = found.get(name)
        if info is None:
            continue
        findings += _same(info, plan.config)
        findings += _numbers(info, _rules(topics, name, plan.config, age_seconds))
        findings += _risks(info)
    return findings


def lines(findings: Iterable[Finding], topics: int) -> list[str]:
    """One line a fault; warnings that several topics share become one line."""
    shared: dict[tuple[str, str], list[Finding]] = {}
    told: list[str] = []
    for finding in findings:
        if finding.fault:
            told.append(str(finding))
        else:
            shared.setdefault((finding.setting, finding.value), []).append(finding)
    return told + [same[0].shared([f.topic for f in same], all_=len(same) == topics) for same in shared.values()]


def mend_commands(findings: Iterable[Finding], url: str) -> list[str]:
    """The commands that mend these findings, one a topic; none where the log has no such settings to alter."""
    if not url.startswith("kafka:"):
        return []
    settings: dict[str, list[str]] = {}
    for finding in findings:
        if finding.mend:
            settings.setdefault(finding.topic, []).append(f"{finding.setting}={finding.mend}")
    return [
        f"kafka-configs.sh --bootstrap-server {servers_of(url)} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {','.join(values)}"
        for topic, values in settings.items()
    ]


def servers_of(url: str) -> str:
    """The addresses of brokers, for a command of Kafka's."""
    return url.removeprefix("kafka://").partition("?")[0]


def refusal(faults: Sequence[str], commands: Sequence[str]) -> str:
    """All of it on the one line that a program ends with; with many faults, the first ones."""
    text = "; ".join(faults[:_SHOWN_MAX])
    if len(faults) > _SHOWN_MAX:
        return f"{text}; and {len(faults) - _SHOWN_MAX} more: streams topics check tells all, and what mends them"
    return f"{text}; mend it with: {' && '.join(commands)}" if commands else text


def _same(info: TopicInfo, wanted: Mapping[str, str]) -> Iterator[Finding]:
    reasons = {
        "cleanup.policy": ", or data is lost",
        "message.timestamp.type": ", or data is lost: the wrong clock of a producer decides what is deleted",
    }
    for setting, why in reasons.items():
        value = info.config.get(setting)
        if value is not None and value != wanted[setting]:
            yield Finding(info.name, setting, value, repr(wanted[setting]), why, wanted[setting])


def _rules(topics: Topics, name: str, wanted: Mapping[str, str], age_seconds: float) -> list[_Rule]:
    least = int(MARGIN * age_seconds * 1000)
    rules = [
        _Rule(
            "max.message.bytes",
            lambda value: value >= MESSAGE_BYTES_MIN,
            f"at least {MESSAGE_BYTES_MIN}",
            ", or records within the limits of streams are refused by the broker",
            wanted["max.message.bytes"],
        )
    ]
    if wanted["cleanup.policy"] == "compact":
        rules += _compaction_rules(wanted, least)
    if name == topics.events:
        why = f", or events go before a checkpoint covers them (4 times the {age_seconds:g} s of a sweep)"
        rules += [
            _Rule("retention.ms", lambda value: value == -1 or value >= least, f"-1 or at least {least}", why, "-1"),
            _Rule("retention.bytes", _unlimited, "-1", ", or a burst of events deletes those still needed", "-1"),
        ]
    if name == topics.commands:
        rules += [
            _Rule("retention.bytes", _unlimited, "-1", ", or a burst of commands deletes accepted ones", "-1"),
            _Rule(
                "retention.ms",
                lambda value: value == -1 or value >= _COMMANDS_MS_MIN,
                f"at least {_COMMANDS_MS_MIN}",
                ": a command that waits longer for a worker is deleted",
                wanted["retention.ms"],
                fault=False,
            ),
        ]
    return rules


def _compaction_rules(wanted: Mapping[str, str], least: int) -> list[_Rule]:
    why = ": what is not compacted yet is read at every take-over"

    def at_most(setting: str, most: int) -> _Rule:
        return _Rule(setting, lambda value: value <= most, f"at most {most}", why, wanted[setting])

    return [
        at_most("segment.bytes", int(wanted["segment.bytes"])),
        at_most("segment.ms", int(wanted["segment.ms"])),
        at_most("max.compaction.lag.ms", _COMPACTION_LAG_MS_MAX),
        _Rule(
            "delete.retention.ms",
            lambda value: value >= least,
            f"at least {least}",
            ", or a deletion may be forgotten while a restore is under way, and a deleted run comes back",
            str(max(least, int(wanted["delete.retention.ms"]))),
        ),
    ]


def _unlimited(value: int) -> bool:
    return value == -1


def _numbers(info: TopicInfo, rules: Iterable[_Rule]) -> Iterator[Finding]:
    for rule in rules:
        value = info.config.get(rule.setting)
        if value is not None and not rule.fits(int(value)):
            yield Finding(info.name, rule.setting, value, rule.wanted, rule.why, rule.mend, rule.fault)


def _risks(info: TopicInfo) -> Iterator[Finding]:
    replicas = int(info.config.get("replication.factor", "0"))
    if not replicas:
        return
    in_sync = int(info.config.get("min.insync.replicas", "1"))
    if replicas == 1:
        why = ": what is accepted is lost with its one broker (kafka-reassign-partitions.sh adds replicas)"
        yield Finding(info.name, "replication.factor", "1", "3", why, fault=False)
    elif in_sync < 2:
        why = ": what is accepted may be on one broker only"
        yield Finding(info.name, "min.insync.replicas", str(in_sync), "2", why, "2", fault=False)
    if in_sync > replicas:
        why = f": nothing can be written with {replicas} replicas"
        yield Finding(info.name, "min.insync.replicas", str(in_sync), f"at most {replicas}", why, str(replicas))
    if info.config.get("unclean.leader.election.enable") == "true":
        why = ": a broker that is behind may lead, and what was accepted is lost"
        yield Finding(info.name, "unclean.leader.election.enable", "true", "'false'", why, "false", fault=False)
