"""Addresses of logs, with the settings in them."""

from __future__ import annotations

import os
from contextlib import suppress

from streams.errors import UsageError
from streams.log.address import shown
from streams.log.kafka import settings as kafka
from streams.log.memory import log as memory
from streams.log.memory.log import MemoryLog
from streams.log.sqlite import place as sqlite

__all__ = ["check_kafka", "check_memory", "check_sqlite"]


def _text(data: bytes) -> str:
    """As it comes from a command line: bytes that are no UTF-8 are surrogates there."""
    return os.fsdecode(data)


def check_kafka(data: bytes) -> None:
    """Settings or UsageError; what names the log holds no secret, and names the same one."""
    url = _text(data)
    try:
        found = kafka.parse_url(url, environment={})
    except UsageError:
        return
    again = kafka.parse_url(found.url, environment={})
    assert again.servers == found.servers
    assert again.url == found.url
    assert not any(kafka.is_secret(name) for name in again.client)


def check_sqlite(data: bytes) -> None:
    url = _text(data)
    try:
        found = sqlite.parse_url(url)
    except UsageError:
        return
    assert found.path.startswith("/")
    assert 0 < found.heartbeat_interval < float("inf")


def check_memory(data: bytes) -> None:
    url = _text(data)
    short = shown(url)
    assert "?" not in short
    with suppress(UsageError):
        MemoryLog(url)
    memory._stores.clear()
