"""The converters of single values and containers; what needs no change comes back as the very object it was."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID

import msgspec

from streams.wire.misfit import Misfit, key_step, type_name

__all__ = [
    "PLAIN_CLASSES",
    "Convert",
    "anything",
    "constrained",
    "enum_member",
    "fixed_tuple",
    "instance",
    "items_of",
    "literal",
    "mapping",
    "members_of",
    "null",
    "number_key",
    "scalar",
    "union",
]

Convert = Callable[[Any], Any]

PLAIN_CLASSES = (str, int, float, bool, bytes, bytearray, Decimal, datetime, date, time, timedelta, UUID)
"""The classes of single values that msgspec reads from JSON."""


def anything(value: Any) -> Any:
    """Take every value as it is."""
    return value


def null(value: Any) -> Any:
    """Take only None."""
    if value is not None:
        raise _expected("null", value)


def _expected(what: str, value: Any) -> Misfit:
    got = "null" if value is None else "an object" if type(value) is dict else type_name(type(value))
    return Misfit(f"expected {what}, got {got}")


def _label(type_: Any) -> str:
    if isinstance(type_, type) and not typing.get_args(type_):
        return type_name(type_)
    return str(type_).replace("typing.", "")


def scalar(cls: type) -> Convert:
    """The class itself, or the text or number that JSON has for it."""

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind is cls or (isinstance(value, Enum) and isinstance(value, cls)):
            return value
        if kind not in (str, int, float):
            raise _expected(cls.__name__, value)
        try:
            return msgspec.convert(value, cls, strict=True)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:  # a lone surrogate is legal in a text of ours
            raise _expected(_FORMS.get(cls, cls.__name__), value) from error

    return convert


_FORMS = {
    bytes: "bytes as base64 text",
    Decimal: "Decimal as text",
    datetime: "datetime as ISO 8601 text",
    date: "date as YYYY-MM-DD",
    time: "time as HH:MM:SS",
    timedelta: "timedelta as ISO 8601 text such as PT90S",
    UUID: "UUID as text",
}


def constrained(inner: Convert, annotated: Any) -> Convert:
    """`msgspec.Meta` is honoured, because msgspec is at hand; other metadata is for the libraries that gave it."""
    base, *metadata = typing.get_args(annotated)
    if base not in PLAIN_CLASSES or not any(isinstance(item, msgspec.Meta) for item in metadata):
        return inner

    def convert(value: Any) -> Any:
        found = inner(value)
        try:
            msgspec.convert(found, annotated, strict=True)
        except msgspec.ValidationError as error:
            raise Misfit(f"{error}, got another") from error
        return found

    return convert


def literal(args: tuple[Any, ...]) -> Convert:
    """One of the values, told apart from equal values of other types; enum members also by value."""
    plain = {(type(arg.value), arg.value): arg for arg in args if isinstance(arg, Enum)}
    plain |= {(type(arg), arg): arg for arg in args}

    def convert(value: Any) -> Any:
        names = ", ".join(repr(arg) for arg in args)
        if not isinstance(value, (str, int, bytes, Enum, type(None))):
            raise _expected(f"one of {names}", value)
        if (type(value), value) not in plain:
            raise Misfit(f"expected one of {names}, got another {type(value).__name__}")
        found = plain[type(value), value]
        return value if type(found) is type(value) else found

    return convert


def enum_member(cls: type[Enum]) -> Convert:
    """A member, also by its value or else by its name; flags also by the number of a combination."""
    values = {(type(member.value), member.value): member for member in cls if member.value.__hash__}

    def convert(value: Any) -> Any:
        if type(value) is cls:
            return value
        if type(value) in (str, int, float):
            if (type(value), value) in values:
                return values[type(value), value]
            if value in cls.__members__:
                return cls.__members__[value]
            if issubclass(cls, Flag) and type(value) is int:
                return _flags(cls, value)
        names = ", ".join(cls.__members__)
        raise Misfit(
            f"expected {type_name(cls)} ({names}), got {'another ' if type(value) is str else ''}{type(value).__name__}"
        )

    return convert


def _flags(cls: type[Flag], value: int) -> Flag:
    try:
        found = cls(value)
    except ValueError as error:
        raise Misfit(f"expected the flags of {type_name(cls)}, got an int with other bits") from error
    if type(found) is not cls:
        raise Misfit(f"expected the flags of {type_name(cls)}, got an int with other bits")
    return found


def union(members: list[Convert], type_: Any) -> Convert:
    """What the value already is wins, then the first member that it can be made into."""
    optional = [member for member in members if member is not null]

    def convert(value: Any) -> Any:
        found: list[Any] = []
        misfits: list[Misfit] = []
        for member in members:
            try:
                fresh = member(value)
            except Misfit as misfit:
                misfits.append(misfit)
                continue
            if fresh is value:
                return value
            found.append(fresh)
        if found:
            return found[0]
        # The member that got furthest into the value is the one that was meant.
        deepest = max(misfits, key=lambda misfit: len(misfit.steps))
        if deepest.steps:
            raise deepest
        if len(optional) == 1:
            raise misfits[members.index(optional[0])]
        refusal = _expected(_label(type_), value)
        if type(value) is dict:
            refusal.message += f" ({'; '.join(misfit.message for misfit in misfits[:3])})"
        raise refusal

    return convert


def _convert_all(values: Iterable[Any], item: Convert) -> tuple[list[Any], bool]:
    """The converted items, and whether any differs from what it was."""
    found: list[Any] = []
    changed = False
    try:
        for value in values:
            fresh = item(value)
            changed = changed or fresh is not value
            found.append(fresh)
    except Misfit as misfit:
        misfit.steps.append(f"[{len(found)}]")
        raise
    return found, changed


def items_of(item: Convert, type_: Any, kind: type = list, *, any_sequence: bool = False) -> Convert:
    """A list or a tuple of any length."""

    def convert(value: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            raise _expected(_label(type_), value)
        found, changed = _convert_all(value, item)
        keeps = any_sequence or type(value) is kind
        if keeps and not changed:
            return value
        return type(value)(found) if keeps else kind(found)

    return convert


def fixed_tuple(items: list[Convert], type_: Any) -> Convert:
    """A tuple whose items have each their own type."""

    def convert(value: Any) -> Any:
        if type(value) is not list and type(value) is not tuple:
            raise _expected(_label(type_), value)
        if len(value) != len(items):
            raise Misfit(f"expected {len(items)} items for {_label(type_)}, got {len(value)}")
        rest = iter(items)
        found, changed = _convert_all(value, lambda part: next(rest)(part))  # noqa: PLW0108 - one converter for each
        return tuple(found) if changed or type(value) is list else value

    return convert


def members_of(item: Convert, type_: Any, kind: type, *, either: bool) -> Convert:
    """A set of either kind, from a list too."""

    def convert(value: Any) -> Any:
        if type(value) not in (list, tuple, set, frozenset):
            raise _expected(_label(type_), value)
        found, changed = _convert_all(value, item)
        if (type(value) is kind or (either and type(value) is frozenset)) and not changed:
            return value
        try:
            return kind(found)
        except TypeError as error:
            raise Misfit(f"expected {_label(type_)}, got items that cannot be in a set") from error

    return convert


def number_key(key: Convert, args: tuple[Any, ...]) -> Convert:
    """Keys of JSON objects are text, so numbers as keys are read from it."""
    if not args or args[0] not in (int, float):
        return key

    def convert(value: Any) -> Any:
        if type(value) is not str:
            return key(value)
        try:
            return msgspec.convert(value, args[0], strict=False)
        except msgspec.ValidationError as error:
            raise _expected(args[0].__name__, value) from error

    return convert


def mapping(key: Convert, item: Convert, type_: Any) -> Convert:
    """A dict whose keys and values are converted."""

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected(_label(type_), value)
        found = {}
        changed = False
        for name, part in value.items():
            try:
                fresh_name, fresh = key(name), item(part)
            except Misfit as misfit:
                misfit.steps.append(key_step(name))
                raise
            changed = changed or fresh is not part or fresh_name is not name
            found[fresh_name] = fresh
        if len(found) != len(value):
            raise Misfit(f"expected different keys for {_label(type_)}, got two that mean the same")
        return found if changed else value

    return convert


def instance(cls: Any) -> Convert:
    """A class of no known kind, such as a base class: its instances are what they are, nothing is made into one."""
    if getattr(cls, "_is_protocol", False):
        return anything

    def convert(value: Any) -> Any:
        if not isinstance(value, cls):
            raise _expected(type_name(cls), value)
        return value

    return convert
