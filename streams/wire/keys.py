"""What may be a run id or another name that comes from outside: text that every store and terminal can hold."""

from __future__ import annotations

import unicodedata

from streams.errors import UsageError

__all__ = ["ID_BYTES_MAX", "check_run_id", "flaw_of"]

ID_BYTES_MAX = 200
"""The limit of a run id in bytes; Kafka's keys, file names and index entries all take it."""

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


def check_run_id(run_id: str) -> str:
    """Give the id back. Raises UsageError for one that no run can have.

    `@` and `/` are allowed: ids of events and checkpoints put theirs behind it, so the last one separates.
    """
    if flaw := flaw_of(run_id):
        raise UsageError(f"a run id {flaw}")
    return run_id
