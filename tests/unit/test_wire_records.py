"""Events and checkpoints: the same value comes back, each byte is as fastavro writes it, and garbage is refused."""

from __future__ import annotations

import io
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.changes import FieldValue, fresh_base
from streams.kernel.events import TYPES, Event, event_id
from streams.kernel.run import Delivered, Issued, OpPhase, OpState, Phase, Run
from streams.kernel.vector import Vector
from streams.kernel.wake import AT_ONCE, Stage, wake_of
from streams.wire.checkpoints import Damaged, checkpoint_id, decode_checkpoint, encode_checkpoint, read_head
from streams.wire.events import decode_event, encode_event
from streams.wire.schemas import MARKER, SchemaUnknown, packed_schemas

LONGS = st.integers(-(2**63), 2**63 - 1)
SIMPLE = {str: st.text(max_size=200), int: LONGS, bool: st.booleans(), bytes: st.binary(max_size=300),
          float: st.floats(allow_nan=False).map(lambda x: x + 0.0), type(None): st.none()}  # fmt: skip


def values(hint):
    """Values of an annotation of the kernel, with every field filled, those with a default too."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, args))
    if origin is tuple and args[-1] is ...:
        return st.lists(values(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is Vector:
        return st.lists(values(args[0]), max_size=4).map(Vector)
    if origin is Mapping:
        return st.lists(values(args[1]), max_size=3).map(lambda ops: {op.id: op for op in ops})
    if issubclass(hint, tuple):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, *(values(hints[name]) for name in hint._fields))
    return st.sampled_from(hint)  # an enum


BODIES = {cls.__name__: values(cls) for cls in TYPES}
HEADER = {
    **dict.fromkeys(("run_id", "identity"), SIMPLE[str]),
    **dict.fromkeys(("at", "epoch"), LONGS),
    **dict.fromkeys(("seq", "cause", "offset"), st.none() | LONGS),
    "code": st.none() | SIMPLE[str],
}
RUNS = values(Run)

FAILURE = ev.Failure("terminal", "DECLINED", "no money", b"{}")
POLICY = ev.Policy(3, 1.0, 2.0, 60.0, "park", ("builtins.ValueError",), None)
SCHEDULED = ev.OpScheduled(
    "charge.1", "task", "charge", b"x" * 200, b"12345678", None, 1, "r1@5/charge.1", None, POLICY
)
EVENT = Event("r1", "r1@5", 3, 1_790_000_000_000_000, 1, None, 4, SCHEDULED)
OPS = {name: OpState(name, "task", "t", None, b"h", OpPhase.RUNNING, 5, policy=POLICY) for name in ("z.1", "a.1")}
JOURNAL = Vector([Delivered("op.failed", "a.1", None, FAILURE, 2, 7, "c0de"), Issued("b.1", "task", "b", b"h")])
RUN = Run("r1", "r1@5", "order", 2, "c0de", Phase.ACTIVE, 9, 7, 6, 4, 5, b"seed", b"hash", 3, fresh_base([("a", b"1")]),
          journal=JOURNAL, ops=OPS, seen=("x", "y"))  # fmt: skip


def oracle(name: str, value: typing.Any) -> bytes:
    """The same record as fastavro writes it, with every branch named."""
    schema = packed_schemas().newest(name).definition
    named: dict[str, typing.Any] = {}

    def datum(value, schema):
        schema = named.get(schema, schema) if isinstance(schema, str) else schema
        if isinstance(schema, list):
            if value is None:
                return None
            here = schema[1:] if schema[0] == "null" else schema
            for each in here:
                found = (
                    datum(value, each) if len(here) == 1 or each["name"].endswith(f".{type(value).__name__}") else None
                )
                if found is not None:
                    name = each if isinstance(each, str) else each.get("name", each["type"])
                    return (name, found) if isinstance(found, dict) else found
        if isinstance(schema, dict) and schema["type"] == "record":
            named[schema["name"]] = schema
            fields = [(field["name"], field["type"]) for field in schema["fields"]]
            return {name: datum(part, type_) for (name, type_), part in zip(fields, value, strict=True)}
        if isinstance(schema, dict) and schema["type"] == "array":
            parts = value.values() if isinstance(value, dict) else value
            return [datum(part, schema["items"]) for part in parts]
        return value

    def define(node):  # branches may be used by a value before the one that defines them was
        if isinstance(node, dict) and node.get("type") == "record":
            named[node["name"]] = node
        for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            define(part)

    define({key: part for key, part in schema.items() if not key.startswith("__")})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, datum(value, schema), strict=True)
    return out.getvalue()


def header(event: Event) -> tuple[typing.Any, ...]:
    return (event_id(event), *event[:7], event.code, event.type, event.body)


@pytest.mark.parametrize("name", BODIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_event_comes_back_the_same(name, data):
    event = Event(**data.draw(st.fixed_dictionaries(HEADER)), body=data.draw(BODIES[name]))
    stored = encode_event(event)
    found = decode_event(stored)
    assert found == event
    assert same_types(found, event)
    assert stored[10:] == oracle("event", header(event))


@settings(max_examples=100, deadline=None)
@given(run=RUNS)
def test_every_run_comes_back_the_same(run):
    stored = encode_checkpoint(run)
    found = decode_checkpoint(stored)
    assert found == run
    assert same_types(found, run)
    assert list(found.ops) == list(run.ops)
    assert stored[10:] == oracle("checkpoint", (1, *in_front(run), checkpoint_id(run), run))


def in_front(run: Run) -> tuple[int, int, int | None]:
    wake = wake_of(run)
    return run.epoch, int(wake.stage), wake.at


def same_types(one, other):
    """Equal is not enough: a tuple equals a named one, and True equals 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        one, other = tuple(one.values()), tuple(other.values())
    if isinstance(one, tuple | Vector):
        return all(same_types(a, b) for a, b in zip(one, other, strict=True))
    return True


