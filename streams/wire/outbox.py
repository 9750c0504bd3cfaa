"""Which message of the outbox an event leads to: one for an effect, and one for each attempt of a request."""

from __future__ import annotations

from streams.kernel import bodies as ev
from streams.kernel.events import Event
from streams.kernel.run import Run
from streams.wire.messages import EffectMessage

__all__ = ["message_of"]


def message_of(event: Event, run: Run | None) -> EffectMessage | None:
    """The message that leaves with an event; None for most.

    `run` is the state after it. Without one, the workflow is not known, nor what a later attempt of a request says.
    The id and the key are the same for each attempt of a request, so that it is carried out once; the attempt and the
    epoch, which a reply repeats, are those of the event.
    """
    body = event.body
    if isinstance(body, ev.EffectEmitted):
        return _message(event, run, body.op, body.effect, body.payload, body.key, 0)
    if isinstance(body, ev.OpScheduled) and body.kind == "request":
        return _message(event, run, body.op, body.name, body.args, body.key, body.attempt)
    if isinstance(body, ev.AttemptStarted):
        op = None if run is None else run.ops.get(body.op)
        if op is not None and op.kind == "request":
            return _message(event, run, op.id, op.name, op.args, op.key, body.attempt)
    return None


def _message(
    event: Event, run: Run | None, op: str, effect: str, payload: bytes | None, key: str | None, attempt: int
) -> EffectMessage:
    return EffectMessage(
        effect_id=f"{event.identity}/{op}",
        run_id=event.run_id,
        effect=effect,
        payload=payload or b"",
        idempotency_key=key or "",
        epoch=event.epoch,
        at=event.at,
        workflow="" if run is None else run.workflow,
        version=0 if run is None else run.version,
        op=op,
        attempt=attempt,
    )
