"""A ledger in PostgreSQL, for services of several machines and for handlers that write into that database."""

from __future__ import annotations

from streams.effects.postgres.ledger import PostgresLedger, open_postgres_ledger

__all__ = ["PostgresLedger", "open_postgres_ledger"]
