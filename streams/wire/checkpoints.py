"""Checkpoints: the whole state of a run as one record, or the mark of a run that cannot be put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streams.errors import WireError
from streams.kernel import bodies
from streams.kernel.changes import FieldValue
from streams.kernel.run import Delivered, InboxItem, Issued, OpPhase, OpState, Phase, Run
from streams.kernel.vector import Vector
from streams.kernel.wake import AT_ONCE, Stage, Wake, wake_of
from streams.wire.binary import FAULTS, Model, encode_long, read_long, read_text
from streams.wire.framing import RecordCodec
from streams.wire.schemas import SchemaUnknown

__all__ = [
    "STATE_VERSION",
    "Damaged",
    "Head",
    "canonical_checkpoint",
    "checkpoint_id",
    "decode_checkpoint",
    "encode_checkpoint",
    "read_head",
    "read_seq",
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


class Head(NamedTuple):
    """What stands in front of a checkpoint: the epoch of the run's last event, and when it needs its owner next."""

    epoch: int
    wake: Wake


_FRESH = Run("", "")
_DAMAGED = Head(0, Wake(Stage.OPEN, AT_ONCE))


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


def _head_of(state: Run | Damaged) -> Head:
    """Whoever takes over tells of a run that is damaged, so it looks at it at once."""
    return Head(state.epoch, wake_of(state)) if isinstance(state, Run) else _DAMAGED


def encode_checkpoint(state: Run | Damaged) -> bytes:
    """Raises WireError, naming the field, where a value has a type that the schema does not take."""
    epoch, wake = _head_of(state)
    return _codec.encode((STATE_VERSION, epoch, int(wake.stage), wake.at, checkpoint_id(state), state))


def decode_checkpoint(data: bytes) -> Run | Damaged:
    """Raises WireError for bytes that are no checkpoint, and SchemaUnknown for one of a newer release."""
    # Schemas 1 and 2 have no head: the id, the version, the state.
    fields = _codec.decode(data)
    _check_version(fields[0] if len(fields) == _FIELDS else fields[1])
    assert isinstance(fields[-1], Run | Damaged)
    return fields[-1]


def _check_version(version: int) -> None:
    if version != STATE_VERSION:
        raise SchemaUnknown(
            f"the state has version {version}, this release reads {STATE_VERSION}; upgrade it to go on with the run"
        )


_FIELDS = 6
_HEAD_PREFIX = _codec.written.prefix + encode_long(STATE_VERSION)


def _read_head(data: bytes) -> tuple[Head, int]:
    epoch, at = read_long(data, len(_HEAD_PREFIX))
    stage, at = read_long(data, at)
    known, at = read_long(data, at)
    wake = None
    if known:
        wake, at = read_long(data, at)
    return Head(epoch, Wake(stage, wake)), at


def read_head(data: bytes) -> Head:
    """The head of a checkpoint; where an older schema has none, what it would be. Raises as `decode_checkpoint`."""
    if not data.startswith(_HEAD_PREFIX):
        return _head_of(decode_checkpoint(data))
    try:
        return _read_head(data)[0]
    except FAULTS as error:
        raise _too_short(data, error) from None


def read_seq(data: bytes) -> int | None:
    """Up to which event a checkpoint goes; None where a run is damaged. Raises as `decode_checkpoint`."""
    id_, _ = canonical_checkpoint(data)
    seq = id_.rpartition("@")[2]
    return int(seq) if seq.isdecimal() else None


def canonical_checkpoint(data: bytes) -> tuple[str, bytes]:
    """The id that a checkpoint carries, and its bytes as this release writes them.

    What has the newest schema is not decoded, for it is compared with bytes of that schema. Raises WireError.
    """
    if not data.startswith(_HEAD_PREFIX):
        state = decode_checkpoint(data)
        return checkpoint_id(state), encode_checkpoint(state)
    try:
        _, at = _read_head(data)
        id_, end = read_text(data, at)
    except FAULTS as error:
        raise _too_short(data, error) from None
    del end
    return id_, data


def _too_short(data: bytes, error: BaseException) -> WireError:
    return WireError(f"the checkpoint's {len(data)} bytes end too early ({type(error).__name__})")
