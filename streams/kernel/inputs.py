"""What `decide` is given besides commands: what happened on this worker, and the circumstances of the decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streams.kernel.bodies import Failure
from streams.kernel.codec import Codec
from streams.kernel.commands import Command

__all__ = ["Due", "Env", "Input", "Noted", "Outcome", "Recover", "Returned", "SentBack"]


class Outcome(NamedTuple):
    """An attempt ended: with an encoded value, or with a failure."""

    op: str
    attempt: int
    value: bytes | None
    failure: Failure | None = None


class Due(NamedTuple):
    """The time of an op has come: a timer, an interrupt's time-out, a back-off, or a slot for a queued task."""

    op: str


class Returned(NamedTuple):
    """A graceful stop broke off an attempt that was running."""

    op: str
    attempt: int
    reason: str


class Noted(NamedTuple):
    """A running attempt left a note: an outside id, progress."""

    op: str
    attempt: int
    details: bytes


class Recover(NamedTuple):
    """The run was restored: whatever attempt the log shows as running is running no more."""


class SentBack(NamedTuple):
    """The commands that have waited for the repair of a damaged run are in the log again."""


Input = Command | Outcome | Due | Noted | Returned | Recover | SentBack


class Env(NamedTuple):
    """Time in microseconds since the epoch, the owner's epoch and name, and how many tasks each pool has room for.

    `entropy` goes into the seed of new runs.
    """

    now: int
    epoch: int
    owner: str
    codec: Codec
    slots: Mapping[str, int]
    entropy: bytes = b""
