"""What an app declares besides code: signals that come in, and effects that go out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streams.kernel.bodies import Policy

__all__ = ["Effect", "Signal", "check_name"]

T = TypeVar("T")
E = TypeVar("E")
Y = TypeVar("Y")

_EXTRA = "-_."


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """A named message to a run; shared by workflow and client, so both sides agree on its type."""

    name: str
    type: type[T]


@dataclass(frozen=True, slots=True)
class Effect(Generic[E, Y]):
    """An outbox topic, `APP.effects.NAME`, the type of its payloads, and that of the replies to its requests."""

    name: str
    type: type[E]
    reply: Any = None
    policy: Policy | None = None
    """How its requests are tried again."""


def check_name(what: str, name: object) -> str:
    """A name that is legal as a part of a topic name; raises ValueError that says what is."""
    if (
        isinstance(name, str)
        and 0 < len(name) <= 100
        and all(c.isascii() and (c.isalnum() or c in _EXTRA) for c in name)
    ):
        return name
    message = f"{what} {name!r}: use 1 to 100 ASCII letters, digits, '.', '_' or '-'"
    raise ValueError(message)
