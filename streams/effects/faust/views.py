"""What a live view keeps of each run: the fold of its events, less what only the engine needs."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from faust.serializers import codecs

from streams.kernel import bodies as ev
from streams.kernel.bodies import Failure
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.run import OpPhase, OpState, Run, status_of
from streams.kernel.vector import Vector
from streams.wire.checkpoints import Damaged, decode_checkpoint, encode_checkpoint
from streams.wire.values import ValueCodec

__all__ = ["INCOMPLETE", "View", "ViewCodec", "fold", "shown", "status"]

INCOMPLETE = "incomplete"
"""Stands for the status of a run whose events cannot be folded to their end."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEAD = struct.Struct(">iqI")


class View(NamedTuple):
    """A run as the view knows it, after the event at `offset` of this partition of the events.

    `trouble` says why the fold stopped; the run is then as it was before. Without one the view is right.
    """

    run: Run
    partition: int
    offset: int
    trouble: str = ""


def fold(view: View | None, event: Event, partition: int, offset: int) -> View | None:
    """The view after an event; None where the run is not kept any more.

    Idempotent: what comes again, be it the same record or a copy of it elsewhere in the topic, is known by the run's
    identity and seq and changes nothing. A run id that is used again, long after the first run has expired, has
    another identity and begins anew.
    """
    if event.seq is None:
        return view
    if view is None or (event.identity != view.run.identity and offset > view.offset):
        view = View(Run(event.run_id, event.identity), partition, -1)
    elif event.identity != view.run.identity or event.seq <= view.run.seq:
        return view
    if isinstance(event.body, ev.RunExpired):
        return None
    try:
        run = evolve(view.run, _without_state(event))
    except ValueError as error:  # a gap, or an event of a newer release: the next repair may mend it
        return view._replace(offset=offset, trouble=view.trouble or str(error))
    return View(_slim(run), partition, offset)


def _without_state(event: Event) -> Event:
    """State of graphs and arguments can be long, would be written with each event, and is shown nowhere."""
    if isinstance(event.body, ev.RunStarted):
        return event._replace(body=event.body._replace(base=(), active=()))
    if isinstance(event.body, ev.StateAdvanced):
        return event._replace(body=event.body._replace(changes=(), active=()))
    return event


def _slim(run: Run) -> Run:
    return run._replace(
        journal=Vector(),
        base=(),
        active=(),
        seed=b"",
        seen=(),
        size=0,
        ops={id_: _slim_op(op) for id_, op in run.ops.items()},
        inbox=tuple(item._replace(value=b"") for item in run.inbox),
        held=tuple(item._replace(value=None) for item in run.held),
    )


def _slim_op(op: OpState) -> OpState:
    """The question of an interrupt is what people look for; other arguments are not shown."""
    return op._replace(args=op.args if op.kind == "interrupt" else None, policy=None, noted=None)


def status(view: View) -> str:
    """What people see: the status of the run, or that it is not known to its end."""
    return INCOMPLETE if view.trouble else status_of(view.run).value


def shown(view: View, codec: ValueCodec) -> dict[str, Any]:
    """The run as one plain object; the fields have the names that `streams show --json` gives them."""
    run = view.run
    parked = any(op.phase is OpPhase.PARKED for op in run.ops.values())
    error = run.blocked or run.error
    return {
        "run_id": run.run_id,
        "workflow": run.workflow or None,
        "version": run.version or None,
        "status": status(view),
        "attention": parked or run.blocked is not None or bool(view.trouble),
        "seq": run.seq,
        "result": None if run.result is None else codec.to_plain(run.result),
        "error": None if error is None else _failure(error),
        "waiting": [_waiting(op, codec) for op in run.ops.values()],
        "attributes": dict(run.attributes),
        "partition": view.partition,
        "epoch": run.epoch,
        "started_at": _iso(run.started_at),
        "changed_at": _iso(run.at),
        "cancel_requested": run.cancel_requested,
        "trouble": view.trouble or None,
    }


def _failure(error: Failure) -> dict[str, Any]:
    return {"class": error.kind, "code": error.code, "message": error.message}


def _waiting(op: OpState, codec: ValueCodec) -> dict[str, Any]:
    kind = "parked" if op.phase is OpPhase.PARKED else op.kind
    found: dict[str, Any] = {"kind": kind, "id": op.id, "name": op.name, "since": _iso(op.since)}
    if op.kind == "interrupt":
        found["question"] = None if op.args is None else codec.to_plain(op.args)
    if op.due is not None:
        found["due"] = _iso(op.due)
    return found


def _iso(us: int) -> str | None:
    return (
        (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds").replace("+00:00", "Z") if us else None
    )


class ViewCodec(codecs.Codec):
    """Views in the changelog of their table: place, trouble, and the run as a checkpoint of the engine's form."""

    def _dumps(self, s: Any) -> bytes:
        view: View = s
        trouble = view.trouble.encode()
        return _HEAD.pack(view.partition, view.offset, len(trouble)) + trouble + encode_checkpoint(view.run)

    def _loads(self, s: bytes) -> Any:
        partition, offset, length = _HEAD.unpack_from(s)
        end = _HEAD.size + length
        run = decode_checkpoint(s[end:])
        assert not isinstance(run, Damaged)
        return View(run, partition, offset, s[_HEAD.size : end].decode())
