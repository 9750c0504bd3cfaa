"""All records of the log: the entrance to their encoders and decoders."""

from __future__ import annotations

from streams.wire.checkpoints import (
    Damaged,
    Head,
    canonical_checkpoint,
    checkpoint_id,
    decode_checkpoint,
    encode_checkpoint,
    read_head,
    read_seq,
)
from streams.wire.commands import CommandUnreadable, decode_command, encode_command
from streams.wire.events import decode_event, decode_event_and_id, encode_event
from streams.wire.messages import (
    DeadLetter,
    EffectMessage,
    Lease,
    decode_dead_letter,
    decode_effect,
    decode_lease,
    encode_dead_letter,
    encode_effect,
    encode_lease,
)

__all__ = [
    "CommandUnreadable",
    "Damaged",
    "DeadLetter",
    "EffectMessage",
    "Head",
    "Lease",
    "canonical_checkpoint",
    "checkpoint_id",
    "decode_checkpoint",
    "decode_command",
    "decode_dead_letter",
    "decode_effect",
    "decode_event",
    "decode_event_and_id",
    "decode_lease",
    "encode_checkpoint",
    "encode_command",
    "encode_dead_letter",
    "encode_effect",
    "encode_event",
    "encode_lease",
    "read_head",
    "read_seq",
]