def test_a_run_keeps_the_order_of_its_ops_and_its_chunks():
    base = (("log", FieldValue("extend", Vector([b"[1]", b"[2]", b"[]"]))), ("a", FieldValue("set", Vector([b"1"]))))
    run = RUN._replace(base=base)
    found = decode_checkpoint(encode_checkpoint(run))
    assert found == run
    assert list(found.ops) == ["z.1", "a.1"]
    assert found.journal.append(Issued("c.1", "task", "c", b"")) != found.journal


def test_a_vector_that_others_have_grown_is_written_up_to_its_own_end():
    short = Vector([Issued("a.1", "task", "a", b"h")])
    short.append(Issued("b.1", "task", "b", b"h"))
    assert len(decode_checkpoint(encode_checkpoint(RUN._replace(journal=short))).journal) == 1


def test_a_damaged_run_has_a_checkpoint_that_names_the_offset():
    mark = Damaged("r1", 42, "a gap: seq 7 after 5")
    assert decode_checkpoint(encode_checkpoint(mark)) == mark
    assert checkpoint_id(mark) == "r1@damaged"
    assert checkpoint_id(RUN) == "r1@9"


def test_a_finished_run_is_small():
    done = Run(
        "order-1", "order-1@5", "order", 1, "c0de", Phase.COMPLETED, 9, 7, 6, 4, 5, b"s" * 16, b"h" * 16, result=b"{}"
    )
    assert len(encode_checkpoint(done)) < 200


def test_a_state_of_a_newer_release_is_refused():
    data = encode_checkpoint(RUN)
    at = 10
    assert data[at] == 2  # version 1
    with pytest.raises(SchemaUnknown, match="the state has version 2, this release reads 1") as caught:
        decode_checkpoint(data[:at] + b"\4" + data[at + 1 :])
    assert caught.value.code == "SCHEMA_VERSION_UNSUPPORTED"
    with pytest.raises(SchemaUnknown, match="the state has version 2"):
        read_head(data[:at] + b"\4" + data[at + 1 :])


@settings(max_examples=50, deadline=None)
@given(run=RUNS)
def test_the_head_of_a_checkpoint_is_read_without_the_state(run):
    stored = encode_checkpoint(run)
    assert read_head(stored[:80]) == read_head(stored) == (run.epoch, wake_of(run))


def test_the_head_of_a_checkpoint_without_one_is_what_it_would_be():
    assert not bytes.fromhex(CHECKPOINT_1).startswith(encode_checkpoint(RUN)[:10])
    assert read_head(bytes.fromhex(CHECKPOINT_1)) == (RUN.epoch, wake_of(RUN))
    assert read_head(encode_checkpoint(Damaged("r1", 42, "a gap"))) == (0, (Stage.OPEN, AT_ONCE))
    for cut in (b"", encode_checkpoint(RUN)[:12]):
        with pytest.raises(WireError):
            read_head(cut)


