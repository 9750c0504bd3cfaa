"""The generated writers and readers: strict about types, right about what they remember, bounded in how much."""

from __future__ import annotations

import enum
import io
import typing

import fastavro
import pytest
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.wire.binary import Memory, Model, Repeated, Texts, Times, encode_long, encode_text, read_long, read_text
from streams.wire.events import decode_event, encode_event
from streams.wire.framing import RecordCodec
from streams.wire.schemas import MARKER, Registry, Schema

POLICY = ev.Policy(3, 1.0, 2.0, 60.0, "park", (), None)


def stored(body) -> bytes:
    return encode_event(Event("r1", "r1@5", 3, 7, 1, None, 4, body))


# --- types ----------------------------------------------------------------------------------------------------------


class Small(enum.IntEnum):
    ONE = 1


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (ev.SignalTaken("a", True), "body.number does not take bool"),
        (ev.SignalTaken("a", Small.ONE), "body.number does not take Small"),
        (ev.SignalTaken("a", 1.0), "body.number does not take float"),
        (ev.SignalTaken("a", -(2**63) - 1), "body.number does not take a number beyond 64 bits"),
        (ev.RunCancelled(1), "body.forced does not take int"),
        (ev.RunCancelled(0.0), "body.forced does not take float"),
        (ev.RunCancelled(None), "body.forced does not take NoneType"),
        (ev.HeldDropped(None), "body.reason does not take NoneType"),
        (ev.HeldDropped(b"a"), "body.reason does not take bytes"),
        (ev.UpdateAnswered("c", ""), "body.value does not take str"),
        (ev.UpdateAnswered("c", []), "body.value does not take list"),
        (ev.UpdateAnswered("c", 0), "body.value does not take int"),
        (ev.UpdateAnswered("c", None, ()), "body.error does not take tuple"),
        (ev.UpdateAnswered("c", None, "1234"), "body.error does not take str"),
        (ev.OutcomeLate("a", False, None), "body.attempt does not take bool"),
        (ev.RunRewound(1, "ab"), "body.left does not take str"),
        (ev.RunRewound(1, 7), "body.left does not take int"),
        (ev.StateAdvanced((("f", "set", "v"),), ()), "body.changes.value does not take str"),
        (ev.StateAdvanced(("abc",), ()), "body.changes does not take str"),
        (ev.StateAdvanced((("f", "set"),), ()), "body.changes does not take tuple"),
        (ev.StateAdvanced((), (ev.Activation("n", "x"),)), "body.active.arg does not take str"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_f25_nothing_is_taken_for_something_like_it(body, place):
    for equal in (ev.SignalTaken("a", 1), ev.RunCancelled(False), ev.RunCancelled(True), ev.OutcomeLate("a", 0, None)):
        stored(equal)  # what is remembered of them must not let their equals through
    with pytest.raises(WireError, match=f"its field {place}"):
        stored(body)


def test_a_text_of_the_length_of_a_record_is_none():
    with pytest.raises(WireError, match=r"body\.attributes does not take str"):
        stored(ev.RunStarted("w", 1, "c", (), (), b"", b"", attributes=("ab",)))


def test_texts_of_a_class_of_their_own_are_texts():
    assert stored(ev.HeldDropped(Word("why"))) == stored(ev.HeldDropped("why"))
    assert type(decode_event(stored(ev.HeldDropped(Word("why")))).body.reason) is str


def test_the_outermost_form_is_named():
    codec = RecordCodec("all", MODEL, REGISTRY)
    for value in ("12", (), None, 7):
        with pytest.raises(WireError, match=f"its outermost form does not take {type(value).__name__}"):
            codec.encode(value)


# --- every kind of type ---------------------------------------------------------------------------------------------


class Empty(typing.NamedTuple):
    pass


class Pair(typing.NamedTuple):
    number: float
    text: str


def schema(name: str, *fields: tuple[str, typing.Any]) -> Schema:
    listed = [{"name": field, "type": type_} for field, type_ in fields]
    raw = {"type": "record", "name": name, "namespace": "test", "fields": listed}
    crc = fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO")
    return Schema(name, 1, MARKER + bytes.fromhex(crc), parse_schema(raw))


def array(items):
    return {"type": "array", "items": items}


def record(name, **fields):
    return {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in fields.items()]}


