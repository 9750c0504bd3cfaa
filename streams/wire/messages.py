"""The records beside events, commands and checkpoints: leases, messages of the outbox, and dead letters."""

from __future__ import annotations

from typing import NamedTuple

from streams.wire.binary import Model
from streams.wire.framing import RecordCodec
from streams.wire.headers import Headers

__all__ = [
    "DeadLetter",
    "EffectMessage",
    "Lease",
    "decode_dead_letter",
    "decode_effect",
    "decode_lease",
    "encode_dead_letter",
    "encode_effect",
    "encode_lease",
]

_LETTER_BYTES_MAX = 850_000
"""What a dead letter keeps of a record, so that it fits into a record itself whatever a foreign producer sent."""
_REASON_CHARS_MAX = 4_000


class Lease(NamedTuple):
    """Who owns a partition.

    `applied` is the next command offset to apply, of the topic with `topic_id`; every event below `tail` is covered by
    a checkpoint. Times are in microseconds since the epoch.
    """

    partition: int
    owner: str
    epoch: int
    transactional_ids: tuple[str, ...]
    address: str | None
    applied: int
    tail: int
    topic_id: str
    claimed_at: int
    released: bool = False
    host: str = ""
    pid: int = 0


class EffectMessage(NamedTuple):
    """A message of the outbox. `payload` is an encoded user value; `op`, `attempt` and `epoch` are for the reply."""

    effect_id: str
    run_id: str
    effect: str
    payload: bytes
    idempotency_key: str
    epoch: int
    at: int
    workflow: str
    version: int
    op: str = ""
    attempt: int = 0


class DeadLetter(NamedTuple):
    """A record that could not be applied, as it was; `cut` where it was too large and only its beginning is kept."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None
    value: bytes | None
    at: int
    code: str = ""
    headers: Headers = ()
    cut: bool = False


_leases = RecordCodec("lease", Model({"Lease": Lease}))
_effects = RecordCodec(
    "effect",
    Model({"Effect": EffectMessage}, unique=frozenset({"Effect.effect_id", "Effect.run_id", "Effect.idempotency_key"})),
)
_letters = RecordCodec("dead_letter", Model({"DeadLetter": DeadLetter}))


def encode_lease(lease: Lease) -> bytes:
    """The value of the record; its key is the number of the partition."""
    return _leases.encode(lease)


def decode_lease(data: bytes) -> Lease:
    """Raises WireError for bytes that are no lease."""
    found = _leases.decode(data)
    assert isinstance(found, Lease)
    return found


def encode_effect(message: EffectMessage) -> bytes:
    """The value of the record; its key is the run id."""
    return _effects.encode(message)


def decode_effect(data: bytes) -> EffectMessage:
    """Raises WireError for bytes that are no message of the outbox."""
    found = _effects.decode(data)
    assert isinstance(found, EffectMessage)
    return found


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Never fails for what a foreign producer sent: what is too large is cut, what is no UTF-8 is shown escaped."""
    reason = letter.reason[:_REASON_CHARS_MAX].encode("utf-8", "backslashreplace").decode()
    return _letters.encode(_fitting(letter._replace(reason=reason)))


def decode_dead_letter(data: bytes) -> DeadLetter:
    """Raises WireError for bytes that are no dead letter."""
    found = _letters.decode(data)
    assert isinstance(found, DeadLetter)
    return found


def _fitting(letter: DeadLetter) -> DeadLetter:
    key, value = letter.key or b"", letter.value or b""
    aside = sum(len(name.encode()) + len(part or b"") + 20 for name, part in letter.headers)
    if 2 * len(key) + len(value) + aside <= _LETTER_BYTES_MAX:  # the key is also the key of the dead letter
        return letter
    kept = letter._replace(headers=(), cut=True, key=letter.key and letter.key[: _LETTER_BYTES_MAX // 4])
    room = _LETTER_BYTES_MAX - 2 * len(kept.key or b"")
    return kept._replace(value=letter.value and letter.value[:room])
