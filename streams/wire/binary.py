"""What the generated writers and readers of Avro are made of: primitives, and what they remember.

Most texts and whole numbers of a record were written a moment ago as well: names, ids of a run, the time of a turn.
Finding their bytes in a dict costs a fraction of making them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

__all__ = [
    "FAULTS",
    "PRIMITIVES",
    "Memory",
    "Model",
    "Repeated",
    "Source",
    "Texts",
    "Times",
    "WrongField",
    "definitions",
    "encode_double",
    "encode_long",
    "encode_text",
    "read_block",
    "read_bytes",
    "read_long",
    "read_text",
    "short_name",
]

FAULTS = (AttributeError, LookupError, OverflowError, TypeError, ValueError, struct.error)
"""What writing a value of a wrong type, and reading bytes that are no record, can raise."""

_LONG_MIN, _LONG_MAX, _LONG_BITS = -(2**63), 2**63 - 1, 2**64 - 1
_MEMORY_ENTRIES, _MEMORY_BYTES = 4096, 256
_BEGIN_BYTES = 16  # enough to tell most of them apart
_TIME_BYTES = 8  # what a time in microseconds takes between the years 1978 and 3111
_TIME_FROM, _TIME_TO = 2**49, 2**56  # as zig-zag


class WrongField(Exception):
    """A value that does not fit the schema. `path` leads to the field; the value itself is never shown."""

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, kind)
        self.path = path
        self.kind = kind


class Model(NamedTuple):
    """What stands for the records of a schema in Python: `classes` by name of the record; a plain tuple without one.

    `fields` holds pairs (to what the schema says, and back) under RECORD.FIELD, where the two differ; None: they do
    not, this way. Records in `repeated` come again and again with the same few values, so their bytes are remembered;
    the texts of the fields in `unique` never come again, so they are not.
    """

    classes: Mapping[str, Callable[..., Any]] = {}
    fields: Mapping[str, tuple[Callable[[Any], Any] | None, Callable[[Any], Any]]] = {}
    repeated: frozenset[str] = frozenset()
    unique: frozenset[str] = frozenset()


class Source:
    """Generated functions, and what the names in their text stand for."""

    def __init__(self, **names: Any) -> None:
        self.names = names

    def name(self, stem: str, value: Any) -> str:
        """A name of its own for `value`."""
        name = f"{stem}_{len(self.names)}"
        self.names[name] = value
        return name

    def function(self, name: str, arguments: str, lines: list[str]) -> Any:
        """Compile a function; it may call all that came before it."""
        text = "\n    ".join((f"def {name}({arguments}):", *lines))
        exec(text, self.names)  # noqa: S102 - as in namedtuple; all of it comes from the schemas of this package
        return self.names[name]


def short_name(record: Mapping[str, Any]) -> str:
    """The name without its namespace, which is that of the class."""
    return str(record["name"]).rpartition(".")[2]


def definitions(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records in a parsed schema by their full names, which is how the schema refers to them again."""
    if isinstance(schema, list):
        for branch in schema:
            yield from definitions(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield schema["name"], schema
        for field in schema.get("fields", ()):
            yield from definitions(field["type"])
        yield from definitions(schema.get("items"))


# --- writing --------------------------------------------------------------------------------------------------------


class Memory(dict[Any, bytes]):
    """The bytes of what was written lately: `memory[value]`. Bounded, and simply emptied when it is full."""

    __slots__ = ("_encode", "_prefix")

    def __init__(self, encode: Callable[[Any], bytes], prefix: bytes = b"") -> None:
        self._encode = encode
        self._prefix = prefix

    def __missing__(self, value: Any) -> bytes:
        data = self._prefix + self._encode(value)
        if len(self) >= _MEMORY_ENTRIES:
            self.clear()
        if len(data) <= _MEMORY_BYTES:
            self[value] = data
        return data


_BYTE = [bytes((number,)) for number in range(128)]


def encode_long(value: int) -> bytes:
    """Zig-zag, then seven bits a byte, the lowest first."""
    if value.__class__ is not int:  # True would be 1, and come back as such
        raise TypeError
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise OverflowError
    number = (value << 1) ^ (value >> 63)
    if number < 128:
        return _BYTE[number]
    if number < 16384:
        return bytes((number & 127 | 128, number >> 7))
    if _TIME_FROM <= number < _TIME_TO:  # times are written often: the loop below takes half as long again
        return bytes(
            (
                number & 127 | 128,
                number >> 7 & 127 | 128,
                number >> 14 & 127 | 128,
                number >> 21 & 127 | 128,
                number >> 28 & 127 | 128,
                number >> 35 & 127 | 128,
                number >> 42 & 127 | 128,
                number >> 49,
            )
        )
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def encode_text(value: str) -> bytes:
    """UTF-8 behind its length."""
    if not isinstance(value, str):
        raise TypeError
    data = value.encode()
    return encode_long(len(data)) + data


def _encode_bytes(value: bytes) -> bytes:
    return encode_long(len(value)) + value


def _encode_boolean(value: bool) -> bytes:  # noqa: FBT001 - the value is what is written
    if value.__class__ is not bool:
        raise TypeError
    return b"\1" if value else b"\0"


_DOUBLE = struct.Struct("<d")


def encode_double(value: float) -> bytes:
    """A float, or an int that becomes one."""
    if type(value) is not float and type(value) is not int:  # others would be rounded without a word
        raise TypeError
    return _DOUBLE.pack(value)


PRIMITIVES: dict[str, Callable[[Any], bytes]] = {
    "boolean": _encode_boolean,
    "bytes": _encode_bytes,
    "double": encode_double,
    "long": encode_long,
    "string": encode_text,
}


# --- reading --------------------------------------------------------------------------------------------------------
# Nobody checks that a short text ends within the data: what ends beyond it is cut, and the whole ends beyond as well,
# which the framing sees.


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    byte = data[at]
    number, shift = byte & 127, 7
    while byte > 127:
        at += 1
        byte = data[at]
        number |= (byte & 127) << shift
        shift += 7
        if number > _LONG_BITS:
            raise OverflowError
    return (number >> 1) ^ -(number & 1), at + 1


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes of any length, which must be there."""
    low, high = data[at : at + 2]
    if low & 1 == 0 and low > 127 and high < 128:  # 64 to 8191, which is most values of users
        at += 2
        size = (low & 126 | high << 7) >> 1
    else:
        size, at = read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError
    return data[at:end], end


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """Text of any length, which must be there."""
    found, end = read_bytes(data, at)
    return found.decode(), end


def read_block(data: bytes, at: int) -> tuple[int, int]:
    """How many items of an array come next. Java may write several blocks, with a negative count and a size each."""
    count, at = read_long(data, at)
    if count < 0:
        count = -count
        _, at = read_long(data, at)
    if not 0 < count <= len(data) - at:  # an item takes a byte or more: do not let garbage fill the memory
        raise ValueError
    return count, at


class Texts(dict[bytes, str]):
    """Texts by their bytes, length first. What many records share is one object, which keeps restored runs small."""

    def __missing__(self, data: bytes) -> str:
        if len(self) >= _MEMORY_ENTRIES:
            self.clear()
        self[data] = found = data[1:].decode()
        return found


class Times(dict[bytes, int | None]):
    """Times by their eight bytes, because those of a turn are all the same; None for what takes fewer or more."""

    def __missing__(self, data: bytes) -> int | None:
        time, end = read_long(data + b"\0", 0)
        found = time if end == len(data) == _TIME_BYTES else None
        if len(self) >= _MEMORY_ENTRIES:
            self.clear()
        self[data] = found
        return found


class Repeated:
    """Reads records that come again and again with the same few values: whole, where the bytes are those of one."""

    def __init__(self, read: Callable[[bytes, int], tuple[Any, int]]) -> None:
        self._read = read
        self._found: dict[bytes, tuple[bytes, Any]] = {}

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        begin = data[at : at + _BEGIN_BYTES]
        whole, value = self._found.get(begin, (b"", None))
        if whole and data.startswith(whole, at):
            return value, at + len(whole)
        value, end = self._read(data, at)
        if end <= len(data):  # or the record is cut off, and not what its bytes say
            if len(self._found) >= _MEMORY_ENTRIES:
                self._found.clear()
            self._found[begin] = data[at:end], value
        return value, end
