"""Records that leave with a turn: events, effects, dead letters, and the end of a run that cannot be folded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import Phase, Run
from streams.log.port import RECORD_BYTES_MAX, NewRecord, Record
from streams.runtime import crash
from streams.runtime.failures import plain_text
from streams.runtime.working import Timer, Working
from streams.wire.headers import EFFECT_ID, IDEMPOTENCY_KEY, headers_of
from streams.wire.keys import ID_BYTES_MAX
from streams.wire.outbox import message_of
from streams.wire.records import DeadLetter, EffectMessage, encode_dead_letter, encode_effect, encode_event
from streams.wire.topics import Topics

if TYPE_CHECKING:
    from streams.runtime.turn import Turn

__all__ = [
    "RECORD_OVERHEAD",
    "Stop",
    "Unwritable",
    "dead_letter_of",
    "effect_record",
    "encode_events",
    "end_damaged",
    "letter_record",
    "publish",
    "rejection_record",
]

RECORD_OVERHEAD = 256
"""What a record takes beside its value, in bytes: the key, which is a run id."""


class Stop(NamedTuple):
    """Why a run is to be blocked instead of decided for."""

    code: str
    message: str


class Unwritable(Exception):
    """An event of a decision can never be written."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.stop = Stop(code, message)


def encode_events(events: Iterable[Event]) -> list[bytes]:
    """The events of a decision as bytes. Raises `Unwritable`."""
    try:
        encoded = [encode_event(event) for event in events]
    except (WireError, UnicodeEncodeError) as error:
        message = f"an event of the run cannot be written: {plain_text(error)}"
        raise Unwritable("VALUE_NOT_STORABLE", message) from error
    size = max(map(len, encoded), default=0)
    if size > RECORD_BYTES_MAX - RECORD_OVERHEAD:
        message = f"an event of {size} bytes is over the limit of a record; keep references instead"
        raise Unwritable("VALUE_TOO_LARGE", message)
    return encoded


def effect_record(topics: Topics, partition: int, message: EffectMessage) -> NewRecord:
    """A message of the outbox as a record; its key is the run's, so a subscriber sees a run's effects in order."""
    data = encode_effect(message)
    headers = (
        *headers_of("effect", data),
        (IDEMPOTENCY_KEY, message.idempotency_key.encode()),
        (EFFECT_ID, message.effect_id.encode()),
    )
    return NewRecord(topics.effect(message.effect), partition, message.run_id.encode(), data, headers)


def publish(turn: Turn, working: Working, event: Event) -> bool:
    """Write the message that leaves with an event, and wait until the reply to it is due; False where there is none."""
    message = message_of(event, working.run)
    if message is None:
        return False
    if turn.engine.publishes:
        turn.add(effect_record(turn.engine.topics, working.partition.number, message), working)
    crash.passing("turn.effect", message.effect)
    op = working.run.ops.get(message.op) if isinstance(event.body, ev.AttemptStarted) else None
    if op is not None and op.due is not None:
        turn.timers.append(Timer(op.due, working.partition, event.run_id, op.id))
    return True


def dead_letter_of(record: Record, reason: str, now: int, code: str = "") -> DeadLetter:
    """What is known of a record that is no command."""
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=reason,
        key=record.key,
        value=record.value,
        at=now,
        code=code,
        headers=record.headers,
    )


def letter_record(topics: Topics, letter: DeadLetter) -> NewRecord:
    """A dead letter as a record. A foreign key may be of any size; the letter inside keeps more of it."""
    key = None if letter.key is None else letter.key[:ID_BYTES_MAX]
    data = encode_dead_letter(letter)
    return NewRecord(topics.dead_letters, letter.partition, key, data, headers_of("dead_letter", data))


def rejection_record(topics: Topics, letter: DeadLetter, epoch: int) -> NewRecord:
    """The event that shows a dead letter's offset as applied, should the lease and the group's offset be lost."""
    key = (letter.key or b"")[:ID_BYTES_MAX]
    run_id = key.decode("utf-8", "backslashreplace")
    body = ev.CommandRejected("?", letter.code or "DEAD_LETTER", letter.reason)
    event = Event(run_id, f"?@{letter.offset}", None, letter.at, None, letter.offset, epoch, body)
    return NewRecord(topics.events, letter.partition, key, encode_event(event))


def end_damaged(run: Run, offset: int, now: int, epoch: int) -> tuple[Run, Event]:
    """End a run that cannot be folded, by an operator's force: an event after all that were seen, and the state."""
    at = max(now, run.at)
    event = Event(run.run_id, run.identity, run.seq + 1, at, None, offset, epoch, ev.RunCancelled(forced=True))
    blank = Run(run.run_id, run.identity)
    ended = blank._replace(
        workflow=run.workflow,
        version=run.version,
        code=run.code,
        phase=Phase.CANCELLED,
        seq=run.seq + 1,
        at=at,
        started_at=run.started_at,
        epoch=epoch,
        offset=offset,
        input_hash=run.input_hash,
        attributes=run.attributes,
        cancel_requested=True,
    )
    return ended, event
