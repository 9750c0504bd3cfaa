"""The effects of a run and what became of each: its message, whether its subscriber has it, what the ledger says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from streams.client import Client, StoredEvent
from streams.client.reading import Progress, scan
from streams.effects.port import Entry, Key, Ledger, Status
from streams.errors import LedgerError, WireError
from streams.kernel import bodies as ev
from streams.ops.entries import plain_entry
from streams.ops.outbox import resolve_line, stored_messages
from streams.ops.texts import iso, iso_ms, span
from streams.wire.records import decode_dead_letter, decode_effect

__all__ = ["LedgerView", "OutEffect", "OutMessage", "effect_lines", "effects_of", "join", "ledger_view"]


class OutMessage(NamedTuple):
    """Where the message lies, and how far the subscriber's group is. `lag` bounds what it has before it there.

    `state` is pending or consumed; `since`: when the log took it. `letter` is its place among the dead letters.
    """

    topic: str
    partition: int
    offset: int
    copies: int
    group: str
    state: str
    since: str
    waits_us: int
    lag: int
    begun: bool
    letter: str | None


class OutEffect(NamedTuple):
    """An effect message in the outbox, or with an `attempt` a request; `offset` is that of the event that made it.

    `ledger` is its entry there, as `ledger show` prints it; `advice` has the commands that help it on.
    """

    effect_id: str
    effect: str
    key: str
    seq: int
    offset: int
    at: str
    op: str
    attempt: int = 0
    message: OutMessage | None = None
    ledger: dict[str, Any] | None = None
    advice: tuple[str, ...] = ()


class LedgerView(NamedTuple):
    """What a ledger knows of some operations, or why it could not be asked."""

    entries: dict[Key, Entry]
    flaw: str = ""


class _Place(NamedTuple):
    """The messages of the run in one effect's topic, and what surrounds them."""

    messages: dict[tuple[str, int], list[Any]]
    letters: dict[tuple[str, int], str]
    taken: int | None
    start: int
    end: int


def effects_of(history: Sequence[StoredEvent]) -> Iterator[OutEffect]:
    """What the run has emitted and requested, in order; of a request each attempt is a message."""
    requests: dict[str, ev.OpScheduled] = {}
    for stored in history:
        event, body = stored.event, stored.event.body
        if isinstance(body, ev.EffectEmitted):
            yield _made(stored, body.op, body.effect, body.key, 0)
        elif isinstance(body, ev.OpScheduled) and body.kind == "request":
            requests[body.op] = body
            yield _made(stored, body.op, body.name, body.key or f"{event.identity}/{body.op}", body.attempt)
        elif isinstance(body, ev.AttemptStarted) and body.op in requests:
            first = requests[body.op]
            yield _made(stored, body.op, first.name, first.key or f"{event.identity}/{body.op}", body.attempt)


def _made(stored: StoredEvent, op: str, effect: str, key: str, attempt: int) -> OutEffect:
    event = stored.event
    return OutEffect(f"{event.identity}/{op}", effect, key, event.seq or 0, stored.offset, iso(event.at), op, attempt)


async def ledger_view(ledger: Ledger, app: str, effects: Sequence[OutEffect]) -> LedgerView:
    """Ask the ledger. That it is away must not keep the rest of a diagnosis from being told."""
    keys = sorted({Key(app, effect.effect, effect.key) for effect in effects})
    if not keys:
        return LedgerView({})
    try:
        await ledger.check()
        return LedgerView(await ledger.look(keys))
    except LedgerError as error:
        return LedgerView({}, f"the ledger {ledger.url} cannot be asked: {error}")


async def join(
    client: Client,
    run_id: str,
    partition: int,
    effects: Sequence[OutEffect],
    ledger: LedgerView,
    *,
    now: int,
    progress: Progress | None = None,
) -> list[OutEffect]:
    """The effects with their messages, the subscriber's group, and the ledger's entries."""
    places = {
        name: await _place(client, name, run_id, partition, progress)
        for name in dict.fromkeys(effect.effect for effect in effects)
    }
    joined = []
    for effect in effects:
        message = _message(client, effect, places[effect.effect], partition, now)
        entry = ledger.entries.get(Key(client.topics.app, effect.effect, effect.key))
        shown = None if entry is None else plain_entry(entry)
        found = effect._replace(message=message, ledger=shown)
        joined.append(found._replace(advice=tuple(_advice(found, entry))))
    return joined


