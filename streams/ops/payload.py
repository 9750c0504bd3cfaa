"""The bodies of events, and errors, as plain data: user values rendered, hashes in hexadecimal."""

from __future__ import annotations

from typing import Any

from streams.kernel.bodies import Body, Failure
from streams.wire.values import ValueCodec

__all__ = ["plain_body", "plain_failure"]

_HASHES = frozenset({"hash", "input_hash", "seed"})
_MAPPINGS = frozenset({"base", "attributes", "outcomes"})


def plain_body(body: Body, codec: ValueCodec) -> dict[str, Any]:
    """The fields of a body by name."""
    return {name: _plain(name, value, codec) for name, value in body._asdict().items()}


def plain_failure(error: Failure, codec: ValueCodec) -> dict[str, Any]:
    """An error as `--json` shows it."""
    details = None if error.details is None else codec.to_plain(error.details)
    return {"class": error.kind, "code": error.code, "message": error.message, "details": details}


def _plain(name: str, value: Any, codec: ValueCodec) -> Any:
    if isinstance(value, bytes):
        return value.hex() if name in _HASHES else codec.to_plain(value)
    if isinstance(value, Failure):
        return plain_failure(value, codec)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {field: _plain(field, part, codec) for field, part in value._asdict().items()}
    if name in _MAPPINGS:
        return {key: _plain("", part, codec) for key, part in value}
    if isinstance(value, tuple):
        return [_plain("", part, codec) for part in value]
    return value
