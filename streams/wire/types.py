"""The classes that an app's values may have, each under the name by which stored bytes refer to it.

A class gets its `__qualname__` without the module, so that the name is the same whether the user's module was loaded by
path, as `__main__` or by a dotted name. Names are only ever looked up here: nothing is imported or evaluated on load.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from streams.errors import UsageError
from streams.wire.misfit import type_name
from streams.wire.shapes import Shape, is_model, is_namedtuple, is_typeddict, shape_for

__all__ = ["TypeRegistry", "class_hints", "short_name"]


class TypeRegistry:
    """Finds classes in annotations and keeps them by name."""

    def __init__(self) -> None:
        self._by_class: dict[type, Shape] = {}
        self._by_name: dict[str, Shape] = {}
        self._walked: set[Any] = set()
        self.version = 0
        """Grows when a class takes the place of another, so that what was derived from the old one can be dropped."""

    def add(self, annotation: Any) -> None:
        """Register every class that a value of this annotation may contain."""
        self._walk_all(annotation)

    def add_named(self, name: str, cls: type) -> None:
        """Register `cls` under a name of the caller's choice.

        The first such name is the one that is written. Further ones, such as the name before a renaming, are read.
        """
        if not isinstance(cls, type):
            raise UsageError(f"app.types({name}=…) takes a class, not {cls!r}")
        if not name or name.startswith("@") or "$" in name:
            raise UsageError(f"{name!r} cannot be the name of a type: it must not be empty, begin with @, or contain $")
        if not self._register(cls, name, chosen=True):
            raise UsageError(f"{type_name(cls)} is no dataclass, NamedTuple, Enum or pydantic model; it needs no name")
        self._walk_all(cls)

    def name_of(self, cls: type) -> str | None:
        """The name under which values of exactly this class are written."""
        shape = self._by_class.get(cls)
        return shape.name if shape else None

    def resolve(self, name: str) -> type | None:
        """The class that values with this name are read as."""
        shape = self._by_name.get(name)
        return typing.cast("type", shape.cls) if shape else None

    def shape_of(self, cls: type) -> Shape | None:
        return self._by_class.get(cls)

    def shape_named(self, name: str) -> Shape | None:
        return self._by_name.get(name)

    def successor(self, cls: type) -> type | None:
        """The class that took the place of `cls` when its module was loaded again."""
        new = self.resolve(short_name(cls))
        return new if new is not None and new is not cls and _same_place(new, cls) else None

    def names(self) -> dict[str, type]:
        return {name: shape.cls for name, shape in self._by_name.items()}

    def _walk_all(self, annotation: Any) -> None:
        key = _key(annotation)
        if key is None or key not in self._walked:
            self._walk(annotation, {})
            self._walked.add(key)

    def _walk(self, annotation: Any, seen: dict[int, Any]) -> None:
        """`seen` holds on to what it has seen, because the id of a dead annotation may be used again."""
        if id(annotation) in seen:
            return
        seen[id(annotation)] = annotation
        if isinstance(annotation, type):
            self._register(annotation, short_name(annotation), chosen=False)
        for part in _parts(annotation, self.names):
            self._walk(part, seen)

    def _register(self, cls: type, name: str, *, chosen: bool) -> bool:
        known, holder = self._by_class.get(cls), self._by_name.get(name)
        if holder is not None and holder.cls is cls:
            return True
        if known is not None and not chosen:
            return True
        shape = shape_for(cls, name)
        if shape is None:
            return False
        if holder is not None:
            self._replace(holder, cls, name)
        self._by_name[name] = shape
        if known is None or known.name == short_name(cls):
            self._by_class[cls] = shape
        return True

    def _replace(self, holder: Shape, cls: type, name: str) -> None:
        """Only a class that was defined anew in the same place may take a name over."""
        if not _same_place(holder.cls, cls):
            raise UsageError(
                f"two classes would be stored under the name {name!r}: {_place(holder.cls)} and {_place(cls)}; "
                f"give one of them another name before it is used: app.types({name.replace('.', '')}2={cls.__name__})"
            )
        self._by_class.pop(holder.cls, None)
        for alias, shape in self._by_name.items():
            if shape.cls is holder.cls and alias != name:
                self._by_name[alias] = shape_for(cls, alias) or shape
        self._walked.clear()
        self.version += 1


def _parts(annotation: Any, names: Any) -> Iterator[Any]:
    """What an annotation is made of, one level down."""
    if isinstance(annotation, (list, tuple)):  # the parameters of a Callable; several annotations at once
        yield from annotation
        return
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        yield from (type(arg) for arg in typing.get_args(annotation) if isinstance(arg, Enum))
        return
    if origin is typing.Annotated:
        yield typing.get_args(annotation)[0]
        return
    if origin is not None:
        yield origin
        yield from typing.get_args(annotation)
    elif isinstance(annotation, type):
        yield from class_hints(annotation, names()).values()
    elif isinstance(annotation, typing.TypeVar):
        yield from (annotation.__bound__, *annotation.__constraints__)
    elif isinstance(annotation, (str, typing.ForwardRef)):
        raise UsageError(f"the annotation {annotation!r} is a name in quotes; give the type itself")
    else:
        yield from (getattr(annotation, mark) for mark in ("__value__", "__supertype__") if hasattr(annotation, mark))


def class_hints(cls: type, names: Mapping[str, type]) -> dict[str, Any]:
    """The fields of a class with their types; empty if it is none of the kinds with fields.

    `names` helps out with classes inside functions, which their annotations cannot see.
    """
    if is_model(cls):
        return _model_hints(cls)
    if dataclasses.is_dataclass(cls):
        fields = [field.name for field in dataclasses.fields(cls)]
    elif is_namedtuple(cls):
        fields = list(cls._fields)  # type: ignore[attr-defined]
    elif is_typeddict(cls):
        fields = list(cls.__annotations__)
    else:
        return {}
    hints = _hints(cls, names)
    return {name: hints.get(name, Any) for name in fields}


def _hints(cls: type, names: Mapping[str, type]) -> dict[str, Any]:
    try:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except NameError:
            return typing.get_type_hints(cls, localns=dict(names), include_extras=True)
    except Exception as error:
        raise UsageError(
            f"the type of {type_name(cls)}.{_culprit(cls, names)} cannot be found ({error}); import it at the top of "
            "the module (not under TYPE_CHECKING), define it outside of functions, or call app.types(…) with it first"
        ) from error


def _culprit(cls: type, names: Mapping[str, type]) -> str:
    """The first field whose annotation alone fails too."""
    for base in cls.__mro__:
        for field, annotation in inspect.get_annotations(base).items():
            alone = type("alone", (), {"__annotations__": {field: annotation}, "__module__": base.__module__})
            try:
                typing.get_type_hints(alone, localns=dict(names))
            except Exception:  # noqa: BLE001 - as above
                return str(field)
    return "…"


def _model_hints(cls: Any) -> dict[str, Any]:
    if not cls.__pydantic_complete__:
        try:
            cls.model_rebuild()
        except Exception as error:
            raise UsageError(
                f"the pydantic model {type_name(cls)} is not fully defined ({error.__class__.__name__}); "
                "import the types of its fields and call model_rebuild() on it"
            ) from error
    return {name: field.annotation for name, field in cls.model_fields.items()}


def short_name(cls: type) -> str:
    """The name that a class gets of itself: stable wherever its module was loaded from."""
    return cls.__qualname__.rpartition("<locals>.")[2]


def _same_place(one: type, other: type) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _place(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _key(annotation: Any) -> Any:
    try:
        hash(annotation)
    except TypeError:
        return None
    return annotation