async def _place(client: Client, effect: str, run_id: str, partition: int, progress: Progress | None) -> _Place | None:
    """What lies there of the run; None where the topic is not there."""
    log, topics, key = client.log, client.topics, run_id.encode()
    topic, dead = topics.effect(effect), topics.effect_dead(effect)
    there = await log.describe_topics([topic, dead])
    if topic not in there or partition >= there[topic].partitions:
        return None
    taken = (await log.group_offsets(topics.subscribers(effect), topic)).get(partition)
    bounds = await log.span(topic, partition)
    messages: dict[tuple[str, int], list[Any]] = {}
    async for stored in stored_messages(log, topics, effect, partition, key, progress):
        messages.setdefault((stored.message.effect_id, stored.message.attempt), []).append(stored.record)
    letters = await _letters(client, dead, partition, key) if dead in there else {}
    return _Place(messages, letters, taken, bounds.start, bounds.end)


async def _letters(client: Client, dead: str, partition: int, key: bytes) -> dict[tuple[str, int], str]:
    bounds = await client.log.span(dead, partition)
    found = {}
    async for record in scan(client.log, dead, partition, bounds.start, bounds.end):
        if record.key == key:
            try:
                message = decode_effect(decode_dead_letter(record.value or b"").value or b"")
            except WireError:
                continue  # it names no effect of this run; `dead-letters list` shows it
            found[message.effect_id, message.attempt] = f"{partition}@{record.offset}"
    return found


def _message(client: Client, effect: OutEffect, place: _Place | None, partition: int, now: int) -> OutMessage | None:
    """None where the message is not kept any more."""
    records = [] if place is None else place.messages.get((effect.effect_id, effect.attempt), [])
    if place is None or not records:
        return None
    last = records[-1]
    pending = place.taken is None or last.offset >= place.taken
    return OutMessage(
        last.topic,
        partition,
        last.offset,
        len(records),
        client.topics.subscribers(effect.effect),
        "pending" if pending else "consumed",
        iso_ms(last.timestamp),
        max(0, now - last.timestamp * 1_000),
        max(0, place.end - (place.start if place.taken is None else place.taken)),
        place.taken is not None,
        place.letters.get((effect.effect_id, effect.attempt)),
    )


def _advice(effect: OutEffect, entry: Entry | None) -> Iterator[str]:
    message = effect.message
    if entry is not None and entry.status is Status.PARKED:
        verb = resolve_line(effect.effect, effect.key)
        yield from (f"{verb} --done JSON", f"{verb} --not-done", f"{verb} --give-up TEXT")
    elif message is not None and message.letter is not None and (entry is None or entry.status is Status.FAILED):
        yield f"streams dead-letters show --effect {effect.effect} --at {message.letter}"
        yield f"streams dead-letters send-back --effect {effect.effect} --at {message.letter}"
    elif message is not None and not message.begun and effect.attempt:
        yield f"streams subscribe MODULE:APP --only {effect.effect}"


def effect_lines(effects: Sequence[OutEffect]) -> Iterator[str]:
    """Each effect on a line."""
    for effect in effects:
        attempt = f", attempt {effect.attempt}" if effect.attempt else ""
        where = _where(effect.message)
        known = f"; ledger: {_known(effect.ledger)}" if effect.ledger is not None else ""
        text = f"{effect.effect}, id {effect.effect_id}{attempt}, key {effect.key}, offset {effect.offset}"
        yield f"effect out: {text}{where}{known}"
        yield from (f"    {command}" for command in effect.advice)


def _where(message: OutMessage | None) -> str:
    if message is None:
        return "; its message is kept no more"
    place = f"{message.topic}[{message.partition}]@{message.offset}"
    letter = f", set aside as dead letter {message.letter}" if message.letter is not None else ""
    if not message.begun:
        state = f"nobody of group {message.group} has begun"
    elif message.state == "pending":
        state = f"group {message.group} has it before it (lag at most {message.lag})"
    else:
        state = f"group {message.group} has passed it"
    return f"; {place}, {message.state}, written {span(message.waits_us)} ago, {state}{letter}"


def _known(entry: dict[str, Any]) -> str:
    tries = f", {entry['deliveries']} deliveries" if entry["deliveries"] != 1 else ""
    due = f", due {entry['due']}" if entry["due"] else ""
    owner = f" by {entry['owner']} until {entry['lease_until']}" if entry["owner"] else ""
    error = f": {entry['error']['code']}: {entry['error']['message']}" if entry["error"] else ""
    return f"{entry['status']}{owner}{tries}{due}{error}"
