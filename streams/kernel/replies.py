"""Replies to requests: which of them count, and what is kept of those that do not."""

from __future__ import annotations

from streams.errors import Refused
from streams.kernel import bodies as ev
from streams.kernel.attempts import complete, fail_request
from streams.kernel.commands import Reply
from streams.kernel.draft import Draft
from streams.kernel.drive import conform_reply
from streams.kernel.fault import text_of
from streams.kernel.run import Delivered, OpPhase, OpState, Run, is_out

__all__ = ["CLASSES", "has_message_due", "keep_late", "take_reply"]

CLASSES = ("retryable", "terminal", "unknown")
"""What the class of an error reply may be: surely not done, never will be, may have been done."""


def take_reply(draft: Draft, reply: Reply) -> None:
    """Let a reply settle its request, or fail the attempt. Raises `Refused` for one that does not count.

    A result or a terminal error counts as long as the op is open, also in back-off and parked: it is the last word on
    the attempt. A retryable error counts while the attempt is out, and an unknown one until the op is parked.
    """
    op = _addressed(draft.run, reply)
    if reply.error is None:
        complete(draft, op, _fitting(draft, op, reply.value or b""))
        return
    kind, code, message = reply.error
    if kind not in CLASSES:
        text = f"the class of an error reply is one of {', '.join(CLASSES)}, not {kind!r}; op {op.id} stays open"
        raise Refused("REPLY_INVALID", text)
    is_news = is_out(op) or kind == "terminal" or (kind == "unknown" and op.phase is OpPhase.BACKOFF)
    if not is_news:
        code_now = "" if op.error is None else f" ({op.error.code})"
        text = f"attempt {op.attempt} of op {op.id} has failed already{code_now}"
        raise Refused("DUPLICATE", f"{text}; an error of class {kind} adds nothing to that")
    fail_request(draft, op, ev.Failure(kind, code, text_of(message)), replied=True)


def keep_late(draft: Draft, reply: Reply) -> None:
    """Keep what a reply that does not count has said, where the run has, or may have had, its op and attempt."""
    run = draft.run
    op = run.ops.get(reply.op)
    if reply.effect_id != f"{run.identity}/{reply.op}" or (op is not None and op.kind != "request"):
        return
    failure = None
    if reply.error is not None:
        kind, code, message = reply.error
        failure = ev.Failure(kind, code, text_of(message))
    draft.emit(ev.OutcomeLate(reply.op, reply.attempt, reply.value, failure))


def has_message_due(run: Run, id_: str) -> bool:
    """Whether the next attempt of a request waits for its time, which sends a message."""
    op = run.ops.get(id_)
    return op is not None and op.kind == "request" and op.phase is OpPhase.BACKOFF


def _addressed(run: Run, reply: Reply) -> OpState:
    """The request whose current attempt it answers. Raises `Refused` that says what is expected."""
    op = run.ops.get(reply.op)
    if op is None and any(isinstance(entry, Delivered) and entry.op == reply.op for entry in run.journal):
        raise Refused("DUPLICATE", f"op {reply.op!r} has its outcome already; another one changes nothing")
    if op is None or op.kind != "request":
        open_ = ", ".join(f"{op.id} ({op.name})" for op in run.ops.values() if op.kind == "request") or "none"
        what = "is not open" if op is None else f"is a {op.kind}, which takes no reply"
        raise Refused("NO_SUCH_OP", f"op {reply.op!r} {what}; requests that wait for a reply: {open_}")
    effect_id = f"{run.identity}/{op.id}"
    if (reply.effect_id, reply.attempt, reply.epoch) != (effect_id, op.attempt, op.epoch):
        told = f"effect {reply.effect_id!r}, attempt {reply.attempt} of epoch {reply.epoch}"
        wanted = f"effect {effect_id!r}, attempt {op.attempt} of epoch {op.epoch}"
        text = f"the reply is for {told}; op {op.id} waits for {wanted}. Copy all three from the message of the effect"
        raise Refused("STALE_REPLY", text)
    if op.phase is OpPhase.HELD:
        raise Refused("DUPLICATE", f"op {op.id} has its outcome already, which is kept until the run goes on")
    return op


def _fitting(draft: Draft, op: OpState, value: bytes) -> bytes:
    try:
        return conform_reply(draft, op.name, value)
    except Refused as refused:
        text = f"the value is no reply to effect {op.name!r}: {refused.message}; op {op.id} stays open"
        raise Refused("REPLY_INVALID", text) from refused
