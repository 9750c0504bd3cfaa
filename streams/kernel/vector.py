"""An append-only vector with value semantics: appending to a long one costs the same as to a short one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

__all__ = ["Vector"]

T = TypeVar("T")


class Vector(Generic[T]):
    """Immutable from outside. Versions share one buffer; a second append to an older version copies it first."""

    __slots__ = ("_buffer", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._buffer: list[T] = list(items)
        self._length = len(self._buffer)

    def append(self, item: T) -> Vector[T]:
        """Return a vector that is longer by `item`; this one stays as it is."""
        buffer = self._buffer
        if len(buffer) != self._length or not buffer:  # the empty one is a default that all runs share
            buffer = buffer[: self._length]
        buffer.append(item)
        longer: Vector[T] = Vector.__new__(Vector)
        longer._buffer = buffer
        longer._length = self._length + 1
        return longer

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        buffer = self._buffer
        for index in range(self._length):
            yield buffer[index]

    def __getitem__(self, index: int) -> T:
        if not -self._length <= index < self._length:
            message = f"index {index} outside a vector of {self._length}"
            raise IndexError(message)
        return self._buffer[index % self._length]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and len(self) == len(other) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Vector({list(self)!r})"
