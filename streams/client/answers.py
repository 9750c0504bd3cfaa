"""What the events of a run say to those who wait: was a command taken, and how has the run ended."""

from __future__ import annotations

from datetime import UTC, datetime

from streams.client.fold import RunView, opened_at
from streams.client.reading import StoredEvent
from streams.errors import InputConflict, NoSuchInterrupt, Refused, ResultExpired, RunTerminal, UnknownRun
from streams.kernel import bodies as ev
from streams.kernel.bodies import Failure
from streams.kernel.events import TYPES
from streams.kernel.run import Phase, is_result_gone, is_terminal

__all__ = [
    "END_MARKS",
    "START_MARKS",
    "End",
    "end_after",
    "end_of_started",
    "end_of_view",
    "refusal",
    "verdict",
]

_CLASSES: dict[str, type[Refused]] = {
    "INPUT_CONFLICT": InputConflict,
    "NO_SUCH_INTERRUPT": NoSuchInterrupt,
    "RUN_TERMINAL": RunTerminal,
    "UNKNOWN_RUN": UnknownRun,
}

End = ev.RunCompleted | ev.RunFailed | ev.RunCancelled
_ENDS = (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)


def _marks(*bodies: type) -> tuple[bytes, ...]:
    """The families of such events, as their encoded form holds them: what has none of them need not be decoded.

    A few events too many are decoded for it, but two short words are found five times as fast as six long ones.
    """
    return tuple(sorted({TYPES[body].partition(".")[0].encode() + b"." for body in bodies}))


END_MARKS = _marks(*_ENDS)
START_MARKS = (*END_MARKS, *_marks(ev.RunStarted, ev.RunOwned, ev.CommandRejected))
"""What a start leads to first is one of the last three; then come the ends."""


def refusal(code: str, message: str) -> Refused:
    """The error that stands for a refused command."""
    return _CLASSES.get(code, Refused)(code, message)


def verdict(stored: StoredEvent, offset: int) -> bool | None:
    """Whether the command at `offset` changed anything; None where this event does not answer it.

    The first event that a command leads to carries its offset, and so does the record of a refusal, a duplicate or a
    dead letter. Raises `Refused`; False stands for a command that was known before.
    """
    event = stored.event
    if event.offset != offset:
        return None
    if not isinstance(event.body, ev.CommandRejected):
        return True
    if event.body.code == "DUPLICATE":
        return False
    raise refusal(event.body.code, event.body.message)


def end_of_view(view: RunView) -> End | None:
    """How the run has ended, if it has. Raises `ResultExpired` where only that it has ended is still known."""
    run = view.run
    if run is None or not is_terminal(run):
        return None
    if is_result_gone(run):
        what = "result" if run.phase is Phase.COMPLETED else "error"
        at = datetime.fromtimestamp(run.at / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        message = (
            f"run {view.run_id!r} {run.phase} on {at}, and its {what} is not kept any more; `streams history "
            f"{view.run_id}` shows it for as long as the events are kept"
        )
        raise ResultExpired("RESULT_EXPIRED", message)
    if run.phase is Phase.COMPLETED:
        return ev.RunCompleted(run.result or b"", run.cancel_requested)
    if run.phase is Phase.FAILED:
        return ev.RunFailed(run.error or Failure("terminal", "UNKNOWN", ""), run.cancel_requested)
    return ev.RunCancelled()


def end_after(stored: StoredEvent, identity: str) -> End | None:
    """The end of this run, or of a later one of the same id."""
    event = stored.event
    if event.seq is None or opened_at(event.identity) < opened_at(identity):
        return None
    return event.body if isinstance(event.body, _ENDS) else None


def end_of_started(stored: StoredEvent, offset: int, seen: list[bool]) -> End | bool | None:
    """The end of the run that the start command at `offset` opened; False where it was known before.

    `seen` remembers whether the answer to the command has come: an end before it is that of an older run.
    """
    known = verdict(stored, offset)
    if known is False:
        return False
    if known:
        seen.append(True)
    return stored.event.body if seen and isinstance(stored.event.body, _ENDS) else None
