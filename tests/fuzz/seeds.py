"""Valid inputs of every kind: what a fuzzer changes, so that it gets beyond the first check."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streams.kernel import commands as cmd
from streams.kernel.events import Event
from streams.wire.records import (
    DeadLetter,
    EffectMessage,
    Lease,
    encode_checkpoint,
    encode_command,
    encode_dead_letter,
    encode_effect,
    encode_event,
    encode_lease,
)
from streams.wire.values import ValueCodec
from tests.unit.test_wire_records import BODIES, HEADER, RUN, RUNS

_EACH = 3


def _drawn(strategy, count: int) -> list:
    """Some values of a strategy, the same each time."""
    found: list = []
    quiet = settings(
        max_examples=count, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip

    @quiet
    @given(strategy)
    def take(value) -> None:
        found.append(value)

    take()
    return found


def _bodies(records: list[bytes]) -> list[bytes]:
    """Without the fingerprint, which the target puts in front, and one with it."""
    return [*(record[10:] for record in records), records[0]]


def events() -> list[bytes]:
    drawn = [
        Event(**header, body=body)
        for strategy in BODIES.values()
        for header, body in _drawn(st.tuples(st.fixed_dictionaries(HEADER), strategy), _EACH)
    ]
    return _bodies([encode_event(event) for event in drawn])


def checkpoints() -> list[bytes]:
    return _bodies([encode_checkpoint(run) for run in [RUN, *_drawn(RUNS, 4 * _EACH)]])


def leases() -> list[bytes]:
    lease = Lease(3, "host/7", 9, ("app/host/7/1",), "10.0.0.1", 12, 30, "t0p1c", 1_790_000_000_000_000)
    return _bodies([encode_lease(lease), encode_lease(lease._replace(address=None, released=True, pid=70_000))])


def effects() -> list[bytes]:
    message = EffectMessage("r1@5/9", "r1", "ship", b'{"a":1}', "ship/r1", 3, 1_790_000_000_000_000, "order", 1)
    return _bodies([encode_effect(message), encode_effect(message._replace(op="req.1", attempt=2, payload=b"x" * 200))])


def dead_letters() -> list[bytes]:
    letter = DeadLetter("a.commands", 0, 7, "no command", b"r1", b"\xff", 1_790_000_000_000_000, "COMMAND_INVALID")
    more = letter._replace(key=None, value=None, headers=(("a", b"1"), ("a", None)), cut=True)
    return _bodies([encode_dead_letter(letter), encode_dead_letter(more)])


_REQUESTS = (
    cmd.Start("order", b'{"a":1}', 1, (("tenant", "acme"),)),
    cmd.Start("order", b"null"),
    cmd.Resume(b"true", "ask.1"),
    cmd.Signal("news", b'"text"'),
    cmd.Cancel(force=True),
    cmd.Complete("t.1", b"5"),
    cmd.Reply("r.1", "r1@5/9", 1, 3, b"{}", None),
    cmd.Reply("r.1", "r1@5/9", 1, 3, None, ("terminal", "DECLINED", "no money")),
    cmd.Retry("t.1"),
    cmd.Skip("t.1"),
)


def commands() -> list[bytes]:
    return [encode_command(request, command_id="c1", operator="op") for request in _REQUESTS]


def commands_in_json() -> list[bytes]:
    texts = (
        {"type": "start", "workflow": "order", "input": {"a": [1, 2.5, None, "x"]}, "attributes": {"tenant": "acme"}},
        {"type": "start", "command_id": "c1", "workflow": "order", "version": 2, "input": 10**30},
        {"type": "resume", "interrupt": "ask.1", "value": {"$": "@set", "v": [1]}},
        {"type": "signal", "name": "news", "value": "\ud83d\ude00"},
        {"type": "update", "name": "x", "value": 1},
        {"type": "cancel", "force": True},
        {"type": "complete", "op": "t.1", "value": -0.0},
        {"type": "reply", "op": "r.1", "effect_id": "r1@5/9", "attempt": 1, "epoch": 3, "value": {}},
        {"type": "reply", "op": "r", "effect_id": "e", "attempt": 1, "epoch": 3,
         "error": {"class": "terminal", "code": "NO", "message": "no"}},
        {"type": "retry", "op": None},
        {"type": "skip", "op": "t.1"},
        {"type": "rewind", "to": 3},
    )  # fmt: skip
    return [json.dumps(text).encode() for text in texts] + [b'\xef\xbb\xbf{"type": "cancel"}', b'{"type": NaN}']


def keys() -> list[bytes]:
    return [b"r1", "run/é".encode(), b"", b"\xff", b"a\0b", b"x" * 600]


def headers() -> list[bytes]:
    return [b"content-type\0text", b"a\0\xff\xfe\0a\0b", b""]


def values() -> list[bytes]:
    from tests.fuzz.user_values import CODEC, EXAMPLES

    return [CODEC.encode(value) for value in EXAMPLES] + [ValueCodec().encode({"$": 1, "@dict": [2]})]


def typed() -> list[bytes]:
    from tests.fuzz.user_values import TYPES

    return [bytes([at]) + data for data in values() for at in range(len(TYPES))]


def kafka_urls() -> list[bytes]:
    return [
        b"kafka://127.0.0.1:9092",
        b"kafka://a,b:1,[::1]:9093?sasl.password=x&security.protocol=SASL_SSL",
        b"kafka://h?batch.size=100&connect_timeout_ms=5&replication_factor=3&message.max.bytes=2000000",
        b"kafka://h?properties=/nowhere/client.properties",
        b"kafka://u:p@h:1",
        b"kafka://h?enable.idempotence=false",
    ]


def sqlite_urls() -> list[bytes]:
    return [
        b"sqlite:///a.db",
        b"sqlite:////tmp/a%20b.db?session_timeout_ms=400&max_poll_interval_ms=1000",
        b"sqlite://host/a.db",
        b"sqlite:///a.db?x=1",
    ]


def memory_urls() -> list[bytes]:
    return [b"memory:", b"memory:name", b"memory://name", b"https://user:pass@host/path?secret=1"]


def app_targets() -> list[bytes]:
    return [b"pkg.mod:app", b"dir/file.py:app", b"a:b.c", b"app", b".rel:app", b"x.py:app"]


def words() -> list[bytes]:
    return [b"tenant=acme", b"12", b"1.5", b"1e400", b"run-1", "é=é".encode()]
