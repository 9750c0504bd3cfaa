"""The errors of `streams`, sorted by what the person or the code that catches one must do.

StreamsError                 everything that `streams` raises on purpose
├── OpError                  an op of a workflow did not succeed; raised where workflow code awaits it
│   ├── TaskFailed           a task failed for good
│   ├── RequestFailed        a request failed for good
│   ├── ChildFailed          a child run failed
│   ├── TimedOut             the time given with `timeout` ran out
│   └── Withdrawn            the op was taken back before it had an outcome
├── Fail                     raised by user code: this will never succeed
├── TryAgain                 raised by a subscriber: surely not done, and worth another try
├── RunFailed                the result was asked for of a run that has failed
├── RunCancelled             the result was asked for of a run that was cancelled
├── Refused                  a request was understood and turned down; the run is unharmed
│   ├── RunTerminal          the run has ended
│   ├── UnknownRun           no run has this id
│   ├── InputConflict        the id is in use with another input
│   ├── NoSuchInterrupt      no open interrupt fits the answer
│   └── ResultExpired        the run has ended, and its result is not kept any more
├── ValueRefused             a user value cannot be stored
│   ├── ValueTooLarge
│   └── ValueNotStorable
├── ValueUnreadable          stored bytes cannot be turned back into a value
├── WireError                bytes that are no record of ours
├── UsageError               a wrong flag, address or setting: one line for the user
├── LedgerError              the ledger of a subscriber did not do what was asked
│   ├── LedgerUnavailable    ask again later; what was asked for is safe to ask for twice
│   └── LedgerMismatch       its tables are not what this release knows: stop
└── LogError                 the log did not do what was asked
    ├── LogUnavailable       try again within the deadline
    ├── CommitAborted        nothing was written: drop the decisions and redo them
    ├── SendRefused          one record can never be written: its run alone must end clearly
    ├── Fenced               another owner took over: drop the memory of the partition
    ├── InDoubt              the outcome is unknown: drop the memory and read the log
    └── LogDamaged           the log is not what it should be: stop
Cancelled(BaseException)     thrown once into a workflow whose run is cancelled
Evicted(BaseException)       the run left this worker's memory; nothing of it may go on here
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

__all__ = [
    "Cancelled",
    "ChildFailed",
    "CommitAborted",
    "Evicted",
    "Fail",
    "Fenced",
    "InDoubt",
    "InputConflict",
    "LedgerError",
    "LedgerMismatch",
    "LedgerUnavailable",
    "LogDamaged",
    "LogError",
    "LogUnavailable",
    "NoSuchInterrupt",
    "OpError",
    "Refused",
    "RequestFailed",
    "ResultExpired",
    "RunCancelled",
    "RunFailed",
    "RunTerminal",
    "SendRefused",
    "StreamsError",
    "TaskFailed",
    "TimedOut",
    "TryAgain",
    "UnknownRun",
    "UsageError",
    "ValueNotStorable",
    "ValueRefused",
    "ValueTooLarge",
    "ValueUnreadable",
    "WireError",
    "Withdrawn",
]


class StreamsError(Exception):
    """The root of every error that `streams` raises on purpose."""


class OpError(StreamsError):
    """An op ended without a value. `code` is stable and meant for `if`; `details` is stored data."""

    def __init__(self, code: str, message: str = "", details: Any = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.details = details


class TaskFailed(OpError):
    """A task failed for good: it raised `Fail`, used up its retries, or an operator skipped it."""


class RequestFailed(OpError):
    """A request failed for good: its subscriber said so, its retries are used up, or an operator skipped it.

    `kind` is the class of the error. "unknown": the effect may have been carried out all the same. "terminal" and
    "retryable": it was not.
    """

    def __init__(self, code: str, message: str = "", details: Any = None, *, kind: str = "terminal") -> None:
        super().__init__(code, message, details)
        self.kind = kind


class ChildFailed(OpError):
    """A child run failed."""


class TimedOut(OpError):
    """The time given for an op ran out."""


class Withdrawn(OpError):
    """An op was taken back before it had an outcome: it lost in `first`, or the run was cancelled."""


class Fail(StreamsError):
    """Raised by user code: the work failed for good and a retry cannot help.

    In a task it settles the op as failed; in a workflow it fails the run. `details` must be storable.
    """

    def __init__(self, code: str, message: str = "", details: Any = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.details = details


class TryAgain(StreamsError):
    """Raised by a subscriber: the effect was surely not carried out, and is tried again by its retry policy.

    `after`: in how many seconds, or a timedelta, where the other side has said when. Any other exception leaves it
    uncertain.
    """

    def __init__(self, message: str = "", after: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.after = after


class RunFailed(StreamsError):
    """The run whose result was asked for has failed. `code` is stable; `details` is what `Fail` was raised with."""

    def __init__(self, code: str, message: str = "", details: Any = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.details = details


class RunCancelled(StreamsError):
    """The run whose result was asked for was cancelled, so it has none."""


class Refused(StreamsError):
    """A request was turned down. `code` says why; the run it was meant for is unharmed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RunTerminal(Refused):
    """The run has ended; no input changes it any more."""


