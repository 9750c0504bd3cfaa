"""Turns values into trees of plain JSON and back; what JSON does not know becomes an object `{"$": tag, "v": payload}`.

Wire format, never change: tags of this module begin with `@`; all others are names of the app's types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec

from streams.wire.misfit import Misfit, key_step, quoted, type_name
from streams.wire.scalars import INT_MAX, INT_MIN, SCALAR_TAGS, SCALARS, float_tagged, int_tagged, text_tagged
from streams.wire.shapes import Shape, is_model, is_namedtuple
from streams.wire.types import TypeRegistry

__all__ = ["DEPTH_MAX", "Overweight", "Tagger", "Untagger", "canonical", "heavy_path", "weigh"]

DEPTH_MAX = 100
"""How deep containers may be nested: every walk needs some frames a level, here and in C, on the caller's stack."""

_dump = msgspec.json.Encoder().encode
_dump_sorted = msgspec.json.Encoder(order="sorted").encode
_load = msgspec.json.Decoder().decode


class Overweight(Misfit):
    """The value is over the limit already, seen before all of it was encoded."""


def weigh(value: Any, limit: int, room: int = DEPTH_MAX) -> int:
    """A lower bound of the encoded size of a value that is plain JSON as it stands, or -1 if it is not.

    Stops soon after `limit`, also in a small structure that repeats the same parts exponentially often.
    """
    kind = type(value)
    if kind is dict:
        weight = len(value)
        if not room or weight > limit:
            return weight if weight > limit else -1
        children: Iterable[Any] = value.values()
        for key in value:
            if type(key) is not str or key == "$":
                return -1
            weight += len(key)
    elif kind is list:
        weight = len(value)
        if not room or weight > limit:
            return weight if weight > limit else -1
        children = value
    else:
        weight, children = 0, (value,)
    for child in children:
        kind = type(child)
        if kind is str:
            weight += len(child)
        elif kind is int:
            if not INT_MIN <= child <= INT_MAX:
                return -1
        elif child is None or kind is bool:
            pass
        elif kind is float:
            if child - child != 0.0:
                return -1
        elif kind is dict or kind is list:
            below = weigh(child, limit, room - 1)
            if below < 0:
                return -1
            weight += below
            if weight > limit:
                return weight
        else:
            return -1
    return weight


