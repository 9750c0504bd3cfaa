"""How instances of the users' classes are taken apart into named parts and put together again, kind by kind.

No constructor, validator or `__post_init__` runs on the way back: the parts are the state, so the copy is equal. A part
that is stored but unknown to the class makes the value unreadable; a part that the class has gained is filled from
its default, and without one the value is unreadable.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag
from typing import Any

from streams.errors import UsageError
from streams.wire.misfit import Misfit, quoted, type_name

__all__ = [
    "DataclassShape",
    "EnumShape",
    "ModelShape",
    "NamedTupleShape",
    "Shape",
    "is_model",
    "is_namedtuple",
    "is_typeddict",
    "shape_for",
]

_BUILT_INS: tuple[type, ...] = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    list,
    tuple,
    dict,
    set,
    frozenset,
    BaseException,
)
_UNSET: Any = object()


class Shape(ABC):
    """One class of the user: `take` gives its parts by name (or one plain value), `build` makes an instance of them."""

    __slots__ = ("cls", "name", "verify")

    def __init__(self, cls: type, name: str) -> None:
        self.cls: Any = cls
        self.name = name
        self.verify = False
        """Whether equality of the copy does not follow from the parts alone, so that it is checked at each write."""

    @abstractmethod
    def take(self, value: Any) -> dict[str, Any] | str | int:
        """The parts of an instance."""

    @abstractmethod
    def build(self, parts: Any) -> Any:
        """An instance of these parts."""

    def aside(self, value: Any) -> dict[str, Any]:  # noqa: ARG002 - for the kinds that have some
        """State beside the parts: more members of the tagged object. Most kinds have none."""
        return {}

    def restore(self, value: Any, aside: dict[str, Any]) -> None:  # noqa: ARG002 - as above
        """Put back what `aside` gave."""
        if aside:
            raise Misfit(f"{self.name} was stored by another kind of class")

    def _fit(self, parts: dict[str, Any], names: Iterable[str], default: Callable[[str], Any]) -> None:
        """Add the defaults of new parts to `parts`; refuse what does not fit."""
        known = dict.fromkeys(names)
        if unknown := [name for name in parts if name not in known]:
            raise Misfit(f"{self.name} was stored with the field {quoted(unknown[0])}, which the class no longer has")
        for name in known:
            if name not in parts and (value := self._default(default, name)) is not _UNSET:
                parts[name] = value
            elif name not in parts:
                raise Misfit(f"{self.name} was stored without the field {name!r}, which has no default")

    def _default(self, default: Callable[[str], Any], name: str) -> Any:
        try:
            return default(name)
        except Exception as error:
            raise Misfit(f"the default of {self.name}.{name} cannot be made: {type(error).__name__}") from error


class EnumShape(Shape):
    """A member by its name, so that its value may change; a combination of flags has no name and goes by value."""

    __slots__ = ("_flag",)

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        self._flag = issubclass(cls, Flag)

    def take(self, value: Any) -> str | int:
        if self._flag:
            return int(value._value_)
        if self.cls.__members__.get(value._name_) is not value:
            raise Misfit(f"{type_name(self.cls)} has no member of this name; declare it in the class")
        return str(value._name_)

    def build(self, parts: Any) -> Any:
        if not self._flag:
            if parts not in self.cls.__members__:
                raise Misfit(f"{self.name} has no member {quoted(parts)} any more")
            return self.cls.__members__[parts]
        value = self.cls(parts)
        if type(value) is not self.cls or value._value_ != parts:
            raise Misfit(f"{self.name} has no flags for all bits of {parts} any more")
        return value


class NamedTupleShape(Shape):
    """A NamedTuple by the names of its fields, so that their order may change."""

    __slots__ = ()

    def take(self, value: Any) -> dict[str, Any]:
        for key in getattr(value, "__dict__", ()):
            if not _derived(self.cls, key):
                raise Misfit(
                    f"this {type_name(self.cls)} has the attribute {key!r} outside its fields; make it a field"
                )
        return dict(zip(self.cls._fields, value, strict=True))

    def build(self, parts: Any) -> Any:
        if len(parts) != len(self.cls._fields) or parts.keys() != set(self.cls._fields):
            self._fit(parts, self.cls._fields, lambda name: self.cls._field_defaults.get(name, _UNSET))
        return tuple.__new__(self.cls, [parts[name] for name in self.cls._fields])


class DataclassShape(Shape):
    """A dataclass, also frozen, with slots, or with fields that its constructor does not take."""

    __slots__ = ("_fields", "_keys", "_slots", "_strays")

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        self._fields = {field.name: field for field in dataclasses.fields(cls)}
        self._keys = self._fields.keys()
        slots = [slot for base in cls.__mro__ for slot in _slots(base)]
        self._slots = bool(slots)
        self._strays = [slot for slot in slots if slot not in self._fields]
        equality: Any = cls.__eq__
        generated = getattr(getattr(equality, "__code__", None), "co_filename", None) == "<string>"
        self.verify = not generated and equality is not object.__eq__

    def take(self, value: Any) -> dict[str, Any]:
        state = getattr(value, "__dict__", None)
        if self._slots or state is None:
            return self._gather(value, state or {})
        return state.copy() if state.keys() == self._keys else self._gather(value, state)

    def _gather(self, value: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        strays = [slot for slot in self._strays if hasattr(value, slot)]
        strays += [key for key in state if key not in self._fields and not _derived(self.cls, key)]
        if strays:
            raise Misfit(
                f"this {type_name(self.cls)} has the attribute {strays[0]!r} outside its fields, which would be lost; "
                "make it a field"
            )
        parts = {name: getattr(value, name, _UNSET) for name in self._fields}
        if missing := [name for name, part in parts.items() if part is _UNSET]:
            raise Misfit(f"this {type_name(self.cls)} has no value for its field {missing[0]!r}; set it first")
        return parts

    def build(self, parts: Any) -> Any:
        if parts.keys() != self._keys:
            self._fit(parts, self._keys, self._field_default)
        value = object.__new__(self.cls)
        if self._slots:
            for name, part in parts.items():
                object.__setattr__(value, name, part)
        else:
            value.__dict__.update(parts)
        return value

    def _field_default(self, name: str) -> Any:
        field = self._fields[name]
        if field.default is not dataclasses.MISSING:
            return field.default
        return _UNSET if field.default_factory is dataclasses.MISSING else field.default_factory()


class ModelShape(Shape):
    """A pydantic v2 model: its fields, and beside them extra values, private attributes and which fields were set."""

    __slots__ = ("_fields", "_strays")

    def __init__(self, cls: type, name: str) -> None:
        super().__init__(cls, name)
        self._fields: dict[str, Any] = self.cls.model_fields
        self._strays = [slot for base in cls.__mro__ if not _of_pydantic(base) for slot in _slots(base)]
        self.verify = not _of_pydantic(cls.__eq__)

    def take(self, value: Any) -> dict[str, Any]:
        state = value.__dict__
        strays = [slot for slot in self._strays if hasattr(value, slot)]
        if state.keys() == self._fields.keys() and not strays:
            return dict(state)
        strays += [key for key in state if key not in self._fields and not _derived(self.cls, key)]
        if strays:
            raise Misfit(f"this {type_name(self.cls)} has the attribute {strays[0]!r} outside its fields; make it one")
        if missing := [name for name in self._fields if name not in state]:
            raise Misfit(f"this {type_name(self.cls)} has no value for its field {missing[0]!r}; validate it first")
        return {name: state[name] for name in self._fields}

    def aside(self, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        given = value.__pydantic_fields_set__
        if given != self._fields.keys():
            found["set"] = sorted(given)
        if value.__pydantic_extra__:
            found["extra"] = value.__pydantic_extra__
        if value.__pydantic_private__:
            found["private"] = value.__pydantic_private__
        return found

    def build(self, parts: Any) -> Any:
        given = set(parts)
        if given != self._fields.keys():
            self._fit(parts, self._fields, lambda name: _model_default(self._fields[name], parts))
        value = object.__new__(self.cls)
        object.__setattr__(value, "__dict__", parts)
        object.__setattr__(value, "__pydantic_fields_set__", given)
        return value

    def restore(self, value: Any, aside: dict[str, Any]) -> None:
        if unknown := aside.keys() - {"set", "extra", "private"}:
            raise Misfit(f"{self.name} was stored with {quoted(min(unknown))}, which no model has")
        if "set" in aside:
            object.__setattr__(value, "__pydantic_fields_set__", set(aside["set"]))
        if getattr(self.cls, "__pydantic_root_model__", False):
            return  # such a model has neither of the others; setting them would leave stray attributes
        extra = aside.get("extra", {} if self.cls.model_config.get("extra") == "allow" else None)
        object.__setattr__(value, "__pydantic_extra__", extra)
        object.__setattr__(value, "__pydantic_private__", self._private(aside.get("private", {})))

    def _private(self, stored: dict[str, Any]) -> dict[str, Any] | None:
        known = self.cls.__private_attributes__
        if unknown := [name for name in stored if name not in known]:
            name = quoted(unknown[0])
            raise Misfit(f"{self.name} was stored with the private attribute {name}, which it no longer has")
        if not known:
            return None
        missing = {
            name: self._default(lambda name: _private_default(known[name]), name) for name in known.keys() - stored
        }
        return stored | {name: value for name, value in missing.items() if not _is_undefined(value)}


def _model_default(field: Any, parts: dict[str, Any]) -> Any:
    if field.is_required():
        return _UNSET
    if getattr(field, "default_factory_takes_validated_data", False):
        return field.get_default(call_default_factory=True, validated_data=dict(parts))
    return field.get_default(call_default_factory=True)


def _private_default(attribute: Any) -> Any:
    return copy.deepcopy(attribute.default) if attribute.default_factory is None else attribute.default_factory()


def _of_pydantic(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] in ("pydantic", "builtins", "abc", "typing")


def _is_undefined(value: Any) -> bool:
    return type(value).__name__ == "PydanticUndefinedType"


def _slots(base: type) -> list[str]:
    own: Any = base.__dict__.get("__slots__", ())
    names = [own] if isinstance(own, str) else list(own)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _derived(cls: type, key: str) -> bool:
    """Nothing is lost without a cached property, or without the mark that `Box[int](…)` leaves on its instance."""
    return key == "__orig_class__" or any(
        isinstance(base.__dict__.get(key), functools.cached_property) for base in cls.__mro__
    )


def is_namedtuple(cls: type) -> bool:
    """Whether `cls` is a NamedTuple or was made by `collections.namedtuple`."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_field_defaults")


def is_typeddict(cls: type) -> bool:
    """Also those of typing_extensions, which `typing.is_typeddict` does not know."""
    return hasattr(cls, "__required_keys__") and hasattr(cls, "__total__")


def is_model(cls: type) -> bool:
    """Whether `cls` is a pydantic v2 model. Pydantic is optional and told by its marks, never imported."""
    return hasattr(cls, "__pydantic_complete__") and hasattr(cls, "model_validate") and not _of_pydantic(cls)


def shape_for(cls: type, name: str) -> Shape | None:
    """The shape of a class of the user, or None if it is of no kind that can be stored."""
    if issubclass(cls, Enum):
        return EnumShape(cls, name) if cls.__members__ else None
    if is_namedtuple(cls):
        return NamedTupleShape(cls, name)
    if is_model(cls):
        return ModelShape(cls, name)
    if not dataclasses.is_dataclass(cls):
        return None
    for base in _BUILT_INS:
        if issubclass(cls, base):
            raise UsageError(
                f"{type_name(cls)} is a dataclass and a {base.__name__}, so its fields are not all of its state; "
                f"hold the {base.__name__} in a field instead"
            )
    return DataclassShape(cls, name)