def test_records_of_version_1_stay_readable():
    assert decode_event(bytes.fromhex(EVENT_1)) == EVENT
    assert decode_checkpoint(bytes.fromhex(CHECKPOINT_1)) == RUN


EVENT_1 = (
    "c3016a957cd1d99c95a10c723140352f33047231087231403502068080afa2dbffad060202000800186f702e7363686564756c656402"
    "106368617267652e31087461736b0c636861726765029003787878787878787878787878787878787878787878787878787878787878"
    "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
    "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
    "787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878"
    "78787878787878781031323334353637380002021a723140352f6368617267652e31000206000000000000f03f000000000000004000"
    "00000000004e40087061726b02266275696c74696e732e56616c75654572726f720000"
)
CHECKPOINT_1 = (
    "c301ac4c66e596db93170872314039020004723108723140350a6f726465720408633064650c616374697665120e0c080a0873656564"
    "08686173680602026106736574020231000000000400126f702e6661696c65640206612e310002107465726d696e616c104445434c49"
    "4e4544106e6f206d6f6e657902047b7d040e08633064650206622e31087461736b026202680004067a2e31087461736b02740002680e"
    "72756e6e696e670a0000000000000206000000000000f03f00000000000000400000000000004e40087061726b02266275696c74696e"
    "732e56616c75654572726f7200000000000006612e31087461736b02740002680e72756e6e696e670a00000000000002060000000000"
    "00f03f00000000000000400000000000004e40087061726b02266275696c74696e732e56616c75654572726f72000000000000000000"
    "0402780279000000000000000000"
)


# --- other languages ------------------------------------------------------------------------------------------------


def test_a_reader_with_the_schema_alone_sees_names_and_times():
    data = encode_event(EVENT)
    assert data[:2] == MARKER
    found = fastavro.schemaless_reader(io.BytesIO(data[10:]), packed_schemas().newest("event").definition, None)
    assert found["event_id"] == "r1@5/3"
    assert found["type"] == "op.scheduled"
    assert found["at"] == datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    assert found["body"]["policy"]["terminal"] == ["builtins.ValueError"]


def test_an_array_in_several_blocks_with_sizes_is_read():
    """Java may write arrays as blocks with a negative count and a size in bytes; ours are one block without."""
    data = encode_event(EVENT._replace(body=ev.CancelRequested(force=False, withdrawn=("a", "b"))))
    assert data.count(b"\4\2a\2b\0") == 1
    blocks = data.replace(b"\4\2a\2b\0", b"\2\2a\1\4\2b\0")
    assert decode_event(blocks) == decode_event(data)


