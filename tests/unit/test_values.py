"""User values come back equal and of the same type, or are refused when written, with the place inside them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import os
import random
import socket
import subprocess
import sys
import time as clock
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pydantic_core
import pytest

from streams.errors import UsageError, ValueNotStorable, ValueTooLarge, ValueUnreadable
from streams.kernel.codec import VALUE_BYTES_MAX, Codec
from streams.wire.types import TypeRegistry
from streams.wire.values import ValueCodec

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias
    BLUE = ("b", 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    X = 1
    Y = 4


class Point(NamedTuple):
    x: int
    y: Decimal = Decimal(0)


Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - users have such too


@dataclass
class Line:
    sku: str
    price: Decimal
    color: Color = Color.RED


@dataclass
class Order:
    class Status(enum.StrEnum):
        OPEN = "open"
        PAID = "paid"

    id: str
    lines: list[Line]
    status: Status = Status.OPEN
    tags: frozenset[str] = frozenset()
    at: Point | None = None
    total: Decimal = field(init=False, default=Decimal(0))
    raw: Any = None


@dataclass(frozen=True)
class Frozen:
    a: int
    b: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: str = field(default="x", compare=False)


@dataclass
class Trapped:
    """A constructor and a __post_init__ that must not run when a stored value is read."""

    a: int
    derived: int = field(init=False)
    given: dataclasses.InitVar[int] = 5

    def __post_init__(self, given: int) -> None:
        self.a += 1
        self.derived = self.a * given


@dataclass
class Cached:
    a: int

    @functools.cached_property
    def double(self) -> int:
        return self.a * 2


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Node:
    name: str
    below: list[Node] = field(default_factory=list)


class Movie(TypedDict):
    title: str
    stars: Color


class Inner(pydantic.BaseModel):
    line: Line
    when: datetime | None = None
    _seen: int = pydantic.PrivateAttr(default=0)


class Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    inner: Inner
    items: list[Inner] = []
    secret: str = pydantic.Field(default="s", alias="Secret")


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Wrap(pydantic.BaseModel, Generic[T]):
    value: T


@pydantic.dataclasses.dataclass
class Checked:
    a: int
    b: list[Line] = dataclasses.field(default_factory=list)


@dataclass
class Holder:
    model: Outer
    checked: Checked | None = None


KNOWN = [
    Color,
    Level,
    Word,
    Access,
    Mode,
    Point,
    Pair,
    Order,
    Frozen,
    Slotted,
    Trapped,
    Cached,
    Box[Any],
    Node,
    Movie,
    Holder,
    Numbers,
    Wrap[int],
]


@pytest.fixture
def codec():
    return make_codec()


def make_codec(*types_: Any) -> ValueCodec:
    made = ValueCodec()
    for type_ in types_ or KNOWN:
        made.learn(type_)
    return made


def same(a: Any, b: Any) -> bool:
    """Equal, of the same type, at every depth; NaN is NaN, and -0.0 is not 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, datetime | time):
        return a == b and a.fold == b.fold and type(a.tzinfo) is type(b.tzinfo) and repr(a.tzinfo) == repr(b.tzinfo)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, j) and same(v, w) for (k, v), (j, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, pydantic.BaseModel):
        return same(a.__getstate__(), b.__getstate__()) and a == b
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)) and a == b
    if isinstance(a, set | frozenset):
        return a == b and sorted(map(repr, a)) == sorted(map(repr, b))
    return a == b


SHANGHAI, BERLIN = ZoneInfo("Asia/Shanghai"), ZoneInfo("Europe/Berlin")
MODEL = Outer(
    inner=Inner(line=Line("a", Decimal("1.0")), when=datetime(2024, 1, 1, tzinfo=UTC)), Secret="t", more={1: 2}
)
MODEL.inner._seen = 7

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    0.0,
    1.5,
    -0.0,
    1e308,
    5e-324,
    0.1 + 0.2,
    "",
    "text",
    "$",
    "漢字 \U0001f600",
    "\x00\x1f",
    "\u2028\u2029",
    "\ufeffBOM",
    [],
    {},
    [1, [2, [3]]],
    {"a": {"b": [None, True, 1.0]}, "": 1, "odd key": "$"},
]

