"""What a message of the outbox asks the ledger for, or why it can ask for nothing."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple

from streams.effects.port import Ask, Key
from streams.errors import ValueUnreadable, WireError
from streams.kernel.codec import Codec
from streams.log.port import Record
from streams.wire.command_rules import NAME_BYTES_MAX
from streams.wire.headers import SENT_BACK
from streams.wire.keys import ID_BYTES_MAX, flaw_of
from streams.wire.records import EffectMessage, decode_effect

__all__ = ["EFFECT_UNREADABLE", "KEY_CONFLICT", "VALUE_UNREADABLE", "Asked", "Unreadable", "read_ask", "request_hash"]

EFFECT_UNREADABLE = "EFFECT_UNREADABLE"
VALUE_UNREADABLE = "VALUE_UNREADABLE"
KEY_CONFLICT = "KEY_CONFLICT"


_PLACE = re.compile(rb"[0-9]{1,10}@[0-9]{1,19}")
_AT_MAX = 250_000_000_000_000_000
"""In the year 9892: no date that Python knows lies far beyond it."""


class Asked(NamedTuple):
    """A message, and its ask."""

    message: EffectMessage
    ask: Ask


class Unreadable(Exception):
    """A record that no handler can be given. `message` is there where its sender may wait for a reply."""

    def __init__(self, code: str, reason: str, message: EffectMessage | None = None) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
        self.message = message


def request_hash(effect: str, digest: bytes) -> bytes:
    """What tells two requests under one key apart: the effect, and `codec.digest` of its payload. Never change it."""
    return blake2b(effect.encode() + b"\0" + digest, digest_size=16).digest()


def read_ask(app: str, effect: str, record: Record, codec: Codec) -> Asked:
    """Raises `Unreadable`; payloads are never shown."""
    try:
        message = decode_effect(record.value or b"")
    except WireError as error:
        raise Unreadable(EFFECT_UNREADABLE, str(error)) from error
    if reason := _misfit(effect, record, message):
        raise Unreadable(EFFECT_UNREADABLE, reason)
    try:
        digest = codec.digest(message.payload)
    except ValueUnreadable as error:
        raise Unreadable(VALUE_UNREADABLE, f"the payload: {error}", message) from error
    ask = Ask(
        Key(app, effect, message.idempotency_key),
        request_hash(effect, digest),
        message.effect_id,
        message.run_id,
        message.op,
        message.epoch,
        message.attempt,
        f"{record.topic}[{record.partition}]@{record.offset}",
        _resent(record) if record.headers else "",
    )
    return Asked(message, ask)


def _misfit(effect: str, record: Record, message: EffectMessage) -> str:
    if message.effect != effect:
        return f"it is a message of effect {message.effect!r}, which is not for this topic"
    if record.key != message.run_id.encode("utf-8", "surrogatepass"):
        return "its key is not the id of its run, so it is out of order with the run's others: write both the same"
    if not _surely_fits(message) and (flaw := _flaw(message)):
        return flaw
    if not 0 <= message.at <= _AT_MAX:
        return f"its time, {message.at}, is not in microseconds since 1970"
    return "it asks for a reply and names no op" if message.attempt > 0 and not message.op else ""


def _surely_fits(message: EffectMessage) -> bool:
    """What nearly every message passes, at a fraction of the time: short, and plain ASCII."""
    run_id, effect_id, key = message.run_id, message.effect_id, message.idempotency_key
    text = f"{run_id}{effect_id}{key}{message.op}"
    short = len(run_id) <= ID_BYTES_MAX and len(text) <= NAME_BYTES_MAX
    return bool(short and run_id and effect_id and key and text.isascii() and text.isprintable())


def _flaw(message: EffectMessage) -> str:
    if flaw := flaw_of(message.run_id):
        return f"its run id {flaw}"
    names = (("effect_id", message.effect_id), ("idempotency_key", message.idempotency_key))
    for field, text in names if not message.op else (*names, ("op", message.op)):
        if flaw := flaw_of(text, NAME_BYTES_MAX):
            return f"its {field} {flaw}"
    return ""


def _resent(record: Record) -> str:
    """The place of the dead letter; what a foreign producer has written there instead opens nothing."""
    for name, value in record.headers:
        if name == SENT_BACK and value and _PLACE.fullmatch(value):
            return value.decode()
    return ""
