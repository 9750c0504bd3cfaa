"""User values: the codec with classes to put together, and types to bring plain JSON into."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pydantic

from streams.errors import Refused, ValueRefused, ValueUnreadable
from streams.wire.values import ValueCodec
from tests.fuzz.oracles import check_message

__all__ = ["CODEC", "EXAMPLES", "TYPES", "check_conform", "check_value"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Pair(NamedTuple):
    left: int
    right: Any = None


@dataclass(frozen=True)
class Order:
    id: str
    amount: Decimal = Decimal(0)
    lines: list[Pair] = field(default_factory=list)
    colour: Colour | None = None


class Form(pydantic.BaseModel):
    name: str
    at: datetime | None = None


TYPES: tuple[Any, ...] = (
    Order, Form, Colour, Pair, int, float, bool, str, bytes, Decimal, datetime, date, timedelta, UUID, None, Any,
    list[int], dict[str, Order], tuple[int, ...], tuple[int, str], set[str], frozenset[int], int | str | None,
    Literal["a", 1], list[Order | Form | None], dict[int, float],
)  # fmt: skip
EXAMPLES: tuple[Any, ...] = (
    None, True, 0, -(2**70), 1.5, "text\0\u2028", b"\xff\0", [1, [2]], {"a": {"b": None}}, {1: 2, "$": 3}, {1, 2},
    frozenset({"a"}), (1, "a"), Decimal("1.10"), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), date(2026, 1, 2),
    timedelta(days=-1, microseconds=5), UUID(int=7), Colour.RED, Pair(1, Pair(2)), "\ud83d",
    Order("o1", Decimal("9.99"), [Pair(1, "x")], Colour.BLUE), Form(name="n", at=datetime(2026, 1, 2, tzinfo=UTC)),
)  # fmt: skip

CODEC = ValueCodec(value_bytes_max=100_000)
for known in TYPES:
    if known is not None and known is not Any:
        CODEC.learn(known)


def check_value(data: bytes) -> None:
    """Read, written again and read again it is the same; what cannot be read is refused; anybody may look at it."""
    plain = CODEC.to_plain(data)
    json.dumps(plain)
    for read in (CODEC.decode, CODEC.digest):
        try:
            value = read(data)
        except ValueUnreadable as error:
            check_message(error, data)
            continue
        if read == CODEC.decode:
            _check_again(value, data)


def _check_again(value: Any, data: bytes) -> None:
    try:
        again = CODEC.encode(value)
    except ValueRefused as error:
        # Only bytes that were not written by us hold such a value.
        check_message(error, data)
        return
    assert CODEC.encode(CODEC.decode(again)) == again, "what was read and written again is read as something else"
    assert type(CODEC.decode(again)) is type(value)


def check_conform(data: bytes) -> None:
    """Any JSON, brought into any type, is a value that can be read, or is refused."""
    if not data:
        return
    type_, data = TYPES[data[0] % len(TYPES)], data[1:]
    try:
        found = CODEC.conform(data, type_)
    except Refused as error:
        check_message(error, data)
        return
    CODEC.decode(found)
    assert CODEC.conform(found, type_) == found, "what conforms does not conform a second time"
