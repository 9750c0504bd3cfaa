r"""Generates the Python that turns the engine's tuples into Avro: one flat function per record, compiled once.

Such a function returns the pieces of its record, and all are joined once. That of OpCompleted in an event is:

    def write_OpCompleted_14(value):
        (value_op, value_attempt, value_value, value_operator, ) = value
        return [
            b'\x04',
            TEXT[value_op],
            LONG[value_attempt] if value_attempt.__class__ is int else refuse(),
            LONG[len(value_value)], value_value,
            NONE if value_operator is None else SOME_TEXT[value_operator],
        ]

A value that does not fit raises one of FAULTS somewhere; `wrong_field` then finds out which it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.wire.binary import Memory, Model, Source, definitions, encode_double, encode_long, encode_text, short_name

__all__ = ["compile_writer"]

_REFUSE = " else refuse()"
_SIMPLE: dict[str, str] = {  # the pieces of a field whose value stands in {0}
    "boolean": f"YES if {{0}} is True else NO if {{0}} is False{_REFUSE}",
    "bytes": "LONG[len({0})], {0}",
    "double": "double({0})",
    "long": f"LONG[{{0}}] if {{0}}.__class__ is int{_REFUSE}",
    "string": "TEXT[{0}]",
}
_NULLABLE: dict[str, str] = {  # for those that need no tuple of pieces; None is spelled out, so b"" does not become it
    "bytes": "NONE if {0} is None else SOME_LONG[len({0})], b'' if {0} is None else {0}",
    "long": f"NONE if {{0}} is None else SOME_LONG[{{0}}] if {{0}}.__class__ is int{_REFUSE}",
    "string": "NONE if {0} is None else SOME_TEXT[{0}]",
}
_UNIQUE = "LONG[len({0} := {0}.encode())], {0}"


def compile_writer(schema: Any, prefix: bytes, model: Model) -> Callable[[Any], bytes]:
    """The function from a record's tuple to its bytes behind `prefix`; raises one of FAULTS for what does not fit."""
    return _Writers(schema, model).record(schema, prefix, "return join({})")  # type: ignore[no-any-return]


def _refuse() -> bytes:
    raise TypeError


class _Writers:
    def __init__(self, schema: Any, model: Model) -> None:
        self._model = model
        self._definitions = dict(definitions(schema))
        self._functions: dict[tuple[str, bytes], str] = {}
        self._source = Source(
            TEXT=Memory(encode_text),
            SOME_TEXT=Memory(encode_text, b"\2"),
            LONG=Memory(encode_long),
            SOME_LONG=Memory(encode_long, b"\2"),
            NONE=b"\0",
            NOTHING=(b"\0",),
            NO=b"\0",
            YES=b"\1",
            double=encode_double,
            join=b"".join,
            refuse=_refuse,
        )

    def record(self, schema: dict[str, Any], head: bytes, end: str = "return {}", *, known: bool = False) -> Any:
        """The function that makes the pieces of a record; `head` comes before them. `known`: the class is right."""
        lines: list[str] = []
        pieces = [repr(head)] if head else []
        pieces.append(self._record(schema, "value", lines, known=known))
        lines.append(end.format(f"[{', '.join(pieces)}]"))
        function = self._source.function(self._source.name(f"write_{short_name(schema)}", None), "value", lines)
        self._functions[schema["name"], head] = function.__name__
        return function

    def _record(self, schema: dict[str, Any], value: str, lines: list[str], *, known: bool = False) -> str:
        """The expressions of the pieces of the record in the variable `value`; `lines` take it apart before."""
        short = short_name(schema)
        names = [field["name"] for field in schema["fields"]]
        if not known:
            lines.append(f"if not isinstance({value}, tuple): refuse()")  # a text would come apart as well
        lines.append(f"({''.join(f'{value}_{name}, ' for name in names)}) = {value}")
        pieces = []
        for name, field in zip(names, schema["fields"], strict=True):
            place, part = f"{short}.{name}", f"{value}_{name}"
            if forth := self._model.fields.get(place, (None,))[0]:
                lines.append(f"{part} = {self._source.name('forth', forth)}({part})")
            pieces.append(self._pieces(field["type"], part, place, lines))
        return ", ".join(pieces) or "*()"  # a record may have no fields

    def _pieces(self, schema: Any, value: str, place: str, lines: list[str] | None) -> str:
        """The expressions of the pieces of a field whose value stands in the variable `value`.

        `lines` take statements that come before; None where there is no room for any.
        """
        if isinstance(schema, list):
            return self._union(schema, value, place)
        if isinstance(schema, dict) and schema["type"] == "array":
            return f"*(NOTHING if {value} == () else {self._array(schema['items'], place)}({value}))"
        if record := self._record_of(schema):
            if short_name(record) in self._model.repeated:
                return f"{self._remembered(record)}[{value}]"
            return f"*{self._function(record)}({value})" if lines is None else self._record(record, value, lines)
        type_ = schema if isinstance(schema, str) else schema["type"]
        return (_UNIQUE if place in self._model.unique else _SIMPLE[type_]).format(value)

    def _union(self, schema: list[Any], value: str, place: str) -> str:
        if len(schema) == 2 and schema[0] == "null":
            type_ = schema[1] if isinstance(schema[1], str) else schema[1]["type"]
            if type_ in _NULLABLE and place not in self._model.unique:
                return _NULLABLE[type_].format(value)
            return f"*(NOTHING if {value} is None else (b'\\2', {self._pieces(schema[1], value, place, None)}))"
        branches = {}
        for index, branch in enumerate(schema):
            cls = self._model.classes[short_name(branch)]
            branches[cls] = self.record(branch, encode_long(index), known=True)
        return f"*{self._source.name('branches', branches)}[{value}.__class__]({value})"

    def _array(self, items: Any, place: str) -> str:
        before: list[str] = []
        pieces = self._pieces(items, "item", place, before)
        lines = [
            "if isinstance(values, str): refuse()",
            "values = tuple(values)",
            "if not values: return NOTHING",
            "pieces = [LONG[len(values)]]",
            "for item in values:",
            *(f"    {line}" for line in before),
            f"    pieces += ({pieces},)",
            "pieces.append(NONE)",
            "return pieces",
        ]
        name = self._source.name("write_array", None)
        self._source.function(name, "values", lines)
        return name

    def _record_of(self, schema: Any) -> dict[str, Any] | None:
        return self._definitions.get(schema if isinstance(schema, str) else schema.get("name", ""))

    def _function(self, record: dict[str, Any]) -> str:
        return self._functions.get((record["name"], b"")) or self.record(record, b"").__name__

    def _remembered(self, record: dict[str, Any]) -> str:
        key = record["name"], b"remembered"
        if key not in self._functions:
            pieces = self.record(record, b"")
            self._functions[key] = self._source.name("memory", Memory(lambda value: b"".join(pieces(value))))
        return self._functions[key]
