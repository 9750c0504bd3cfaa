"""The stored state of a run: fields of encoded bytes that grow by chunks, so that a long list is never rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from streams.kernel.bodies import Change
from streams.kernel.codec import Codec
from streams.kernel.vector import Vector

__all__ = [
    "UNCHECKED",
    "Base",
    "FieldValue",
    "apply_changes",
    "base_bytes",
    "decode_base",
    "decode_field",
    "fresh_base",
]


UNCHECKED = "?"
"""The one field of a run that was started before its workflow was loaded: its input as it came. Never change it."""


class FieldValue(NamedTuple):
    """One field. `how` says what the chunks make up: the one of `set`, lists to `extend`, mappings to `merge`."""

    how: str
    chunks: Vector[bytes]


Base = tuple[tuple[str, FieldValue], ...]


def fresh_base(pairs: Iterable[tuple[str, bytes]]) -> Base:
    """A base of fields that were set once."""
    return tuple((name, FieldValue("set", Vector((value,)))) for name, value in pairs)


def apply_changes(base: Base, changes: Iterable[Change]) -> Base:
    """Fold the changes of a super-step into the fields. Pure bytes: no user code, no decoding."""
    fields = {name: value for name, value in base if name != UNCHECKED}
    for change in changes:
        before = fields.get(change.field)
        if change.how == "set" or before is None:
            fields[change.field] = FieldValue("set", Vector((change.value,)))
        elif before.how in ("set", change.how):
            fields[change.field] = FieldValue(change.how, before.chunks.append(change.value))
        else:
            message = f"field {change.field!r} cannot {change.how} what was built by {before.how}"
            raise ValueError(message)
    return tuple(fields.items())


def decode_field(value: FieldValue, codec: Codec) -> Any:
    """A fresh value of one field."""
    if value.how == "set":
        return codec.decode(value.chunks[0])
    parts = [codec.decode(chunk) for chunk in value.chunks]
    if value.how == "extend":
        return [item for part in parts for item in part]
    return {key: item for part in parts for key, item in part.items()}


def decode_base(base: Base, codec: Codec) -> dict[str, Any]:
    """Fresh values of all fields."""
    return {name: decode_field(value, codec) for name, value in base}


def base_bytes(base: Base) -> int:
    """The stored size of all fields, in bytes."""
    return sum(len(chunk) for _, value in base for chunk in value.chunks)
