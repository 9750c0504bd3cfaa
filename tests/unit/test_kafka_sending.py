"""Delivery reports, as Kafka's client hands them out."""

from __future__ import annotations

import pytest

from streams.errors import LogUnavailable
from streams.log.kafka.sending import Reports
from streams.log.port import NewRecord


class Message:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


def test_a_record_with_an_offset_is_written() -> None:
    reports = Reports(1)
    reports.expect(0)(None, Message(0))
    reports.check([NewRecord("orders", 0, b"k", b"v")])
    assert reports.offsets == [0]


def test_a_success_without_an_offset_proves_nothing() -> None:
    """The client says so of a batch that the broker calls a repeat; the chaos test has lost a command to it."""
    reports = Reports(1)
    reports.expect(0)(None, Message(None))
    with pytest.raises(LogUnavailable, match="without an offset"):
        reports.check([NewRecord("orders", 0, b"k", b"v")])
    assert not reports.all_taken, "the client does not know where it stands, and is not used again"
