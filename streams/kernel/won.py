"""What `first` gives. In a module of its own, which is not compiled: mypyc takes no dataclass with slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from streams.kernel.ops import Op

__all__ = ["Won"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Won(Generic[T_co]):
    """What `first` gives: the place of the winner among the arguments, the op, and its value."""

    index: int
    op: Op[Any]
    value: T_co
