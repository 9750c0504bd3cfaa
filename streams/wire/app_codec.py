"""The codec of one app: knows the types that its annotations reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from streams.wire.types import TypeRegistry
from streams.wire.values import ValueCodec

__all__ = ["make_codec"]


def make_codec(annotations: Iterable[Any], named: Mapping[str, type[Any]]) -> ValueCodec:
    """A codec for values of the types that `annotations` reach, and of `named` ones under the names given.

    Raises UsageError for an annotation whose values cannot be stored or told apart.
    """
    registry = TypeRegistry()
    for name, cls in named.items():
        registry.add_named(name, cls)
    codec = ValueCodec(registry)
    for annotation in annotations:
        codec.learn(annotation)
    return codec
