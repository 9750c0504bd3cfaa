"""A diagnosis for a terminal: where the run stands, then what is uncertain, then what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streams.cli.render import facts, local_time, status_text
from streams.cli.terminal import error_text, plain, safe
from streams.ops.deliveries import OutEffect
from streams.ops.diagnose import Diagnosis, DoneTask, OpenRequest, OpenTask
from streams.ops.texts import span

__all__ = ["diagnosis"]

_LEDGER = {"done": "green", "parked": "bold red", "failed": "red"}


def diagnosis(found: Diagnosis) -> Group:
    """The whole of it."""
    return Group(*_parts(found))


def _parts(found: Diagnosis) -> Iterator[RenderableType]:
    yield facts(_head(found))
    if found.tasks_done or found.tasks_open:
        yield _title("tasks")
        yield Padding(_tasks(found), (0, 0, 0, 2))
    if found.requests_open:
        yield _title("requests without a reply")
        pairs = [(request.effect, _request(request)) for request in found.requests_open]
        yield Padding(facts(pairs), (0, 0, 0, 2))
    if found.reply_refused:
        yield Padding(plain(f"a reply was refused: {found.reply_refused}", "yellow"), (0, 0, 0, 2))
    if found.effects:
        yield _title("effects that are out")
        yield Padding(facts((effect.effect, _effect(effect)) for effect in found.effects), (0, 0, 0, 2))
        for command in dict.fromkeys(command for effect in found.effects for command in effect.advice):
            yield Padding(plain(command, "bold"), (0, 0, 0, 4))
    if found.ledger_error:
        yield Padding(plain(found.ledger_error, "yellow"), (1, 0, 0, 0))
    if found.last_error is not None:
        error = found.last_error
        where = f" ({error.kind}, op {error.op})" if error.op else f" ({error.kind})"
        yield _title("last error")
        style = "red" if error.requires_operator else "yellow"
        yield Padding(plain(error_text(error.code, error.message) + where, style), (0, 0, 0, 2))
    told = ""
    for advice in found.advice:
        if advice.means != told:  # several parked ops often have one cause
            yield _title("what to do")
            yield Padding(plain(f"{advice.means} {advice.do}"), (0, 0, 0, 2))
        told = advice.means
        for command in advice.commands:
            yield Padding(plain(command, "bold"), (0, 0, 0, 4))


def _request(request: OpenRequest) -> str:
    maybe = "; it may have been carried out" if request.may_have_happened else ""
    since = local_time(request.since)
    return f"op {request.op}, attempt {request.attempt}, {request.state} since {since}, key {request.key}{maybe}"


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _head(found: Diagnosis) -> Iterator[tuple[str, Text | str]]:
    name = f"{found.workflow}{f' v{found.version}' if found.version else ''}" if found.workflow else "not started"
    yield "run", Text.assemble(plain(found.run_id, "bold"), f" ({safe(name)})")
    yield (
        "status",
        Text.assemble(status_text({"status": found.status, "attention": found.attention}), f" at event {found.seq}"),
    )
    at = found.checkpoint
    yield "checkpoint", f"{at.id}, {span(at.age_us)} ago" if at else "none yet; the run is its events"
    yield "owner", plain(found.ownership.text, "" if found.ownership.current else "yellow")
    if found.backlog:
        yield "backlog", f"up to {found.backlog} commands of partition {found.partition} that no worker has taken yet"
    for step in found.nexts:
        yield "next", f"op {step.op}: {step.text}" if step.op else step.text


def _tasks(found: Diagnosis) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for task in found.tasks_done:
        grid.add_row(plain(task.op), plain(task.name), _done(task))
    for open_ in found.tasks_open:
        grid.add_row(plain(open_.op), plain(open_.name), _open(open_))
    return grid


def _done(task: DoneTask) -> Text:
    style = "red" if task.outcome.startswith("failed") else "green"
    attempt = f", attempt {task.attempt}" if task.attempt > 1 else ""
    return Text.assemble((f"{safe(task.outcome)}{attempt}", style), (f" at {local_time(task.at, '%H:%M:%S')}", "dim"))


def _effect(effect: OutEffect) -> Text:
    attempt = f", attempt {effect.attempt}" if effect.attempt else ""
    message, ledger = effect.message, effect.ledger
    text = plain(f"key {effect.key}, id {effect.effect_id}{attempt}")
    if message is None:
        return text.append("; its message is kept no more", "dim")
    style = "yellow" if message.state == "pending" else "green"
    text.append(f"; {message.state}", style)
    where = f" at {message.topic}[{message.partition}]@{message.offset}, {span(message.waits_us)} old"
    text.append_text(plain(where, "dim"))
    if message.state == "pending":
        behind = (
            f", group {message.group}, lag {message.lag}" if message.begun else f", nobody in group {message.group} yet"
        )
        text.append_text(plain(behind, "yellow"))
    if message.letter is not None:
        text.append_text(plain(f", dead letter {message.letter}", "red"))
    if ledger is not None:
        text.append_text(_entry(ledger))
    return text


def _entry(ledger: Mapping[str, Any]) -> Text:
    style = _LEDGER.get(ledger["status"], "yellow")
    text = plain(f"ledger: {ledger['status']}", style)
    tries = f", try {ledger['deliveries']}" if ledger["deliveries"] != 1 else ""
    due = f", due {local_time(ledger['due'], '%H:%M:%S')}" if ledger["due"] else ""
    lease = local_time(ledger["lease_until"], "%H:%M:%S")
    owner = f", by {ledger['owner']} until {lease}" if ledger["owner"] else ""
    error = f", {error_text(ledger['error']['code'], ledger['error']['message'])}" if ledger["error"] else ""
    return Text.assemble("; ", text, plain(f"{owner}{tries}{due}{error}"))


def _open(task: OpenTask) -> Text:
    if not task.started:
        return plain(f"not started, {task.state}")
    maybe = "; it may have done its work" if task.may_have_happened else ""
    key = f" · key {safe(task.key)}" if task.key else ""
    state = f"started, not done: attempt {task.attempt}, {task.state}"
    return Text.assemble((state, "yellow"), (maybe, "bold yellow"), (key, "dim"))