# --- F25: nothing is guessed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [ev.RunCancelled(), ev.RunCancelled(True), ev.HeldDropped("x"), ev.RunOwned("x"), ev.OpWithdrawn("x"),
     ev.TimerFired("x"), ev.OutcomeLate("x", 1, None), ev.UpdateAnswered("x", None), ev.InputHeld("x")],
    ids=lambda body: type(body).__name__,
)  # fmt: skip
def test_f25_bodies_with_the_same_or_only_optional_fields_stay_apart(body):
    found = decode_event(encode_event(EVENT._replace(body=body))).body
    assert type(found) is type(body)
    assert found == body


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (ev.OpCompleted("a", 1, "text"), "body.value does not take str"),
        (ev.OpCompleted("a", 1, None), "body.value does not take NoneType"),
        (ev.OpCompleted("a", 1.0, b""), "body.attempt does not take float"),
        (ev.OpCompleted("a", "1", b""), "body.attempt does not take str"),
        (ev.OpCompleted("a", None, b""), "body.attempt does not take NoneType"),
        (ev.OpCompleted("a", 2**63, b""), "body.attempt does not take a number beyond 64 bits"),
        (ev.OpCompleted(b"a", 1, b""), "body.op does not take bytes"),
        (ev.OpCompleted("\ud800", 1, b""), "body.op does not take text with a lone surrogate"),
        (ev.OpCompleted("a", 1, [1]), "body.value does not take list"),
        (ev.OpFailed("a", 1, "boom"), "body.error does not take str"),
        (ev.OpFailed("a", 1, FAILURE._replace(message=3)), "body.error.message does not take int"),
        (ev.OpFailed("a", 1, (*FAILURE, "more")), "body.error does not take tuple"),
        (ev.CancelRequested("yes"), "body.force does not take str"),
        (ev.CancelRequested(True, "abc"), "body.withdrawn does not take str"),
        (ev.CancelRequested(True, None), "body.withdrawn does not take NoneType"),
        (ev.CancelRequested(True, (1,)), "body.withdrawn does not take tuple"),
        (SCHEDULED._replace(policy=POLICY._replace(initial="1")), "body.policy.initial does not take str"),
        (
            SCHEDULED._replace(policy=POLICY._replace(initial=Decimal("0.1"))),
            "body.policy.initial does not take Decimal",
        ),
        (
            SCHEDULED._replace(policy=POLICY._replace(timeout=datetime.now(UTC))),
            "body.policy.timeout does not take datetime",
        ),
        (SCHEDULED._replace(due=datetime.now(UTC)), "body.due does not take datetime"),
        (("op", 1, b""), "body does not take tuple"),
        (FAILURE, "body does not take Failure"),
    ],
)
def test_f25_a_value_of_a_wrong_type_is_refused_by_field_and_not_shown(body, place):
    with pytest.raises(WireError, match=f"a record event cannot be written: its field {place}") as caught:
        encode_event(EVENT._replace(body=body))
    assert "boom" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_f25_the_text_of_a_tuple_is_no_record_of_the_same_length():
    with pytest.raises(WireError, match="field body does not take str"):
        encode_event(EVENT._replace(body="abc"))


@pytest.mark.parametrize(
    "number", [0, -1, 1, 63, 64, -64, -65, 4095, 4096, 8191, 8192, 2**31, 2**62, 2**63 - 1, -(2**63)]
)
def test_whole_numbers_of_all_sizes(number):
    event = EVENT._replace(at=number, epoch=number)
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4095, 4096, 4097, 8192, 256_000])
def test_values_of_all_sizes(size):
    event = EVENT._replace(run_id="r" * size, body=ev.OpCompleted("a", 1, b"x" * size))
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("text", ["\x00", "\ufeff", "\u2028", "汉" * 350_000, "\U0010ffff", "e\u0301"])
def test_f23_text_of_every_kind_comes_back_unchanged(text):
    event = EVENT._replace(run_id=text, body=ev.OpFailed("a", 1, FAILURE._replace(message=text)))
    assert decode_event(encode_event(event)) == event


# --- garbage --------------------------------------------------------------------------------------------------------


def test_no_part_of_a_record_is_a_record():
    for whole, decode in ((encode_event(EVENT), decode_event), (encode_checkpoint(RUN), decode_checkpoint)):
        for end in range(len(whole)):
            with pytest.raises(WireError):
                decode(whole[:end])
        with pytest.raises(WireError, match=f"ends after {len(whole)} bytes, but {len(whole) + 1} were stored"):
            decode(whole + b"\0")


def test_an_event_that_contradicts_itself_is_refused():
    data = encode_event(EVENT._replace(body=ev.OpWithdrawn("charge.1")))
    with pytest.raises(WireError, match=r"says that it is 'timer\.fired' but holds the body of 'op\.withdrawn'"):
        decode_event(data.replace(b"\x18op.withdrawn", b"\x16timer.fired"))


def test_lengths_that_lie_cost_nothing():
    prefix = encode_event(EVENT)[:10]
    for lie in (b"\xff" * 1_000_000, b"\x80" * 1_000_000, b"\xfe" * 9 + b"\1" + b"x" * 50, b"\x01", b"\xff\xff\x7f"):
        with pytest.raises(WireError):
            decode_event(prefix + lie)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), place=st.integers(10, 400), whole=st.sampled_from([EVENT, RUN]))
def test_garbage_behind_a_right_fingerprint_is_refused_or_read_but_nothing_else(data, place, whole):
    encode, decode = (encode_event, decode_event) if whole is EVENT else (encode_checkpoint, decode_checkpoint)
    stored = encode(whole)
    for garbage in (stored[:10] + data, stored[:place] + data + stored[place + len(data) :]):
        try:
            found = decode(garbage)
        except WireError:
            continue
        assert decode(encode(found)) == found or found != found  # noqa: PLR0124 - NaN in a policy
