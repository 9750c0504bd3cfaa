"""What a run would do next, op by op, in words."""

from __future__ import annotations

from typing import NamedTuple

from streams.authoring.app import App
from streams.client import RunView
from streams.kernel.run import OpPhase, OpState, Phase, Run, is_result_gone, is_terminal
from streams.ops.texts import iso, line, span
from streams.ops.views import blocking_error
from streams.wire.values import ValueCodec

__all__ = ["Next", "nexts"]


class Next(NamedTuple):
    """`op` is empty where it is the run as a whole."""

    op: str
    text: str


def nexts(view: RunView, codec: ValueCodec, now: int, app: App | None = None) -> list[Next]:
    """What it waits for, and what happens then. With the app, the budgets of tasks are named."""
    run = view.run
    error = blocking_error(view)
    if run is not None and is_terminal(run):
        return [Next("", f"nothing: it is {run.phase}{', and its result is not kept any more' * is_result_gone(run)}")]
    if error is not None:
        held = "" if run is None or not run.held else f"; {len(run.held)} inputs are kept until then, in order"
        first = Next("", f"nothing before an operator has acted: {error.code}{held}")
        return [first, *([] if run is None else _ops(run, codec, now, app))]
    assert run is not None
    if run.phase is Phase.PENDING:
        return [Next("", f"waits for its start; {len(run.inbox)} signals are kept for it")]
    return _ops(run, codec, now, app) or [Next("", "nothing is open")]


def _ops(run: Run, codec: ValueCodec, now: int, app: App | None) -> list[Next]:
    return [Next(op.id, _text(run, op, codec, now, app)) for op in run.ops.values()]


def _text(run: Run, op: OpState, codec: ValueCodec, now: int, app: App | None) -> str:
    since = f"for {span(now - op.since)}"
    if op.phase is OpPhase.HELD:
        return f"{op.kind} {op.name}: its outcome has come and is kept until the run goes on"
    if op.kind == "interrupt":
        question = "" if op.args is None else f": {line(codec.to_plain(op.args))}"
        until = f", until {iso(op.due)}" if op.due is not None else ""
        return f"waits for an answer to interrupt {op.id}{_named(op)}{until}, {since}{question}"
    if op.kind == "timer":
        return f"wakes up at {iso(op.due or 0)}, {_when(op.due, now)}"
    if op.kind == "receive":
        return f"waits for signal {op.name}, {since}"
    if op.kind == "request" and op.phase is OpPhase.WAITING:
        until = f", until {iso(op.due)}" if op.due is not None else ""
        reply = f"the reply to request {op.name} (attempt {op.attempt}{_of(op, app)}){until}"
        return f"waits for {reply}, {since}{_asked(run, op)}"
    return _task(run, op, now, app)


def _task(run: Run, op: OpState, now: int, app: App | None) -> str:
    if op.phase is OpPhase.PARKED:
        why = "" if op.error is None else f": {op.error.code}: {op.error.message}"
        return f"{op.kind} {op.name} is parked, waits for an operator{why}"
    if op.phase is OpPhase.QUEUED:
        return f"starts task {op.name} when a slot is free, queued for {span(now - op.since)}"
    if op.phase is OpPhase.BACKOFF:
        failed = "" if op.error is None else f"; the last one failed: {op.error.code}: {op.error.message}"
        again = f"retries {op.kind} {op.name} (attempt {op.attempt + 1}{_of(op, app)})"
        return f"{again} at {iso(op.due or 0)}, {_when(op.due, now)}{failed}"
    times = f"attempt {op.attempt}{_of(op, app)}"
    return f"waits for task {op.name} ({times}), open for {span(now - op.since)}{_asked(run, op)}"


def _asked(run: Run, op: OpState) -> str:
    return ", asked to stop" if op.asked or run.cancel_requested else ""


def _of(op: OpState, app: App | None) -> str:
    task = None if app is None or op.kind == "request" else app.task_named(op.name)
    policy = op.policy or (None if task is None else task.policy)
    return "" if policy is None else f" of {policy.max_attempts}"


def _named(op: OpState) -> str:
    return "" if op.name in ("", "interrupt") else f" ({op.name})"


def _when(due: int | None, now: int) -> str:
    if due is None or due <= now:
        late = span(now - (due or now))
        return f"due {late} ago: it is done as soon as a worker owns the run"
    return f"in {span(due - now)}"
