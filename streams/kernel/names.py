"""What may be an id, a name or a key that leaves the kernel: text that every store and terminal can hold."""

from __future__ import annotations

import unicodedata

__all__ = ["ID_BYTES_MAX", "NAME_BYTES_MAX", "flaw_of"]

ID_BYTES_MAX = 200
"""The limit of a run id in bytes; Kafka's keys, file names and index entries all take it."""

NAME_BYTES_MAX = 1_000
"""The limit of keys, names and ids of ops and effects, which contain run ids and grow with nesting."""

_UNFIT = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of control characters, lone surrogates, and separators of lines and paragraphs."""


def flaw_of(text: object, bytes_max: int = ID_BYTES_MAX) -> str:
    """Why `text` cannot be an id or name; empty where it can. Never shows the text, which may be anything."""
    if not isinstance(text, str):
        return f"must be text, got {type(text).__name__}"
    if not text:
        return "must not be empty"
    if not text.isprintable():
        for character in text:
            if unicodedata.category(character) in _UNFIT:
                return f"must not hold control characters, line separators or lone surrogates ({character!a})"
    size = len(text.encode())
    return f"takes {size:,} bytes, at most {bytes_max} are allowed" if size > bytes_max else ""
