"""Compiles Avro schemas into functions that turn the engine's tuples into Avro's binary encoding and back.

fastavro needs a dict for each record and tries the branches of a union one by one, which costs an event 12 to 20 µs;
this costs a third. The tests hold every byte against fastavro, which still parses the schemas.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from streams.errors import WireError

__all__ = ["FAULTS", "Compiler", "Model", "Read", "Write", "WrongField"]

Write = Callable[[Any], bytes]
Read = Callable[[bytes, int], tuple[Any, int]]

FAULTS = (AttributeError, LookupError, OverflowError, TypeError, ValueError, struct.error)
"""What writing a value of a wrong type, and reading bytes that are no record, can raise."""

_LONG_MIN, _LONG_MAX, _LONG_BITS = -(2**63), 2**63 - 1, 2**64 - 1


class WrongField(Exception):
    """A value that does not fit the schema. `path` leads to the field; the value itself is never shown."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, kind)
        self.path = path
        self.kind = kind


class Model(NamedTuple):
    """What stands for the records of a schema in Python: `classes` by name of the record; a plain tuple without one.

    `fields` holds pairs (to what the schema says, and back) under RECORD.FIELD, where the two differ. Records in
    `repeated` come again and again with the same few values, so their bytes are remembered.
    """

    classes: Mapping[str, Callable[..., Any]] = {}
    fields: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
    repeated: frozenset[str] = frozenset()


class Compiler:
    """One pass over one schema; a named type is compiled where it is defined and looked up afterwards."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._named: dict[str, tuple[Write, Read]] = {}

    def compile(self, schema: Any) -> tuple[Write, Read]:
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _SIMPLE[schema] if schema in _SIMPLE else self._named[schema]
        if schema["type"] == "record":
            self._named[schema["name"]] = pair = self._record(schema)
            return pair
        if schema["type"] == "array":
            return _array(*self.compile(schema["items"]))
        return _SIMPLE[schema["type"]]  # with a logical type: times are whole microseconds throughout

    def _record(self, schema: dict[str, Any]) -> tuple[Write, Read]:
        short = schema["name"].rpartition(".")[2]
        names = tuple(field["name"] for field in schema["fields"])
        pairs = [self._field(f"{short}.{field['name']}", field["type"]) for field in schema["fields"]]
        writers, readers = tuple(write for write, _ in pairs), tuple(read for _, read in pairs)
        write = _record_writer(names, writers)
        if short in self._model.repeated:
            write = lru_cache(maxsize=1024)(write)
        return write, _record_reader(readers, self._maker(short, names))

    def _field(self, place: str, schema: Any) -> tuple[Write, Read]:
        write, read = self.compile(schema)
        if place not in self._model.fields:
            return write, read
        forth, back = self._model.fields[place]

        def adapted(data: bytes, at: int) -> tuple[Any, int]:
            value, at = read(data, at)
            return back(value), at

        return lambda value: write(forth(value)), adapted

    def _maker(self, short: str, names: tuple[str, ...]) -> Callable[[list[Any]], Any]:
        """Fields that an older schema lacks take the class's defaults."""
        cls = self._model.classes.get(short)
        if cls is None:
            return tuple
        fields = getattr(cls, "_fields", None)
        if fields is None:
            return lambda values: cls(*values)
        if fields == names:
            return partial(tuple.__new__, cls)  # type: ignore[arg-type] # it has fields, so it is a class of tuples
        if unknown := set(names) - set(fields):
            raise WireError(f"{short} has no field {min(unknown)!r}, which a schema names: fields are never removed")
        if missing := set(fields) - set(names) - set(cls._field_defaults):  # type: ignore[attr-defined]
            raise WireError(f"{short}.{min(missing)} is new and needs a default: older records do not have it")
        return lambda values: cls(**dict(zip(names, values, strict=True)))

    def _union(self, schema: list[Any]) -> tuple[Write, Read]:
        if len(schema) == 2 and schema[0] == "null":
            return _nullable(*self.compile(schema[1]))
        branches = {}
        readers = []
        for index, branch in enumerate(schema):
            write, read = self.compile(branch)
            readers.append(read)
            branches[self._model.classes[branch["name"].rpartition(".")[2]]] = (_long(index), write)
        return _union_writer(branches), _union_reader(tuple(readers))


def _long_slow(value: int) -> bytes:
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise OverflowError
    number = (value << 1) ^ (value >> 63)
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL = [_long_slow(number) for number in range(4096)]