TAGGED = [
    2**63,
    -(2**63) - 1,
    10**5000,
    -(10**5000),
    math.nan,
    math.inf,
    -math.inf,
    "\ud83d",
    "a\udc00b",
    "\ud83d\ude00",  # a pair given as two code points is not the character
    {"\ud83d": 1},
    b"",
    b"\x00\xff",
    bytearray(b"abc"),
    Decimal("1.20"),
    Decimal("-0"),
    Decimal("1E+999999"),
    Decimal("1E-400"),
    Decimal("12345678901234567890123456789012345678901234567890.123456789012345678901234567890"),
    Decimal("NaN"),
    Decimal("-NaN123"),
    Decimal("sNaN"),
    Decimal("-Infinity"),
    datetime(2024, 2, 29, 12, 0, 0, 123456),  # noqa: DTZ001 - naive on purpose, as below
    datetime(1, 1, 1),  # noqa: DTZ001
    datetime.max,  # noqa: DTZ901
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=8))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30, seconds=-1, microseconds=-5))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=8), "CST")),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "UTC")),
    datetime(2024, 1, 1, fold=1),  # noqa: DTZ001
    datetime(2024, 1, 1, tzinfo=UTC, fold=1),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=0),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN),  # in the gap
    datetime(2024, 1, 1, tzinfo=SHANGHAI),
    date(2024, 2, 29),
    time(12, 30, 1, 5),
    time(1, tzinfo=UTC),
    time(1, tzinfo=SHANGHAI, fold=1),
    timedelta(days=-1, seconds=5, microseconds=999999),
    timedelta.max,
    UUID(int=5),
    (),
    (1, (2, [3])),
    set(),
    {1, "a", None, (1, 2)},
    frozenset({frozenset({1}), frozenset()}),
    {1: "a", (1, 2): "b", None: "c", 1.5: "d", b"x": "e", frozenset({1}): "f"},
    {"$": 1},
    {"$": "@set", "v": []},
    {"a": {"$": {"$": 2}}},
    {True: 1, "True": 2},
]

CLASSES = [
    Color.RED,
    Color.CRIMSON,
    Color.BLUE,
    Level.HIGH,
    Word.YES,
    Access.READ,
    Access.READ | Access.WRITE,
    Access(0),
    Mode.X | Mode.Y,
    Mode(2**70),
    Order.Status.PAID,
    {Level.LOW: 1, Color.BLUE: 2},
    Point(1),
    Point(1, Decimal("2.50")),
    Pair("a", [Pair(1, 2)]),
    {Point(1): Point(2)},
    Order(
        "o", [Line("a", Decimal("1.10")), Line("b", Decimal("2E+5"), Color.BLUE)], tags=frozenset("xyz"), at=Point(3)
    ),
    Order("o", [], raw={"$": {1, 2}}),
    Frozen(1, (2, 3)),
    {Frozen(1), Frozen(2)},
    Slotted(1, "y"),
    Trapped(1),
    Trapped(1, given=9),
    Box(5),
    Box[int](5),
    Box(Box("x")),
    Node("a", [Node("b"), Node("c", [Node("d")])]),
    Movie(title="t", stars=Color.RED),
    MODEL,
    Outer.model_construct(inner=1, items=2),
    Numbers([1, 2]),
    Wrap[int](value=5),
    Holder(MODEL, Checked(1, [Line("a", Decimal(1))])),
]


@pytest.mark.parametrize("value", PLAIN + TAGGED + CLASSES, ids=lambda value: ascii(type(value).__name__))
def test_round_trip(codec, value):
    data = codec.encode(value)
    assert type(data) is bytes
    assert same(codec.decode(data), value)
    assert codec.encode(codec.decode(data)) == data
    nested = {"deep": [value, (value,)]}
    assert same(codec.decode(codec.encode(nested)), nested)
    json.dumps(codec.to_plain(data)).encode()
    assert len(codec.digest(data)) == 16


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: ascii(type(value).__name__))
def test_plain_values_are_plain_json(codec, value):
    assert same(json.loads(codec.encode(value)), value)


def test_is_a_codec(codec):
    port: Codec = codec
    assert port.decode(b"1") == 1


