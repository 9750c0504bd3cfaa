"""An operator's word on an operation in the ledger: written there, then told to the run that waits for it."""

from __future__ import annotations

from typing import NamedTuple

from streams.client import Client, Sent
from streams.client.reading import scan
from streams.effects.port import Entry, Key, Ledger, Outcome, Resolution, Status
from streams.errors import Refused, WireError
from streams.kernel.bodies import Failure
from streams.kernel.commands import Reply
from streams.log.port import NewRecord, Record
from streams.ops.outbox import Stored, marked, resolve_line, stored_messages
from streams.wire.records import EffectMessage, decode_dead_letter, decode_effect

__all__ = ["GIVEN_UP", "Resolved", "open_again", "settle_by_hand"]

GIVEN_UP = "GIVEN_UP"
"""The code of an effect that an operator has given up."""


class Resolved(NamedTuple):
    """The entry as it stands now; the reply that was sent, or where the message was sent again; `new`: it changed."""

    entry: Entry
    reply: Sent | None = None
    sent_to: str = ""
    new: bool = True


async def settle_by_hand(client: Client, ledger: Ledger, key: Key, resolution: Resolution) -> Resolved:
    """Write that it was done, or given up, and send the reply that its run waits for.

    Called again after a crash in between, it sends the reply then. Raises `Refused` where nothing is to be resolved.
    """
    entry = (await ledger.look([key])).get(key)
    new = entry is None or not _says(entry, resolution)
    if entry is None or new:
        entry = await ledger.resolve(key, resolution)
    if entry.published:
        return Resolved(entry, new=False)
    told, operator = _told(resolution), resolution.operator
    for other, _ in await _others(client, entry):
        request = Reply(other.op, other.effect_id, other.attempt, other.epoch, *told)
        await client.answer(other.run_id, request, operator=operator)
    reply = None
    if entry.attempt >= 1:  # somebody waits
        request = Reply(entry.op, entry.effect_id, entry.attempt, entry.epoch, *told)
        reply = await client.answer(entry.run_id, request, operator=operator)
    outcome = Outcome(key, entry.effect_id, entry.epoch, entry.attempt, entry.status)
    await ledger.note_published([outcome])
    return Resolved(entry._replace(published=True), reply, new=new)


def _says(entry: Entry, resolution: Resolution) -> bool:
    """Whether an operator has said the same before."""
    same = (entry.status, entry.response, entry.error) == (resolution.status, resolution.response, resolution.error)
    return same and bool(entry.operator) and entry.due is None


def _told(resolution: Resolution) -> tuple[bytes | None, tuple[str, str, str] | None]:
    error = resolution.error
    return resolution.response, None if error is None else (error.kind, error.code, error.message)


async def open_again(client: Client, ledger: Ledger, key: Key, operator: str) -> Resolved:
    """Write that it was not done, and see to it that its message comes to the subscriber once more.

    Raises `Refused` where nothing is to be resolved, or where the message is kept nowhere any more.
    """
    entry = (await ledger.look([key])).get(key)
    if entry is None:
        raise Refused("UNKNOWN_KEY", f"the ledger has no entry of {key.operation} under {key.key!r}")
    record = await _message_again(client, entry)
    others = [] if record is None else [other for _, other in await _others(client, entry)]
    error = Failure("retryable", "NOT_DONE", "an operator found that it was not done")
    entry = await ledger.resolve(key, Resolution(Status.FAILED, error=error, again=True, operator=operator))
    if record is None:  # the subscriber has it before it still
        return Resolved(entry)
    offset, *_ = await client.log.append([record, *others])
    return Resolved(entry, sent_to=f"{record.topic}[{record.partition}]@{offset}")


async def _message_again(client: Client, entry: Entry) -> NewRecord | None:
    """The message as it is to be sent once more; None where the subscriber has not passed it."""
    topics, effect = client.topics, entry.key.operation
    partition = await client.partition(entry.run_id)
    topic, key = topics.effect(effect), entry.run_id.encode()
    found: Stored | None = None
    async for stored in stored_messages(client.log, topics, effect, partition, key):
        if _is_of(stored, entry):
            found = stored
    taken = (await client.log.group_offsets(topics.subscribers(effect), topic)).get(partition)
    if found is not None and (taken is None or found.record.offset >= taken):
        return None
    letter = await _letter(client, entry, partition)
    original = letter if found is None else found.record
    if original is None:
        raise Refused(
            "MESSAGE_GONE",
            f"the message of {effect} {entry.key.key!r} is gone from {topic} and from its dead letters: "
            f"do it by hand, then: {resolve_line(effect, entry.key.key)} --done JSON",
        )
    # By its letter, where there is one: so the list of dead letters shows that it went back. Else by nothing that could
    # open the entry once more when the group is rewound: it is the operator's word that has opened it.
    mark = "" if letter is None else f"{partition}@{letter.offset}"
    return NewRecord(topic, partition, key, original.value, marked(original.headers, mark))


async def _letter(client: Client, entry: Entry, partition: int) -> Record | None:
    """The last dead letter of the message: the record that was set aside, at the letter's own offset."""
    topic = client.topics.effect_dead(entry.key.operation)
    if not await client.log.describe_topics([topic]):
        return None
    span = await client.log.span(topic, partition)
    found: Record | None = None
    async for record in scan(client.log, topic, partition, span.start, span.end):
        if record.key != entry.run_id.encode():
            continue
        try:
            letter = decode_dead_letter(record.value or b"")
            stored = Stored(record, decode_effect(letter.value or b""))
        except WireError:
            continue
        if _is_of(stored, entry) and not letter.cut:
            found = record._replace(value=letter.value, headers=letter.headers)
    return found


async def _others(client: Client, entry: Entry) -> list[tuple[EffectMessage, NewRecord]]:
    """Requests of other ops under the same key, which were set aside with it: the last attempt of each, to send again.

    Those that asked for something else under the key (KEY_CONFLICT) had their answer.
    """
    topics, name = client.topics, entry.key.operation
    topic, dead = topics.effect(name), topics.effect_dead(name)
    found: dict[str, tuple[EffectMessage, NewRecord]] = {}
    if not await client.log.describe_topics([dead]):
        return []
    for partition in range(await client.partitions()):
        span = await client.log.span(dead, partition)
        async for record in scan(client.log, dead, partition, span.start, span.end):
            try:
                letter = decode_dead_letter(record.value or b"")
                message = decode_effect(letter.value or b"")
            except WireError:
                continue
            same = message.idempotency_key == entry.key.key and message.effect_id != entry.effect_id
            if same and message.attempt >= 1 and letter.code != "KEY_CONFLICT" and not letter.cut:
                headers = marked(letter.headers, f"{partition}@{record.offset}")
                again = NewRecord(topic, partition, letter.key, letter.value, headers)
                found[message.effect_id] = (message, again)
    return list(found.values())


def _is_of(stored: Stored, entry: Entry) -> bool:
    message = stored.message
    mine = (message.effect_id, message.idempotency_key, message.epoch, message.attempt)
    return mine == (entry.effect_id, entry.key.key, entry.epoch, entry.attempt)
