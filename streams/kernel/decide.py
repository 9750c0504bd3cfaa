"""`decide`: the only place that decides. A state and an input go in; events, and the state after them, come out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

from streams.errors import Refused, ValueRefused, ValueUnreadable
from streams.kernel import bodies as ev
from streams.kernel import commands as cmd
from streams.kernel.attempts import (
    complete_op,
    on_due,
    on_noted,
    on_outcome,
    on_recover,
    on_returned,
    retry_op,
    skip_op,
)
from streams.kernel.changes import UNCHECKED
from streams.kernel.codec import Codec
from streams.kernel.commands import Command
from streams.kernel.definition import Definitions
from streams.kernel.draft import Draft
from streams.kernel.drive import block, cancel_body, conform_answer, deliver, follow, next_signal, unblock
from streams.kernel.driver import Driver
from streams.kernel.events import Event
from streams.kernel.fault import FAULTS, Fault, as_fault, text_of
from streams.kernel.inputs import Due, Env, Input, Noted, Outcome, Returned, SentBack
from streams.kernel.repair import on_sent_back, waits_for_repair
from streams.kernel.replies import has_message_due, keep_late, take_reply
from streams.kernel.run import REPAIR_PENDING, OpPhase, OpState, Phase, Run, is_terminal

__all__ = ["EARLY_INPUTS_MAX", "Decision", "decide", "refuse", "stop_run"]

EARLY_INPUTS_MAX = 100
"""Inputs that a run keeps before it is started."""


class Decision(NamedTuple):
    """The state after the events, and the live coroutine that has seen them. Of no use before they are committed."""

    run: Run
    events: list[Event]
    live: Driver | None


def decide(definitions: Definitions, run: Run, live: Driver | None, input_: Input, env: Env) -> Decision:
    """Decide what `input_` leads to. Pure but for the cached coroutine `live`, which is handed in and out.

    A command always leaves at least one record, so that its sender learns what became of it. After an aborted commit
    the caller closes `live` and goes on from the older `run`.
    """
    draft = _draft(definitions, run, live, input_, env)
    _take(draft, input_)
    return Decision(draft.run, draft.events, draft.live)


def _draft(definitions: Definitions, run: Run, live: Driver | None, input_: Input, env: Env) -> Draft:
    draft = Draft(definitions, run, live, env)
    if isinstance(input_, Command):
        draft.offset = input_.offset
    return draft


def _take(draft: Draft, input_: Input) -> None:
    if isinstance(input_, Command):
        _on_command(draft, input_)
    elif isinstance(input_, Outcome):
        on_outcome(draft, input_)
    elif isinstance(input_, Due):
        on_due(draft, input_)
    elif isinstance(input_, Noted):
        on_noted(draft, input_)
    elif isinstance(input_, Returned):
        on_returned(draft, input_)
    elif isinstance(input_, SentBack):
        on_sent_back(draft)
    else:
        on_recover(draft)


def stop_run(definitions: Definitions, run: Run, input_: Input, env: Env, code: str, message: str) -> Decision:
    """Block the run instead of deciding: what `decide` gave could not be written, or it did not come to an end.

    The input is held, as any input of a blocked run is; a command to a run that is not active is refused. `run` must be
    the state before the input.
    """
    draft = _draft(definitions, run, None, input_, env)
    if run.phase is Phase.ACTIVE:
        block(draft, Fault(code, message))
        if isinstance(input_, Due) and has_message_due(run, input_.op):
            draft.emit(ev.OpParked(input_.op, ev.Failure("code", code, message)))  # else it would be tried for ever
        elif not isinstance(input_, Command) or not isinstance(input_.request, cmd.Retry):
            _take(draft, input_)
    elif isinstance(input_, Command):
        _reject(draft, input_, code, message)
    return Decision(draft.run, draft.events, None)


def refuse(definitions: Definitions, run: Run, command: Command, env: Env, code: str, message: str) -> Decision:
    """Turn a command down instead of deciding: code of the user's types raised something on its value."""
    draft = Draft(definitions, run, None, env)
    draft.offset = command.offset
    _reject(draft, command, code, message)
    return Decision(draft.run, draft.events, None)


def _on_command(draft: Draft, command: Command) -> None:
    mark = draft.mark()
    try:
        _HANDLERS[type(command.request)](draft, command, command.request)
    except Refused as refused:
        draft.take_back(mark)
        _reject(draft, command, refused.code, refused.message)
    except (ValueRefused, ValueUnreadable) as error:
        draft.take_back(mark)
        _reject(draft, command, as_fault(error).code, str(error))
    except Fault as fault:
        draft.roll_back(mark)
        block(draft, fault)
    if not draft.events:
        _reject(draft, command, "NO_EFFECT", "the command changed nothing")


