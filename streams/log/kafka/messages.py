"""Turns the client's messages into records."""

from __future__ import annotations

from confluent_kafka import Message

from streams.log.port import Headers, Record

__all__ = ["record_of"]


def record_of(message: Message) -> Record:
    """The record in a message that is no error."""
    headers = message.headers()
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        _headers(headers) if headers else (),
    )


def _headers(headers: object) -> Headers:
    assert isinstance(headers, list)
    return tuple(headers)
