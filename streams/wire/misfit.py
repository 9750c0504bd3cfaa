"""The internal error that collects the path to a bad place in a value while the walk over the value unwinds."""

from __future__ import annotations

import json

__all__ = ["Misfit", "key_step", "quoted", "type_name"]

_STEPS_SHOWN = 12


class Misfit(Exception):
    """Something at one place of a value is wrong; every container on the way out adds its step.

    Never leaves the codec, which turns it into the public error that fits.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.steps: list[str] = []

    @property
    def path(self) -> str:
        steps = self.steps[::-1]
        if len(steps) > _STEPS_SHOWN:
            steps = [*steps[:_STEPS_SHOWN], "…"]
        return "$" + "".join(steps)


def key_step(key: object) -> str:
    """How the entry of a mapping is written in a path; the keys of users may be of any type and length."""
    if type(key) is str:
        text = _cut(key)
        return f".{text}" if text.isidentifier() else f"[{json.dumps(text, ensure_ascii=not text.isprintable())}]"
    return f"[{_cut(ascii(key))}]" if type(key) in (float, bool, type(None)) else f"[<{type(key).__qualname__}>]"


def quoted(name: object) -> str:
    """A name from outside, for a message: it may be long and hold what no terminal should see."""
    return repr(_cut(name) if isinstance(name, str) else type(name).__name__)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


def type_name(cls: type) -> str:
    """A class as people find it in their code."""
    name = cls.__qualname__.rpartition("<locals>.")[2]
    return name if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{name}"
