"""The columns of the table `streams_ledger`: an entry as a row, the same in every database.

The names and the meaning of the columns never change: users join their own tables with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from streams.effects.port import Entry, Key, Status
from streams.kernel.bodies import Failure

__all__ = ["COLUMNS", "column_of", "entry_of", "row_of", "storable"]

# In the order of the fields of an entry, of which the first is the key's three parts.
COLUMNS = (
    *("app", "operation", "key"),
    *("request_hash", "status", "effect_id", "run_id", "op", "epoch", "attempt", "place", "deliveries", "looks"),
    *("created_at", "updated_at", "due", "owner", "claim", "lease_until", "response", "error"),
    *("conflicts", "conflict", "resent", "operator", "published"),
)

# PostgreSQL takes no NUL in a text, and no database takes half a surrogate pair. No name or key that the engine has
# checked holds a control character, so DEL marks what stands for one; the order of legal keys stays what it was.
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_MARK = "\x7f"
_MARKED = re.compile("\x7f([0-9a-f]{4})")


def storable(text: str) -> str:
    """The text as every database takes it; `_restored` gives it back."""
    return _UNFIT.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text) if _UNFIT.search(text) else text


def _storable_all(texts: Sequence[str]) -> Sequence[str]:
    """The same for many, with one look at all of them."""
    return [storable(text) for text in texts] if _UNFIT.search("".join(texts)) else texts


def _restored(text: str) -> str:
    return _MARKED.sub(lambda found: chr(int(found[1], 16)), text) if _MARK in text else text


def row_of(entry: Entry) -> tuple[Any, ...]:
    """The values of `COLUMNS`."""
    app, operation, key = entry.key
    return (
        *(storable(app), storable(operation), storable(key)),
        *(entry.request_hash, entry.status.value, storable(entry.effect_id), storable(entry.run_id)),
        *(storable(entry.op), entry.epoch, entry.attempt, storable(entry.place), entry.deliveries, entry.looks),
        *(entry.created_at, entry.updated_at, entry.due, storable(entry.owner), entry.claim, entry.lease_until),
        *(entry.response, _error_out(entry.error), entry.conflicts, storable(entry.conflict)),
        *(storable(entry.resent), storable(entry.operator), entry.published),
    )


def column_of(name: str, entries: Sequence[Entry]) -> Sequence[Any]:
    """The values of one of the columns: what `row_of` gives for each, but many at once."""
    if name in _OF_KEY:
        return _storable_all([entry.key[_OF_KEY[name]] for entry in entries])
    if name == "status":
        return [entry.status.value for entry in entries]
    if name == "error":
        return [_error_out(entry.error) for entry in entries]
    values = list(map(attrgetter(name), entries))
    return _storable_all(values) if name in _TEXTS else values


def entry_of(row: Sequence[Any]) -> Entry:
    """The entry that a row of `COLUMNS` holds."""
    if _MARK in "".join(_texts_of(row)):
        row = [_restored(value) if isinstance(value, str) else value for value in row]
    app, operation, key, request_hash, status, *more, published = row
    entry = Entry._make((Key(app, operation, key), request_hash, _STATUSES[status], *more, bool(published)))
    return entry if entry.error is None else entry._replace(error=_error_in(str(entry.error)))


_OF_KEY = {"app": 0, "operation": 1, "key": 2}
_TEXTS = frozenset({"effect_id", "run_id", "op", "place", "owner", "claim", "conflict", "resent", "operator"})
_texts_of = itemgetter(*(COLUMNS.index(name) for name in sorted(_TEXTS | _OF_KEY.keys())))
_STATUSES = {status.value: status for status in Status}


def _error_out(error: Failure | None) -> str | None:
    """JSON with everything beyond ASCII escaped, so that any message of any exception can be stored."""
    if error is None:
        return None
    parts: dict[str, str] = {"kind": error.kind, "code": error.code, "message": error.message}
    if error.details is not None:
        parts["details"] = error.details.decode("latin-1")
    return json.dumps(parts)


def _error_in(text: str | None) -> Failure | None:
    if text is None:
        return None
    parts = json.loads(text)
    details = parts.get("details")
    return Failure(
        parts["kind"], parts["code"], parts["message"], None if details is None else details.encode("latin-1")
    )