def _reject(draft: Draft, command: Command, code: str, message: str) -> None:
    draft.offset = command.offset  # also behind other events: it is the name of a record without a seq
    draft.emit(ev.CommandRejected(command.type, code, text_of(message), command.command_id))


def _require_open(draft: Draft, command: Command) -> None:
    run = draft.run
    if is_terminal(run):
        raise Refused("RUN_TERMINAL", f"run {run.run_id!r} is {run.phase}; {command.type} has no effect any more")
    if run.seq == 0:
        raise Refused("UNKNOWN_RUN", f"no run {run.run_id!r} exists here; start it first")
    if run.phase is Phase.PENDING:
        raise Refused("UNKNOWN_RUN", f"run {run.run_id!r} has not been started; it only has early input")


# -- start -------------------------------------------------------------------------------------------------------


def _start(draft: Draft, _: Command, request: cmd.Start) -> None:
    run, env = draft.run, draft.env
    if run.phase is not Phase.PENDING:
        raise _known(draft, request)
    definition = draft.definitions.workflow(request.workflow, request.version)
    if definition is not None:
        base, active = definition.base(request.input, env.codec)
        version, code = definition.version, definition.code
    else:
        base, active, version, code = ((UNCHECKED, request.input),), (), request.version or 0, ""
    digest = _digest(env.codec, base)
    seed = _seed(run.identity, env.entropy)
    body = ev.RunStarted(
        request.workflow, version, code, base, active, seed, digest, request.attributes, owner=env.owner
    )
    if run.cancel_requested:
        draft.emit(body, code=code)
        draft.emit(ev.RunCancelled())
        return
    deliver(draft, body)


def _seed(identity: str, entropy: bytes) -> bytes:
    return hashlib.blake2b(identity.encode(), key=entropy[:64], digest_size=16).digest()


def _known(draft: Draft, request: cmd.Start) -> Refused:
    run = draft.run
    if not run.workflow:
        return Refused("RUN_TERMINAL", f"run {run.run_id!r} was cancelled before it was started; choose another run id")
    if request.workflow != run.workflow:
        message = f"run {run.run_id!r} is a run of workflow {run.workflow!r}, not {request.workflow!r}"
        return Refused("INPUT_CONFLICT", message)
    if run.input_hash in _digests(draft, request):
        return Refused("DUPLICATE", f"run {run.run_id!r} was started before with the same input")
    message = f"run {run.run_id!r} was started before with another input; choose another run id"
    return Refused("INPUT_CONFLICT", message)


def _digests(draft: Draft, request: cmd.Start) -> set[bytes]:
    codec = draft.env.codec
    digests = {_digest(codec, ((UNCHECKED, request.input),))}
    definition = draft.definitions.workflow(request.workflow, draft.run.version or None)
    if definition is not None:
        try:
            base, _ = definition.base(request.input, codec)
        except Refused:
            return digests
        digests.add(_digest(codec, base))
    return digests


def _digest(codec: Codec, base: tuple[tuple[str, bytes], ...]) -> bytes:
    """Tells inputs apart, in whatever order or form their fields came. Never change it: runs keep it."""
    parts = (name.encode() + b"\0" + codec.digest(value) for name, value in sorted(base))
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


# -- answers and signals -----------------------------------------------------------------------------------------


def _resume(draft: Draft, command: Command, request: cmd.Resume) -> None:
    known = command.command_id in draft.run.seen  # also after the end, which this very answer may have led to
    if known or any(held.command_id == command.command_id for held in draft.run.held):
        raise Refused("DUPLICATE", f"answer {command.command_id} was received before")
    _require_open(draft, command)
    op = _interrupt(draft.run, request.interrupt)
    held = ev.InputHeld("interrupt.answered", op.id, value=request.value, command_id=command.command_id)
    if draft.run.blocked is not None:
        draft.emit(held)
        return
    try:
        value = conform_answer(draft, op.id, request.value)
    except FAULTS as error:
        draft.drop_live()
        draft.emit(held)
        block(draft, as_fault(error))
        return
    deliver(draft, ev.InterruptAnswered(op.id, value, command.command_id), held)


def _interrupt(run: Run, wanted: str | None) -> OpState:
    open_ = [op for op in run.ops.values() if op.kind == "interrupt" and op.phase is OpPhase.WAITING]
    if wanted is None:
        found = open_
    else:
        found = [op for op in open_ if op.id == wanted] or [op for op in open_ if op.name == wanted]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{op.id} ({op.name})" for op in open_) or "none"
    if found:
        what = "interrupts are open" if wanted is None else f"open interrupts are {wanted!r}"
        raise Refused("NO_SUCH_INTERRUPT", f"several {what}, name one of them by its id: {listed}")
    what = "no interrupt is open" if wanted is None else f"no open interrupt is {wanted!r}, or it was answered before"
    raise Refused("NO_SUCH_INTERRUPT", f"{what}; open interrupts: {listed}")


