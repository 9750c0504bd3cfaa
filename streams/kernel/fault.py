"""Why a run is blocked: faults of code, told in words that say what the code did and what it should do."""

from __future__ import annotations

import hashlib

from streams.errors import OpError, ValueRefused, ValueUnreadable
from streams.kernel.bodies import EffectEmitted, OpScheduled, OpWithdrawn
from streams.kernel.run import Delivered, Issued

__all__ = [
    "FAULTS",
    "Command",
    "Fault",
    "as_fault",
    "bug",
    "difference",
    "foreign",
    "hash_of",
    "is_withdrawal",
    "mark_of",
    "text_of",
]

_TEXT_CHARS_MAX = 2_000

Command = OpScheduled | EffectEmitted | OpWithdrawn
"""What code can do in answer to a delivery."""


class Fault(BaseException):
    """The code cannot go on: the run is blocked with this code and message, and nothing of the drive is kept.

    No Exception, because `except Exception` in workflow code must not swallow it: a loop would never end.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


FAULTS = (Fault, ValueRefused, ValueUnreadable)
"""What ends a drive; `as_fault` tells why."""


def as_fault(error: BaseException) -> Fault:
    """The fault that one of `FAULTS` stands for."""
    if isinstance(error, Fault):
        return error
    return Fault(error.code if isinstance(error, ValueRefused) else "VALUE_UNREADABLE", str(error))


def hash_of(data: bytes) -> bytes:
    """The 8-byte hash by which a replay recognises arguments."""
    return hashlib.blake2b(data, digest_size=8).digest()


def mark_of(command: Command) -> Issued:
    """The journal's form of a command."""
    if isinstance(command, OpScheduled):
        return Issued(command.op, command.kind, command.name, command.hash)
    if isinstance(command, EffectEmitted):
        return Issued(command.op, "emit", command.effect, command.hash)
    return Issued(command.op, "withdraw", "", b"")


def difference(entry: Delivered, expected: list[Issued], issued: list[Issued]) -> Fault | None:
    """The first place where a replay did something else than the journal says; None where there is none."""
    if issued == expected:
        return None
    place = next(i for i in range(len(issued) + 1) if issued[i : i + 1] != expected[i : i + 1])
    was, now = (next(iter(side[place : place + 1]), None) for side in (expected, issued))
    message = (
        f"after {entry.kind} (event {entry.seq}, code {entry.code or '?'}) the recorded run did "
        f"{_describe(was)}, the code now does {_describe(now)}"
    )
    return Fault("NON_DETERMINISM", message)


def foreign(awaited: object) -> Fault:
    """The fault of a workflow that awaits something that is none of its ops."""
    message = (
        f"the workflow awaits {type(awaited).__name__!r}, which is none of its ops. Workflow code awaits only "
        "what ctx gives: use ctx.sleep, ctx.all, ctx.timeout; put other async work into an app.task"
    )
    return Fault("WORKFLOW_BUG", message)


def _describe(issued: Issued | None) -> str:
    if issued is None:
        return "nothing more"
    name = f" {issued.name!r}" if issued.name else ""
    content = f" (arguments {issued.hash.hex()})" if issued.hash else ""
    return f"{issued.kind}{name} as op {issued.op}{content}"


def is_withdrawal(error: BaseException) -> bool:
    """Whether an error only says that an op was withdrawn."""
    return isinstance(error, OpError) and error.code == "WITHDRAWN"


def bug(error: BaseException) -> str:
    """What a workflow did wrong when it raised `error`, with the place and, for asyncio calls, the cure."""
    where = _place(error)
    text = f"the workflow raised {type(error).__name__}: {text_of(error)}{where}"
    if "no running event loop" in text or "no current event loop" in text:
        text += (
            ". Workflow code runs outside asyncio: use ctx.sleep for asyncio.sleep, ctx.all for gather, ctx.spawn for "
            "create_task, ctx.timeout for timeout, and put other async work into an app.task"
        )
    return text


def text_of(error: object) -> str:
    """The text of an exception or of what stands for its message, as every log can hold it."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - a user's __str__ may raise anything, and the run must still say what happened
        return "(its message cannot be shown)"
    return text[:_TEXT_CHARS_MAX].encode("utf-8", "backslashreplace").decode()


def _place(error: BaseException) -> str:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    return f" (line {traceback.tb_lineno} of {traceback.tb_frame.f_code.co_name})"
