"""What leaves because of an outcome: a reply to the run that waits for it, and a dead letter for what was given up."""

from __future__ import annotations

from streams.effects.port import Ask, Entry, Outcome, Status
from streams.kernel.bodies import Failure
from streams.kernel.commands import Reply
from streams.log.port import NewRecord, Record
from streams.runtime.failures import storable
from streams.wire.headers import headers_of
from streams.wire.keys import ID_BYTES_MAX, flaw_of
from streams.wire.records import DeadLetter, EffectMessage, encode_command, encode_dead_letter
from streams.wire.topics import Topics

__all__ = ["Letters", "outcome_of", "owes"]

_MESSAGE_CHARS_MAX = 4_000


def owes(ask: Ask, entry: Entry) -> bool:
    """Whether the reply or dead letter of this message is still to be published, as far as the ledger knows.

    An entry remembers it for the op that it was made for. Another op that asks under the same key is always answered,
    an older attempt of the same op never: a newer one has asked.
    """
    if ask.effect_id != entry.effect_id:
        return True
    return not entry.published and (ask.epoch, ask.attempt) == (entry.epoch, entry.attempt)


class Letters:
    """Makes the records of one effect."""

    def __init__(self, topics: Topics, effect: str) -> None:
        self._topics = topics
        self._dead = topics.effect_dead(effect)

    def of_outcome(
        self,
        record: Record,
        message: EffectMessage,
        status: Status,
        response: bytes | None,
        error: Failure | None,
        now: int,
    ) -> list[NewRecord]:
        """Done: a reply. Given up: a dead letter and a reply. Parked: a dead letter, for a person is asked first."""
        if status is Status.DONE:
            return self._replies(record.partition, message, b"null" if response is None else response, None)
        failure = error or Failure("terminal", "GIVEN_UP", "it was given up")
        letter = self.letter(record, failure.code, failure.message, now)
        if status is Status.PARKED:
            return [letter]
        return [letter, *self._replies(record.partition, message, None, failure)]

    def refusal(
        self, record: Record, message: EffectMessage | None, code: str, reason: str, now: int
    ) -> list[NewRecord]:
        """What is never carried out: a dead letter, and a reply where somebody waits for one."""
        letter = self.letter(record, code, reason, now)
        if message is None:
            return [letter]
        return [letter, *self._replies(record.partition, message, None, Failure("terminal", code, reason))]

    def letter(self, record: Record, code: str, reason: str, now: int) -> NewRecord:
        """The record as it came, with the reason."""
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=f"{code}: {reason}" if reason else code,
            key=record.key,
            value=record.value,
            at=now,
            code=code,
            headers=record.headers,
        )
        data = encode_dead_letter(letter)
        key = None if record.key is None else record.key[:ID_BYTES_MAX]
        return NewRecord(self._dead, record.partition, key, data, headers_of("dead_letter", data))

    def _replies(
        self, partition: int, message: EffectMessage, value: bytes | None, failure: Failure | None
    ) -> list[NewRecord]:
        if message.attempt < 1:
            return []
        error = None if failure is None else (failure.kind, _code(failure.code), _text(failure.message))
        reply = Reply(message.op, message.effect_id, message.attempt, message.epoch, value, error)
        data = encode_command(reply, command_id=None)
        key = message.run_id.encode()
        return [NewRecord(self._topics.commands, partition, key, data, headers_of("command", data))]


def outcome_of(ask: Ask, status: Status) -> Outcome:
    """What is noted once the records of an outcome are in the log."""
    return Outcome(ask.key, ask.effect_id, ask.epoch, ask.attempt, status)


def _code(code: str) -> str:
    """A user's code of a failure as one that every command may carry."""
    text = storable(code)[:ID_BYTES_MAX]
    return "FAILED" if flaw_of(text) else text


def _text(message: str) -> str:
    return storable(message)[:_MESSAGE_CHARS_MAX]
