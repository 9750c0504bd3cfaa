"""Commands from clients in Avro and from any producer in JSON; what is none says why and never shows the payload."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streams.errors import UsageError, WireError
from streams.kernel.bodies import Change
from streams.kernel.codec import VALUE_BYTES_MAX
from streams.kernel.commands import (
    Cancel,
    Command,
    Complete,
    Repair,
    Reply,
    Resume,
    Retry,
    Signal,
    Skip,
    Start,
    Unsupported,
)
from streams.wire.commands import CommandUnreadable, decode_command, encode_command
from streams.wire.keys import check_run_id
from streams.wire.schemas import packed_schemas
from streams.wire.values import ValueCodec

CODEC = ValueCodec()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("$"), inner),
    max_leaves=10,
)
ERROR = ("terminal", "DECLINED", "no money")
REPLY = b'{"type":"reply","op":"a","effect_id":"e","attempt":1,"epoch":2'


def decode(value, key=b"r1"):
    return decode_command(key, value, default_id="topic/3/5", offset=5)


def from_json(**fields):
    return decode(json.dumps(fields).encode())


def complaint(value, key=b"r1", code="COMMAND_INVALID") -> str:
    with pytest.raises(CommandUnreadable) as caught:
        decode(value, key)
    assert caught.value.code == code
    assert "SECRET" not in str(caught.value)
    return caught.value.message


# --- Avro -----------------------------------------------------------------------------------------------------------

REQUESTS = [
    Start("order", b'{"a":1}'),
    Start("order", b"1", 3, (("team", "a"), ("汉", "\x00"))),
    Resume(b"true"),
    Resume(b"true", "ask.1"),
    Signal("paid", b"null"),
    Cancel(),
    Cancel(force=True),
    Retry(),
    Retry("charge.1"),
    Skip("charge.1"),
    Complete("charge.1", b"7"),
    Reply("ask.1", "r1@5/ask.1", 2, 7, b"1"),
    Reply("ask.1", "r1@5/ask.1", 2, 7, None, ERROR),
    Repair(
        "r1@5", 9, (Change("seed", "set", b'"x"'), Change("ops", "set", b"[]")), "a script wrote there", parked=True
    ),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda value: type(value).__name__)
def test_avro_comes_back_the_same(request_):
    data = encode_command(request_, command_id="c-1", operator="ada")
    assert decode(data) == Command("r1", request_, "c-1", 5, "ada")
    assert decode(encode_command(request_, command_id=None)) == Command("r1", request_, "topic/3/5", 5)


@pytest.mark.parametrize(
    ("body", "type_"),
    [(b"\6\2n\2v", "update"), (b"\x12\4r2\6\0", "fork"), (b"\x14\4", "migrate"), (b"\x16\4", "rewind")],
)
def test_avro_of_a_later_release_is_known_by_name(body, type_):
    prefix = packed_schemas().newest("command").prefix
    command = decode(prefix + b"\0\0" + body)
    assert (command.request, command.type) == (Unsupported(type_), type_)


@pytest.mark.parametrize("request_", REQUESTS)
def test_only_a_repair_needs_workers_of_this_release(request_):
    version = 2 if isinstance(request_, Repair) else 1
    assert encode_command(request_, command_id=None).startswith(packed_schemas().titled(f"command-{version}").prefix)


def test_what_this_release_cannot_send_is_refused():
    with pytest.raises(CommandUnreadable, match="cannot send the command 'fork'"):
        encode_command(Unsupported("fork"), command_id=None)


@pytest.mark.parametrize(
    "request_",
    [
        Repair("", 1, (), "r"),
        Repair("r@1", 1, (), ""),
        Repair("r@1", 1, (), "x" * 4_001),
        Signal("", b"1"),
        Signal("a\nb", b"1"),
        Skip("\ud800"),
        Reply("a", "e", 1, 1),
        Start("o", b"1", 1, (("", "x"),)),
    ],
    ids=repr,
)
def test_a_client_hears_at_once_what_would_end_as_a_dead_letter(request_):
    with pytest.raises(CommandUnreadable):
        encode_command(request_, command_id=None)


def test_a_field_of_a_wrong_type_cannot_be_sent():
    with pytest.raises(WireError, match=r"its field body\.version does not take str"):
        encode_command(Start("order", b"1", "2"), command_id=None)


# --- JSON -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "request_"),
    [
        ({"type": "start", "workflow": "order", "input": {"a": 1}}, Start("order", b'{"a":1}')),
        (
            {"type": "start", "workflow": "o", "input": None, "version": 2, "attributes": {"b": "1", "a": "2"}},
            Start("o", b"null", 2, (("b", "1"), ("a", "2"))),
        ),
        ({"type": "start", "workflow": "o", "input": [], "version": None, "attributes": None}, Start("o", b"[]")),
        ({"type": "resume", "value": True}, Resume(b"true")),
        ({"type": "resume", "value": None, "interrupt": "ask.1"}, Resume(b"null", "ask.1")),
        ({"type": "signal", "name": "paid", "value": "x"}, Signal("paid", b'"x"')),
        ({"type": "cancel"}, Cancel()),
        ({"type": "cancel", "force": True}, Cancel(force=True)),
        ({"type": "retry"}, Retry()),
        ({"type": "retry", "op": "a.1"}, Retry("a.1")),
        ({"type": "skip", "op": "a.1"}, Skip("a.1")),
        ({"type": "complete", "op": "a.1", "value": 7}, Complete("a.1", b"7")),
        (
            {"type": "reply", "op": "a.1", "effect_id": "e", "attempt": 1, "epoch": 2, "value": None},
            Reply("a.1", "e", 1, 2, b"null"),
        ),
        (
            {"type": "reply", "op": "a.1", "effect_id": "e", "attempt": 1, "epoch": 2,
             "error": {"class": "terminal", "code": "DECLINED", "message": "no money"}},
            Reply("a.1", "e", 1, 2, None, ERROR),
        ),
        (
            {"type": "repair", "identity": "r1@5", "seq": 9, "reason": "why", "changes": {"seed": "x", "ops": []}},
            Repair("r1@5", 9, (Change("seed", "set", b'"x"'), Change("ops", "set", b"[]")), "why"),
        ),
        *(({"type": type_, "anything": 1}, Unsupported(type_)) for type_ in ("update", "fork", "migrate", "rewind")),
    ],
)  # fmt: skip
def test_json_of_every_type(fields, request_):
    assert from_json(**fields) == Command("r1", request_, "topic/3/5", 5)
    assert from_json(**fields, command_id="c-1") == Command("r1", request_, "c-1", 5)
    assert from_json(**fields, command_id=None).command_id == "topic/3/5"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([], "must be an object of the fields of a state"),
        ({"not a name": 1}, "has no field 'not a name'"),
        ({"seed": "\ud800"}, "must not hold a lone surrogate"),
    ],
)
def test_a_state_that_is_none_is_refused(changes, text):
    fields = {"type": "repair", "identity": "r1@5", "seq": 9, "reason": "why", "changes": changes}
    assert text in complaint(json.dumps(fields).encode())


def test_json_may_be_laid_out_in_any_way():
    assert decode(b' \r\n\t{ "type" :\n"cancel" }\n ').request == Cancel()
    assert decode('{"type":"signal","name":"汉","value":"\\u6c49"}'.encode()).request == Signal("汉", '"汉"'.encode())


@pytest.mark.parametrize(
    "value",
    [
        {"$": "@int", "v": "0x1"},
        {"$": 1},
        [{"a": {"$": "order.Order", "v": {}}}],
        12345678901234567890123456789,
        -(2**63),
        2**64,
        1.5,
        1e-300,
        -0.0,
        "\ud800",
        "\x00\u2028\ufeff",
        "e\u0301",
        [[[[]]]],
        {"": {" ": None}},
    ],
    ids=repr,
)
def test_json_values_mean_what_they_say(value):
    """Above all an object with the key `$`, which is the tag of stored values, stays the data it is."""
    found = CODEC.decode(from_json(type="signal", name="n", value=value).request.value)
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"type":"sing"}', "`type` of a command must be one of start, .*, retry, skip, fork, .*; got 'sing'"),
        (b"{}", "`type` of a command must be one of start, .*; got nothing"),
        (b'{"type":["start"]}', "got an array"),
        (b'{"type":"start","workflow":"o","imput":"SECRET"}', "start has no field 'imput'; its fields are .*, input"),
        (b'{"type":"cancel","op":"SECRET"}', "cancel has no field 'op'; its fields are type, command_id, force"),
        (b'{"type":"cancel","operator":"SECRET"}', "cancel has no field 'operator'"),
        (b'{"type":"start","input":1}', "start needs the field `workflow`"),
        (b'{"type":"start","workflow":"o"}', "start needs the field `input`"),
        (b'{"type":"resume"}', "resume needs the field `value`"),
        (b'{"type":"start","workflow":null,"input":1}', "`workflow` of start must be text, got null"),
        (b'{"type":"start","workflow":"o","input":1,"version":"2"}', "`version` of start must be .*, got text"),
        (b'{"type":"start","workflow":"o","input":1,"version":2.0}', "whole number, got a number with a fraction"),
        (b'{"type":"start","workflow":"o","input":1,"version":true}', "whole number, got true or false"),
        (b'{"type":"start","workflow":"o","input":1,"version":9223372036854775808}', "must fit into 64 bits"),
        (b'{"type":"start","workflow":"o","input":1,"attributes":["SECRET"]}', "an object of texts, got an array"),
        (b'{"type":"start","workflow":"o","input":1,"attributes":{"a":1}}', "texts, got a number under 'a'"),
        (b'{"type":"cancel","force":1}', "`force` of cancel must be true or false, got a number"),
        (b'{"type":"cancel","force":null}', "got null"),
        (b'{"type":"cancel","command_id":7}', "`command_id` of cancel must be text, got a number"),
        (b'{"type":"cancel","command_id":""}', "`command_id` of a command must not be empty"),
        (b'{"type":"cancel","command_id":"a\\u0000"}', "control characters"),
        (b'{"type":"signal","name":"","value":1}', "`name` of signal must not be empty"),
        (b'{"type":"signal","name":"\\ud800","value":1}', "lone surrogates"),
        (b'{"type":"skip","op":"' + b"x" * 1_001 + b'"}', "takes 1,001 bytes, at most 1000 are allowed"),
        (REPLY + b"}", "either `value` or `error`, got neither"),
        (REPLY + b',"value":1,"error":{"class":"c","code":"c","message":"SECRET"}}', "got both"),
        (REPLY + b',"error":"SECRET"}', "`error` of reply must be an object with class, code and message, got text"),
        (REPLY + b',"error":{"class":"c"}}', "`error` of reply needs the text `code`"),
        (REPLY + b',"error":{"klass":"SECRET"}}', "`error` of reply has no field 'klass'"),
        (b'{"type":"cancel","type":"start"}', "must not name 'type' twice"),
        (b'{"type":"signal","name":"n","value":{"a":{"b":1,"b":2}}}', "must not name 'b' twice"),
        (b'{"type":"signal","name":"n","value":NaN}', "must not hold NaN"),
        (b'{"type":"signal","name":"n","value":-Infinity}', "must not hold -Infinity"),
        (b'{"type":"signal","name":"n","value":1e999}', "beyond the range of a 64-bit float"),
        (b'{"type":"signal","name":"n","value":' + b"9" * 5_000 + b"}", "thousands of digits"),
        (b'{"type":"signal","name":"n","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested so deep"),
        (b'{"type":"cancel"', "legal JSON: Expecting .* at character"),
        (b'{"type":"cancel"} SECRET', "legal JSON: Extra data at character"),
        (b"{'type':'cancel'}", "legal JSON"),
        (b'{"type":"cancel\n"}', "legal JSON: Invalid control character"),
        (b'{"type":"\xff"}', "must be UTF-8; byte 9 of 12 is not"),
        (b'[{"type":"cancel"}]', "expected a JSON object in UTF-8, or Avro .*, got 19 bytes that begin like neither"),
        (b"SECRET", "begin like neither"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"\0\0\0\0\1SECRET", "schema registry is not read yet"),
        (b"   ", "begin like neither"),
        (b"\xc3\x01", "do not begin like one"),
    ],
    ids=lambda value: repr(value)[:60],
)  # fmt: skip
def test_json_that_is_no_command_says_what_was_expected(data, words):
    assert re.search(words, complaint(data))


def test_names_from_outside_are_shown_short_and_harmless():
    message = complaint(json.dumps({"type": "cancel", "\x1b[31m\ud800" + "x" * 500: 1}).encode())
    assert message.startswith("cancel has no field '\\x1b[31m\\ud800xxx")
    assert len(message) < 150


# --- F15, F23: keys, null and empty ---------------------------------------------------------------------------------


def test_f15_null_and_empty_are_no_commands():
    assert "no value (null)" in complaint(None)
    assert "an empty value" in complaint(b"")
    assert "no key (null)" in complaint(b'{"type":"cancel"}', None, "KEY_INVALID")
    assert "an empty key" in complaint(b'{"type":"cancel"}', b"", "KEY_INVALID")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"a\xffb", "byte 1 of 3 is not"),
        (b"\xed\xa0\x80", "is not"),  # a lone surrogate as some encoders write it
        (b"a\0b", "control characters"),
        (b"a\nb", "control characters"),
        (b"\x7f", "control characters"),
        ("a\u2028b".encode(), "line separators"),
        ("\u0085".encode(), "control characters"),
        (b"x" * 201, "takes 201 bytes, at most 200"),
        (("汉" * 67).encode(), "takes 201 bytes"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_f23_keys_that_no_run_can_have(key, words):
    assert words in complaint(b'{"type":"cancel"}', key, "KEY_INVALID")


@pytest.mark.parametrize(
    "run_id", ["a", "x" * 200, "汉" * 66, "order@7", "a/b", "a b", "\u00e9", "e\u0301", "👩\u200d👩", "\ufeffa"]
)
def test_f23_keys_of_every_script_are_run_ids(run_id):
    assert check_run_id(run_id) == run_id
    assert decode(b'{"type":"cancel"}', run_id.encode()).run_id == run_id


@pytest.mark.parametrize("run_id", ["", "a\0", "\ud800", "\r", "x" * 201, "\u2029"])
def test_f23_a_client_refuses_the_same_run_ids(run_id):
    with pytest.raises(UsageError, match=r"a run id (must not|takes)"):
        check_run_id(run_id)


def test_a_run_id_is_text():
    with pytest.raises(UsageError, match="a run id must be text, got int"):
        check_run_id(7)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_values_up_to_the_limit_and_not_beyond():
    fits = "x" * (VALUE_BYTES_MAX - 2)
    assert len(from_json(type="signal", name="n", value=fits).request.value) == VALUE_BYTES_MAX
    for data in (
        json.dumps({"type": "signal", "name": "n", "value": fits + "x"}).encode(),
        json.dumps({"type": "start", "workflow": "o", "input": [fits, 1]}).encode(),
    ):
        assert "the limit is 256,000" in complaint(data, code="VALUE_TOO_LARGE")
    with pytest.raises(CommandUnreadable, match=r"`value` of signal takes 256,001 bytes"):
        encode_command(Signal("n", b"x" * (VALUE_BYTES_MAX + 1)), command_id=None)


def test_attributes_are_bounded():
    data = json.dumps({"type": "start", "workflow": "o", "input": 1, "attributes": {"a": "x" * 16_000}}).encode()
    assert "`attributes` of start takes 16,001 bytes" in complaint(data, code="VALUE_TOO_LARGE")


def test_a_value_that_is_nested_too_deep_to_store_is_refused():
    data = b'{"type":"signal","name":"n","value":' + b"[" * 200 + b"]" * 200 + b"}"
    assert "`value` of signal" in complaint(data, code="VALUE_NOT_STORABLE")


# --- garbage --------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
@example(b"\xff" * 100_000)
@example(b"\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_any_bytes_are_a_command_or_refused(data):
    for value in (data, packed_schemas().newest("command").prefix + data, b"{" + data, b'{"type":"cancel",' + data):
        try:
            assert isinstance(decode(value), Command)
        except CommandUnreadable as refused:
            assert refused.message.encode()  # noqa: PT017 - it must fit into a dead letter


def test_avro_of_an_unknown_schema_is_refused_by_its_fingerprint():
    message = complaint(b"\xc3\x01ABCDEFGH", code="SCHEMA_VERSION_UNSUPPORTED")
    assert "4142434445464748" in message
    assert "command-1" in message


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_json_values_of_every_form_come_through(value):
    found = CODEC.decode(from_json(type="signal", name="n", value=value).request.value)
    assert found == value
