"""The targets: for each what is tried with any bytes, and valid inputs to begin with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.fuzz import seeds
from tests.fuzz.command_line import check_json, check_target, check_words
from tests.fuzz.oracles import check_command, check_headers, check_record
from tests.fuzz.places import check_kafka, check_memory, check_sqlite
from tests.fuzz.user_values import check_conform, check_value

__all__ = ["CORPUS", "GROUPS", "TARGETS", "Target", "chosen", "regressions", "together"]

CORPUS = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """`check` raises for an input on which the code is wrong."""

    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


TARGETS = {
    "event": Target(partial(check_record, "event"), seeds.events),
    "checkpoint": Target(partial(check_record, "checkpoint"), seeds.checkpoints),
    "lease": Target(partial(check_record, "lease"), seeds.leases),
    "effect": Target(partial(check_record, "effect"), seeds.effects),
    "dead_letter": Target(partial(check_record, "dead_letter"), seeds.dead_letters),
    "command": Target(partial(check_command, b"r1"), seeds.commands),
    "command_json": Target(partial(check_command, b"r1"), seeds.commands_in_json),
    "command_key": Target(lambda data: check_command(data, b'{"type": "cancel"}'), seeds.keys),
    "headers": Target(check_headers, seeds.headers),
    "value": Target(check_value, seeds.values),
    "conform": Target(check_conform, seeds.typed),
    "kafka_url": Target(check_kafka, seeds.kafka_urls),
    "sqlite_url": Target(check_sqlite, seeds.sqlite_urls),
    "memory_url": Target(check_memory, seeds.memory_urls),
    "cli_json": Target(check_json, seeds.values),
    "cli_target": Target(check_target, seeds.app_targets),
    "cli_words": Target(check_words, seeds.words),
}


GROUPS = {
    "records": ("event", "checkpoint", "lease", "effect", "dead_letter", "command"),
    "commands": ("command_json", "command_key", "headers"),
    "values": ("value", "conform"),
    "words": ("kafka_url", "sqlite_url", "memory_url", "cli_json", "cli_target", "cli_words"),
}
"""Targets that share a process, because starting one takes seconds: the first byte of an input says for which it is."""


def chosen(names: tuple[str, ...], data: bytes) -> tuple[str, bytes]:
    """For which target an input of a group is, and what is left of it."""
    return names[data[0] % len(names)] if data else names[0], data[1:]


def together(names: tuple[str, ...]) -> Target:
    """The targets of a group as one."""

    def check(data: bytes) -> None:
        name, rest = chosen(names, data)
        TARGETS[name].check(rest)

    def begin() -> list[bytes]:
        return [
            bytes([number]) + data
            for number, name in enumerate(names)
            for data in [*TARGETS[name].seeds(), *regressions(name)]
        ]

    return Target(check, begin)


def regressions(name: str) -> list[bytes]:
    """Inputs that once found a bug, one a file, in hexadecimal."""
    return [bytes.fromhex(path.read_text()) for path in sorted(CORPUS.glob(f"{name}-*.hex"))]