def test_aware_datetimes_keep_their_time_zone(codec):
    assert codec.decode(codec.encode(datetime(2024, 1, 1, tzinfo=UTC))).tzinfo is UTC
    assert codec.decode(codec.encode(datetime(2024, 1, 1, tzinfo=BERLIN))).tzinfo is BERLIN
    first, second = (datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=fold) for fold in (0, 1))
    assert codec.decode(codec.encode(second)).timestamp() - codec.decode(codec.encode(first)).timestamp() == 3600


def test_the_time_zones_of_pydantic_are_kept(codec):
    text = '{"line":{"sku":"a","price":1},"when":"2024-01-01T00:00:00+08:00"}'
    model = Inner.model_validate_json(text)
    assert type(model.when.tzinfo) is pydantic_core.TzInfo
    assert same(codec.decode(codec.encode(model)), model)
    assert same(codec.decode(codec.encode(model.when)), model.when)
    bare = f"from streams.wire.values import ValueCodec as C; print(repr(C().decode({codec.encode(model.when)!r})))"
    assert "timezone(datetime.timedelta(seconds=28800))" in run(bare)


def test_no_code_of_the_user_runs_when_reading(codec):
    value = Trapped(1)
    assert codec.decode(codec.encode(value)) == value  # __post_init__ would add 1 again


def test_each_delivery_decodes_afresh(codec):
    data = codec.encode({"amount": [1]})
    codec.decode(data)["amount"].append(2)
    assert codec.decode(data) == {"amount": [1]}


def test_cached_properties_are_left_out(codec):
    value = Cached(2)
    assert value.double == 4
    copy = codec.decode(codec.encode(value))
    assert copy == value
    assert copy.double == 4


def test_models_keep_what_was_set_and_their_private_attributes(codec):
    copy = codec.decode(codec.encode(MODEL))
    assert copy.model_dump(exclude_unset=True) == MODEL.model_dump(exclude_unset=True)
    assert copy.inner._seen == 7
    assert copy.__pydantic_extra__ == {"more": {1: 2}}


# --- what is refused ------------------------------------------------------------------------------------------------


class MyStr(str):
    __slots__ = ()


class MyInt(int):
    pass


class MyList(list):
    pass


@dataclass
class Stranger:
    a: int


class StrangePair(NamedTuple):
    a: int


class StrangeEnum(enum.Enum):
    A = 1


class StrangeModel(pydantic.BaseModel):
    a: int = 1


def with_stray() -> Frozen:
    value = Frozen(1)
    object.__setattr__(value, "stray", 2)
    return value


def with_gap() -> Node:
    value = Node("a")
    del value.below
    return value


def cyclic() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


async def coroutine() -> None:
    pass


REFUSED = [
    (MyStr("a"), "$", "MyStr is a subclass of str and would come back as a mere str; store str\\(value\\)"),
    ({"n": MyInt(1)}, "$.n", "subclass of int"),
    ([0, MyList()], "$[1]", "subclass of list"),
    (OrderedDict(a=1), "$", "subclass of dict"),
    ({"a": defaultdict(int)}, "$.a", "subclass of dict"),
    ({MyStr("k"): 1}, "${key MyStr}", "subclass of str"),
    ({"odd key": [deque()]}, '$["odd key"][0]', "deque cannot be stored; store plain data"),
    ({"tags": {Fraction(1, 2)}}, "$.tags{}", "Fraction cannot be stored"),
    ({1: {"x": object()}}, "$[<int>].x", "object cannot be stored"),
    ({"金额": {"a\n\ud83d" * 99: 1j}}, '$.金额["' + json.dumps("a\n\ud83d" * 13 + "a…")[1:-1] + '"]', "complex"),
    (Order("o", [Line("a", Fraction(1, 2))]), "$.lines[0].price", "Fraction"),
    ((1, [lambda: 1]), "$[1][0]", "function cannot be stored"),
    ({"a": (x for x in ())}, "$.a", "generator cannot be stored"),
    (types, "$", "module cannot be stored"),
    (int, "$", "type cannot be stored"),
    (..., "$", "ellipsis cannot be stored"),
    (1j, "$", "complex cannot be stored"),
    (ValueError("x"), "$", "ValueError cannot be stored"),
    (Stranger(1), "$", "Stranger is not known to the app.*call app.types\\(Stranger\\)"),
    (StrangePair(1), "$", "StrangePair is not known to the app"),
    ([StrangeEnum.A], "$[0]", "StrangeEnum is not known to the app"),
    (StrangeModel(), "$", "StrangeModel is not known to the app"),
    (with_stray(), "$", "attribute 'stray' outside its fields"),
    (with_gap(), "$", "no value for its field 'below'"),
    (cyclic(), "$" + "[1]" * 12 + "…", "contains itself"),
    (datetime(2024, 1, 1, tzinfo=ZoneInfo.no_cache("Europe/Berlin")).replace(month=10, day=27, hour=2), "$", "differs"),
    (Outer.model_construct(inner=object()), "$.inner", "object cannot be stored"),
]


