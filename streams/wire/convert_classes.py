"""Makes instances of the users' classes from plain JSON objects; a key that the class does not know is refused by name.

Here, unlike when stored values are read, constructors and validators run: this is the door where input is checked.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from streams.errors import UsageError
from streams.wire.convert_parts import Convert
from streams.wire.misfit import Misfit, key_step, quoted, type_name

__all__ = ["convert_dataclass", "convert_model", "convert_namedtuple", "convert_typeddict"]


def _parts(parts: dict[Any, Any], fields: dict[str, Convert]) -> tuple[dict[str, Any], bool]:
    """The converted fields, and whether any differs from what it was."""
    found: dict[str, Any] = {}
    changed = False
    for name, part in parts.items():
        convert = fields.get(name)
        if convert is None:
            known = ", ".join(fields) or "none"
            raise Misfit(f"expected only the fields {known}, got the unknown field {quoted(name)}")
        try:
            fresh = convert(part)
        except Misfit as misfit:
            misfit.steps.append(key_step(name))
            raise
        changed = changed or fresh is not part
        found[name] = fresh
    return found, changed


def _require(parts: dict[str, Any], names: list[str]) -> None:
    if missing := [name for name in names if name not in parts]:
        raise Misfit(f"expected the field {missing[0]!r}, got an object without it")


def _wrong(cls: type, value: Any) -> Misfit:
    got = "null" if value is None else type_name(type(value))
    return Misfit(f"expected {type_name(cls)} as an object with its fields, got {got}")


def _call(cls: type, make: Callable[[], Any]) -> Any:
    """Run the user's constructor: whatever it raises speaks about the input."""
    try:
        return make()
    except Exception as error:
        raise Misfit(f"expected a valid {type_name(cls)}, got {type(error).__name__}: {error}") from error


def convert_dataclass(cls: Any, fields: dict[str, Convert], of: Callable[[Any], Convert]) -> Convert:
    """From an object with the fields that the constructor takes; an instance is checked field by field."""
    given = [field for field in dataclasses.fields(cls) if field.init]
    required = [
        field.name
        for field in given
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    settable = {field.name: fields[field.name] for field in given}

    def convert(value: Any) -> Any:
        if type(value) is dict:
            parts, _ = _parts(value, settable)
            _require(parts, required)
            return _call(cls, lambda: cls(**parts))
        if type(value) is cls:
            parts, changed = _parts({name: getattr(value, name) for name in fields if hasattr(value, name)}, fields)
            return _changed(value, parts) if changed else value
        if isinstance(value, cls):
            return of(type(value))(value)
        raise _wrong(cls, value)

    return convert


def _changed(value: Any, parts: dict[str, Any]) -> Any:
    """The same object with converted fields; the constructor has run where it was made."""
    fresh = object.__new__(type(value))
    for name, part in parts.items():
        object.__setattr__(fresh, name, part)
    return fresh


def convert_namedtuple(cls: Any, fields: dict[str, Convert]) -> Convert:
    """From an object with the fields, or from a list in their order."""
    required = [name for name in cls._fields if name not in cls._field_defaults]

    def convert(value: Any) -> Any:
        if type(value) is dict:
            given = value
        elif type(value) in (list, tuple) or isinstance(value, cls):
            if len(value) > len(cls._fields):
                raise Misfit(f"expected at most {len(cls._fields)} items for {type_name(cls)}, got {len(value)}")
            given = dict(zip(cls._fields, value, strict=False))
        else:
            raise _wrong(cls, value)
        parts, changed = _parts(given, fields)
        if isinstance(value, cls) and not changed:
            return value
        _require(parts, required)
        return _call(cls, lambda: cls(**parts))

    return convert


def convert_typeddict(cls: Any, fields: dict[str, Convert], hints: dict[str, Any]) -> Convert:
    """From an object; it stays a plain dict."""
    required = [name for name, hint in hints.items() if _is_required(cls, name, hint)]

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(cls, value)
        parts, changed = _parts(value, fields)
        _require(parts, required)
        return parts if changed else value

    return convert


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    """The class itself is wrong about marks inside annotations that are strings."""
    origin = typing.get_origin(hint)
    if origin is typing.NotRequired:
        return False
    return origin is typing.Required or name in cls.__required_keys__


def convert_model(cls: Any) -> Convert:
    """A pydantic model checks its input itself; only keys that it would ignore in silence are refused here."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        raise UsageError(f"{type_name(cls)} looks like a pydantic model, but pydantic is not imported")

    def convert(value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if type(value) is not dict and not issubclass(cls, pydantic.RootModel):
            raise _wrong(cls, value)
        _refuse_unknown(cls, value)
        try:
            return _validate(cls, value)
        except pydantic.ValidationError as error:
            raise _first(cls, error) from error
        except Exception as error:
            raise Misfit(f"expected a valid {type_name(cls)}, got {type(error).__name__}: {error}") from error

    return convert


def _validate(cls: Any, value: Any) -> Any:
    """From JSON where possible: strict models accept dates, tuples and the like only there."""
    try:
        data = msgspec.json.Encoder(enc_hook=_not_plain).encode(value) if _is_plain(value) else None
    except UnicodeEncodeError:
        data = None
    return cls.model_validate(value) if data is None else cls.model_validate_json(data)


def _not_plain(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(part) for key, part in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and value - value == 0.0)


def _first(cls: type, error: Any) -> Misfit:
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    misfit = Misfit(f"expected a valid {type_name(cls)}, got a misfit: {found['msg']}")
    misfit.steps = [f"[{step}]" if type(step) is int else key_step(step) for step in reversed(found["loc"])]
    return misfit


def _refuse_unknown(annotation: Any, value: Any) -> None:
    """A model with `extra="ignore"` written in its config has said that it wants this; the default has not."""
    fields = getattr(annotation, "model_fields", None)
    if fields is not None and getattr(annotation, "__pydantic_root_model__", False):
        _refuse_unknown(fields["root"].annotation, value)
    elif type(value) is dict and fields is not None:
        known = _keys(annotation, fields)
        for key, part in value.items():
            if known is not None and key not in known:
                names = ", ".join(sorted(known))
                raise Misfit(f"expected only the fields {names}, got the unknown field {quoted(key)}")
            if (field := fields.get(key)) is not None:
                _descend(field.annotation, part, key_step(key))
    elif type(value) is list and typing.get_origin(annotation) is list:
        for index, part in enumerate(value):
            _descend(typing.get_args(annotation)[0], part, f"[{index}]")
    elif len(members := [arg for arg in typing.get_args(annotation) if arg is not type(None)]) == 1:
        _refuse_unknown(members[0], value)


def _descend(annotation: Any, value: Any, step: str) -> None:
    try:
        _refuse_unknown(annotation, value)
    except Misfit as misfit:
        misfit.steps.append(step)
        raise


def _keys(cls: Any, fields: dict[str, Any]) -> set[str] | None:
    """All keys that the model reads; None if it decides about others itself."""
    config = cls.model_config
    before = any(found.info.mode != "after" for found in cls.__pydantic_decorators__.model_validators.values())
    if before or config.get("extra") is not None:
        return None
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    known: set[str] = set()
    for name, field in fields.items():
        alias = field.validation_alias
        if not isinstance(alias, str | None):
            return None
        known |= {name, alias or name} if by_name else {alias or name}
    return known