ALL = schema(
    "all",
    ("class", ["null", record("Pair", number="double", text="string")]),  # a word of Python, which a field may be
    ("pairs", array("Pair")),
    ("one", "Pair"),
    ("any", array([record("Empty"), record("Other", pair="Pair", empty="Empty")])),
    ("nothing", array("Empty")),
    ("nested", array(array(["null", "long"]))),
    ("maybe", ["null", array("bytes")]),
    ("flags", array("boolean")),
    ("real", ["null", "double"]),
    ("truth", ["null", "boolean"]),
    ("time", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
)


class Other(typing.NamedTuple):
    pair: Pair
    empty: Empty


REGISTRY = Registry([ALL])
MODEL = Model({cls.__name__: cls for cls in (Pair, Empty, Other)}, repeated=frozenset({"Pair"}))
PAIR = Pair(1.5, "x")
FULL = (PAIR, (PAIR, Pair(2.0, "y" * 90)), PAIR, (Empty(), Other(PAIR, Empty())), (Empty(),) * 2, ((None, 300), ()),
        (b"a", b"b" * 64, b"c" * 9000), (True, False), 0.5, True, 2**50)  # fmt: skip
BARE = (None, (), PAIR, (), (), (), None, (), None, None, None)


def as_fastavro(value):
    if isinstance(value, Other):
        return "test.Other", {"pair": as_fastavro(value.pair), "empty": {}}
    if isinstance(value, Pair | Empty):
        return value._asdict()
    return [as_fastavro(part) for part in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("value", [FULL, BARE])
@pytest.mark.parametrize("repeated", [frozenset(), MODEL.repeated])
@pytest.mark.parametrize("unique", [frozenset(), frozenset({"Pair.text"})])
def test_all_types_are_written_as_fastavro_does_and_read_again(value, repeated, unique):
    codec = RecordCodec("all", MODEL._replace(repeated=repeated, unique=unique), REGISTRY)
    names = [field["name"] for field in ALL.definition["fields"]]
    datum = dict(zip(names, map(as_fastavro, value), strict=True))
    datum["any"] = [("test.Empty", {}) if each == {} else each for each in datum["any"]]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, ALL.definition, datum)
    for _ in range(2):  # the second time from memory
        data = codec.encode(value)
        assert data[10:] == out.getvalue()
        assert codec.decode(data) == value


# --- what is remembered ---------------------------------------------------------------------------------------------


def test_memories_are_bounded():
    longs, texts, read, times = Memory(encode_long), Memory(encode_text), Texts(), Times()
    for number in range(10_000):
        assert longs[number] == encode_long(number)
        assert texts[str(number)] == encode_text(str(number))
        assert read[encode_text(str(number))] == str(number)
        assert times[encode_long(2**50 + number)] == 2**50 + number
    assert all(0 < len(memory) <= 4096 for memory in (longs, texts, read, times))


def test_long_texts_are_not_remembered():
    texts = Memory(encode_text)
    assert texts["x" * 1000] == encode_text("x" * 1000)
    assert not texts


def test_what_was_refused_is_refused_again():
    texts = Memory(encode_text)
    for _ in range(2):
        with pytest.raises(UnicodeEncodeError):
            texts["\ud800"]


@pytest.mark.parametrize("number", [0, 1, 2**48 - 1, 2**48, 2**55 - 1, 2**55, 2**62, -1, -(2**48), -(2**55), -(2**63)])
def test_times_of_every_size_are_read_right(number):
    data = encode_long(number)
    assert Times()[data[:8]] == (number if len(data) == 8 else None)
    assert Times()[(data + b"\2\2\2\2\2\2\2\2")[:8]] == (number if len(data) == 8 else None)


def test_a_time_that_is_cut_off_is_none():
    assert Times()[encode_long(2**50)[:7]] is None


def test_a_repeated_record_that_was_cut_off_is_not_remembered():
    calls = []

    def read(data, at):
        calls.append(at)
        size, at = read_long(data, at)
        return data[at : at + size].decode(), at + size

    repeated = Repeated(read)
    whole = encode_text("a name of some length")
    assert repeated.read(whole[:18], 0) == ("a name of some le", len(whole))  # the framing refuses this
    assert repeated.read(whole, 0) == ("a name of some length", len(whole))
    assert repeated.read(b"xx" + whole + b"yy", 2) == ("a name of some length", 2 + len(whole))
    assert calls == [0, 0]
    other = encode_text("a name of some other")
    assert repeated.read(other, 0) == ("a name of some other", len(other))


def test_records_that_begin_alike_stay_apart():
    policies = [POLICY, POLICY._replace(on_exhausted="fail"), POLICY._replace(terminal=("X",)), POLICY]
    for policy in (*policies, *reversed(policies)):
        body = ev.OpScheduled("a", "task", "t", None, b"", policy=policy)
        assert decode_event(stored(body)).body == body


def test_a_record_that_is_cut_within_its_last_text_is_called_damaged():
    last = schema("last", ("text", "string"))
    codec = RecordCodec("last", Model(), Registry([last]))
    data = codec.encode(("some text",))
    with pytest.raises(WireError, match=r"is damaged: its 15 bytes end too early .*\(EOFError\)"):
        codec.decode(data[:15])


def test_what_readers_of_text_share_is_one_object():
    first, second = (decode_event(stored(ev.HeldDropped("the reason"))) for _ in range(2))
    assert first.body.reason is second.body.reason
    assert read_text(encode_text("x" * 100), 0) == ("x" * 100, 102)
