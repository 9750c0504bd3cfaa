"""Events as records of the log."""

from __future__ import annotations

from streams.errors import WireError
from streams.kernel import bodies
from streams.kernel.events import TYPES, Event, event_id
from streams.wire.binary import Model
from streams.wire.framing import RecordCodec

__all__ = ["decode_event", "decode_event_and_id", "encode_event"]

_NESTED = (bodies.Activation, bodies.Change, bodies.Failure, bodies.Policy)
_MODEL = Model(
    {cls.__name__: cls for cls in (*TYPES, *_NESTED)},
    repeated=frozenset({"Policy"}),
    unique=frozenset(
        {
            "Event.event_id",
            "Event.run_id",  # with many runs under way, others have taken its place before it comes again
            "Event.identity",
            "Failure.message",
            "OpScheduled.key",
            "EffectEmitted.key",
        }
    ),
)
_codec = RecordCodec("event", _MODEL)


def encode_event(event: Event) -> bytes:
    """Raises WireError, naming the field, where a value has a type that the schema does not take."""
    run_id, identity, seq, at, cause, offset, epoch, body, code = event
    type_ = TYPES.get(type(body), "")
    return _codec.encode((event_id(event), run_id, identity, seq, at, cause, offset, epoch, code, type_, body))


def decode_event(data: bytes) -> Event:
    """Raises WireError for bytes that are no event."""
    return decode_event_and_id(data)[1]


def decode_event_and_id(data: bytes) -> tuple[str, Event]:
    """The same with the id that the record carries, which `event_id` gives for a record of ours."""
    id_, run_id, identity, seq, at, cause, offset, epoch, code, type_, body = _codec.decode(data)
    if TYPES[type(body)] != type_:
        raise WireError(f"the event says that it is {type_!r} but holds the body of {TYPES[type(body)]!r}")
    return id_, Event(run_id, identity, seq, at, cause, offset, epoch, body, code)