def _signal(draft: Draft, command: Command, request: cmd.Signal) -> None:
    run = draft.run
    if command.command_id in run.seen:  # also after the end, which this very signal may have led to
        raise Refused("DUPLICATE", f"signal {command.command_id} was received before")
    if is_terminal(run):
        _require_open(draft, command)
    if request.name not in draft.definitions.signals:
        declared = ", ".join(sorted(draft.definitions.signals)) or "none"
        raise Refused("UNKNOWN_SIGNAL", f"no signal {request.name!r} is declared; declared signals: {declared}")
    if run.phase is Phase.PENDING and len(run.inbox) >= EARLY_INPUTS_MAX:
        raise Refused("INBOX_FULL", f"run {run.run_id!r} is not started and holds {EARLY_INPUTS_MAX} early inputs")
    value = draft.env.codec.conform(request.value, draft.definitions.signals[request.name])
    mark = draft.mark()
    draft.emit(ev.SignalReceived(request.name, value, command.command_id))
    try:
        draft.check_size()
    except Fault as fault:
        draft.roll_back(mark)
        raise Refused("INBOX_FULL", fault.message) from fault
    if draft.run.phase is Phase.ACTIVE and draft.run.blocked is None and next_signal(draft) is not None:
        follow(draft)


# -- cancel ------------------------------------------------------------------------------------------------------


def _cancel(draft: Draft, command: Command, request: cmd.Cancel) -> None:
    run = draft.run
    if is_terminal(run):
        _require_open(draft, command)
    if request.force:
        draft.emit(ev.CancelRequested(force=True, command_id=command.command_id))
        draft.emit(ev.RunCancelled(forced=True))
        draft.drop_live()
        return
    if run.cancel_requested or any(held.delivery == "cancel.requested" for held in run.held):
        raise Refused("DUPLICATE", f"run {run.run_id!r} is being cancelled already; --force ends it without clean-up")
    if run.phase is Phase.PENDING:
        draft.emit(ev.CancelRequested(force=False, command_id=command.command_id))
        return
    deliver(draft, cancel_body(draft, command.command_id))


# -- repair ------------------------------------------------------------------------------------------------------


def _retry(draft: Draft, command: Command, request: cmd.Retry) -> None:
    _require_open(draft, command)
    blocked = draft.run.blocked
    if blocked is not None and blocked.code == REPAIR_PENDING:
        message = f"run {command.run_id!r} has just been repaired, and its commands are being sent back; wait for that"
        raise Refused(REPAIR_PENDING, message)
    if blocked is not None and request.op is None:
        if waits_for_repair(draft.run):
            on_recover(draft)  # first: what it settles is held, and delivered with the rest
        unblock(draft, command.operator)
    else:
        retry_op(draft, request.op)


def _skip(draft: Draft, command: Command, request: cmd.Skip) -> None:
    _require_open(draft, command)
    skip_op(draft, request.op, command.operator)


def _complete(draft: Draft, command: Command, request: cmd.Complete) -> None:
    _require_open(draft, command)
    complete_op(draft, request.op, request.value, command.operator)


def _reply(draft: Draft, command: Command, request: cmd.Reply) -> None:
    try:
        if draft.run.phase is not Phase.ACTIVE:
            _require_open(draft, command)
        take_reply(draft, request)
    except Refused as refused:
        _reject(draft, command, refused.code, refused.message)
        if refused.code != "REPLY_INVALID":  # that one is not late: a better one may come
            draft.offset = command.offset
            keep_late(draft, request)
            draft.offset = None


def _repair(draft: Draft, command: Command, _: cmd.Repair) -> None:
    _require_open(draft, command)
    raise Refused("NOT_DAMAGED", f"run {command.run_id!r} is not damaged as its owner has it; nothing was changed")


def _unsupported(_: Draft, __: Command, request: cmd.Unsupported) -> None:
    raise Refused("NOT_SUPPORTED", f"command {request.type!r} is not supported by this version of streams")


_HANDLERS: dict[type, Callable[[Draft, Command, Any], None]] = {
    cmd.Start: _start,
    cmd.Resume: _resume,
    cmd.Signal: _signal,
    cmd.Cancel: _cancel,
    cmd.Retry: _retry,
    cmd.Skip: _skip,
    cmd.Complete: _complete,
    cmd.Reply: _reply,
    cmd.Repair: _repair,
    cmd.Unsupported: _unsupported,
}