def heavy_path(value: Any, limit: int) -> str:
    """Where most of a value that is too large lies, as far as it is plain."""
    misfit = Misfit("")
    for _ in range(DEPTH_MAX):  # it may contain itself
        if type(value) not in (dict, list):
            break
        pairs: Iterable[tuple[Any, Any]] = value.items() if type(value) is dict else enumerate(value)
        heavy = next(((key, child) for key, child in pairs if weigh(child, limit) > limit // 2), None)
        if heavy is None:
            break
        misfit.steps.insert(0, key_step(heavy[0]) if type(value) is dict else f"[{heavy[0]}]")
        value = heavy[1]
    return misfit.path


class Tagger:
    """One walk over a value that is not all plain. It runs out of `left` when the result is sure to be too large."""

    __slots__ = ("_registry", "left")

    def __init__(self, registry: TypeRegistry, limit: int) -> None:
        self._registry = registry
        self.left = limit

    def node(self, value: Any, room: int = DEPTH_MAX) -> Any:
        kind = type(value)
        if kind is str:
            self.spend(len(value))
            return value if _in_utf8(value) else text_tagged(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if INT_MIN <= value <= INT_MAX else self._big(value)
        if kind is float:
            return value if value - value == 0.0 else float_tagged(value)
        if (container := _CONTAINERS.get(kind)) is not None:
            self._enter(len(value), room)
            return container(self, value, room - 1)
        if (shape := self._registry.shape_of(kind)) is not None:
            return self._instance(value, shape, room)
        if (scalar := SCALARS.get(kind)) is not None:
            if kind is bytes or kind is bytearray:
                self.spend(len(value))
            return {"$": scalar.tag, "v": scalar.write(value)}
        raise Misfit(_why_not(kind, self._registry))

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Overweight("the value is too large")

    def _big(self, value: int) -> dict[str, Any]:
        self.spend(value.bit_length() // 4)
        return int_tagged(value)

    def _enter(self, size: int, room: int) -> None:
        if not room:
            raise Misfit(f"the value contains itself, or is nested deeper than {DEPTH_MAX} levels; flatten it")
        self.spend(size)

    def _items(self, values: Iterable[Any], room: int) -> list[Any]:
        found: list[Any] = []
        try:
            for value in values:
                found.append(self.node(value, room))  # noqa: PERF401 - the path needs what was done so far
        except Misfit as misfit:
            misfit.steps.append(f"[{len(found)}]")
            raise
        return found

    def list_(self, value: list[Any], room: int) -> Any:
        return self._items(value, room)

    def tuple_(self, value: tuple[Any, ...], room: int) -> Any:
        return {"$": "@tuple", "v": self._items(value, room)}

    def set_(self, value: set[Any], room: int) -> Any:
        return {"$": "@set", "v": self._members(value, room)}

    def frozenset_(self, value: frozenset[Any], room: int) -> Any:
        return {"$": "@frozenset", "v": self._members(value, room)}

    def _members(self, values: Iterable[Any], room: int) -> list[Any]:
        """In an order that depends on nothing but the members: iteration follows the hash seed of the process."""
        try:
            return sorted((self.node(value, room) for value in values), key=lambda node: _dump_sorted(canonical(node)))
        except Misfit as misfit:
            misfit.steps.append("{}")
            raise

    def dict_(self, value: dict[Any, Any], room: int) -> Any:
        if all(type(key) is str and key != "$" and _in_utf8(key) for key in value):
            return self.fields(value, room)
        pairs = []
        for key, part in value.items():
            try:
                pair = [self.node(key, room)]
            except Misfit as misfit:
                misfit.steps.append(f"{{key {type(key).__qualname__}}}")
                raise
            try:
                pair.append(self.node(part, room))
            except Misfit as misfit:
                misfit.steps.append(key_step(key))
                raise
            pairs.append(pair)
        return {"$": "@dict", "v": pairs}

    def fields(self, parts: dict[str, Any], room: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        name = ""
        try:
            for name, part in parts.items():
                self.left -= len(name)
                found[name] = self.node(part, room)
        except Misfit as misfit:
            misfit.steps.append(key_step(name))
            raise
        return found

    def _instance(self, value: Any, shape: Shape, room: int) -> dict[str, Any]:
        parts = shape.take(value)
        if type(parts) is not dict:
            return {"$": shape.name, "v": self.node(parts)}
        self._enter(len(parts), room)
        node = {"$": shape.name, "v": self.fields(parts, room - 1)}
        if aside := shape.aside(value):
            node |= {name: self.node(part, room - 1) for name, part in aside.items()}
        if shape.verify:
            self._verify(value, node, shape)
        return node

    def _verify(self, value: Any, node: dict[str, Any], shape: Shape) -> None:
        """A value that equals itself must equal its copy (one with NaN inside equals nothing)."""
        copy = Untagger(self._registry).value(_load(_dump(node)))
        try:
            equal = bool(copy == value) or not bool(value == value)  # noqa: PLR0124 - see above
        except Exception as error:
            raise Misfit(f"the __eq__ of {type_name(shape.cls)} raised {type(error).__name__}") from error
        if not equal:
            raise Misfit(
                f"a {type_name(shape.cls)} put together from the same fields does not equal this one; "
                "its __eq__ must depend on the fields alone"
            )


_CONTAINERS: dict[type, Callable[[Tagger, Any, int], Any]] = {
    list: Tagger.list_,
    dict: Tagger.dict_,
    tuple: Tagger.tuple_,
    set: Tagger.set_,
    frozenset: Tagger.frozenset_,
}


def _in_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _why_not(kind: type, registry: TypeRegistry) -> str:
    """Why a value of this type cannot be stored, and what to do instead."""
    name = type_name(kind)
    if issubclass(kind, Enum) or is_namedtuple(kind) or dataclasses.is_dataclass(kind) or is_model(kind):
        if registry.successor(kind):
            return f"the class {name} was defined anew since this value was made; make it with the new class"
        return (
            f"{name} is not known to the app, so it could not be read back; use it in an annotation of a task, "
            f"workflow, signal or effect, or call app.types({kind.__name__})"
        )
    for base in (*_CONTAINERS, str, bool, int, float, *SCALARS):
        if issubclass(kind, base):
            plain = base.__name__
            return (
                f"{name} is a subclass of {plain} and would come back as a mere {plain}; store {plain}(value) instead"
            )
    if hasattr(kind, "__await__"):
        return f"a value of type {name} is still to be awaited; write `await` before it"
    return (
        f"a value of type {name} cannot be stored; store plain data (text, numbers, lists, dicts, dataclasses) "
        "and make the object from it where it is needed"
    )


_FAULTS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What reading a payload of a wrong form raises."""


class Untagger:
    """Puts values together from a tree fresh from the parser, which it changes in place."""

    __slots__ = ("_registry",)

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry

    def value(self, node: Any) -> Any:
        if type(node) is dict:
            if "$" in node:
                return self._tagged(node)
            self._entries(node)
        elif type(node) is list:
            self._items(node)
        return node

    def _entries(self, node: dict[str, Any]) -> None:
        key = ""
        try:
            for key, child in node.items():
                if type(child) is dict or type(child) is list:
                    node[key] = self.value(child)
        except Misfit as misfit:
            misfit.steps.append(key_step(key))
            raise

    def _items(self, node: list[Any]) -> None:
        index = 0
        try:
            for index, child in enumerate(node):
                if type(child) is dict or type(child) is list:
                    node[index] = self.value(child)
        except Misfit as misfit:
            misfit.steps.append(f"[{index}]")
            raise

    def _tagged(self, node: dict[str, Any]) -> Any:
        tag = node.pop("$")
        if type(tag) is not str or "v" not in node:
            raise Misfit('an object with the key "$" must be {"$": tag, "v": payload}')
        try:
            return self._built_in(tag, node) if tag.startswith("@") else self._instance(tag, node)
        except _FAULTS as error:
            raise Misfit(f"the payload of {quoted(tag)} does not fit: {type(error).__name__}") from error

    def _built_in(self, tag: str, node: dict[str, Any]) -> Any:
        payload = node["v"]
        if len(node) != 1:
            raise Misfit(f"the tag {quoted(tag)} allows no further keys than $ and v")
        if (scalar := SCALAR_TAGS.get(tag)) is not None:
            return scalar.read(payload)
        if tag not in _READERS:
            raise Misfit(f"the tag {quoted(tag)} is unknown; it was written by a newer version of streams")
        if type(payload) is not list:
            raise Misfit(f"the payload of {quoted(tag)} must be a list")
        self._items(payload)
        return _READERS[tag](payload)

    def _instance(self, name: str, node: dict[str, Any]) -> Any:
        shape = self._registry.shape_named(name)
        if shape is None:
            raise Misfit(
                f"the type {quoted(name)} is not known to the app; if the class was renamed, keep the old name with "
                f"app.types({name[:40]}=NewClass), else use the class in an annotation or call app.types with it"
            )
        parts = node.pop("v")
        if type(parts) is dict and "$" in parts:
            parts = self.value(parts)
        elif type(parts) is dict:
            self._entries(parts)
        value = shape.build(parts)
        self._entries(node)
        shape.restore(value, node)
        return value


def _read_dict(pairs: list[Any]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Misfit("keys that were different are now equal; check the __eq__ and __hash__ of their class")
    return found


def _read_set(members: list[Any]) -> set[Any]:
    found = set(members)
    if len(found) != len(members):
        raise Misfit("members that were different are now equal; check the __eq__ and __hash__ of their class")
    return found


_READERS: dict[str, Callable[[list[Any]], Any]] = {
    "@tuple": tuple,
    "@set": _read_set,
    "@frozenset": lambda members: frozenset(_read_set(members)),
    "@dict": _read_dict,
}


def canonical(node: Any) -> Any:
    """The tree with the pairs of `@dict` in a fixed order; the keys of objects are left to the sorting encoder."""
    if type(node) is list:
        return [canonical(child) if type(child) in (list, dict) else child for child in node]
    if type(node) is not dict:
        return node
    found = {key: canonical(child) if type(child) in (list, dict) else child for key, child in node.items()}
    if found.get("$") == "@dict" and type(found.get("v")) is list:
        found["v"].sort(key=_dump_sorted)
    return found
