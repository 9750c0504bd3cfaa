"""The page for other languages says what the code does: fields, topics, headers, fingerprints, partitions, reasons."""

from __future__ import annotations

import json
import re

import pytest

from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.commands import COMMAND_TYPES
from streams.kernel.events import Event
from streams.kernel.replies import CLASSES
from streams.kernel.run import blank
from streams.ops.advice import ADVICE
from streams.runtime.outgoing import effect_record
from streams.wire import command_json
from streams.wire.headers import CONTENT_TYPE, EFFECT_ID, IDEMPOTENCY_KEY, SCHEMA, headers_of
from streams.wire.messages import EffectMessage
from streams.wire.outbox import message_of
from streams.wire.partitioner import murmur2, partition_of
from streams.wire.records import CommandUnreadable, decode_command
from streams.wire.schemas import packed_schemas
from streams.wire.topics import PARTITIONS_DEFAULT, topics_of
from tests import other_languages as page

DAY_MS = 24 * 3600 * 1000


def decode(key: str, value: str) -> cmd.Command:
    raw = [None if part == "NULL" else part.encode() for part in (key, value)]
    return decode_command(*raw, default_id="?", offset=0)


def test_every_command_of_the_page_is_one():
    names = ("starts.txt", "answers.txt", "asks.txt", "replies.txt")
    commands = [decode(*line) for name in names for line in page.lines(name)]
    assert {command.type for command in commands} == set(COMMAND_TYPES.values()) - {"repair"}


def test_what_is_said_of_replies_is_so():
    shown = json.loads(page.block_of("json"))
    assert shown == json.loads(page.lines("replies.txt")[0][1])
    assert tuple(row[0] for row in page.table("class", "it says", "the run")) == CLASSES
    codes = set(re.findall(r"`([A-Z_]+)`", page.section("Answering a request")))
    assert codes == {"STALE_REPLY", "DUPLICATE", "RUN_TERMINAL", "NO_SUCH_OP", "UNKNOWN_RUN", "REPLY_INVALID"}
    assert codes <= set(ADVICE)


def test_every_bad_command_of_the_page_is_refused_in_the_words_of_the_page():
    reasons = {key: (code, reason) for key, code, reason in page.lines("letters.txt")}
    for key, value in page.lines("bad.txt"):
        with pytest.raises(CommandUnreadable) as refused:
            decode(key, value)
        assert (refused.value.code, refused.value.message) == reasons.pop(key)
    assert not reasons


def test_the_table_of_commands_has_all_fields():
    told = {type_: fields.split(", ") for type_, fields in page.table("`type`", "fields (`?`: may be left out)")}
    assert told == {
        type_: [name if field.required else f"{name}?" for name, field in fields.items()]
        for type_, (_, fields) in command_json._TYPES.items()
        if fields is not None
    }
    later = [type_ for type_, (_, fields) in command_json._TYPES.items() if fields is None]
    assert f"`{later[0]}`, `{later[1]}`, `{later[2]}` and `{later[3]}` are names of later releases" in page.TEXT
    assert len(later) == 4


def test_the_topics_are_those_of_an_app():
    kept = {
        "-1": "for good",
        str(7 * DAY_MS): "7 days",
        str(30 * DAY_MS): "30 days",
        str(DAY_MS // 24): "1 hour",
        None: "compacted",
    }
    told = {topic: kept_ for topic, _, _, _, kept_ in page.table("topic", "yours to", "key", "value", "kept")}
    topics = topics_of("APP", ["NAME"])
    assert told == {name: kept[settings.get("retention.ms")] for name, settings in topics.settings().items()}
    assert {settings["message.timestamp.type"] for settings in topics.settings().values()} == {"LogAppendTime"}
    assert f"`{topics.group}` is that of the workers" in page.TEXT
    assert f"({PARTITIONS_DEFAULT} unless" in page.TEXT


def test_the_schemas_and_what_records_begin_with():
    rows = page.table("schema", "the record begins with")
    assert len(rows) == 5
    for link, begin in rows:
        title, place = re.fullmatch(r"\[(\S+)\.avsc\]\(\.\./(\S+)\)", link).groups()
        assert (page.ROOT / place).name == f"{title}.avsc"
        assert packed_schemas().titled(title).prefix.hex(" ") == begin


def test_the_headers_are_on_the_records():
    told = [header for header, *_ in page.table("header", "on", "value")]
    event = Event("r", "r@0", 2, 5, 1, 0, 3, ev.EffectEmitted("2", "letters", b"{}", "key/r", b""))
    record = effect_record(topics_of("APP", ["letters"]), 0, message_of(event, blank("r", 0)))
    assert [name for name, _ in record.headers] == told == [CONTENT_TYPE, SCHEMA, IDEMPOTENCY_KEY, EFFECT_ID]
    assert record.headers[2:] == ((IDEMPOTENCY_KEY, b"key/r"), (EFFECT_ID, b"r@0/2"))
    (shown,) = [value for header, _, value in page.table("header", "on", "value") if header == CONTENT_TYPE]
    for name in ("command", "effect", "dead_letter"):
        assert dict(headers_of(name, packed_schemas().newest(name).prefix))[CONTENT_TYPE].decode() == shown


def test_the_fields_of_an_effect_are_all_told():
    told = [name for fields, _ in page.table("field of `effect`", "what it says") for name in fields.split(", ")]
    assert sorted(told) == sorted(EffectMessage._fields)


def test_the_partitions_to_check_a_client_with():
    rows = page.table("key", "murmur2", "partition")
    assert len(rows) == 4
    for key, hashed, partition in rows:
        assert (murmur2(key.encode()), partition_of(key.encode(), 12)) == (int(hashed), int(partition))
    assert "(murmur2(key) & 0x7fffffff) % partitions" in page.TEXT


def test_the_code_and_the_shown_output_are_whole():
    for name in ("desk.py", "subscriber.py"):
        compile(page.block(name), name, "exec")
    shown = [line.split(" ", 4)[-1] for line in page.output("python")]
    assert [bool(json.loads(payload)) for payload in shown] == [True] * 5


def test_every_link_leads_somewhere():
    for place in re.findall(r"\]\(([^)#:]+)\)", page.TEXT):
        assert (page.ROOT / "docs" / place).is_file(), place
