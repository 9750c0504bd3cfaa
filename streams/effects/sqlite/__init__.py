"""A ledger in one SQLite file, safe for several processes of one machine: the embedded default."""

from __future__ import annotations

from streams.effects.sqlite.ledger import SqliteLedger, open_sqlite_ledger

__all__ = ["SqliteLedger", "open_sqlite_ledger"]
