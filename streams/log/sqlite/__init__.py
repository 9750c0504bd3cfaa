"""A durable log in one SQLite file, safe for several processes of one machine."""

from __future__ import annotations

from streams.log.sqlite.log import SqliteLog, open_sqlite

__all__ = ["SqliteLog", "open_sqlite"]
