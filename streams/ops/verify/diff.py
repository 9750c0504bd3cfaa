"""The first difference between two states, as a path and two shortened values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streams.kernel.vector import Vector

__all__ = ["Difference", "difference", "short"]

_CHARS_MAX = 80


class Difference(NamedTuple):
    """Where two values differ first."""

    path: str
    expected: str
    found: str


def difference(expected: Any, found: Any, path: str = "") -> Difference | None:
    """The first field that differs, depth first; None where the two are the same, the order of mappings included."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return _of_mappings(expected, found, path)
    if isinstance(expected, tuple) and type(expected) is type(found) and hasattr(expected, "_fields"):
        pairs = zip(expected._fields, expected, found, strict=True)
        return next((d for name, a, b in pairs if (d := difference(a, b, _joined(path, name)))), None)
    if isinstance(expected, (tuple, Vector)) and type(expected) is type(found):
        return _of_sequences(tuple(expected), tuple(found), path)
    if expected == found and type(expected) is type(found):
        return None
    return Difference(path, short(expected), short(found))


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _of_mappings(expected: Mapping[Any, Any], found: Mapping[Any, Any], path: str) -> Difference | None:
    for name in [*expected, *(name for name in found if name not in expected)]:
        if name not in found:
            return Difference(_joined(path, name), short(expected[name]), "(nothing)")
        if name not in expected:
            return Difference(_joined(path, name), "(nothing)", short(found[name]))
        if inner := difference(expected[name], found[name], _joined(path, name)):
            return inner
    if list(expected) != list(found):  # bit for bit: the order is stored as well
        return Difference(path, f"in the order {short(', '.join(expected))}", f"in the order {short(', '.join(found))}")
    return None


def _of_sequences(expected: Sequence[Any], found: Sequence[Any], path: str) -> Difference | None:
    for index, (a, b) in enumerate(zip(expected, found, strict=False)):
        if inner := difference(a, b, _joined(path, index)):
            return inner
    if len(expected) == len(found):
        return None
    at = min(len(expected), len(found))
    of = [short(items[at]) if at < len(items) else "(nothing)" for items in (expected, found)]
    return Difference(_joined(path, at), *of)


def short(value: Any) -> str:
    """A value on one line. Bytes are values of users: only their size and a hash are told."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes ({hashlib.blake2b(value, digest_size=4).hexdigest()})"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = ", ".join(f"{n}={short(v)}" for n, v in zip(value._fields, value, strict=True) if v)
        text = f"{type(value).__name__}({parts})"
    elif isinstance(value, (tuple, Vector)):
        return f"{len(value)} items"
    elif isinstance(value, Mapping):
        return f"{len(value)} entries"
    else:
        text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= _CHARS_MAX else text[: _CHARS_MAX - 1] + "…"
