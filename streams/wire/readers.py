"""Generates the Python that turns Avro into the engine's tuples: one flat function per record, compiled once.

Such a function takes the bytes and where to begin, and returns the record and where it ends. That of OpCompleted is:

    def read_OpCompleted_9(data, at):
        step = STEPS[data[at]]                # how far it is to the end of a text of less than 64 bytes
        if step:
            end = at + step
            value_op = TEXTS[data[at:end]]
            at = end
        else: value_op, at = read_text(data, at)
        ...
        value = new(OpCompleted_8, (value_op, value_attempt, value_value, value_operator, ))
        return value, at
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from streams.errors import WireError
from streams.wire.binary import (
    Model,
    Repeated,
    Source,
    Texts,
    Times,
    definitions,
    read_block,
    read_bytes,
    read_long,
    read_text,
    short_name,
)

__all__ = ["Read", "check_classes", "compile_reader"]

Read = Callable[[bytes, int], tuple[Any, int]]

_BRANCHES_MAX = 64  # whose number takes one byte


def _sized(long: str, short: str) -> list[str]:
    return [
        "step = STEPS[data[at]]",
        "if step:",
        "    end = at + step",
        f"    {{0}} = {short}",
        "    at = end",
        f"else: {{0}}, at = {long}(data, at)",
    ]


_SIMPLE: dict[str, list[str]] = {  # the statements that put what comes next into {0}
    "boolean": ["{0} = BOOLEANS[data[at]]", "at += 1"],
    "bytes": _sized("read_bytes", "data[at + 1:end]"),
    "double": ["{0}, = read_double(data, at)", "at += 8"],
    "long": [
        "{0} = data[at]",
        "if {0} > 127: {0}, at = read_long(data, at)",
        "else: {0} = LONGS[{0}]; at += 1",
    ],
    "string": _sized("read_text", "TEXTS[data[at:end]]"),
    "timestamp-micros": [
        "{0} = TIMES[data[at:at + 8]]",
        "if {0} is None: {0}, at = read_long(data, at)",
        "else: at += 8",
    ],
}
_UNIQUE = _sized("read_text", "data[at + 1:end].decode()")


def compile_reader(schema: Any, model: Model) -> Read:
    """The function that reads a record; raises one of FAULTS for what is none, or returns an end beyond the data."""
    return _Readers(schema, model).record(schema)


def check_classes(schema: Any, model: Model) -> None:
    """Raise WireError where a class of the model cannot hold what the schema says."""
    for _, record in definitions(schema):
        short = short_name(record)
        cls = model.classes.get(short)
        fields = set(getattr(cls, "_fields", ()))
        names = {field["name"] for field in record["fields"]}
        if fields and (unknown := names - fields):
            raise WireError(f"{short} has no field {min(unknown)!r}, which a schema names: fields are never removed")
        if missing := fields - names - set(getattr(cls, "_field_defaults", ())):
            raise WireError(f"{short}.{min(missing)} is new and needs a default: older records do not have it")


def _refuse() -> None:
    raise ValueError


class _Readers:
    def __init__(self, schema: Any, model: Model) -> None:
        self._model = model
        self._definitions = dict(definitions(schema))
        self._functions: dict[str, str] = {}
        self._source = Source(
            BOOLEANS=(False, True),
            LONGS=tuple((byte >> 1) ^ -(byte & 1) for byte in range(128)),
            STEPS=tuple(0 if byte & 129 else 1 + (byte >> 1) for byte in range(256)),
            TEXTS=Texts(),
            TIMES=Times(),
            new=tuple.__new__,
            read_block=read_block,
            read_bytes=read_bytes,
            read_double=struct.Struct("<d").unpack_from,
            read_long=read_long,
            read_text=read_text,
            refuse=_refuse,
        )

    def record(self, schema: dict[str, Any]) -> Read:
        """The function that reads a record."""
        short = short_name(schema)
        lines = [*self._record(schema, "value"), "return value, at"]
        function: Read = self._source.function(self._source.name(f"read_{short}", None), "data, at", lines)
        if short in self._model.repeated:
            function = Repeated(function).read
        self._functions[schema["name"]] = self._source.name(f"read_{short}", function)
        return function

    def _record(self, schema: dict[str, Any], target: str) -> list[str]:
        """The statements that read a record; the variables of its fields begin like that of the record."""
        short = short_name(schema)
        names = [field["name"] for field in schema["fields"]]
        lines = []
        for name, field in zip(names, schema["fields"], strict=True):
            place, variable = f"{short}.{name}", f"{target}_{name}"
            lines += self._lines(field["type"], variable, place)
            if place in self._model.fields:
                lines.append(f"{variable} = {self._source.name('back', self._model.fields[place][1])}({variable})")
        return [*lines, f"{target} = {self._made(short, names, target)}"]

    def _made(self, short: str, names: list[str], target: str) -> str:
        """The expression that makes the record. Fields that an older schema lacks take the class's defaults."""
        cls = self._model.classes.get(short)
        values = f"({''.join(f'{target}_{name}, ' for name in names)})"
        if cls is None:
            return values
        known = self._source.name(short, cls)
        fields = getattr(cls, "_fields", None)
        if fields is None:
            return f"{known}(*{values})"
        if fields == tuple(names):
            return f"new({known}, {values})"
        return f"{known}({', '.join(f'{name}={target}_{name}' for name in names)})"

    def _lines(self, schema: Any, target: str, place: str, *, apart: bool = False) -> list[str]:
        """The statements that read a field into the variable `target`; a record in a function of its own if `apart`."""
        if isinstance(schema, list):
            return self._union(schema, target, place)
        if isinstance(schema, dict) and schema["type"] == "array":
            read = self._array(schema["items"], place)
            return [f"if data[at]: {target}, at = {read}(data, at)", f"else: {target} = (); at += 1"]
        record = self._definitions.get(schema if isinstance(schema, str) else schema.get("name", ""))
        if record is not None:
            if not apart and short_name(record) not in self._model.repeated:
                return self._record(record, target)
            if record["name"] not in self._functions:
                self.record(record)
            return [f"{target}, at = {self._functions[record['name']]}(data, at)"]
        kind = schema if isinstance(schema, str) else schema.get("logicalType", schema["type"])
        return [line.format(target) for line in (_UNIQUE if place in self._model.unique else _SIMPLE[kind])]

    def _union(self, schema: list[Any], target: str, place: str) -> list[str]:
        if len(schema) == 2 and schema[0] == "null":
            inner = self._lines(schema[1], target, place, apart=True)
            return [
                f"if not data[at]: {target} = None; at += 1",
                "else:",
                "    if data[at] != 2: refuse()",
                "    at += 1",
                *(f"    {line}" for line in inner),
            ]
        assert len(schema) <= _BRANCHES_MAX, f"{place} has more branches than one byte can tell"
        branches = {index << 1: self.record(branch) for index, branch in enumerate(schema)}
        return [f"{target}, at = {self._source.name('branches', branches)}[data[at]](data, at + 1)"]

    def _array(self, items: Any, place: str) -> str:
        lines = [
            "found = []",
            "while True:",
            "    count = data[at]",
            "    if not count: return tuple(found), at + 1",
            "    if count & 129: count, at = read_block(data, at)",
            "    else: count >>= 1; at += 1",
            "    for _ in range(count):",
            *(f"        {line}" for line in self._lines(items, "item", place)),
            "        found.append(item)",
        ]
        name = self._source.name("read_array", None)
        self._source.function(name, "data, at", lines)
        return name
