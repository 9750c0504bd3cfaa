"""The state of a run as changes of its fields, in JSON: how `run.repaired` and its command carry a whole state."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

from streams.kernel.bodies import Change
from streams.kernel.run import Run
from streams.kernel.vector import Vector

__all__ = ["STATE_FIELDS", "changes_of", "run_of"]

# A wire format: a class as the list of its fields in order, a mapping as the list of its values, bytes as text in which
# each character stands for a byte (values of users are JSON, so they stay readable). Never change it: the log holds it.

_OF_THE_EVENT = ("run_id", "identity", "seq", "at", "epoch")
STATE_FIELDS = tuple(name for name in Run._fields if name not in _OF_THE_EVENT)
"""What changes can name: all that the event does not say itself."""

_BLANK = Run("", "")


def changes_of(run: Run) -> tuple[Change, ...]:
    """The whole state: a change for each field that differs from that of a blank run."""
    fields = ((name, getattr(run, name)) for name in STATE_FIELDS)
    return tuple(
        Change(name, "set", json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":")).encode())
        for name, value in fields
        if value != getattr(_BLANK, name)
    )


def run_of(run_id: str, identity: str, changes: tuple[Change, ...]) -> Run:
    """The state that the changes make up, whatever was before. Raises ValueError, naming the field."""
    hints = _hints(Run)
    fields: dict[str, Any] = {}
    for change in changes:
        if change.field not in STATE_FIELDS or change.how != "set" or change.field in fields:
            message = f"a repair cannot {change.how} {change.field!r}; it sets each field of the state at most once"
            raise ValueError(message)
        try:
            fields[change.field] = _read(hints[change.field], json.loads(change.value))
        except (ValueError, TypeError, RecursionError) as error:
            message = f"the field {change.field!r} of the repaired state is none: {error}"
            raise ValueError(message) from error
    return Run(run_id, identity)._replace(**fields)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return [_plain(part) for part in value.values()]
    if isinstance(value, (tuple, Vector)):
        return [_plain(part) for part in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _read(hint: Any, value: Any) -> Any:
    """A value of this annotation, made of plain JSON. Raises ValueError or TypeError."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(args, value)
    if origin is typing.Literal:
        return _literal(args, value)
    if origin is Mapping:
        return {part.id: part for part in (_read(args[1], item) for item in _list(value))}
    if origin is Vector:
        return Vector([_read(args[0], part) for part in _list(value)])
    if origin is tuple and args[-1] is ...:
        return tuple(_read(args[0], part) for part in _list(value))
    if origin is tuple:
        return tuple(_read(part, item) for part, item in zip(args, _list(value), strict=True))
    return _simple(hint, value)


def _simple(hint: Any, value: Any) -> Any:
    if issubclass(hint, tuple):
        hints, parts = _hints(hint), _list(value)
        if len(parts) > len(hint._fields):
            raise ValueError(f"a {hint.__name__} has no {len(parts)} fields")
        return hint(*(_read(hints[name], part) for name, part in zip(hint._fields, parts, strict=False)))
    if hint is bytes:
        return _text(value).encode("latin-1")
    if issubclass(hint, Enum):
        return hint(value)
    if hint is float and type(value) is int:
        return value  # as it was written: a float that is a whole number is one of both
    if type(value) is not hint:
        raise TypeError(f"expected {hint.__name__}, got {type(value).__name__}")
    return _text(value) if hint is str else value


def _one_of(hints: tuple[Any, ...], value: Any) -> Any:
    if type(None) in hints and value is None:
        return None
    classes = [hint for hint in hints if hint is not type(None)]
    if len(classes) == 1:
        return _read(classes[0], value)
    # Two classes of the journal: they differ in how many fields they have.
    count = len(_list(value))
    for cls in classes:
        if len(cls._fields) == count:
            return _read(cls, value)
    raise ValueError(f"nothing in it has {count} fields")


def _literal(allowed: tuple[Any, ...], value: Any) -> Any:
    if value not in allowed:
        raise ValueError(f"expected one of {', '.join(map(str, allowed))}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    value.encode()  # a lone surrogate would make the run unwritable later
    return value
