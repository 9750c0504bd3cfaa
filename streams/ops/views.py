"""A run as one plain object: what `show` and `runs` print with `--json`. Its fields are a contract."""

from __future__ import annotations

from typing import Any

from streams.client import RunView
from streams.kernel.bodies import Failure
from streams.kernel.run import WORKED_ON, OpPhase, OpState, Run, is_result_gone
from streams.ops.payload import plain_failure
from streams.ops.texts import iso
from streams.wire.values import ValueCodec

__all__ = ["blocking_error", "brief", "show", "waiting"]


def show(view: RunView, codec: ValueCodec) -> dict[str, Any]:
    """The run in full, as `--json` prints it."""
    run = view.run
    shown = brief(view, codec)
    result = None if run is None or run.result is None else codec.to_plain(run.result)
    return {**shown, "result": result}


def brief(view: RunView, codec: ValueCodec) -> dict[str, Any]:
    """The run less its result. `epoch` and `owner` are those of its partition now; nobody owns a released one."""
    run, lease = view.run, view.lease
    epoch = lease.epoch if lease is not None else None if run is None else run.epoch
    return {
        "run_id": view.run_id,
        "workflow": run.workflow or None if run is not None else None,
        "version": run.version or None if run is not None else None,
        "status": view.status.value,
        "attention": view.attention,
        "seq": 0 if run is None else run.seq,
        "error": _error(view, codec),
        "waiting": [] if run is None else waiting(run, codec),
        "attributes": {} if run is None else dict(run.attributes),
        "partition": view.partition,
        "epoch": epoch,
        "owner": lease.owner if lease is not None and not lease.released else None,
        "started_at": iso(run.started_at) if run is not None and run.started_at else None,
        "changed_at": iso(run.at) if run is not None and run.at else None,
        "cancel_requested": run is not None and run.cancel_requested,
        "result_expired": run is not None and is_result_gone(run),
    }


def blocking_error(view: RunView) -> Failure | None:
    """Why the run waits for an operator, if it does as a whole."""
    if view.damage is not None:
        return view.damage
    return None if view.run is None else view.run.blocked


def waiting(run: Run, codec: ValueCodec) -> list[dict[str, Any]]:
    """What the run waits for, op by op: a task, a reply, a timer, an answer, a signal, or an operator."""
    return [_op(op, codec) for op in run.ops.values()]


def _error(view: RunView, codec: ValueCodec) -> dict[str, Any] | None:
    error = blocking_error(view)
    stopped = error is not None
    if error is None and view.run is not None:
        error = view.run.error
    if error is None:
        return None
    # The place where the run stands, not that of its last snapshot: from there an operator goes on or looks back.
    place = None if view.run is None else f"{view.run_id}@{view.run.seq}"
    return {**plain_failure(error, codec), "checkpoint": place, "requires_operator": stopped}


def _op(op: OpState, codec: ValueCodec) -> dict[str, Any]:
    kind = "parked" if op.phase is OpPhase.PARKED else op.kind
    item: dict[str, Any] = {"kind": kind, "id": op.id, "name": op.name, "since": iso(op.since)}
    if op.phase is OpPhase.HELD:
        item["state"] = "held"
    elif op.kind in WORKED_ON and kind != "parked":
        item["state"] = op.phase.value
    if op.due is not None:
        item["due"] = iso(op.due)
    if op.kind == "request":
        item["effect"] = op.name
    if op.kind in WORKED_ON:
        item |= {"attempt": op.attempt, "key": op.key, "may_have_happened": op.maybe}
    if op.kind == "interrupt":
        item["question"] = None if op.args is None else codec.to_plain(op.args)
        item["answer"] = op.ref
    if op.error is not None:
        item |= {"class": op.error.kind, "code": op.error.code, "message": op.error.message}
    return item
