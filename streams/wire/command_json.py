"""Reads commands that any producer can write: one flat JSON object, of which every field is known and has its type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from streams.errors import ValueRefused
from streams.kernel import commands as cmd
from streams.kernel.bodies import Change
from streams.kernel.commands import Request
from streams.wire.command_rules import CommandUnreadable
from streams.wire.values import ValueCodec

__all__ = ["read_json"]

_encode = ValueCodec().encode
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


class _Misread(Exception):
    """What is wrong with a field, to follow its name."""


class _Field(NamedTuple):
    read: Callable[[Any], Any]
    required: bool = True


def read_json(data: bytes) -> tuple[str | None, Request]:
    """The command id, if there is one, and the request."""
    found = _parse(data)
    type_ = found.pop("type", None)
    command_id = found.pop("command_id", None)
    if not isinstance(type_, str) or type_ not in _TYPES:
        got = "nothing" if type_ is None else _shown(type_) if isinstance(type_, str) else _kind(type_)
        raise _invalid(f"the field `type` of a command must be one of {', '.join(_TYPES)}; got {got}")
    if command_id is not None and not isinstance(command_id, str):
        raise _invalid(f"the field `command_id` of {type_} must be text, got {_kind(command_id)}")
    make, fields = _TYPES[type_]
    return command_id, make(**_read_fields(type_, found, fields)) if fields is not None else make(type_)


def _read_fields(type_: str, found: Mapping[str, Any], fields: Mapping[str, _Field]) -> dict[str, Any]:
    if unknown := [name for name in found if name not in fields]:
        known = ", ".join(["type", "command_id", *fields])
        raise _invalid(f"{type_} has no field {_shown(unknown[0])}; its fields are {known}")
    if missing := [name for name, field in fields.items() if field.required and name not in found]:
        raise _invalid(f"{type_} needs the field `{missing[0]}`")
    read = {}
    for name, value in found.items():
        try:
            read[name] = fields[name].read(value)
        except _Misread as wrong:
            raise _invalid(f"the field `{name}` of {type_} {wrong}") from None
        except ValueRefused as refused:
            raise CommandUnreadable(refused.code, f"the field `{name}` of {type_}: {refused}") from None
    return read


# --- parsing --------------------------------------------------------------------------------------------------------


def _parse(data: bytes) -> dict[str, Any]:
    """The standard parser rather than msgspec's: it keeps integers of any size and shows repeated keys."""
    try:
        found = _decoder.decode(data.decode().strip(" \t\r\n"))
    except UnicodeDecodeError as error:
        raise _invalid(f"a command in JSON must be UTF-8; byte {error.start} of {len(data):,} is not") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"a command must be legal JSON: {error.msg} at character {error.pos}") from None
    except _Misread as wrong:
        raise _invalid(f"a command in JSON {wrong}") from None
    except RecursionError:
        raise _invalid("a command in JSON must not be nested so deep") from None
    except ValueError:
        raise _invalid("a command in JSON must not hold a whole number of thousands of digits") from None
    assert isinstance(found, dict)  # it begins with a brace
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Misread(f"must not name {_shown(twice)} twice in an object: parsers disagree on which one counts")
    return found


def _number(text: str) -> float:
    number = float(text)
    if number - number != 0.0:
        raise _Misread("holds a number beyond the range of a 64-bit float; write it as text")
    return number


def _constant(name: str) -> Any:
    raise _Misread(f"must not hold {name}, which JSON does not know")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)


# --- fields ---------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Misread(f"must be text, got {_kind(value)}")
    return value


def _text_or_null(value: Any) -> str | None:
    return None if value is None else _text(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _Misread(f"must be a whole number, got {_kind(value)}")
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise _Misread("must fit into 64 bits")
    return value


def _whole_or_null(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Misread(f"must be true or false, got {_kind(value)}")
    return value


def _attributes(value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise _Misread(f"must be an object of texts, got {_kind(value)}")
    for name, text in value.items():
        if not isinstance(text, str):
            raise _Misread(f"must be an object of texts, got {_kind(text)} under {_shown(name)}")
    return tuple(value.items())


def _changes(value: Any) -> tuple[Change, ...]:
    """A state by its fields; what each may hold, the kernel looks at."""
    if not isinstance(value, dict):
        raise _Misread(f"must be an object of the fields of a state, got {_kind(value)}")
    for name in value:
        if not name.isidentifier():
            raise _Misread(f"has no field {_shown(name)}; its fields are those of a state")
    try:
        return tuple(Change(name, "set", json.dumps(part, ensure_ascii=False).encode()) for name, part in value.items())
    except UnicodeEncodeError:
        raise _Misread("must not hold a lone surrogate") from None


def _error(value: Any) -> tuple[str, str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _Misread(f"must be an object with class, code and message, got {_kind(value)}")
    names = ("class", "code", "message")
    if unknown := [name for name in value if name not in names]:
        raise _Misread(f"has no field {_shown(unknown[0])}; its fields are class, code and message")
    for name in names:
        if not isinstance(value.get(name), str):
            raise _Misread(f"needs the text `{name}`")
    return (value["class"], value["code"], value["message"])


_TYPES: dict[str, tuple[Callable[..., Request], dict[str, _Field] | None]] = {
    "start": (
        cmd.Start,
        {
            "workflow": _Field(_text),
            "version": _Field(_whole_or_null, required=False),
            "input": _Field(_encode),
            "attributes": _Field(_attributes, required=False),
        },
    ),
    "resume": (cmd.Resume, {"interrupt": _Field(_text_or_null, required=False), "value": _Field(_encode)}),
    "signal": (cmd.Signal, {"name": _Field(_text), "value": _Field(_encode)}),
    "repair": (
        cmd.Repair,
        {
            "identity": _Field(_text),
            "seq": _Field(_whole),
            "changes": _Field(_changes),
            "reason": _Field(_text),
            "parked": _Field(_flag, required=False),
        },
    ),
    "update": (cmd.Unsupported, None),
    "cancel": (cmd.Cancel, {"force": _Field(_flag, required=False)}),
    "complete": (cmd.Complete, {"op": _Field(_text), "value": _Field(_encode)}),
    "reply": (
        cmd.Reply,
        {
            "op": _Field(_text),
            "effect_id": _Field(_text),
            "attempt": _Field(_whole),
            "epoch": _Field(_whole),
            "value": _Field(_encode, required=False),
            "error": _Field(_error, required=False),
        },
    ),
    "retry": (cmd.Retry, {"op": _Field(_text_or_null, required=False)}),
    "skip": (cmd.Skip, {"op": _Field(_text)}),
    "fork": (cmd.Unsupported, None),
    "migrate": (cmd.Unsupported, None),
    "rewind": (cmd.Unsupported, None),
}


def _invalid(message: str) -> CommandUnreadable:
    return CommandUnreadable("COMMAND_INVALID", message)


def _shown(name: str) -> str:
    """A name from outside, shortened and escaped, so that the message can be stored and printed."""
    return ascii(name if len(name) <= 40 else name[:40] + "...")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), type(value).__name__)


_KINDS = {
    bool: "true or false",
    dict: "an object",
    float: "a number with a fraction",
    int: "a number",
    list: "an array",
    str: "text",
    type(None): "null",
}
