"""The port through which the kernel turns user values into bytes and back; `streams.wire.values` implements it."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["VALUE_BYTES_MAX", "Codec"]

VALUE_BYTES_MAX = 256_000
"""The limit of one encoded user value, in bytes."""


class Codec(Protocol):
    """Encodes user values so that decoding gives back an equal value of the same type."""

    def encode(self, value: Any) -> bytes:
        """Encode, or raise `ValueTooLarge` / `ValueNotStorable` with the path inside the value."""

    def decode(self, data: bytes) -> Any:
        """Give a fresh value. Raises `ValueUnreadable`; never returns a stand-in."""

    def conform(self, data: bytes, type_: Any) -> bytes:
        """Check that `data` holds a `type_`, converting plain JSON values into it; return the encoded result.

        Raises `Refused` with code INPUT_INVALID and the path of the first misfit.
        """

    def learn(self, type_: Any) -> None:
        """Make the types that are reachable from the annotation `type_` known, so that values of them can be read."""

    def digest(self, data: bytes) -> bytes:
        """A 16-byte hash of the value that does not depend on the order of keys in mappings."""
