"""The three ledgers pass one contract."""

from __future__ import annotations

import pytest

from tests.contract.ledger_contract import LedgerContract
from tests.contract.ledgers import MemoryConfig, PostgresConfig, SqliteConfig


class TestMemoryLedger(MemoryConfig, LedgerContract):
    """In memory."""


class TestSqliteLedger(SqliteConfig, LedgerContract):
    """In a file."""


@pytest.mark.postgres
class TestPostgresLedger(PostgresConfig, LedgerContract):
    """In a real PostgreSQL."""
