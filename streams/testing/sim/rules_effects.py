"""Rules of what subscribers do: at the outside, in the ledger, and in what they publish."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from streams.effects.asks import KEY_CONFLICT, request_hash
from streams.effects.port import Entry, Key, Status
from streams.effects.rules import is_final
from streams.kernel.commands import Reply
from streams.log.port import Record
from streams.testing.sim.app_served import BLIND, NOTES, NOTES_TRIES, PAYMENTS, ROWS, TICKETS
from streams.testing.sim.history import History, Judged, Served
from streams.testing.sim.rules_log import is_sent_back
from streams.testing.sim.services import Handled
from streams.wire.app_codec import make_codec
from streams.wire.records import DeadLetter, EffectMessage

__all__ = ["check_effects"]

_PROVIDERS = (PAYMENTS, TICKETS, BLIND)
"""Effects that are done as often as the provider is asked."""
_SURE = ("later", "fail")
"""After these nothing was done, and everybody knows it."""
_BY_HAND = "NOT_WANTED"


class Message(NamedTuple):
    """A message of an effect that somebody subscribes to."""

    record: Record
    message: EffectMessage
    key: Key

    def __str__(self) -> str:
        record = self.record
        return f"the message at {record.topic}/{record.partition}/{record.offset} ({self.key.key})"


def check_effects(history: History, world: Judged) -> Iterator[str]:
    """All of them."""
    served = world.served
    if served is None:
        return
    messages = _messages(history, world)
    yield from _check_outcomes(messages, history, served, world)
    yield from _check_letters(messages, history, served)
    yield from _check_replies(history, served)
    yield from _check_works(served)
    yield from _check_rows(served)
    calls: dict[tuple[str, str], list[Handled]] = defaultdict(list)
    for call in served.services.calls:
        if not call.ended:
            calls[call.effect, call.key].append(call)
    yield from _check_repeats(calls, served)
    yield from _check_budgets(calls, served)
    yield from _check_order(messages, served)


def _messages(history: History, world: Judged) -> list[Message]:
    found = []
    for of_partition in history.effects:
        for record, message in of_partition:
            if message.effect in world.app.subscriptions:
                key = Key(world.app.name, message.effect, message.idempotency_key)
                found.append(Message(record, message, key))
    return found


# -- the ledger --------------------------------------------------------------------------------------------------


def _check_outcomes(messages: list[Message], history: History, served: Served, world: Judged) -> Iterator[str]:
    """Every message has ended: it was done, or given up with a dead letter, or refused with one."""
    codec = make_codec(world.app.annotations, world.app.named_types)
    letters = defaultdict(set)
    for of_partition in history.effect_letters:
        for _, letter in of_partition:
            letters[letter.topic, letter.partition, letter.offset].add(letter.code)
    for one in messages:
        entry = served.entries.get(one.key)
        codes = letters[one.record.topic, one.record.partition, one.record.offset]
        if entry is None:
            yield f"{one} is unknown to the ledger"
        elif entry.request_hash != request_hash(one.message.effect, codec.digest(one.message.payload)):
            if KEY_CONFLICT not in codes:
                yield f"{one} asks for something else under a known key, and no dead letter says so"
            if not entry.conflicts:
                yield f"{one} asks for something else under a known key, and the ledger has not noted it"
        elif not is_final(entry):
            yield f"{one} has not ended: it is {entry.status}"
        elif entry.status is Status.FAILED and entry.effect_id == one.message.effect_id:
            code = "" if entry.error is None else entry.error.code
            if entry.attempt == one.message.attempt and code not in (_BY_HAND, *codes) and not entry.resent:
                yield f"{one} was given up ({code}), and its dead letters are {sorted(codes)}"
    for key, entry in served.entries.items():
        if entry.status is Status.DONE and not entry.operator:
            yield from _check_response(key, entry, served)
        if is_final(entry) and entry.claim:
            yield f"{key.operation} {key.key} has ended and is still claimed by {entry.owner}"


def _check_response(key: Key, entry: Entry, served: Served) -> Iterator[str]:
    """What the ledger has for done was done, and gave this."""
    said = json.loads(entry.response or b"null")
    if key.operation == ROWS:
        done = [f"row {key.key}"] if served.tables.get(key.key) else []
    else:
        done = [work.receipt for work in served.services.works.get(key.key, ())]
    if said not in done:
        yield f"{key.operation} {key.key} is done with {said!r} in the ledger, and outside it is {done}"


def _check_letters(messages: list[Message], history: History, served: Served) -> Iterator[str]:
    """Each dead letter has its message as it was, and a cause; one for each time it was given up, without faults."""
    known = {(one.record.topic, one.record.partition, one.record.offset): one for one in messages}
    seen: dict[tuple[str, int, int, str], int] = defaultdict(int)
    for of_partition in history.effect_letters:
        for record, letter in of_partition:
            place = (letter.topic, letter.partition, letter.offset)
            one = known.get(place)
            name = f"the dead letter at {record.topic}/{record.partition}/{record.offset} ({letter.code})"
            if one is None or (letter.key, letter.value) != (one.record.key, one.record.value):
                yield f"{name} is of no message that was ever there"
                continue
            seen[*place, letter.code] += 1
            yield from _check_cause(name, letter, one.message)
    for (topic, number, offset, code), count in seen.items():
        if count > 1 + served.troubles and code != KEY_CONFLICT:
            yield f"the message at {topic}/{number}/{offset} is {count} times among the dead letters as {code}"


def _check_cause(name: str, letter: DeadLetter, message: EffectMessage) -> Iterator[str]:
    acts = json.loads(message.payload).get("acts", [])
    causes = {
        "REFUSED": "fail" in acts,
        "RETRIES_EXHAUSTED": message.effect == NOTES,
        "OUTCOME_UNKNOWN": message.effect in (BLIND, NOTES),
        KEY_CONFLICT: message.idempotency_key.startswith("k/clash-"),
        _BY_HAND: message.effect == BLIND,
    }
    if not causes.get(letter.code, False):
        yield f"{name} of {message.effect} {message.idempotency_key} has no cause: {letter.reason}"


# -- what is published -------------------------------------------------------------------------------------------


def _check_replies(history: History, served: Served) -> Iterator[str]:
    """Replies go to requests, and all that are made of one attempt say the same, unless a person has had a say."""
    requests = {
        (message.effect_id, message.attempt, message.epoch): message
        for of_partition in history.effects
        for _, message in of_partition
    }
    said: dict[tuple[str, int, int], list[Reply]] = defaultdict(list)
    for record, reply, by_subscriber in history.replies:
        if not by_subscriber:
            continue
        place = f"the reply at {record.partition}/{record.offset}"
        token = (reply.effect_id, reply.attempt, reply.epoch)
        message = requests.get(token)
        if message is None or message.op != reply.op or (record.key or b"").decode() != message.run_id:
            yield f"{place} is for {token}, and there is no such request"
        elif not reply.attempt:
            yield f"{place} is for an effect that nobody waits for"
        else:
            said[token].append(reply)
    for token, replies in said.items():
        message = requests[token]
        entry = served.entries.get(Key(served.app, message.effect, message.idempotency_key))
        by_hand = entry is not None and (entry.operator or entry.resent)
        if len({(reply.value, reply.error) for reply in replies}) > 1 and not by_hand:
            yield f"{token} was answered with {replies}"
        if len(replies) > 1 + served.troubles:
            yield f"{token} was answered {len(replies)} times"


# -- outside -----------------------------------------------------------------------------------------------------


def _check_works(served: Served) -> Iterator[str]:
    """Nothing is done twice, but where a process that stood still longer than its claim has come back to its call."""
    for key, works in served.services.works.items():
        if len(works) > 1 and not served.overlaps:
            yield f"{key} was done {len(works)} times: {works}"


def _check_rows(served: Served) -> Iterator[str]:
    """One row for each key that is done, and no other one."""
    done = {key.key for key, entry in served.entries.items() if key.operation == ROWS and entry.status is Status.DONE}
    for key in sorted(done - set(served.tables)):
        yield f"{key} is done in the ledger, and its row is missing"
    for key, count in served.tables.items():
        if key not in done:
            yield f"{key} has a row, and is not done in the ledger"
        elif count != 1:
            yield f"{key} was written {count} times"


def _check_repeats(calls: dict[tuple[str, str], list[Handled]], served: Served) -> Iterator[str]:
    """What may have been done is looked up before it is done again; what cannot be looked up is not done again."""
    for (effect, key), of_key in calls.items():
        entry = served.entries.get(Key(served.app, effect, key))
        if effect not in _PROVIDERS or served.overlaps or entry is None:
            continue
        before = None
        for call in of_key:
            if call.look:
                before = None
                continue
            if before is not None and before.act not in _SURE and not (entry.operator and effect == BLIND):
                yield f"{effect} {key} was called again after {before.act or 'a crash'!r} without a look-up"
            before = call


def _check_budgets(calls: dict[tuple[str, str], list[Handled]], served: Served) -> Iterator[str]:
    """Nothing is tried more often than its budget allows, and what was given up for want of tries has had them."""
    for (effect, key), of_key in calls.items():
        entry = served.entries.get(Key(served.app, effect, key))
        tries = sum(not call.look for call in of_key)
        if entry is None:
            yield f"{effect} {key} was called, and the ledger does not know it"
            continue
        if effect != ROWS and tries > entry.deliveries and not entry.resent and not entry.operator:
            yield f"{effect} {key} was called {tries} times, and the ledger counts {entry.deliveries} deliveries"
        if effect == NOTES and entry.deliveries > NOTES_TRIES:
            yield f"{effect} {key} had {entry.deliveries} deliveries of {NOTES_TRIES}"
        spent = entry.error is not None and entry.error.code == "RETRIES_EXHAUSTED" and entry.status is Status.FAILED
        if spent and entry.deliveries < NOTES_TRIES:
            yield f"{effect} {key} was given up for want of tries after {entry.deliveries} of {NOTES_TRIES}"


def _check_order(messages: list[Message], served: Served) -> Iterator[str]:
    """Messages of one record key are carried out one after another, in their order."""
    offsets: dict[str, int] = {}
    for one in messages:
        if not is_sent_back(one.record):
            offsets.setdefault(one.message.effect_id, one.record.offset)
    last: dict[tuple[str, str], Handled] = {}
    for call in served.services.calls:
        entry = served.entries.get(Key(served.app, call.effect, call.key))
        by_hand = entry is not None and entry.operator
        if call.ended or call.look or call.effect == ROWS or call.effect_id not in offsets or by_hand:
            continue  # a transaction that is rolled back calls all of its messages once more
        before = last.get((call.effect, call.run_id))
        if before is not None and offsets[before.effect_id] > offsets[call.effect_id] and not served.overlaps:
            yield f"{call.effect} {call.key} was carried out after {before.key}, which follows it"
        last[call.effect, call.run_id] = call
