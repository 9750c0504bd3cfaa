"""Headers of records: what streams writes for readers in other languages, and reading what others write."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from streams.wire.schemas import PREFIX_BYTES, packed_schemas

__all__ = [
    "CONTENT_TYPE",
    "EFFECT_ID",
    "IDEMPOTENCY_KEY",
    "REBUILT",
    "SCHEMA",
    "SENT_BACK",
    "Headers",
    "headers_of",
    "read_headers",
]

Headers = tuple[tuple[str, bytes | None], ...]

CONTENT_TYPE = "content-type"
SCHEMA = "streams-schema"
IDEMPOTENCY_KEY = "streams-idempotency-key"
EFFECT_ID = "streams-effect-id"
SENT_BACK = "streams-sent-back"
"""On what was among the dead letters and was sent back, so that nothing goes back twice: on a command its first offset,
on a message of the outbox the place of its letter, PARTITION@OFFSET."""
REBUILT = "streams-rebuilt"
"""On a checkpoint that a rebuild has put in the place of another, or of none: what stood there before is history."""
_AVRO = b"application/vnd.apache.avro.single-object"


def headers_of(name: str, data: bytes) -> Headers:
    """The headers that tell a reader in another language how this record `name` is encoded, and by which schema."""
    return _headers_of(name, data[:PREFIX_BYTES])


@cache
def _headers_of(name: str, prefix: bytes) -> Headers:
    return ((CONTENT_TYPE, _AVRO), (SCHEMA, packed_schemas().of(prefix, name).title.encode()))


def read_headers(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str]:
    """Headers as text: of a repeated name the last counts, as for Kafka's clients, and null is left out.

    Bytes beyond UTF-8 are shown escaped, for headers are other people's too and no reason to refuse a record.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value.decode("utf-8", "backslashreplace")
    return found
