"""Renders stored values for people: readable plain JSON that needs none of the app's types."""

from __future__ import annotations

from typing import Any

import msgspec

from streams.wire.scalars import SCALAR_TAGS

__all__ = ["render"]

_dump = msgspec.json.Encoder().encode


def render(node: Any) -> Any:
    """Tags give way to what they hold; a tag of a form that is not known is left as it is."""
    if type(node) is list:
        return [render(child) for child in node]
    if type(node) is not dict:
        return node
    if "$" not in node:
        return {key: render(child) for key, child in node.items()}
    tag = node["$"]
    if type(tag) is not str or "v" not in node:
        return {key: render(child) for key, child in node.items()}
    payload = node["v"]
    if (scalar := SCALAR_TAGS.get(tag)) is not None:
        return _scalar(scalar.show, payload)
    if tag == "@dict":
        return _pairs(payload)
    shown = render(payload)
    extra = node.get("extra")
    if type(shown) is dict and type(extra) is dict and not tag.startswith("@"):
        beside = render(extra)
        return {**beside, **shown} if type(beside) is dict else shown
    return shown


def _scalar(show: Any, payload: Any) -> Any:
    try:
        return show(payload)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        return render(payload)


def _pairs(pairs: Any) -> Any:
    """An object if the keys stay different as text, else the list of pairs."""
    if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        return render(pairs)
    shown = [(render(key), render(part)) for key, part in pairs]
    found = {key if type(key) is str else _dump(key).decode(): part for key, part in shown}
    return found if len(found) == len(shown) else [list(pair) for pair in shown]