class UnknownRun(Refused):
    """No run has this id."""


class InputConflict(Refused):
    """The id belongs to a run that was started with another input or workflow."""


class NoSuchInterrupt(Refused):
    """The answer fits no open interrupt."""


class ResultExpired(Refused):
    """The run ended so long ago that its result, or its error, is not kept any more; how it ended is still known."""


class ValueRefused(StreamsError):
    """A user value cannot be stored; `path` leads to the place inside the value."""

    code = "VALUE_NOT_STORABLE"

    def __init__(self, message: str, path: str = "$") -> None:
        super().__init__(f"{message} (at {path})")
        self.message = message
        self.path = path


class ValueTooLarge(ValueRefused):
    """The encoded value is over the limit; store it elsewhere and pass a reference."""

    code = "VALUE_TOO_LARGE"


class ValueNotStorable(ValueRefused):
    """The value, or a part of it, has no form in which it would come back equal."""


class ValueUnreadable(StreamsError):
    """Stored bytes name a type that the app does not know, or do not fit it any more."""


class WireError(StreamsError):
    """Bytes that are no record of ours; the message says what was expected and never prints the payload."""


class UsageError(StreamsError):
    """A wrong flag, address or setting. The message is the one line that the user sees."""


class LedgerError(StreamsError):
    """The ledger of an effect subscriber did not do what was asked."""


class LedgerUnavailable(LedgerError):
    """The ledger is away, locked or going down. Nothing is known of what a write did; asking again is safe."""


class LedgerMismatch(LedgerError):
    """The tables of the ledger are of another version than this release writes, or none of its tables are there."""


class LogError(StreamsError):
    """The log did not do what was asked."""


class LogUnavailable(LogError):
    """The log cannot be reached or is busy; nothing was written; trying again is right."""


class CommitAborted(LogError):
    """The transaction was aborted and nothing of it is visible: redo its inputs if they are still owned."""


class SendRefused(LogError):
    """A record can never be written. `index` is its place among the records of the transaction, or None.

    `others` are the places of more records that are as unwritable; `code` is the error code of runs blocked by it.
    """

    def __init__(
        self, message: str, index: int | None = None, *, others: Sequence[int] = (), code: str = "VALUE_TOO_LARGE"
    ) -> None:
        super().__init__(message)
        self.index = index
        self.others = tuple(others)
        self.code = code


class Fenced(LogError):
    """A newer owner exists: drop the partition's memory, and write nothing more for it."""


class InDoubt(LogError):
    """The commit may have happened: drop the memory, settle the transaction, reload from the log."""


class LogDamaged(LogError):
    """The log contradicts itself or what the caller knows of it: refuse the partition, where one is named."""

    def __init__(self, message: str, partition: int | None = None) -> None:
        super().__init__(message)
        self.partition = partition


class Cancelled(BaseException):
    """Thrown once into every live branch of a cancelled run; clean-up may use ops."""


class Evicted(BaseException):
    """The coroutine was a cache and is being dropped; `finally` blocks run, ops do not."""