@pytest.mark.parametrize(("value", "path", "message"), REFUSED, ids=[type(case[0]).__name__ for case in REFUSED])
def test_refused_with_the_path(codec, value, path, message):
    with pytest.raises(ValueNotStorable, match=message) as caught:
        codec.encode(value)
    assert caught.value.path == path
    assert f"(at {path})" in str(caught.value)


def test_a_socket_and_an_unawaited_coroutine_are_refused(codec):
    with socket.socket() as sock, pytest.raises(ValueNotStorable, match="socket"):
        codec.encode({"s": sock})
    waiting = coroutine()
    with pytest.raises(ValueNotStorable, match="write `await` before it"):
        codec.encode(waiting)
    waiting.close()


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}, lambda v: (v,), lambda v: {1: v}, Box])
def test_depth_has_a_limit_and_everything_below_it_works(codec, wrap):
    value: Any = 0
    for _ in range(100):
        value = wrap(value)
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(ValueNotStorable, match="contains itself, or is nested deeper than 100 levels"):
        codec.encode(wrap(value))


def test_cycles_through_objects_are_refused(codec):
    node = Node("a")
    node.below.append(node)
    with pytest.raises(ValueNotStorable, match="contains itself"):
        codec.encode(node)
    wide: list[Any] = []
    wide.extend([wide] * 10**6)
    with pytest.raises(ValueTooLarge):
        codec.encode(wide)
    table: dict[str, Any] = {}
    table["t"] = table
    with pytest.raises(ValueNotStorable, match="contains itself"):
        codec.encode(table)


@dataclass(eq=False)
class Identity:
    a: int


@dataclass
class Moody:
    a: int

    def __eq__(self, other):
        return self is other

    __hash__ = None


@dataclass
class ById:
    a: int
    b: float = math.nan

    def __eq__(self, other):
        return isinstance(other, ById) and self.a == other.a

    __hash__ = None


class MoodyModel(pydantic.BaseModel):
    a: int = 1

    def __eq__(self, other):
        return self is other

    __hash__ = None


def test_equality_of_the_user_is_checked_when_it_may_fail():
    codec = make_codec(Identity, Moody, ById, MoodyModel)
    assert codec.decode(codec.encode(Identity(3))).a == 3
    assert codec.decode(codec.encode(ById(3))) == ById(3)
    for value in (Moody(1), MoodyModel()):
        with pytest.raises(ValueNotStorable, match="__eq__ must depend on the fields alone"):
            codec.encode([value])


@dataclass
class NotOnlyFields(dict):  # type: ignore[type-arg]
    a: int


def test_classes_that_are_more_than_their_fields_are_refused_at_registration():
    with pytest.raises(UsageError, match="NotOnlyFields is a dataclass and a dict"):
        make_codec(NotOnlyFields)


# --- size -----------------------------------------------------------------------------------------------------------


def test_the_limit_is_exact():
    codec = ValueCodec(value_bytes_max=100)
    assert len(codec.encode("x" * 98)) == 100
    assert len(codec.encode({"s": (1, "x" * 60)})) <= 100
    for value in ("x" * 99, {"s": (1, "x" * 99)}, "é" * 50):
        with pytest.raises(ValueTooLarge, match=r"the limit is 100; store it elsewhere .* and pass a reference"):
            codec.encode(value)


