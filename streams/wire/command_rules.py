"""What every command must keep to, in whichever form it came: legal names and bounded sizes."""

from __future__ import annotations

from streams.errors import WireError
from streams.kernel import commands as cmd
from streams.kernel.codec import VALUE_BYTES_MAX
from streams.kernel.commands import COMMAND_TYPES, Request
from streams.kernel.names import NAME_BYTES_MAX
from streams.wire.keys import ID_BYTES_MAX, flaw_of

__all__ = [
    "ATTRIBUTES_BYTES_MAX",
    "NAME_BYTES_MAX",
    "REASON_BYTES_MAX",
    "CommandUnreadable",
    "check_header",
    "check_request",
]

ATTRIBUTES_BYTES_MAX = 16_000
"""The limit of all attributes of a run together; they are kept in memory and in every checkpoint."""

_NAMES = {"workflow", "name", "op", "interrupt", "effect_id", "identity"}
_VALUES = {"input", "value"}
_NAMES_OF = {cls: [name for name in cls._fields if name in _NAMES] for cls in COMMAND_TYPES}  # type: ignore[attr-defined]
_VALUES_OF = {cls: [name for name in cls._fields if name in _VALUES] for cls in COMMAND_TYPES}  # type: ignore[attr-defined]

REASON_BYTES_MAX = 4_000
"""The limit of the reason of a repair, which history shows with it."""


class CommandUnreadable(WireError):
    """A record that is no command.

    `code` is COMMAND_INVALID, KEY_INVALID, VALUE_TOO_LARGE, VALUE_NOT_STORABLE or SCHEMA_VERSION_UNSUPPORTED.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def check_header(command_id: str | None, operator: str) -> None:
    """Raises CommandUnreadable for an id or a name of an operator that no store can hold."""
    if command_id is not None and (flaw := flaw_of(command_id, NAME_BYTES_MAX)):
        raise CommandUnreadable("COMMAND_INVALID", f"the field `command_id` of a command {flaw}")
    if operator and (flaw := flaw_of(operator)):
        raise CommandUnreadable("COMMAND_INVALID", f"the field `operator` of a command {flaw}")


def check_request(request: Request) -> None:
    """Raises CommandUnreadable for names that no store can hold, and for what is too large."""
    if isinstance(request, cmd.Unsupported):
        return
    type_ = COMMAND_TYPES[type(request)]
    for name in _NAMES_OF[type(request)]:
        text = getattr(request, name)
        if text is not None and (flaw := flaw_of(text, NAME_BYTES_MAX)):
            raise CommandUnreadable("COMMAND_INVALID", f"the field `{name}` of {type_} {flaw}")
    for name in _VALUES_OF[type(request)]:
        if (data := getattr(request, name)) is not None and len(data) > VALUE_BYTES_MAX:
            raise CommandUnreadable("VALUE_TOO_LARGE", f"the field `{name}` of {type_} {_too_large(len(data))}")
    if isinstance(request, cmd.Start):
        _check_attributes(request.attributes)
    if isinstance(request, cmd.Reply):
        _check_reply(request)
    if isinstance(request, cmd.Repair) and (flaw := flaw_of(request.reason, REASON_BYTES_MAX)):
        raise CommandUnreadable("COMMAND_INVALID", f"the field `reason` of repair {flaw}")


def _too_large(size: int, limit: int = VALUE_BYTES_MAX) -> str:
    return f"takes {size:,} bytes, the limit is {limit:,}; store it elsewhere and pass a reference to it"


def _check_attributes(attributes: tuple[tuple[str, str], ...]) -> None:
    total = 0
    for name, text in attributes:
        if flaw := flaw_of(name):
            raise CommandUnreadable("COMMAND_INVALID", f"the name of an attribute of start {flaw}")
        try:
            total += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError:
            raise CommandUnreadable("COMMAND_INVALID", "an attribute of start holds a lone surrogate") from None
    if total > ATTRIBUTES_BYTES_MAX:
        message = f"the field `attributes` of start {_too_large(total, ATTRIBUTES_BYTES_MAX)}"
        raise CommandUnreadable("VALUE_TOO_LARGE", message)
    if len(dict(attributes)) != len(attributes):
        raise CommandUnreadable("COMMAND_INVALID", "the field `attributes` of start names an attribute twice")


def _check_reply(reply: cmd.Reply) -> None:
    if (reply.value is None) == (reply.error is None):
        got = "neither" if reply.value is None else "both"
        raise CommandUnreadable("COMMAND_INVALID", f"reply takes either `value` or `error`, got {got}")
    if reply.error is None:
        return
    kind, code, message = reply.error
    for name, text in (("class", kind), ("code", code)):
        if flaw := flaw_of(text, ID_BYTES_MAX):
            raise CommandUnreadable("COMMAND_INVALID", f"the field `error.{name}` of reply {flaw}")
    try:
        size = len(message.encode())
    except UnicodeEncodeError:
        message = "the field `error.message` of reply holds a lone surrogate"
        raise CommandUnreadable("COMMAND_INVALID", message) from None
    if size > VALUE_BYTES_MAX:
        raise CommandUnreadable("VALUE_TOO_LARGE", f"the field `error.message` of reply {_too_large(size)}")
