"""What must hold for any input: only the documented errors, a stable round trip, and messages without the payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.errors import StreamsError, WireError
from streams.wire.headers import read_headers
from streams.wire.records import (
    CommandUnreadable,
    decode_checkpoint,
    decode_command,
    decode_dead_letter,
    decode_effect,
    decode_event,
    decode_lease,
    encode_checkpoint,
    encode_command,
    encode_dead_letter,
    encode_effect,
    encode_event,
    encode_lease,
)
from streams.wire.schemas import MARKER, SchemaUnknown, packed_schemas
from tests.fuzz.judge import judged

__all__ = ["check_command", "check_headers", "check_message", "check_record"]

_EXCERPT_CHARS = 256
"""So much of an input may stand in a message at one place: a name of 40 characters, each of them escaped."""

Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
RECORDS: dict[str, Codec] = {
    "event": (decode_event, encode_event),
    "checkpoint": (decode_checkpoint, encode_checkpoint),
    "lease": (decode_lease, encode_lease),
    "effect": (decode_effect, encode_effect),
    "dead_letter": (decode_dead_letter, encode_dead_letter),
}


def check_message(error: BaseException, data: bytes) -> None:
    """The message, and those of the errors before it, show at most an excerpt of what came in."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text = data.decode("utf-8", "backslashreplace")
        said = str(cause) if isinstance(cause, StreamsError) else ""
        for at in range(0, max(0, len(said) - _EXCERPT_CHARS), 8):
            excerpt = said[at : at + _EXCERPT_CHARS]
            assert excerpt not in text, f"{type(cause).__name__} shows the payload: {said[:400]}"
        said.encode()  # it goes to terminals and into records
        cause = cause.__cause__


def framed(name: str, data: bytes) -> bytes:
    """An input as a record: most begin with the newest schema's fingerprint, so that a fuzzer need not find it."""
    if data[:1] == b"\xff":
        return data[1:]
    if data.startswith(MARKER):
        return data
    return packed_schemas().newest(name).prefix + data


def check_record(name: str, data: bytes) -> None:
    """Ours and fastavro agree; what was read is written again as the same record."""
    decode, encode = RECORDS[name]
    data = framed(name, data)
    newest = data.startswith(packed_schemas().newest(name).prefix)
    try:
        value = decode(data)
    except SchemaUnknown as error:
        check_message(error, data)
    except WireError as error:
        check_message(error, data)
        if newest and _is_avro(error):
            assert judged(name, data) != data, f"refused, and fastavro would write it so: {error}"  # noqa: PT017 - of many inputs
    else:
        _check_round_trip(name, data, value, decode, encode, newest=newest)


def _is_avro(error: WireError) -> bool:
    """Whether it is about the bytes, and not about what they mean: a phase that does not exist is text to Avro."""
    text = str(error)
    return (" is damaged: " in text or " ends after " in text) and "KeyError" not in text


def _check_round_trip(name: str, data: bytes, value: Any, decode: Any, encode: Any, *, newest: bool) -> None:
    again = encode(value)
    assert encode(decode(again)) == again, "what was read and written again is read as something else"
    if not newest:
        return
    judgement = judged(name, data)
    assert judgement is not None, "read, and fastavro refuses it"
    if not _is_poorer(name, value):
        assert judgement == again, "read, and fastavro reads something else"


def _is_poorer(name: str, value: Any) -> bool:
    """What a record may say and our classes do not keep: ops of one id, ids that follow from other fields, cuts."""
    return name in ("checkpoint", "event") or (name == "dead_letter" and len(value.reason) >= 4_000)


def check_command(key: bytes | None, data: bytes) -> None:
    """Commands come from anybody: whatever it is, the answer is a command or CommandUnreadable."""
    try:
        command = decode_command(key, data, default_id="t/0/7", offset=7)
    except CommandUnreadable as error:
        check_message(error, data)
        return
    assert command.offset == 7
    try:
        again = encode_command(command.request, command_id=command.command_id, operator=command.operator)
    except CommandUnreadable as error:
        assert "cannot send the command" in str(error), "taken, and refused when it is to be written"  # noqa: PT017 - of many inputs
        return
    found = decode_command(key, again, default_id="other", offset=7)
    once_more = encode_command(found.request, command_id=found.command_id, operator=found.operator)
    assert once_more == again, "what was read and written again is read as something else"


def check_headers(data: bytes) -> None:
    """Any bytes as names and values."""
    parts = data.split(b"\0")
    names = [part.decode("utf-8", "replace") for part in parts[::2]]
    values = [*parts[1::2], None][: len(names)]
    found = read_headers(zip(names, values, strict=False))
    assert all(isinstance(text, str) for text in found.values())
    for text in found.values():
        text.encode()
