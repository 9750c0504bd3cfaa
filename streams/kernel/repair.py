"""Repair of a run that cannot be folded: a correcting event takes the place of what is damaged, and history stays."""

from __future__ import annotations

import json

from streams.errors import Refused
from streams.kernel.bodies import Failure, RunBlocked, RunRepaired
from streams.kernel.commands import Command, Repair
from streams.kernel.draft import Draft
from streams.kernel.events import Event
from streams.kernel.evolve import evolve
from streams.kernel.restate import changes_of, run_of
from streams.kernel.run import REPAIR_CODES, REPAIR_PENDING, REPAIRED, RUN_BYTES_MAX, Phase, Run

__all__ = ["on_sent_back", "order_of", "repair", "waits_for_repair"]

#   damaged ──repair──▶ blocked REPAIR_PENDING ──its commands are sent back──▶ blocked REPAIRED ──retry──▶ goes on
#
# The first arrow is `run.repaired`; the second is a transaction of its own with the commands that have waited among the
# dead letters; the `retry` goes with them, unless an operator is to send it. What ran is recovered by the retry: until
# then nothing of the run begins.


def repair(run: Run, command: Command, request: Repair, now: int, epoch: int) -> tuple[Run, Event]:
    """The event that mends a damaged run, and the state after it.

    `run` is what its owner knows: the last identity and the highest seq that were seen. Raises `Refused`.
    """
    known = not run.identity.endswith("@?")
    if request.seq < run.seq or (known and request.identity != run.identity):
        message = (
            f"run {run.run_id!r} has moved on: event {run.seq} of {run.identity} was seen, and the repair was made for "
            f"{request.seq} of {request.identity}; look at it again"
        )
        raise Refused("REPAIR_STALE", message)
    state = _checked(command, request)
    if state.phase is Phase.ACTIVE:
        order = json.dumps({"operator": command.operator, "parked": request.parked or state.blocked is not None})
        text = f"repaired by {command.operator or 'an operator'}: {request.reason}; its commands are being sent back"
        state = state._replace(blocked=Failure("state", REPAIR_PENDING, text, order.encode()))
    body = RunRepaired(changes_of(state), command.operator, request.reason)
    at = max(now, run.at, state.at)
    event = Event(run.run_id, request.identity, request.seq + 1, at, None, command.offset, epoch, body)
    return evolve(run._replace(identity=request.identity), event), event


def _checked(command: Command, request: Repair) -> Run:
    if not request.reason.strip():
        raise Refused("REPAIR_INVALID", "a repair needs a reason, for whoever reads the history")
    try:
        state = run_of(command.run_id, request.identity, request.changes)
    except ValueError as error:
        raise Refused("REPAIR_INVALID", str(error)) from error
    if state.offset >= command.offset or (state.phase is Phase.ACTIVE and not state.workflow):
        raise Refused("REPAIR_INVALID", f"the state of the repair is none that run {command.run_id!r} can have had")
    if state.size > RUN_BYTES_MAX:
        message = f"the repaired state holds {state.size} bytes, over the limit of {RUN_BYTES_MAX}"
        raise Refused("VALUE_TOO_LARGE", message)
    return state


def on_sent_back(draft: Draft) -> None:
    """The commands that have waited are in the log again: from here on a `retry` lets the run go on."""
    blocked = draft.run.blocked
    if blocked is not None and blocked.code == REPAIR_PENDING:
        _, parked = order_of(draft.run)
        how = f"`streams retry {draft.run.run_id}` lets it go on" if parked else "it goes on by itself"
        text = blocked.message.removesuffix("its commands are being sent back")
        draft.emit(RunBlocked(Failure("state", REPAIRED, text + how)))


def order_of(run: Run) -> tuple[str, bool]:
    """Who has repaired the run, and whether it stays parked, while its commands are being sent back."""
    details = json.loads((run.blocked.details if run.blocked is not None else None) or b"{}")
    return str(details.get("operator", "")), bool(details.get("parked", True))


def waits_for_repair(run: Run) -> bool:
    """Whether nothing of the run may begin, because its repair is not over."""
    return run.blocked is not None and run.blocked.code in REPAIR_CODES
