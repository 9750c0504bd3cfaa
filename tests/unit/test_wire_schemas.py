"""The schema files: complete, unchanged since they were first written with, and found by every reader."""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from streams.errors import WireError
from streams.kernel import bodies
from streams.kernel.commands import COMMAND_TYPES
from streams.kernel.events import TYPES
from streams.kernel.run import Delivered, InboxItem, Issued, OpState, Run
from streams.wire.binary import Model
from streams.wire.checkpoints import Damaged
from streams.wire.framing import RecordCodec
from streams.wire.messages import DeadLetter, EffectMessage, Lease
from streams.wire.schemas import MARKER, Registry, Schema, SchemaUnknown, packed_schemas

FOLDER = Path(__file__).resolve().parents[2] / "schemas"
PINNED: dict[str, str] = {
    "checkpoint-1": "ac4c66e596db9317",
    "checkpoint-2": "473ebf05d6abf06e",
    "checkpoint-3": "4047ee08585caefc",
    "command-1": "0b2c68a3e0a164ac",
    "command-2": "9bf9d76ed69397a5",
    "dead_letter-1": "b7b9c48c1fe83aa2",
    "effect-1": "27f217b1429250a7",
    "event-1": "6a957cd1d99c95a1",
    "lease-1": "dcfcad45774c6f0c",
}


def definition(title: str) -> dict[str, typing.Any]:
    return json.loads((FOLDER / f"{title}.avsc").read_text("utf-8"))


def records(node: typing.Any) -> dict[str, dict[str, typing.Any]]:
    """Every record that is defined anywhere in a schema."""
    found = {}
    if isinstance(node, list):
        for part in node:
            found |= records(part)
    elif isinstance(node, dict):
        if node.get("type") == "record":
            found[node["name"]] = node
        for part in node.values():
            found |= records(part)
    return found


def test_no_schema_changes_once_it_was_written_with():
    found = {
        path.stem: fingerprint(to_parsing_canonical_form(definition(path.stem)), "CRC-64-AVRO")
        for path in FOLDER.iterdir()
    }
    assert found == PINNED, "a schema is a wire format: leave event-1.avsc as it is and add event-2.avsc instead"


def test_the_fingerprint_is_that_of_the_specification():
    assert fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"  # 7275d51a3f395c8f, little-endian


def test_the_canonical_form_has_full_names_and_no_more_than_counts():
    raw = {"type": "record", "name": "A", "namespace": "n", "doc": "x", "fields": [
        {"name": "b", "type": {"type": "record", "name": "B", "fields": []}, "default": {}, "doc": "y"},
        {"name": "c", "type": ["null", "B", {"type": "long", "logicalType": "timestamp-micros"}]},
    ]}  # fmt: skip
    assert to_parsing_canonical_form(raw) == (
        '{"name":"n.A","type":"record","fields":[{"name":"b","type":{"name":"n.B","type":"record","fields":[]}},'
        '{"name":"c","type":["null","n.B","long"]}]}'
    )


def test_every_file_is_found_under_its_name_and_version():
    for path in FOLDER.iterdir():
        name, _, version = path.stem.rpartition("-")
        schema = packed_schemas().of(MARKER + bytes.fromhex(PINNED[path.stem]), name)
        assert (schema.name, schema.version, schema.title) == (name, int(version), path.stem)


EVENT = records(definition("event-1"))
CHECKPOINT = records(definition("checkpoint-3"))
NESTED = (bodies.Activation, bodies.Change, bodies.Failure, bodies.Policy)