@pytest.mark.parametrize(
    "wrap", [lambda v: [v, v], lambda v: {"a": v, "b": v}, lambda v: (v, v), lambda v: {1: v, 2: v}]
)
def test_shared_parts_do_not_blow_up(codec, wrap):
    value: Any = wrap(1)
    for _ in range(60):
        value = wrap(value)
    started = clock.monotonic()
    with pytest.raises(ValueTooLarge):
        codec.encode(value)
    assert clock.monotonic() - started < 10


@pytest.mark.parametrize(
    "value",
    [["x" * 10**8] * 20, (b"x" * 10**8,) * 20, list(range(10**6)), 1 << 10**8],
    ids=["text", "bytes", "list", "int"],
)
def test_what_is_far_too_large_is_not_encoded_first(codec, value):
    started = clock.monotonic()
    with pytest.raises(ValueTooLarge):
        codec.encode(value)
    assert clock.monotonic() - started < 2


# --- reading what does not fit --------------------------------------------------------------------------------------


def renamed(data: bytes, old: str, new: str) -> bytes:
    assert old.encode() in data
    return data.replace(old.encode(), new.encode())


ORDER = make_codec().encode(Order("o", [Line("a", Decimal(1))]))

UNREADABLE = [
    (renamed(ORDER, '"Line"', '"Row"'), "type 'Row' is not known to the app.*app.types\\(Row=NewClass\\)"),
    (renamed(ORDER, '"Line"', '"Row"'), "at \\$.lines\\[0\\]"),
    (renamed(ORDER, '"sku"', f'"{"x" * 99}"'), f"Line was stored with the field '{'x' * 40}…', which the class"),
    (renamed(ORDER, '"sku"', '"stock"'), "Line was stored with the field 'stock', which the class no longer has"),
    (renamed(ORDER, '"sku":"a",', ""), "Line was stored without the field 'sku', which has no default"),
    (renamed(ORDER, '"RED"', '"GREEN"'), "Color has no member 'GREEN' any more"),
    (b'{"$":"Access","v":8}', "does not fit|no flags"),
    (b'{"$":"Point","v":{"x":1,"z":2}}', "field 'z'"),
    (b'{"$":"Outer","v":{}}', "without the field 'inner'"),
    (b'{"$":"Numbers","v":{"root":[]},"other":1}', "stored with 'other'"),
    (b'{"$":"Inner","v":{"line":1},"private":{"_gone":1}}', "private attribute '_gone'"),
    (b'{"$":"Frozen","v":5}', "does not fit"),
    (b'{"$":"Frozen","v":[5]}', "does not fit"),
    (b'{"$":"Color","v":{}}', "does not fit"),
    (b'{"$":"Frozen","v":{"a":1},"private":{}}', "another kind of class"),
    (b'{"$":"@nonsense","v":1}', "tag '@nonsense' is unknown"),
    (b'{"$":"@decimal","v":"abc"}', "payload of '@decimal' does not fit"),
    (b'{"$":"@decimal"}', 'must be {"\\$": tag, "v": payload}'),
    (b'{"$":1,"v":1}', 'must be {"\\$": tag, "v": payload}'),
    (b'{"$":"@set","v":1}', "must be a list"),
    (b'{"$":"@set","v":[[]]}', "does not fit"),
    (b'{"$":"@set","v":[1,1]}', "now equal"),
    (b'{"$":"@dict","v":[[1,2],[1,3]]}', "now equal"),
    (b'{"$":"@dict","v":[1]}', "does not fit"),
    (b'{"$":"@tuple","v":[],"w":1}', "no further keys"),
    (b'{"$":"@datetime","v":{"at":"2024-01-01T00:00:00","zone":"No/Where","fold":0}}', "install the package tzdata"),
    (b'{"$":"@bytes","v":"***"}', "does not fit"),
    (b"", "no JSON"),
    (b"{", "no JSON"),
    (b'"\xff"', "no JSON"),
    (b"\xef\xbb\xbf{}", "no JSON"),
    (b"NaN", "no JSON"),
    (b"[" * 100_000, "no JSON"),
]


