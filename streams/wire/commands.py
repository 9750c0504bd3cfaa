"""Commands as records: Avro from clients of the engine, plain JSON from any producer. All of it is untrusted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.errors import WireError
from streams.kernel import commands as cmd
from streams.kernel.bodies import Change
from streams.kernel.commands import COMMAND_TYPES, Command, Request
from streams.wire.binary import Model
from streams.wire.command_json import read_json
from streams.wire.command_rules import CommandUnreadable, check_header, check_request
from streams.wire.framing import RecordCodec
from streams.wire.keys import flaw_of
from streams.wire.schemas import MARKER, SchemaUnknown

__all__ = ["CommandUnreadable", "decode_command", "encode_command"]


def _later(type_: str) -> Callable[..., Request]:
    """A request of a later release: what it holds is no business of this one."""
    return lambda *_: cmd.Unsupported(type_)


_LATER = {name: _later(name.lower()) for name in ("Update", "Fork", "Migrate", "Rewind")}
_model = Model({**{cls.__name__: cls for cls in (*COMMAND_TYPES, Change)}, **_LATER})
_codec = RecordCodec("command", _model)
_first_codec = RecordCodec("command", _model, version=1)
"""What every release reads: a client that is upgraded before the workers sends nothing that they do not know."""


def encode_command(request: Request, *, command_id: str | None, operator: str = "") -> bytes:
    """The value of a command's record; its key is the run id.

    Raises CommandUnreadable for what `decode_command` would refuse.
    """
    if isinstance(request, cmd.Unsupported):
        raise CommandUnreadable("COMMAND_INVALID", f"this release cannot send the command {request.type!r}")
    check_header(command_id, operator)
    check_request(request)
    codec = _codec if isinstance(request, cmd.Repair) else _first_codec
    return codec.encode((command_id, operator, request))


def decode_command(key: bytes | None, value: bytes | None, *, default_id: str, offset: int) -> Command:
    """Raises CommandUnreadable, whose message says what was expected and never shows the payload.

    `default_id` stands in for a missing command id: topic id/partition/offset.
    """
    run_id = _run_id(key)
    if not value:
        got = "no value (null)" if value is None else "an empty value"
        raise CommandUnreadable("COMMAND_INVALID", f"a command needs a value, got {got}; null deletes nothing here")
    command_id, operator, request = _read(value)
    return Command(run_id, request, default_id if command_id is None else command_id, offset, operator)


def _run_id(key: bytes | None) -> str:
    if not key:
        got = "no key (null)" if key is None else "an empty key"
        raise CommandUnreadable("KEY_INVALID", f"the key of a command is its run id, got {got}")
    try:
        run_id = key.decode()
    except UnicodeDecodeError as error:
        message = f"the key of a command is its run id in UTF-8; byte {error.start} of {len(key)} is not"
        raise CommandUnreadable("KEY_INVALID", message) from None
    if flaw := flaw_of(run_id):
        raise CommandUnreadable("KEY_INVALID", f"the run id (the key of the command) {flaw}")
    return run_id


def _read(value: bytes) -> tuple[str | None, str, Request]:
    if value.startswith(MARKER):
        command_id, operator, request = _read_avro(value)
    elif value.lstrip(b" \t\r\n").startswith(b"{"):
        command_id, request = read_json(value)
        operator = ""
    else:
        raise CommandUnreadable("COMMAND_INVALID", _no_command(value))
    check_header(command_id, operator)
    check_request(request)
    return command_id, operator, request


def _read_avro(value: bytes) -> Any:
    try:
        return _codec.decode(value)
    except SchemaUnknown as error:
        raise CommandUnreadable(error.code, str(error)) from error
    except WireError as error:
        raise CommandUnreadable("COMMAND_INVALID", str(error)) from error


def _no_command(value: bytes) -> str:
    expected = "expected a JSON object in UTF-8, or Avro in single-object encoding (C3 01, then a fingerprint)"
    if value.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return f"{expected}, got a byte order mark first: write UTF-8 without one"
    if value.startswith(b"\0"):
        return f"{expected}, got a zero byte first: framing with the id of a schema registry is not read yet"
    return f"{expected}, got {len(value):,} bytes that begin like neither"