@pytest.mark.parametrize(
    ("found", "cls"),
    [
        *((EVENT, cls) for cls in (*typing.get_args(bodies.Body), *NESTED)),
        *((CHECKPOINT, cls) for cls in (Run, OpState, Delivered, Issued, InboxItem, bodies.InputHeld)),
        *((CHECKPOINT, cls) for cls in (bodies.Activation, bodies.Failure, bodies.Policy, Damaged)),
        *((records(definition("command-2")), cls) for cls in COMMAND_TYPES),
        (records(definition("lease-1")), Lease),
        (records(definition("effect-1")), EffectMessage),
        (records(definition("dead_letter-1")), DeadLetter),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_field_of_the_class_is_in_the_schema_with_its_default(found, cls):
    name = "Effect" if cls is EffectMessage else cls.__name__
    fields = {field["name"]: field for field in found[name]["fields"]}
    assert tuple(fields) == cls._fields, f"{cls.__name__} has changed: add a schema of the next version"
    for field, default in cls._field_defaults.items():
        if isinstance(default, bytes):  # would arrive as text
            assert "default" not in fields[field]
        elif default is None or isinstance(default, bool | int | str):
            assert fields[field]["default"] == default
        else:
            assert fields[field]["default"] == []
            assert not list(default)


def test_every_type_of_event_has_its_branch():
    branches = next(field for field in EVENT["Event"]["fields"] if field["name"] == "body")["type"]
    assert {branch["name"]: branch["doc"] for branch in branches} == {
        cls.__name__: type_ for cls, type_ in TYPES.items()
    }


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.stem)
def test_f25_unions_can_be_told_apart_by_name_alone(path):
    def unions(node):
        if isinstance(node, list):
            yield node
        parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        for part in parts:
            if isinstance(part, dict | list):
                yield from unions(part)

    for union in unions(definition(path.stem)["fields"]):
        if not all(isinstance(branch, dict) and "logicalType" not in branch and "name" in branch for branch in union):
            assert len(union) == 2, union
            assert union[0] == "null", union


# --- versions -------------------------------------------------------------------------------------------------------


def schema(name: str, version: int, *fields: dict[str, typing.Any]) -> Schema:
    raw = {"type": "record", "name": "Thing", "namespace": "test", "fields": list(fields)}
    crc = fingerprint(to_parsing_canonical_form(raw), "CRC-64-AVRO")
    return Schema(name, version, MARKER + bytes.fromhex(crc), parse_schema(raw))


class Thing(typing.NamedTuple):
    id: str
    note: str | None = "unset"
    tags: tuple[str, ...] = ()
    seal: bytes = b"\xff"


ID = {"name": "id", "type": "string"}
NOTE = {"name": "note", "type": ["string", "null"], "default": "unset"}
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
SEAL = {"name": "seal", "type": "bytes", "default": "\xff"}
OLD, NEW = schema("thing", 1, ID), schema("thing", 2, ID, {**NOTE, "type": ["null", "string"]}, TAGS, SEAL)
MODEL = Model({"Thing": Thing})


def test_f25_old_records_take_the_defaults_of_new_fields():
    data = RecordCodec("thing", Model(), Registry([OLD])).encode(("a",))
    both = RecordCodec("thing", MODEL, Registry([NEW, OLD]))
    assert both.written.version == 2
    assert both.decode(data) == Thing("a", "unset", (), b"\xff")
    assert both.decode(both.encode(Thing("b", None, ("x",), b""))) == Thing("b", None, ("x",), b"")


def test_a_new_field_without_a_default_is_found_before_anything_is_read():
    class Strict(typing.NamedTuple):
        id: str
        more: int

    more = schema("thing", 2, ID, {"name": "more", "type": "long"})
    codec = RecordCodec("thing", Model({"Thing": Strict}), Registry([OLD, more]))
    with pytest.raises(WireError, match=r"Thing\.more is new and needs a default"):
        codec.decode(OLD.prefix + b"\2a")


def test_a_field_that_was_removed_is_found():
    with pytest.raises(WireError, match=r"no field 'gone'.*never removed"):
        RecordCodec("thing", MODEL, Registry([schema("thing", 3, ID, {"name": "gone", "type": "long"})]))


def test_a_record_of_a_newer_release_is_refused_by_name():
    data = RecordCodec("thing", MODEL, Registry([NEW])).encode(Thing("a"))
    with pytest.raises(SchemaUnknown, match=f"{NEW.prefix[2:].hex()}.*it reads thing-1.*upgrade"):
        RecordCodec("thing", Model(), Registry([OLD])).decode(data)


def test_a_record_of_another_kind_is_refused_by_name():
    other = schema("other", 1, TAGS)
    with pytest.raises(WireError, match=r"expected a record thing, got a record other \(schema other-1\)"):
        RecordCodec("thing", Model(), Registry([OLD, other])).decode(other.prefix + b"\0")


def test_schemas_that_no_reader_could_tell_apart_are_refused():
    with pytest.raises(WireError, match="thing-1 and thing-2 have the same fingerprint"):
        Registry([OLD, schema("thing", 2, {**ID, "default": "x", "doc": "differs where it does not count"})])


@pytest.mark.parametrize("data", [b"", b"\xc3", b"\xc3\x01", b"\xc3\x01123456", b"{}", b"\0\0\0\0\1abcdef"])
def test_what_is_no_record_says_what_one_looks_like(data):
    with pytest.raises(WireError, match="expected a record thing in Avro's single-object encoding"):
        RecordCodec("thing", Model(), Registry([OLD])).decode(data)
