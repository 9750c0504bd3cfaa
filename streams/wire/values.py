"""The codec of user values: plain JSON where JSON can hold the value, tagged objects where it cannot.

Decoding gives an equal value of the same type, by construction: only exact types of known structure are written, every
part of their state is, and no code of the user runs to put them together. What would come back poorer is refused.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from streams.errors import Refused, ValueNotStorable, ValueTooLarge, ValueUnreadable
from streams.kernel.codec import VALUE_BYTES_MAX
from streams.wire.convert import Converters, takes_anything
from streams.wire.misfit import Misfit
from streams.wire.plain import render
from streams.wire.tagging import DEPTH_MAX, Overweight, Tagger, Untagger, canonical, heavy_path, weigh
from streams.wire.types import TypeRegistry

__all__ = ["ValueCodec"]

_dump = msgspec.json.Encoder().encode
_dump_sorted = msgspec.json.Encoder(order="sorted").encode
_load = msgspec.json.Decoder().decode
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ValueCodec:
    """Implements the kernel's `Codec` with JSON.

    A class may change between writing and reading. A new field with a default is filled from it; a new field without
    one, a field or enum member that is gone, or a class whose name is unknown make the value unreadable. Code that
    must tell old values from new ones gives the new field a default that says so.
    """

    def __init__(self, registry: TypeRegistry | None = None, *, value_bytes_max: int = VALUE_BYTES_MAX) -> None:
        self.registry = TypeRegistry() if registry is None else registry
        self.value_bytes_max = value_bytes_max
        self._untag = Untagger(self.registry).value
        self._converters = Converters(self.registry)

    def encode(self, value: Any) -> bytes:
        limit = self.value_bytes_max
        weight = weigh(value, limit)
        if weight > limit:
            raise _too_large(weight, limit, heavy_path(value, limit), at_least=True)
        if weight < 0:
            data = self._encode_tagged(value)
        else:
            try:
                data = _dump(value)
            except UnicodeEncodeError:
                data = self._encode_tagged(value)
        if len(data) > limit:
            raise _too_large(len(data), limit, heavy_path(value, limit))
        return data

    def decode(self, data: bytes) -> Any:
        try:
            tree = _load(data)
            return self._untag(tree) if b'"$"' in data else tree
        except Misfit as misfit:
            raise ValueUnreadable(f"{misfit.message} (at {misfit.path})") from misfit
        except _BAD_JSON as error:
            raise ValueUnreadable(f"the stored value is no JSON that streams has written: {error}") from error

    def conform(self, data: bytes, type_: Any) -> bytes:
        """As in the port; the type may contain `None`, models, unions and the like, and decides over plain JSON."""
        try:
            if len(data) > self.value_bytes_max:
                raise _too_large(len(data), self.value_bytes_max)
            value = self.decode(data)
            if takes_anything(type_):
                return self._anything(data, value)
            return self.encode(self._converters.of(type_)(value))
        except Misfit as misfit:
            raise Refused("INPUT_INVALID", f"{misfit.message} at {misfit.path}") from misfit
        except (ValueUnreadable, ValueNotStorable) as error:
            raise Refused("INPUT_INVALID", str(error)) from error
        except ValueTooLarge as error:
            raise Refused(error.code, str(error)) from error
        except RecursionError as error:
            raise Refused("INPUT_INVALID", f"expected at most {DEPTH_MAX} levels, got more") from error

    def learn(self, type_: Any) -> None:
        self.registry.add(type_)
        self._converters.of(type_)

    def digest(self, data: bytes) -> bytes:
        try:
            tree = _load(data)
        except _BAD_JSON as error:
            raise ValueUnreadable(f"the stored value is no JSON that streams has written: {error}") from error
        if b'"@dict"' in data:
            tree = canonical(tree)
        return blake2b(_dump_sorted(tree), digest_size=16).digest()

    def to_plain(self, data: bytes) -> Any:
        """A readable rendering for people and tools; needs no types of the app. What is no JSON is shown as text."""
        try:
            tree = _load(data)
            return render(tree) if b'"$"' in data else tree
        except _BAD_JSON:
            return data.decode("utf-8", "backslashreplace")

    def _encode_tagged(self, value: Any) -> bytes:
        tagger = Tagger(self.registry, self.value_bytes_max)
        try:
            return _dump(tagger.node(value))
        except Overweight as misfit:
            raise _too_large(self.value_bytes_max + 1, self.value_bytes_max, misfit.path, at_least=True) from misfit
        except Misfit as misfit:
            raise ValueNotStorable(misfit.message, misfit.path) from misfit
        except UnicodeEncodeError as error:
            raise ValueNotStorable("the name of a time zone or type holds text that UTF-8 cannot hold") from error
        except RecursionError as error:
            raise ValueNotStorable("the value is nested too deep for the stack that is left; flatten it") from error

    def _anything(self, data: bytes, value: Any) -> bytes:
        """Nothing to convert, but what is taken in now must be writable again later."""
        self.encode(value)
        return data


def _too_large(size: int, limit: int, path: str = "$", *, at_least: bool = False) -> ValueTooLarge:
    words = "at least " if at_least else ""
    return ValueTooLarge(
        f"the value takes {words}{size:,} bytes, the limit is {limit:,}; "
        "store it elsewhere (object storage, a database, a file) and pass a reference to it",
        path,
    )
