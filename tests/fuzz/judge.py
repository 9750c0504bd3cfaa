"""fastavro as the judge of our readers: what we take it takes, the same in content; what it would write we take."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import fastavro

from streams.wire.schemas import PREFIX_BYTES, packed_schemas

__all__ = ["JUDGE_FAULTS", "judged"]

JUDGE_FAULTS = (ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError)
"""What fastavro raises for bytes that are no record."""


@cache
def _schema(name: str) -> Any:
    """Times as the numbers they are: fastavro would refuse those beyond the year 9999."""
    raw = json.loads(json.dumps(packed_schemas().newest(name).definition))
    return fastavro.parse_schema(_plain(raw))


def _plain(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _plain(part) for key, part in schema.items() if key != "logicalType" and key[:2] != "__"}
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema


def judged(name: str, data: bytes) -> bytes | None:
    """The bytes that fastavro would write for what it reads in the body; None where it reads none."""
    schema = _schema(name)
    body = io.BytesIO(data[PREFIX_BYTES:])
    try:
        found: Any = fastavro.schemaless_reader(
            body, schema, None, return_record_name=True, return_record_name_override=True
        )
    except JUDGE_FAULTS:
        return None
    if body.tell() != len(data) - PREFIX_BYTES:
        return None
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, schema, found)
    except JUDGE_FAULTS:
        return None
    return data[:PREFIX_BYTES] + out.getvalue()