@pytest.mark.parametrize(("data", "message"), UNREADABLE)
def test_unreadable_never_gives_a_stand_in(codec, data, message):
    with pytest.raises(ValueUnreadable, match=message):
        codec.decode(data)


def test_a_new_field_is_filled_from_its_default(codec):
    assert codec.decode(b'{"$":"Order","v":{"id":"o","lines":[]}}') == Order("o", [])
    assert codec.decode(b'{"$":"Node","v":{"name":"a"}}') == Node("a")
    assert codec.decode(b'{"$":"Slotted","v":{"a":1}}') == Slotted(1)
    assert codec.decode(b'{"$":"Point","v":{"x":1}}') == Point(1)
    model = codec.decode(b'{"$":"Inner","v":{"line":{"$":"Line","v":{"sku":"a","price":1}}}}')
    assert model.model_fields_set == {"line"}
    assert (model.when, model._seen) == (None, 0)


# --- digest and rendering -------------------------------------------------------------------------------------------


def test_digest_does_not_depend_on_the_order_of_keys(codec):
    def digest(value):
        return codec.digest(codec.encode(value))

    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({1: "a", (2,): {"x": 1, "y": 2}}) == digest({(2,): {"y": 2, "x": 1}, 1: "a"})
    assert digest([1, 2]) != digest([2, 1])
    assert digest({"a": 1}) != digest({"a": 1.0})
    assert digest({"a": 1}) != digest({"a": True})
    assert codec.digest(b'{ "b": 1, "a": 2 }') == codec.digest(b'{"a":2,"b":1}')
    with pytest.raises(ValueUnreadable):
        codec.digest(b"{")


def test_to_plain_needs_no_types():
    shown = ValueCodec().to_plain(
        make_codec().encode(
            {
                "order": Order("o", [Line("a", Decimal("1.20"))], tags=frozenset({"x"}), at=Point(1)),
                "model": MODEL,
                "flags": Access.READ | Access.WRITE,
                "bytes": b"hi",
                "when": datetime(2024, 1, 1, tzinfo=BERLIN),
                "utc": datetime(2024, 1, 1, tzinfo=UTC),
                "wait": timedelta(hours=1),
                "big": 2**70,
                "huge": 10**5000,
                "nan": math.nan,
                "half": "a\ud83d",
                "pairs": {1: "a", (1, "b"): "c"},
                "clash": {1: "a", "1": "b"},
                "esc": {"$": 1},
            }
        )
    )
    assert shown["order"]["lines"] == [{"sku": "a", "price": "1.20", "color": "RED"}]
    assert (shown["order"]["status"], shown["order"]["tags"], shown["order"]["at"]) == (
        "OPEN",
        ["x"],
        {"x": 1, "y": "0"},
    )
    assert shown["model"]["inner"]["line"]["price"] == "1.0"
    assert shown["model"]["more"] == {"1": 2}
    assert (shown["flags"], shown["bytes"], shown["wait"]) == (3, "aGk=", "1:00:00")
    assert (shown["when"], shown["utc"]) == ("2024-01-01T00:00:00[Europe/Berlin]", "2024-01-01T00:00:00+00:00")
    assert (shown["big"], shown["nan"], shown["half"]) == (str(2**70), "nan", "a\\ud83d")
    assert shown["huge"].startswith("0x")
    assert shown["pairs"] == {"1": "a", '[1,"b"]': "c"}
    assert shown["clash"] == [[1, "a"], ["1", "b"]]
    assert shown["esc"] == {"$": 1}


@pytest.mark.parametrize(
    "data", [b'{"$":5}', b'{"$":"@int","v":[]}', b'{"$":"@dict","v":{}}', b'{"$":"X","v":{"$":1}}', b"{"]
)
def test_to_plain_takes_anything(data):
    json.dumps(ValueCodec().to_plain(data))


# --- the registry ---------------------------------------------------------------------------------------------------


def test_names_do_not_hold_the_module():
    registry = TypeRegistry()
    registry.add(Order)
    assert registry.name_of(Order) == "Order"
    assert registry.name_of(Order.Status) == "Order.Status"
    assert registry.resolve("Line") is Line
    assert registry.name_of(Node) is None
    assert registry.resolve("Node") is None


def module_with(name: str, text: str) -> Any:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module


