"""The records of a log as Faust reads and writes them: one codec for each kind of record, and keys as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from faust.serializers import codecs

from streams.wire import records

__all__ = ["CODECS", "KeyCodec", "RecordCodec", "register_codecs"]

_Pair = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]

CODECS: Mapping[str, _Pair] = {
    "streams-checkpoint": (records.encode_checkpoint, records.decode_checkpoint),
    "streams-dead-letter": (records.encode_dead_letter, records.decode_dead_letter),
    "streams-effect": (records.encode_effect, records.decode_effect),
    "streams-event": (records.encode_event, records.decode_event),
    "streams-lease": (records.encode_lease, records.decode_lease),
}
"""The names to write as `value_serializer`, and what encodes and decodes under each. Commands are for workers only."""


class RecordCodec(codecs.Codec):
    """Records of one kind. Bytes that are none raise `WireError`, which Faust hands on as a `ValueDecodeError`."""

    def __init__(self, children: Any = None, *, name: str) -> None:
        super().__init__(children, name=name)
        self._encode, self._decode = CODECS[name]

    def _loads(self, s: bytes) -> Any:
        return self._decode(s)

    def _dumps(self, s: Any) -> bytes:
        return self._encode(s)


class KeyCodec(codecs.Codec):
    """Keys: the run id as UTF-8, in both directions as text."""

    def _loads(self, s: bytes) -> Any:
        return s.decode()

    def _dumps(self, s: Any) -> bytes:
        return s if isinstance(s, bytes) else str(s).encode()


def register_codecs() -> None:
    """Make the names of `CODECS`, and `streams-key`, known to every Faust app of this process."""
    for name in CODECS:
        codecs.register(name, RecordCodec(name=name))
    codecs.register("streams-key", KeyCodec())
