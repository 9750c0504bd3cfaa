"""Checkpoints: the whole state of a run as one record, or the mark of a run that cannot be put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streams.errors import WireError
from streams.kernel import bodies
from streams.kernel.changes import FieldValue
from streams.kernel.run import Delivered, InboxItem, Issued, OpPhase, OpState, Phase, Run
from streams.kernel.vector import Vector
from streams.wire.binary import FAULTS, Model, read_text
from streams.wire.framing import RecordCodec
from streams.wire.schemas import SchemaUnknown

__all__ = [
    "STATE_VERSION",
    "Damaged",
    "canonical_checkpoint",
    "checkpoint_id",
    "decode_checkpoint",
    "encode_checkpoint",
]

STATE_VERSION = 1
"""The meaning of the state inside a checkpoint. It grows where an older release would misread what it can parse."""


class Damaged(NamedTuple):
    """Stands where a run would: the event at `offset` cannot be folded.

    `identity` and `seq` are the last that were seen of it, so that its forced end repeats no event.
    """

    run_id: str
    offset: int
    reason: str
    identity: str = ""
    seq: int = 0


_FRESH = Run("", "")


def _ops(found: tuple[OpState, ...]) -> Mapping[str, OpState]:
    return {op.id: op for op in found} if found else _FRESH.ops


def _journal(found: tuple[Delivered | Issued, ...]) -> Vector[Delivered | Issued]:
    return Vector(found) if found else _FRESH.journal


_CLASSES = (bodies.Activation, bodies.Failure, bodies.InputHeld, bodies.Policy, Damaged, Delivered, FieldValue)
_codec = RecordCodec(
    "checkpoint",
    Model(
        {cls.__name__: cls for cls in (*_CLASSES, InboxItem, Issued, OpState, Run)},
        {
            "FieldValue.chunks": (None, Vector),
            "OpState.phase": (None, {phase.value: phase for phase in OpPhase}.__getitem__),
            "Run.journal": (None, _journal),
            "Run.ops": (lambda ops: ops.values(), _ops),
            "Run.phase": (None, {phase.value: phase for phase in Phase}.__getitem__),
        },
        repeated=frozenset({"Policy"}),
        unique=frozenset({"Checkpoint.checkpoint_id", "Run.run_id", "Run.identity", "Failure.message", "OpState.key"}),
    ),
)


def checkpoint_id(state: Run | Damaged) -> str:
    """RUN@SEQ. Never change."""
    return f"{state.run_id}@{state.seq}" if isinstance(state, Run) else f"{state.run_id}@damaged"


def encode_checkpoint(state: Run | Damaged) -> bytes:
    """Raises WireError, naming the field, where a value has a type that the schema does not take."""
    return _codec.encode((checkpoint_id(state), STATE_VERSION, state))


def decode_checkpoint(data: bytes) -> Run | Damaged:
    """Raises WireError for bytes that are no checkpoint, and SchemaUnknown for one of a newer release."""
    _, version, state = _codec.decode(data)
    if version != STATE_VERSION:
        raise SchemaUnknown(
            f"the state has version {version}, this release reads {STATE_VERSION}; upgrade it to go on with the run"
        )
    assert isinstance(state, Run | Damaged)
    return state


def canonical_checkpoint(data: bytes) -> tuple[str, bytes]:
    """The id that a checkpoint carries, and its bytes as this release writes them.

    What has the newest schema is not decoded, for it is compared with bytes of that schema. Raises WireError.
    """
    prefix = _codec.written.prefix
    if not data.startswith(prefix):
        state = decode_checkpoint(data)
        return checkpoint_id(state), encode_checkpoint(state)
    try:
        id_, end = read_text(data, len(prefix))
    except FAULTS as error:
        raise WireError(f"the checkpoint's {len(data)} bytes end too early ({type(error).__name__})") from None
    del end
    return id_, data