ITEM = "from dataclasses import dataclass\n@dataclass\nclass Item:\n    a: int\n"


def test_two_classes_under_one_name_are_refused_and_can_be_named():
    one, two = module_with("shop_one", ITEM), module_with("shop_two", ITEM)
    registry = TypeRegistry()
    registry.add(one.Item)
    with pytest.raises(UsageError, match=r"shop_one.Item and shop_two.Item.*app.types\(Item2=Item\)"):
        registry.add(two.Item)
    registry.add_named("Item2", two.Item)
    registry.add(list[two.Item])
    codec = ValueCodec(registry)
    for value in (one.Item(1), two.Item(2)):
        assert type(codec.decode(codec.encode(value))) is type(value)


def test_a_reloaded_module_takes_over():
    codec = ValueCodec()
    old = module_with("shop_three", ITEM).Item
    codec.learn(list[old])
    data = codec.encode([old(1)])
    new = module_with("shop_three", ITEM + "    b: int = 2\n").Item
    codec.learn(list[new])
    assert codec.decode(data) == [new(1, 2)]
    assert json.loads(codec.conform(b'[{"a":1,"b":3}]', list[new]))[0]["v"] == {"a": 1, "b": 3}
    with pytest.raises(ValueNotStorable, match="defined anew"):
        codec.encode(old(1))


def test_an_old_name_is_read_and_goes_on_being_written():
    codec = ValueCodec()
    codec.learn(Frozen)
    codec.registry.add_named("OldFrozen", Frozen)
    assert codec.decode(b'{"$":"OldFrozen","v":{"a":1}}') == codec.decode(b'{"$":"Frozen","v":{"a":1}}') == Frozen(1)
    assert b'"OldFrozen"' in codec.encode(Frozen(1))


def test_names_for_built_in_types_of_streams():
    class Goto(NamedTuple):
        node: str
        update: Any

    codec = ValueCodec()
    codec.registry.add_named("streams.Goto", Goto)
    assert codec.decode(codec.encode(Goto("a", {"x": (1,)}))) == Goto("a", {"x": (1,)})
    for name in ("", "@x", "a$"):
        with pytest.raises(UsageError, match="cannot be the name of a type"):
            codec.registry.add_named(name, Point)
    with pytest.raises(UsageError, match="it needs no name"):
        codec.registry.add_named("Text", str)


Alias = dict[str, "list[Line | None]"]


@dataclass
class Lost:
    fine: int
    lost: Nowhere  # noqa: F821


class LostModel(pydantic.BaseModel):
    lost: Nowhere  # noqa: F821


def test_annotations_that_cannot_be_resolved_name_class_and_field():
    with pytest.raises(UsageError, match=r"Lost.lost cannot be found .*Nowhere.*import it at the top"):
        TypeRegistry().add(list[Lost])
    with pytest.raises(UsageError, match="LostModel is not fully defined"):
        TypeRegistry().add(LostModel)
    with pytest.raises(UsageError, match="name in quotes"):
        TypeRegistry().add("Order")


def test_classes_inside_functions_see_registered_ones():
    @dataclass
    class Local:
        line: Line
        below: list[Local]

    @dataclass
    class Around:
        local: Local

    codec = make_codec(Local, Around)
    value = Around(Local(Line("a", Decimal(1)), []))
    assert codec.registry.name_of(Local) == "Local"
    assert codec.decode(codec.encode(value)) == value


# --- faults that others have had ------------------------------------------------------------------------------------


def test_f11_rich_types_keep_their_types(codec):
    value = {
        "nested enum": Order.Status.PAID,
        "str enum": Word.YES,
        "int enum": Level.HIGH,
        "dataclass inside pydantic": MODEL,
        "named tuple": Point(1, Decimal("1.10")),
    }
    copy = codec.decode(codec.encode(value))
    assert same(copy, value)
    assert type(copy["dataclass inside pydantic"].inner.line) is Line


def test_f11_a_class_renamed_between_save_and_load_is_unreadable():
    data = make_codec(Frozen).encode({"state": [Frozen(1)]})
    with pytest.raises(ValueUnreadable, match=r"'Frozen' is not known to the app.*\(at \$.state\[0\]\)"):
        make_codec(Slotted).decode(data)


