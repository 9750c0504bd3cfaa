"""What people and other programs send as plain JSON becomes the annotated type, or is refused with the place."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import msgspec
import pydantic
import pytest
import typing_extensions

from streams.errors import Refused, UsageError
from streams.wire.values import ValueCodec

T = TypeVar("T")
Sku = NewType("Sku", str)
Text = typing_extensions.TypeAliasType("Text", list[str])


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Decision:
    approved: bool
    reason: str = ""
    seen: int = field(default=0, init=False)


@dataclass(frozen=True, slots=True)
class Amount:
    value: Decimal
    currency: Literal["EUR", "CNY"] = "EUR"

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("the amount must not be negative")


@dataclass
class Box(Generic[T]):
    value: T
    more: list[T] = field(default_factory=list)


@dataclass
class Node:
    name: str
    below: list[Node] = field(default_factory=list)


@dataclass
class Special(Decision):
    code: int = 0


class Point(NamedTuple):
    x: float
    y: Decimal = Decimal(0)


class Movie(TypedDict):
    title: str
    stars: NotRequired[int]


class Partial(typing_extensions.TypedDict, total=False):
    when: date


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal = Decimal(1)


class Order(pydantic.BaseModel):
    lines: list[Line]
    decision: Decision | None = None
    when: datetime | None = None
    kind: str = pydantic.Field(default="", alias="Kind")


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore")
    a: int


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: datetime
    pair: tuple[int, int]


class Lines(pydantic.RootModel[list[Line]]):
    pass


class Legacy(pydantic.BaseModel):
    a: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def old_name(cls, data: Any) -> Any:
        return {"a": data["old"]} if "old" in data else data


@dataclass
class Around:
    order: Order
    amounts: dict[str, Amount] = field(default_factory=dict)


class Shape(Protocol):
    x: int


class Base:
    pass


@dataclass
class Derived(Base):
    a: int


@pytest.fixture
def codec():
    made = ValueCodec()
    for type_ in (Color, Level, Decision, Special, Point, Derived, Around, Box[int], Node):
        made.learn(type_)
    return made


def plus(hours: int) -> timezone:
    return timezone(timedelta(hours=hours))


FITS: list[tuple[Any, Any, Any]] = [
    (Any, {"a": [1]}, {"a": [1]}),
    (object, 1, 1),
    (inspect.Parameter.empty, 1, 1),
    (None, None, None),
    (type(None), None, None),
    (int, 5, 5),
    (float, 5, 5.0),
    (str, "a", "a"),
    (bool, True, True),
    (Sku, "a", "a"),
    (Decimal, "1.20", Decimal("1.20")),
    (Decimal, 5, Decimal(5)),
    (Decimal, 10.1, Decimal("10.1")),
    (datetime, "2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=UTC)),
    (datetime, "2024-01-01T00:00:00+08:00", datetime(2024, 1, 1, tzinfo=plus(8))),
    (datetime, "2024-01-01T00:00:00.000001", datetime(2024, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001 - naive stays naive
    (date, "2024-01-01", date(2024, 1, 1)),
    (time, "12:30:00", time(12, 30)),
    (timedelta, "PT90S", timedelta(seconds=90)),
    (UUID, str(UUID(int=7)), UUID(int=7)),
    (bytes, "aGk=", b"hi"),
    (Color, "red", Color.RED),
    (Color, "BLUE", Color.BLUE),
    (Level, 1, Level.LOW),
    (Access, 3, Access.READ | Access.WRITE),
    (Literal["a", 1], 1, 1),
    (Literal[Color.RED], "red", Color.RED),
    (list[int], [1, 2], [1, 2]),
    (list, [1, "a"], [1, "a"]),
    (Sequence[Decimal], ["1"], [Decimal(1)]),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[()], [], ()),
    (tuple, [1], (1,)),
    (set[Color], ["red", "blue"], {Color.RED, Color.BLUE}),
    (frozenset[int], [1, 1], frozenset({1})),
    (dict[str, Decimal], {"a": "1"}, {"a": Decimal(1)}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (Mapping[str, list[date]], {"a": ["2024-01-01"]}, {"a": [date(2024, 1, 1)]}),
    (dict, {"a": 1}, {"a": 1}),
    (Optional[int], None, None),  # noqa: UP045 - both spellings
    (int | None, 5, 5),
    (str | datetime, "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
    (int | Decimal, "1.5", Decimal("1.5")),
    (datetime | date, "2024-01-01", date(2024, 1, 1)),
    (float | Decimal, 1, 1.0),
    (Decision | Amount, {"value": "5"}, Amount(Decimal(5))),
    (Decision | Amount | None, {"approved": True}, Decision(approved=True)),
    (Annotated[int, msgspec.Meta(gt=0)], 5, 5),
    (Annotated[list[int], "doc"], [1], [1]),
    (Text, ["a"], ["a"]),
    (Decision, {"approved": True}, Decision(approved=True)),
    (Decision, {"approved": False, "reason": "no"}, Decision(approved=False, reason="no")),
    (Amount, {"value": 5, "currency": "CNY"}, Amount(Decimal(5), "CNY")),
    (Box[Decimal], {"value": "1", "more": ["2"]}, Box(Decimal(1), [Decimal(2)])),
    (Box[Box[Color]], {"value": {"value": "red"}}, Box(Box(Color.RED))),
    (Box, {"value": "red"}, Box("red")),
    (Node, {"name": "a", "below": [{"name": "b"}]}, Node("a", [Node("b")])),
    (Point, [1, "2.5"], Point(1.0, Decimal("2.5"))),
    (Point, {"x": 1}, Point(1.0)),
    (list[Point], [[1], {"x": 2, "y": "3"}], [Point(1.0), Point(2.0, Decimal(3))]),
    (Movie, {"title": "t"}, {"title": "t"}),
    (Partial, {"when": "2024-01-01"}, {"when": date(2024, 1, 1)}),
    (Partial, {}, {}),
    (Line, {"sku": "a", "price": "1.20"}, Line(sku="a", price=Decimal("1.20"))),
    (list[Line], [{"sku": "a"}], [Line(sku="a")]),
    (Line | None, {"sku": "a"}, Line(sku="a")),
    (Loose, {"a": 1, "b": 2}, Loose(a=1)),
    (Legacy, {"old": 1}, Legacy(a=1)),
    (Lines, [{"sku": "a"}], Lines([Line(sku="a")])),
    (
        Strict,
        {"when": "2024-01-01T00:00:00Z", "pair": [1, 2]},
        Strict.model_validate_json('{"when":"2024-01-01T00:00:00Z","pair":[1,2]}'),
    ),
    (
        Around,
        {
            "order": {"lines": [{"sku": "a"}], "decision": {"approved": True}, "Kind": "k"},
            "amounts": {"x": {"value": "1"}},
        },
        Around(
            Order(lines=[Line(sku="a")], decision=Decision(approved=True), Kind="k"),
            {"x": Amount(Decimal(1))},
        ),
    ),
    (Shape, 5, 5),
]


@pytest.mark.parametrize(("type_", "sent", "expected"), FITS, ids=[str(case[0]) for case in FITS])
def test_plain_json_becomes_the_type(codec, type_, sent, expected):
    codec.learn(type_)
    conformed = codec.conform(msgspec.json.encode(sent), type_)
    found = codec.decode(conformed)
    assert type(found) is type(expected)
    assert found == expected
    assert isinstance(found, set) or repr(found) == repr(expected)  # sets print in the order of the hash seed
    assert codec.conform(conformed, type_) == conformed  # what it already is stays as it is
    assert codec.encode(expected) == conformed


MISFITS: list[tuple[Any, Any, str]] = [
    (None, 1, "expected null, got int at $"),
    (int, "1", "expected int, got str at $"),
    (int, True, "expected int, got bool at $"),
    (int, 1.5, "expected int, got float at $"),
    (bool, 1, "expected bool, got int at $"),
    (str, None, "expected str, got null at $"),
    (str, {"a": 1}, "expected str, got an object at $"),
    (Decimal, "abc", "expected Decimal as text, got str at $"),
    (datetime, "2024-01-01", "expected datetime as ISO 8601 text, got str at $"),
    (UUID, "x", "expected UUID as text, got str at $"),
    (bytes, "*", "expected bytes as base64 text, got str at $"),
    (Literal["a", "b"], "c", "expected one of 'a', 'b', got another str at $"),
    (Literal[1], True, "expected one of 1, got another bool at $"),
    (Literal["a"], [], "expected one of 'a', got list at $"),
    (Color, "green", "Color (RED, BLUE), got another str at $"),
    (Level, True, "Level (LOW), got bool at $"),
    (Access, 8, "Access, got an int with other bits at $"),
    (list[int], [1, "a"], "expected int, got str at $[1]"),
    (list[int], {"a": 1}, "expected list[int], got an object at $"),
    (tuple[int, int], [1], "expected 2 items for tuple[int, int], got 1 at $"),
    (set[list[int]], [[1]], "got items that cannot be in a set at $"),
    (dict[str, int], {"a b": None}, 'expected int, got null at $["a b"]'),
    (dict[int, int], {"x": 1}, "expected int, got str at $.x"),
    (dict[float, int], {"1": 1, "1.0": 1}, "got two that mean the same at $"),
    (dict[int, int], [], "expected dict[int, int], got list at $"),
    (int | None, "a", "expected int, got str at $"),
    (int | str, None, "expected int | str, got null at $"),
    (Decision | Amount, {"x": 1}, "expected only the fields approved, reason, got the unknown field 'x'"),
    (Annotated[int, msgspec.Meta(gt=0)], -1, "Expected `int` >= 1, got another at $"),
    (Decision, {"approved": "yes"}, "expected bool, got str at $.approved"),
    (Decision, {}, "expected the field 'approved', got an object without it at $"),
    (Decision, {"aproved": True}, "expected only the fields approved, reason, got the unknown field 'aproved' at $"),
    (Decision, {"approved": True, "seen": 1}, "unknown field 'seen' at $"),
    (Decision, [True], "Decision as an object with its fields, got list at $"),
    (Amount, {"value": -1}, "Amount, got ValueError: the amount must not be negative at $"),
    (Box[int], {"value": 1, "more": [1, "x"]}, "expected int, got str at $.more[1]"),
    (Node, {"name": "a", "below": [{"nam": "b"}]}, "unknown field 'nam' at $.below[0]"),
    (Point, [1, 2, 3], "expected at most 2 items for"),
    (Point, {}, "expected the field 'x'"),
    (Point, {"x": 1, "z": 1}, "unknown field 'z' at $"),
    (Movie, {"stars": 1}, "expected the field 'title'"),
    (Movie, {"title": "t", "star": 1}, "expected only the fields title, stars, got the unknown field 'star' at $"),
    (Line, {"price": "1"}, "Line, got a misfit: Field required at $.sku"),
    (Line, {"sku": "a", "prize": 1}, "expected only the fields price, sku, got the unknown field 'prize' at $"),
    (Line, "a", "Line as an object with its fields, got str at $"),
    (Order, {"lines": [{"sku": "a", "x": 1}]}, "unknown field 'x' at $.lines[0]"),
    (Order, {"lines": [], "kind": "k"}, "unknown field 'kind' at $"),
    (Lines, [{"sku": "a", "x": 1}], "unknown field 'x' at $[0]"),
    (Around, {"order": {"lines": [{"sku": 1}]}}, "Input should be a valid string at $.order.lines[0].sku"),
    (
        Around,
        {"order": {"lines": []}, "amounts": {"a": {"value": "x"}}},
        "Decimal as text, got str at $.amounts.a.value",
    ),
    (Base, {"a": 1}, "Base, got an object at $"),
    (Callable[[], int], 1, "Callable, got int at $"),
]


@pytest.mark.parametrize(("type_", "sent", "message"), MISFITS)
def test_a_misfit_is_refused_with_its_place(codec, type_, sent, message):
    codec.learn(type_)
    with pytest.raises(Refused) as caught:
        codec.conform(json.dumps(sent).encode(), type_)
    assert caught.value.code == "INPUT_INVALID"
    assert message in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'"\xff"',
        b"NaN",
        b"\xef\xbb\xbf1",
        b"[" * 5000,
        b"[" * 150 + b"]" * 150,
        b'{"$":1}',
        b'{"$":"Nobody","v":{}}',
    ],
)
@pytest.mark.parametrize("type_", [object, int, Decision])
def test_bytes_that_are_no_value_are_refused(codec, data, type_):
    with pytest.raises(Refused, match="INPUT_INVALID"):
        codec.conform(data, type_)


@pytest.mark.parametrize(("type_", "what"), [(int, "int"), (datetime, "datetime")])
def test_a_lone_surrogate_is_refused_where_a_text_is_read(codec, type_, what):
    with pytest.raises(Refused, match=f"expected {what}.*, got str"):
        codec.conform(codec.encode("\ud83d"), type_)


def test_a_value_over_the_limit_is_refused_by_that_name():
    codec = ValueCodec(value_bytes_max=50)
    for type_ in (object, str):
        with pytest.raises(Refused, match=r"VALUE_TOO_LARGE.*the limit is 50"):
            codec.conform(json.dumps("x" * 100).encode(), type_)
    with pytest.raises(Refused, match="VALUE_TOO_LARGE"):  # it grows when it is converted
        codec.conform(json.dumps(["2024-01-01"] * 2).encode(), tuple[date, date])


def test_anything_is_left_unchanged(codec):
    for data in (b'{ "a" : 1.0 }', b"12345678901234567890123", codec.encode({"x": (Decimal(1),)})):
        assert codec.conform(data, Any) == data


def test_instances_are_taken_and_checked_to_the_bottom(codec):
    for value, type_ in [
        (Decision(approved=True), Decision),
        (Special(approved=True, code=3), Decision),  # a registered subclass
        (Derived(1), Base),
        (Box(5), Box[int]),
        (Point(1.5), Point | None),
        (Order(lines=[]), Order),
        ([Color.RED], list[Color]),
        ({"a": (1, 2)}, dict[str, tuple[int, ...]]),
    ]:
        data = codec.encode(value)
        assert codec.conform(data, type_) == data
    for value, type_, message in [
        (Decision(approved="yes"), Decision, "expected bool, got str at $.approved"),  # type: ignore[arg-type]
        (Box("x"), Box[int], "expected int, got str at $.value"),
        (Color.RED, Level, "Level (LOW), got"),
        (Point("a"), Point, "expected float, got str at $.x"),  # type: ignore[arg-type]
        (Derived(1), Decision, "got"),
    ]:
        with pytest.raises(Refused) as caught:
            codec.conform(codec.encode(value), type_)
        assert message in caught.value.message


def test_instances_with_loose_fields_are_made_to_fit(codec):
    codec.learn(Amount)
    loose = Box(5, [1.5])  # type: ignore[list-item]
    assert codec.decode(codec.conform(codec.encode(loose), Box[float])) == Box(5.0, [1.5])
    assert type(codec.decode(codec.conform(codec.encode(Point(1)), Point)).x) is float
    assert codec.decode(codec.conform(codec.encode((1, 2)), list[int])) == [1, 2]
    assert codec.decode(codec.conform(codec.encode({"value": Decimal("1.0")}), Amount)) == Amount(Decimal("1.0"))


def test_tagged_parts_inside_plain_json(codec):
    price, when = {"$": "@decimal", "v": "2.50"}, {"$": "@datetime", "v": "2024-01-01T00:00:00Z"}
    data = json.dumps({"lines": [{"sku": "a", "price": price}], "when": when}).encode()
    found = codec.decode(codec.conform(data, Order))
    assert found == Order(lines=[Line(sku="a", price=Decimal("2.50"))], when=datetime(2024, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("type_", ["Decision", 5, Literal])
def test_what_is_no_type_is_said_at_registration(type_):
    with pytest.raises(UsageError):
        ValueCodec().learn(type_)


def test_learning_finds_classes_everywhere():
    class Hidden(enum.Enum):
        A = 1

    for annotation in (
        list[Hidden],
        dict[str, tuple[Hidden, ...]],
        Hidden | None,
        Optional[Hidden],  # noqa: UP045 - both spellings
        Annotated[Hidden, "doc"],
        Literal[Hidden.A],
        Callable[[Hidden], int],
        NewType("Renamed", Hidden),
        typing_extensions.TypeAliasType("Aliased", list[Hidden]),
        TypeVar("Bound", bound=Hidden),
        Box[Hidden],
        TypedDict("Dict", {"a": Hidden}),
        NamedTuple("Tuple", [("a", Hidden)]),
        pydantic.create_model("Model", a=(list[Hidden], ...)),
        (int, Hidden),
    ):
        codec = ValueCodec()
        codec.registry.add(annotation)
        assert codec.registry.resolve("test_learning_finds_classes_everywhere.<locals>.Hidden") is None
        assert codec.registry.resolve("Hidden") is Hidden, annotation
