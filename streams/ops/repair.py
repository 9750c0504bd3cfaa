"""Plans the repair of a damaged run: the state that can still be made, and what is lost with the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from streams.client import Client
from streams.client.fold import opened_at
from streams.client.reading import Progress, scan
from streams.errors import Refused, UnknownRun, UsageError, WireError
from streams.kernel import bodies as ev
from streams.kernel.commands import Repair
from streams.kernel.events import Event
from streams.kernel.evolve import UnknownEvent, evolve
from streams.kernel.restate import changes_of
from streams.kernel.run import Run
from streams.log.port import Record
from streams.runtime.letters import waiting_commands
from streams.wire.records import Damaged, decode_checkpoint, decode_event
from streams.wire.schemas import SchemaUnknown

__all__ = ["Lost", "RepairPlan", "plan_repair"]

_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)


class Lost(NamedTuple):
    """A record that has no part in the repaired state. `event` is None where it cannot be read."""

    offset: int
    event: Event | None
    reason: str

    @property
    def effect(self) -> ev.EffectEmitted | None:
        """The message that has left with it, if one has."""
        return self.event.body if self.event is not None and isinstance(self.event.body, ev.EffectEmitted) else None

    @property
    def started(self) -> str | None:
        """The op whose attempt has begun with it, if one has."""
        body = self.event.body if self.event is not None else None
        return body.op if isinstance(body, (ev.OpScheduled, ev.AttemptStarted)) and body.attempt else None


class RepairPlan(NamedTuple):
    """What a repair would do. `seq` is the highest that was seen of the run, `state.seq` where its state ends."""

    run_id: str
    identity: str
    seq: int
    state: Run
    damage: str
    lost: list[Lost]
    waiting: int
    """Commands among the dead letters that would be sent back."""

    @property
    def risks(self) -> list[str]:
        """Why an operator is to look before anything runs: the code will do again what is lost."""
        return list(_risks(self.lost))

    def request(self, reason: str, *, parked: bool) -> Repair:
        """The command. With risks the run stays parked in any case."""
        return Repair(self.identity, self.seq, changes_of(self.state), reason, parked or bool(self.risks))


def _unknown(run_id: str, app: str) -> str:
    return (
        f"no run {run_id!r} has been started in app {app!r}. If `streams history {run_id}` has events of it, its "
        f"checkpoint is gone as well: stop all workers, `streams rebuild --app {app}`, start them, and repair it then"
    )


async def plan_repair(
    client: Client,
    run_id: str,
    *,
    to: int | None = None,
    skip: Collection[int] = (),
    progress: Progress | None = None,
) -> RepairPlan:
    """Read all that the log has of a damaged run, and make the latest state of what fits together.

    `to`: no later than after this event; `skip`: without the records at these offsets of the events. Raises `Refused`
    for a run that is not damaged, or of which too little is left, and UsageError for a place that is none of its own.
    """
    view = await client.get(run_id)
    if view is None:
        raise UnknownRun("UNKNOWN_RUN", _unknown(run_id, client.topics.app))
    if view.damage is None:
        raise Refused(
            "NOT_DAMAGED", f"run {run_id!r} is not damaged; `streams diagnose {run_id}` says what it waits for"
        )
    if view.damage.code != "RUN_DAMAGED":
        raise Refused(view.damage.code, f"run {run_id!r} is not damaged: {view.damage.message}")
    records = await _records(client, client.topics.events, view.partition, run_id, progress)
    if strange := set(skip) - {record.offset for record in records}:
        raise UsageError(f"--skip {min(strange)}: no event of run {run_id} lies there, see: streams history {run_id}")
    base = _checkpoint(await _records(client, client.topics.checkpoints, view.partition, run_id, None))
    folds = [_fold(run_id, records, start, to, skip) for start in ([None] if base is None else [None, base])]
    best = max(folds, key=lambda fold: fold.seq_made)
    if best.state is None or (to is not None and best.state.seq != to):
        raise Refused("NOT_REPAIRABLE", _too_little(run_id, best.state, to))
    waiting = await _waiting(client, view.partition, best.state, run_id)
    seq = max(fold.seq for fold in folds)
    return RepairPlan(run_id, best.state.identity, seq, best.state, view.damage.message, best.lost, waiting)


def _too_little(run_id: str, state: Run | None, to: int | None) -> str:
    if state is None:
        return (
            f"nothing of run {run_id!r} can be put together: its first events are gone, and no checkpoint of it can be "
            f"read. It can only be ended: streams cancel {run_id} --force"
        )
    return f"run {run_id!r} can be put together up to event {state.seq}, not {to}; use --to {state.seq} or less"


async def _records(client: Client, topic: str, partition: int, run_id: str, progress: Progress | None) -> list[Record]:
    span = await client.log.span(topic, partition)
    records = scan(client.log, topic, partition, span.start, span.end, progress=progress)
    return [record async for record in records if record.key == run_id.encode()]


def _checkpoint(records: Iterable[Record]) -> Run | None:
    """The last one that can be read. Raises `Refused` for one of a newer release."""
    found = None
    for record in records:
        try:
            state = None if record.value is None else decode_checkpoint(record.value)
        except SchemaUnknown as error:
            raise _newer(record, error) from error
        except WireError:
            continue
        if not isinstance(state, Damaged):
            found = state
    return found


async def _waiting(client: Client, partition: int, state: Run, run_id: str) -> int:
    found = await client.log.describe_topics([client.topics.commands])
    runs = {run_id.encode(): range(max(0, opened_at(state.identity)), 2**63)}
    topic_id = found[client.topics.commands].id
    return len((await waiting_commands(client.log, client.topics, partition, topic_id, runs)).records)


class _Fold:
    """Folds what fits, and notes what does not."""

    def __init__(self, run_id: str, base: Run | None) -> None:
        self.run_id = run_id
        self.state = base
        self.seq = 0 if base is None else base.seq
        self.lost: list[Lost] = []

    @property
    def seq_made(self) -> int:
        return -1 if self.state is None else self.state.seq

    def add(self, offset: int, event: Event, to: int | None) -> None:
        """Fold one event."""
        assert event.seq is not None
        if self._begins(event):
            self.state, self.seq, self.lost = Run(event.run_id, event.identity), 0, []
        if isinstance(event.body, ev.RunExpired):
            self.state, self.seq, self.lost = None, 0, []
            return
        self.seq = max(self.seq, event.seq)
        if self.state is None or event.identity != self.state.identity:
            self.lost.append(Lost(offset, event, "what came before it is missing"))
        elif event.seq > self.state.seq:
            self._fold(self.state, offset, event, to)

    def _fold(self, state: Run, offset: int, event: Event, to: int | None) -> None:
        if to is not None and (event.seq or 0) > to:
            self.lost.append(Lost(offset, event, f"it comes after event {to}"))
            return
        try:
            self.state = evolve(state, event)
        except UnknownEvent:
            raise
        except ValueError as error:
            self.lost.append(Lost(offset, event, str(error)))

    def _begins(self, event: Event) -> bool:
        """Whether another life of the run begins: its first event, after the end of the one before."""
        if event.seq != 1:
            return False
        return self.state is None or opened_at(event.identity) > opened_at(self.state.identity)


def _fold(run_id: str, records: Iterable[Record], base: Run | None, to: int | None, skip: Collection[int]) -> _Fold:
    fold = _Fold(run_id, base if to is None or base is None or base.seq <= to else None)
    for record in records:
        if record.offset in skip:
            fold.lost.append(Lost(record.offset, None, "it is to be skipped"))
            continue
        try:
            event = decode_event(record.value or b"")
            if event.seq is not None:
                fold.add(record.offset, event, to)
        except (SchemaUnknown, UnknownEvent) as error:
            raise _newer(record, error) from error
        except WireError as error:
            fold.lost.append(Lost(record.offset, None, str(error)))
    return fold


def _newer(record: Record, error: Exception) -> Refused:
    message = (
        f"the record at offset {record.offset} of {record.topic} was written by a newer version of streams ({error}): "
        "nothing is damaged, upgrade this one"
    )
    return Refused(SchemaUnknown.code, message)


def _request_of(body: ev.Body) -> ev.OpScheduled | None:
    """The request that an event makes, if it does."""
    return body if isinstance(body, ev.OpScheduled) and body.kind == "request" else None


def _risks(lost: list[Lost]) -> Iterator[str]:
    for item in lost:
        if item.effect is not None:
            yield f"the effect {item.effect.effect} (key {item.effect.key}) has left, and is sent again"
        elif item.event is not None and (request := _request_of(item.event.body)) is not None:
            yield f"the request {request.name} (key {request.key}) has left, and is sent again"
        elif item.started is not None:
            yield f"an attempt of op {item.started} has begun, and is made again"
        elif item.event is not None and isinstance(item.event.body, _ENDS):
            yield f"the run had ended ({item.event.type}), and goes on"
    unread = [item.offset for item in lost if item.event is None and item.reason != "it is to be skipped"]
    if unread and any(item.event is not None and item.offset > unread[0] for item in lost):
        yield f"nobody knows what has left with the record at offset {unread[0]}, on which lost events follow"
