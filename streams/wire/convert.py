"""Checks values against annotations, and makes what is annotated out of the plain JSON that others send.

A converter gives back the very object it was given when nothing had to change; unions rely on that to prefer the member
that the value already is.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections import abc
from enum import Enum
from typing import Any

from streams.errors import UsageError
from streams.wire.convert_classes import convert_dataclass, convert_model, convert_namedtuple, convert_typeddict
from streams.wire.convert_parts import (
    PLAIN_CLASSES,
    Convert,
    anything,
    constrained,
    enum_member,
    fixed_tuple,
    instance,
    items_of,
    literal,
    mapping,
    members_of,
    null,
    number_key,
    scalar,
    union,
)
from streams.wire.shapes import is_model, is_namedtuple, is_typeddict
from streams.wire.types import TypeRegistry, class_hints

__all__ = ["Converters", "takes_anything"]

_LISTS = {list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence, abc.Container, abc.Reversible}
_SETS = {set, abc.Set, abc.MutableSet}
_MAPPINGS = {dict, abc.Mapping, abc.MutableMapping}
_MARKS = {typing.Required, typing.NotRequired, typing.Final, typing.ClassVar, getattr(typing, "ReadOnly", typing.Final)}


def takes_anything(type_: Any) -> bool:
    """Whether every value fits the annotation."""
    return type_ is Any or type_ is object or type_ is inspect.Parameter.empty


class Converters:
    """The converters of one codec, made once per annotation."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._made: dict[Any, Convert] = {}
        self._version = registry.version

    def of(self, type_: Any) -> Convert:
        if self._version != self._registry.version:
            self._made.clear()
            self._version = self._registry.version
        try:
            made = self._made.get(type_)
        except TypeError:
            return self._make(type_)
        if made is not None:
            return made
        cell = _Deferred()
        self._made[type_] = cell
        try:
            cell.target = self._make(type_)
        except BaseException:
            del self._made[type_]
            raise
        self._made[type_] = cell.target
        return cell.target

    def _make(self, type_: Any) -> Convert:
        if takes_anything(type_):
            return anything
        if type_ is None or type_ is types.NoneType:
            return null
        if isinstance(type_, (str, typing.ForwardRef)):
            raise UsageError(f"the annotation {type_!r} is a name in quotes; give the type itself")
        origin, args = typing.get_origin(type_), typing.get_args(type_)
        if origin is typing.Annotated:
            return constrained(self.of(args[0]), type_)
        if origin is typing.Literal:
            return literal(args)
        if origin is typing.Union or origin is types.UnionType:
            return union([self.of(arg) for arg in args], type_)
        if origin in _MARKS:
            return self.of(args[0])
        if isinstance(type_, typing.TypeVar):
            return self._type_variable(type_)
        for mark in ("__value__", "__supertype__"):
            if not isinstance(type_, type) and hasattr(type_, mark):
                return self._alias(getattr(type_, mark), type_)
        cls = origin if origin is not None else type_
        if not isinstance(cls, type):
            raise UsageError(
                f"streams cannot check values against the annotation {type_!r}; use a class that holds data"
            )
        return self._class(cls, args, type_)

    def _alias(self, value: Any, type_: Any) -> Convert:
        """`type Pair[T] = tuple[T, T]`: the arguments of the alias are put in."""
        parameters = getattr(typing.get_origin(type_), "__type_params__", ())
        return self.of(_substitute(value, dict(zip(parameters, typing.get_args(type_), strict=False))))

    def _type_variable(self, variable: typing.TypeVar) -> Convert:
        if variable.__constraints__:
            return union([self.of(arg) for arg in variable.__constraints__], variable)
        return anything if variable.__bound__ is None else self.of(variable.__bound__)

    def _class(self, cls: type, args: tuple[Any, ...], type_: Any) -> Convert:
        if cls in PLAIN_CLASSES:
            return scalar(cls)
        if cls is tuple:
            return self._tuple(args, type_)
        if cls in _LISTS:
            return items_of(self._argument(args, 0), type_, any_sequence=cls not in (list, abc.MutableSequence))
        if cls in _SETS or cls is frozenset:
            return members_of(
                self._argument(args, 0), type_, frozenset if cls is frozenset else set, either=cls is abc.Set
            )
        if cls in _MAPPINGS:
            return mapping(number_key(self._argument(args, 0), args), self._argument(args, 1), type_)
        if issubclass(cls, Enum):
            return enum_member(cls)
        if is_model(cls):
            return convert_model(cls)
        return self._with_fields(cls, args)

    def _with_fields(self, cls: type, args: tuple[Any, ...]) -> Convert:
        if not (dataclasses.is_dataclass(cls) or is_namedtuple(cls) or is_typeddict(cls)):
            return instance(cls)
        variables = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
        hints = {name: _substitute(hint, variables) for name, hint in class_hints(cls, self._registry.names()).items()}
        fields = {name: self.of(hint) for name, hint in hints.items()}
        if dataclasses.is_dataclass(cls):
            return convert_dataclass(cls, fields, self.of)
        if is_namedtuple(cls):
            return convert_namedtuple(cls, fields)
        return convert_typeddict(cls, fields, hints)

    def _argument(self, args: tuple[Any, ...], index: int) -> Convert:
        return self.of(args[index]) if args else anything

    def _tuple(self, args: tuple[Any, ...], type_: Any) -> Convert:
        if not args:
            return items_of(anything, type_, tuple) if type_ != tuple[()] else fixed_tuple([], type_)
        if len(args) == 2 and args[1] is ...:
            return items_of(self.of(args[0]), type_, tuple)
        return fixed_tuple([self.of(arg) for arg in args], type_)


class _Deferred:
    """Stands in for the converter of a type that contains itself."""

    target: Convert

    def __call__(self, value: Any) -> Any:
        return self.target(value)


def _substitute(hint: Any, variables: dict[Any, Any]) -> Any:
    if not variables:
        return hint
    if isinstance(hint, typing.TypeVar):
        return variables.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not parameters:
        return hint
    return hint[tuple(variables.get(parameter, parameter) for parameter in parameters)]
