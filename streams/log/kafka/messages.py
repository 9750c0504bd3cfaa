"""Turns the client's messages into records."""

from __future__ import annotations

from operator import methodcaller

from confluent_kafka import Message

from streams.log.port import Headers, Record

__all__ = ["record_of"]

# At a name that is not UTF-8 the client gives a broken list and leaves an error behind. A call from C notices; from
# Python, once the interpreter has warmed up, the error would show at a later call, and the list crashes the process.
_READ_HEADERS = methodcaller("headers")


def record_of(message: Message) -> Record:
    """The record in a message that is no error."""
    return Record(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value(),
        _headers(message),
    )


def _headers(message: Message) -> Headers:
    try:
        headers: object = _READ_HEADERS(message)
    except SystemError as error:
        # They are other people's, and no reason to refuse a record, let alone to pass over it.
        if isinstance(error.__cause__, UnicodeDecodeError):
            return ()
        raise
    assert headers is None or isinstance(headers, list)
    return tuple(headers or ())