def _long(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < 4096 else _long_slow(value)


def _string(value: str) -> bytes:
    data = value.encode()
    size = len(data)
    return (_SMALL[size] if size < 4096 else _long_slow(size)) + data


def _bytes(value: bytes) -> bytes:
    size = len(value)
    return (_SMALL[size] if size < 4096 else _long_slow(size)) + value


def _boolean(value: bool) -> bytes:  # noqa: FBT001 - the value is what is written
    return _BOOLEANS[value]


_BOOLEANS = {False: b"\0", True: b"\1"}
_DOUBLE = struct.Struct("<d")


def _double(value: float) -> bytes:
    if type(value) is not float and type(value) is not int:  # others would be rounded without a word
        raise TypeError
    return _DOUBLE.pack(value)


def _record_writer(names: tuple[str, ...], writers: tuple[Write, ...]) -> Write:
    def write(value: Any) -> bytes:
        try:
            return b"".join([write(part) for write, part in zip(writers, value, strict=True)])
        except (WrongField, *FAULTS) as error:
            raise _located(names, writers, value) from error

    return write


def _located(names: tuple[str, ...], writers: tuple[Write, ...], value: Any) -> WrongField:
    """Which field does not fit."""
    if not isinstance(value, tuple) or len(value) != len(names):
        return WrongField("", type(value).__name__)
    for name, write, part in zip(names, writers, value, strict=True):
        try:
            write(part)
        except WrongField as wrong:
            return WrongField(f"{name}.{wrong.path}" if wrong.path else name, wrong.kind)
        except UnicodeEncodeError:
            return WrongField(name, "text with a lone surrogate")
        except OverflowError:
            return WrongField(name, "a number beyond 64 bits")
        except FAULTS:
            return WrongField(name, type(part).__name__)
    return WrongField("", type(value).__name__)


def _nullable(write: Write, read: Read) -> tuple[Write, Read]:
    def write_it(value: Any) -> bytes:
        return b"\0" if value is None else b"\2" + write(value)

    def read_it(data: bytes, at: int) -> tuple[Any, int]:
        if data[at] == 0:
            return None, at + 1
        if data[at] != 2:
            raise ValueError
        return read(data, at + 1)

    return write_it, read_it


def _union_writer(branches: Mapping[Callable[..., Any], tuple[bytes, Write]]) -> Write:
    def write(value: Any) -> bytes:
        index, branch = branches[type(value)]
        return index + branch(value)

    return write


def _union_reader(readers: tuple[Read, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _read_long(data, at)
        if index < 0:
            raise IndexError
        return readers[index](data, at)

    return read


def _array(write: Write, read: Read) -> tuple[Write, Read]:
    def write_it(values: Iterable[Any]) -> bytes:
        if isinstance(values, str):
            raise TypeError
        parts = [write(value) for value in values]
        return b"".join((_long(len(parts)), *parts, b"\0")) if parts else b"\0"

    def read_it(data: bytes, at: int) -> tuple[Any, int]:
        if data[at] == 0:
            return (), at + 1
        found: list[Any] = []
        while True:
            count, at = _read_long(data, at)
            if count < 0:
                count = -count
                _, at = _read_long(data, at)
            if not count:
                return tuple(found), at
            if count > len(data) - at:  # an item takes a byte or more: do not let garbage fill the memory
                raise ValueError
            for _ in range(count):
                value, at = read(data, at)
                found.append(value)

    return write_it, read_it


def _record_reader(readers: tuple[Read, ...], make: Callable[[list[Any]], Any]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for each in readers:
            value, at = each(data, at)
            values.append(value)
        return make(values), at

    return read


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        shift += 7
        if number > _LONG_BITS:
            raise OverflowError
    return (number >> 1) ^ -(number & 1), at + 1


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError
    return data[at:end], end


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    size = data[at]
    if size < 128 and not size & 1:  # the ids and names of nearly every event, without a further call
        at += 1
        end = at + (size >> 1)
        if end > len(data):
            raise ValueError
        return data[at:end].decode(), end
    found, end = _read_bytes(data, at)
    return found.decode(), end


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError
    return data[at] == 1, at + 1


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


_SIMPLE: dict[str, tuple[Write, Read]] = {
    "boolean": (_boolean, _read_boolean),
    "bytes": (_bytes, _read_bytes),
    "double": (_double, _read_double),
    "long": (_long, _read_long),
    "string": (_string, _read_string),
}
