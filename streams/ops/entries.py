"""An entry of the ledger as plain data: what `ledger list` and `diagnose` print. Its fields are a contract."""

from __future__ import annotations

from typing import Any

from streams.effects.port import Entry
from streams.ops.payload import plain_failure
from streams.ops.texts import iso
from streams.wire.types import TypeRegistry
from streams.wire.values import ValueCodec

__all__ = ["plain_entry"]


def plain_entry(entry: Entry) -> dict[str, Any]:
    """The entry; values as readable JSON, times in UTC by the ledger's clock."""
    codec = ValueCodec(TypeRegistry())
    return {
        "app": entry.key.app,
        "effect": entry.key.operation,
        "key": entry.key.key,
        "status": entry.status.value,
        "run_id": entry.run_id,
        "op": entry.op,
        "effect_id": entry.effect_id,
        "epoch": entry.epoch,
        "attempt": entry.attempt,
        "place": entry.place,
        "deliveries": entry.deliveries,
        "looks": entry.looks,
        "created_at": iso(entry.created_at),
        "updated_at": iso(entry.updated_at),
        "due": None if entry.due is None else iso(entry.due),
        "owner": entry.owner or None,
        "lease_until": None if entry.lease_until is None else iso(entry.lease_until),
        "response": None if entry.response is None else codec.to_plain(entry.response),
        "error": None if entry.error is None else plain_failure(entry.error, codec),
        "conflicts": entry.conflicts,
        "conflict": entry.conflict or None,
        "operator": entry.operator or None,
        "resent": entry.resent or None,
        "published": entry.published,
    }