@pytest.mark.parametrize("value", [socket.socket, object(), ValueError("a", "b"), random.Random(1)])
def test_f11_what_cannot_be_rebuilt_is_refused_with_its_path(codec, value):
    with pytest.raises(ValueNotStorable) as caught:
        codec.encode({"state": Order("o", [], raw=[value])})
    assert caught.value.path == "$.state.raw[0]"


@pytest.mark.parametrize(
    "text",
    [
        "\x00",
        "\ud83d",
        "\ud83d\ude00",
        "\ufeff",
        "\u2028",
        "\u2029",
        "\x7f\x80\x85",
        "\U0010ffff",
        "e\u0301",
        "\r\n",
        "\\u0000",
    ],
    ids=ascii,
)
def test_f23_text_round_trips_unchanged(codec, text):
    for value in (text, {text: text}, [text, {"a": (text,)}], {text}, Order(text, [], raw=text)):
        data = codec.encode(value)
        data.decode("utf-8")
        assert codec.decode(data) == value
        json.dumps(codec.to_plain(data), ensure_ascii=False).encode()


def test_f23_a_megabyte_of_chinese_text_is_too_large(codec):
    with pytest.raises(ValueTooLarge, match=f"the limit is {VALUE_BYTES_MAX:,}") as caught:
        codec.encode({"text": "漢" * 350_000})
    assert caught.value.code == "VALUE_TOO_LARGE"
    assert caught.value.path == "$.text"
    with pytest.raises(ValueTooLarge):  # under the limit in characters, over it in bytes
        codec.encode("漢" * 100_000)


def test_f23_bytes_that_are_not_utf8_are_kept_as_bytes(codec):
    assert codec.decode(codec.encode({"tool": b"\xff\xfe\x00"})) == {"tool": b"\xff\xfe\x00"}


@pytest.fixture
def shanghai(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    clock.tzset()
    yield
    monkeypatch.undo()
    clock.tzset()


@pytest.mark.usefixtures("shanghai")
def test_f25_datetimes_do_not_meet_the_local_time_zone(codec):
    naive = datetime(2024, 1, 1, 12, 0, 0, 1)  # noqa: DTZ001 - that is the case
    copy = codec.decode(codec.encode(naive))
    assert copy == naive
    assert copy.tzinfo is None
    for aware in (naive.replace(tzinfo=UTC), naive.astimezone(), naive.replace(tzinfo=SHANGHAI)):
        copy = codec.decode(codec.encode(aware))
        assert same(copy, aware)
        assert copy.utcoffset() == aware.utcoffset()


def test_f25_scale_and_number_types_are_kept(codec):
    value = [
        1,
        1.0,
        True,
        Decimal(1),
        Decimal("1.00000000000000000000000000000000000000000000"),
        "1",
        b"1",
        2**31,
        2**53 + 1,
    ]
    assert same(codec.decode(codec.encode(value)), value)


@dataclass
class AllOptionalA:
    note: str | None = None


@dataclass
class AllOptionalB:
    note: str | None = None


def test_f25_two_types_of_one_structure_are_told_apart():
    codec = make_codec(AllOptionalA, AllOptionalB)
    value = [AllOptionalA(), AllOptionalB(), {}, {"note": None}]
    assert same(codec.decode(codec.encode(value)), value)


# --- processes ------------------------------------------------------------------------------------------------------


def run(code: str, **env: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_sets_have_the_same_bytes_under_every_hash_seed():
    code = """
from streams.wire.values import ValueCodec
words = "alpha beta gamma delta epsilon zeta eta theta".split()
value = {"set": set(words), "deep": frozenset({frozenset(words[:3]), frozenset(words[3:]), (1, "x"), None, 2.5})}
print(ValueCodec().encode(value))
"""
    first, second = run(code, PYTHONHASHSEED="1"), run(code, PYTHONHASHSEED="2")
    assert first == second
    assert "alpha" in first


def test_pydantic_is_never_imported():
    code = "import sys, streams.wire.values as v; v.ValueCodec().learn(dict); print('pydantic' in sys.modules)"
    assert run(code).strip() == "False"
