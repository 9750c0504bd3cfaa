"""Commands: requests to a run. They come from outside, so every field is untrusted until `decide` has looked at it."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.bodies import Change

__all__ = [
    "COMMAND_TYPES",
    "Cancel",
    "Command",
    "Complete",
    "Repair",
    "Reply",
    "Request",
    "Resume",
    "Retry",
    "Signal",
    "Skip",
    "Start",
    "Unsupported",
]


class Start(NamedTuple):
    workflow: str
    input: bytes
    version: int | None = None
    attributes: tuple[tuple[str, str], ...] = ()


class Resume(NamedTuple):
    value: bytes
    interrupt: str | None = None


class Signal(NamedTuple):
    name: str
    value: bytes


class Cancel(NamedTuple):
    force: bool = False


class Retry(NamedTuple):
    op: str | None = None


class Skip(NamedTuple):
    op: str


class Complete(NamedTuple):
    op: str
    value: bytes


class Reply(NamedTuple):
    op: str
    effect_id: str
    attempt: int
    epoch: int
    value: bytes | None = None
    error: tuple[str, str, str] | None = None


class Repair(NamedTuple):
    """A whole state for a damaged run, made for the run of this identity with `seq` as the highest that was seen.

    `parked`: the run stays blocked afterwards, until an operator sends a retry.
    """

    identity: str
    seq: int
    changes: tuple[Change, ...]
    reason: str
    parked: bool = False


class Unsupported(NamedTuple):
    """A command that a later version of `streams` defines: update, fork, migrate, rewind. Refused by name."""

    type: str


Request = Start | Resume | Signal | Cancel | Retry | Skip | Complete | Reply | Repair | Unsupported

COMMAND_TYPES: dict[type, str] = {
    Start: "start",
    Resume: "resume",
    Signal: "signal",
    Cancel: "cancel",
    Retry: "retry",
    Skip: "skip",
    Complete: "complete",
    Reply: "reply",
    Repair: "repair",
}


class Command(NamedTuple):
    """A request with its place in the log. `command_id` is the sender's, or topic id/partition/offset."""

    run_id: str
    request: Request
    command_id: str
    offset: int
    operator: str = ""

    @property
    def type(self) -> str:
        """The wire name of the request."""
        if isinstance(self.request, Unsupported):
            return self.request.type
        return COMMAND_TYPES[type(self.request)]
