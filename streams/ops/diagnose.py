"""Diagnosis of a run: where it stands, who owns it, what is open or uncertain, and what an operator can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from streams.client import Client, RunView, StoredEvent
from streams.client.reading import Progress
from streams.effects.port import Ledger
from streams.kernel import bodies as ev
from streams.kernel.bodies import Failure
from streams.kernel.run import OpPhase, is_out, is_terminal
from streams.ops.advice import Advice, advice_for
from streams.ops.deliveries import LedgerView, OutEffect, effect_lines, effects_of, join, ledger_view
from streams.ops.nexts import Next, nexts
from streams.ops.ownership import Ownership, ownership
from streams.ops.texts import iso, iso_ms, span
from streams.ops.views import blocking_error

__all__ = [
    "Diagnosis",
    "DoneTask",
    "LastError",
    "OpenRequest",
    "OpenTask",
    "Snapshot",
    "diagnose",
    "diagnosis_of",
]


class Snapshot(NamedTuple):
    """The last checkpoint; `age_us` since the log took it."""

    id: str
    seq: int
    offset: int
    at: str
    age_us: int


class DoneTask(NamedTuple):
    """A task whose op has settled."""

    op: str
    name: str
    attempt: int
    outcome: str
    at: str


class OpenTask(NamedTuple):
    """A task whose op is open. `started` and not running means: an attempt began, and its outcome did not count."""

    op: str
    name: str
    state: str
    attempt: int
    started: bool
    may_have_happened: bool
    key: str | None
    due: str | None


class OpenRequest(NamedTuple):
    """A request whose op is open: its `state` is waiting (for the reply), backoff, parked or held."""

    op: str
    effect: str
    state: str
    attempt: int
    may_have_happened: bool
    key: str | None
    since: str
    due: str | None


class LastError(NamedTuple):
    """The latest thing that went wrong, and whether it is over."""

    kind: str
    code: str
    message: str
    op: str | None
    at: str | None
    requires_operator: bool


class Diagnosis(NamedTuple):
    """What to know of a run that does not get on. `backlog` counts commands that no worker has taken.

    `reply_refused` is what was wrong with the last reply that fitted no request, while one is still open.
    `ledger_error` says why nothing is known of what subscribers have done, where a ledger was to be asked.
    """

    run_id: str
    workflow: str
    version: int
    status: str
    attention: bool
    seq: int
    partition: int
    checkpoint: Snapshot | None
    nexts: list[Next]
    ownership: Ownership
    backlog: int
    tasks_done: list[DoneTask]
    tasks_open: list[OpenTask]
    requests_open: list[OpenRequest]
    effects: list[OutEffect]
    last_error: LastError | None
    advice: list[Advice]
    ledger_error: str = ""
    reply_refused: str = ""

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {name: _plain(value) for name, value in self._asdict().items()}

    def lines(self) -> list[str]:
        """As text, one fact a line."""
        return list(_lines(self))


async def diagnose(
    client: Client, run_id: str, *, now: int, progress: Progress | None = None, ledger: Ledger | None = None
) -> Diagnosis | None:
    """Read everything that the log knows of a run; None where there is no such run. `now` in microseconds.

    With a `ledger`, also what subscribers have done about its effects.
    """
    view = await client.get(run_id)
    if view is None:
        return None
    # What cannot be read is the damage that the view tells of: it must not keep the rest from being told.
    history = await client.history(run_id, progress=progress, unreadable=lambda *_: None)
    found = diagnosis_of(view, history, client, now=now, backlog=await _backlog(client, view.partition))
    known = LedgerView({}) if ledger is None else await ledger_view(ledger, client.topics.app, found.effects)
    effects = await join(client, run_id, view.partition, found.effects, known, now=now, progress=progress)
    return found._replace(effects=effects, ledger_error=known.flaw)


def diagnosis_of(view: RunView, history: list[StoredEvent], client: Client, *, now: int, backlog: int = 0) -> Diagnosis:
    """The diagnosis from the events alone."""
    run, codec = view.run, client.values.codec
    own = [stored for stored in history if run is None or stored.event.identity == run.identity]
    requests = _requests(view)
    refused = _reply_refused(view, own)
    return Diagnosis(
        run_id=view.run_id,
        workflow="" if run is None else run.workflow,
        version=0 if run is None else run.version,
        status=view.status.value,
        attention=view.attention,
        seq=0 if run is None else run.seq,
        partition=view.partition,
        checkpoint=_snapshot(view, now),
        nexts=nexts(view, codec, now, client.app),
        ownership=ownership(view, own, now),
        backlog=backlog,
        tasks_done=list(_done(own)),
        tasks_open=_open(view),
        requests_open=requests,
        effects=list(effects_of(own)),
        last_error=_last_error(view, own),
        advice=_advice(view) + ([_advice_on_reply(view, requests)] if refused else []),
        reply_refused=refused,
    )


async def _backlog(client: Client, partition: int) -> int:
    """Commands of the partition that are not taken yet. Offsets have holes, so it is a bound, and 0 is exact."""
    topics = client.topics
    taken = await client.log.group_offsets(topics.group, topics.commands)
    span_ = await client.log.span(topics.commands, partition)
    return max(0, span_.end - taken.get(partition, span_.start))


def _snapshot(view: RunView, now: int) -> Snapshot | None:
    at = view.checkpoint
    if at is None:
        return None
    return Snapshot(at.id, at.seq, at.offset, iso_ms(at.timestamp), max(0, now - at.timestamp * 1_000))


def _done(history: list[StoredEvent]) -> Iterator[DoneTask]:
    tasks: dict[str, str] = {}
    for stored in history:
        body, at = stored.event.body, iso(stored.event.at)
        if isinstance(body, ev.OpScheduled) and body.kind == "task":
            tasks[body.op] = body.name
        elif isinstance(body, ev.OpCompleted) and body.op in tasks:
            outcome = f"completed by {body.operator}" if body.operator else "completed"
            yield DoneTask(body.op, tasks[body.op], body.attempt, outcome, at)
        elif isinstance(body, ev.OpFailed) and body.op in tasks:
            yield DoneTask(body.op, tasks[body.op], body.attempt, f"failed: {body.error.code}", at)


def _open(view: RunView) -> list[OpenTask]:
    ops = () if view.run is None else view.run.ops.values()
    return [
        OpenTask(
            op.id,
            op.name,
            op.phase.value,
            op.attempt,
            started=op.attempt > 0,
            may_have_happened=op.maybe or op.phase is OpPhase.RUNNING,
            key=op.key,
            due=None if op.due is None else iso(op.due),
        )
        for op in ops
        if op.kind == "task"
    ]


def _requests(view: RunView) -> list[OpenRequest]:
    return [
        OpenRequest(
            op.id,
            op.name,
            op.phase.value,
            op.attempt,
            may_have_happened=op.maybe or is_out(op),
            key=op.key,
            since=iso(op.since),
            due=None if op.due is None else iso(op.due),
        )
        for op in (() if view.run is None else view.run.ops.values())
        if op.kind == "request"
    ]


def _reply_refused(view: RunView, history: list[StoredEvent]) -> str:
    """Its sender takes the request for answered, and the run waits on."""
    ops = () if view.run is None else view.run.ops.values()
    sent = [op.since for op in ops if op.kind == "request"]
    for stored in reversed(history):
        body = stored.event.body
        if not sent or stored.event.at < min(sent):
            break
        if isinstance(body, ev.CommandRejected) and body.code == "REPLY_INVALID":
            return body.message
    return ""


def _advice_on_reply(view: RunView, requests: list[OpenRequest]) -> Advice:
    return advice_for("REPLY_INVALID", view.run_id, requests[0].op if len(requests) == 1 else None)


def _last_error(view: RunView, history: list[StoredEvent]) -> LastError | None:
    error = blocking_error(view)
    if error is not None:
        at = next((s.event.at for s in reversed(history) if isinstance(s.event.body, ev.RunBlocked)), None)
        return LastError(*error[:3], None, None if at is None else iso(at), requires_operator=True)
    for stored in reversed(history):
        body = stored.event.body
        failure = body.reason if isinstance(body, ev.OpParked) else getattr(body, "error", None)
        if isinstance(failure, Failure) and not isinstance(body, (ev.OutcomeLate, ev.InputHeld)):
            op = getattr(body, "op", None)
            return LastError(*failure[:3], op, iso(stored.event.at), requires_operator=_is_parked(view, op))
    return None


def _is_parked(view: RunView, op: str | None) -> bool:
    found = None if view.run is None or op is None else view.run.ops.get(op)
    return found is not None and found.phase is OpPhase.PARKED


def _advice(view: RunView) -> list[Advice]:
    error = blocking_error(view)
    found = [] if error is None else [advice_for(error.code, view.run_id)]
    if view.run is None or is_terminal(view.run):
        return found
    parked = [op for op in view.run.ops.values() if op.phase is OpPhase.PARKED]
    return found + [advice_for("" if op.error is None else op.error.code, view.run_id, op.id) for op in parked]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


# -- as text -----------------------------------------------------------------------------------------------------


def _lines(found: Diagnosis) -> Iterator[str]:
    name = f"{found.workflow} version {found.version}" if found.workflow else "not started"
    yield f"run {found.run_id} ({name}) is {found.status} at event {found.seq}"
    at = found.checkpoint
    if at is None:
        yield "last checkpoint: none yet; the run is its events"
    else:
        yield f"last checkpoint: {at.id} (offset {at.offset}), {span(at.age_us)} ago"
    yield from (f"next: {_of_op(step.op)}{step.text}" for step in found.nexts)
    yield f"owner: {found.ownership.text}"
    if found.backlog:
        yield f"commands of partition {found.partition} that no worker has taken yet: up to {found.backlog}"
    for task in found.tasks_done:
        yield f"task done: {_of_op(task.op)}{task.name} {task.outcome}, attempt {task.attempt}, at {task.at}"
    yield from (_open_line(task) for task in found.tasks_open)
    yield from (_request_line(request) for request in found.requests_open)
    if found.reply_refused:
        yield f"a reply was refused: {found.reply_refused}"
    yield from effect_lines(found.effects)
    if found.ledger_error:
        yield found.ledger_error
    if found.last_error is not None:
        error = found.last_error
        of_op = "" if error.op is None else f" of op {error.op}"
        yield f"last error: {error.code} ({error.kind}){of_op}: {error.message}"
    for advice in found.advice:
        yield f"what to do: {advice.means} {advice.do}"
        yield from (f"    {command}" for command in advice.commands)


def _of_op(op: str) -> str:
    return f"op {op}: " if op else ""


def _open_line(task: OpenTask) -> str:
    maybe = "; it may have done its work" if task.started and task.may_have_happened else ""
    key = f", key {task.key}" if task.key else ""
    started = (
        f"started, not done (attempt {task.attempt}, {task.state})" if task.started else f"not started ({task.state})"
    )
    return f"task open: op {task.op}: {task.name} {started}{maybe}{key}"


def _request_line(request: OpenRequest) -> str:
    maybe = "; it may have been carried out" if request.may_have_happened else ""
    times = f"attempt {request.attempt}, {request.state}"
    return f"request open: op {request.op}: {request.effect} ({times}) since {request.since}{maybe}, key {request.key}"
