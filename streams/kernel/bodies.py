"""The bodies of events. Their fields are a wire format: never change one; add a new one with a default."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = [
    "Activation",
    "AttemptFailed",
    "AttemptNoted",
    "AttemptReturned",
    "AttemptStarted",
    "Body",
    "CancelRequested",
    "Change",
    "CommandRejected",
    "EffectEmitted",
    "Failure",
    "HeldDropped",
    "InputHeld",
    "InterruptAnswered",
    "OpCompleted",
    "OpFailed",
    "OpKind",
    "OpParked",
    "OpScheduled",
    "OpWithdrawn",
    "OutcomeLate",
    "PatchMarked",
    "Policy",
    "RunBlocked",
    "RunCancelled",
    "RunCompleted",
    "RunExpired",
    "RunFailed",
    "RunForked",
    "RunMigrated",
    "RunOwned",
    "RunRepaired",
    "RunRewound",
    "RunStarted",
    "RunUnblocked",
    "SignalReceived",
    "SignalTaken",
    "StateAdvanced",
    "TimerFired",
    "UpdateAnswered",
    "UpdateReceived",
]

OpKind = Literal["task", "timer", "interrupt", "receive", "request", "child"]


class Failure(NamedTuple):
    """An error as stored data. `kind` is the failure class: retryable, terminal, unknown, cancelled, code, state."""

    kind: str
    code: str
    message: str
    details: bytes | None = None


class Policy(NamedTuple):
    """How a task or request is retried and bounded. Times in seconds; `terminal` holds names of exception classes."""

    max_attempts: int
    initial: float
    factor: float
    max_delay: float
    on_exhausted: str
    terminal: tuple[str, ...]
    timeout: float | None


class Activation(NamedTuple):
    """A node that takes part in a super-step; `arg` is the encoded item of a `send`."""

    node: str
    arg: bytes | None = None


class Change(NamedTuple):
    """What a super-step does to one field: `set` it, `extend` a list, or `merge` into a mapping."""

    field: str
    how: str
    value: bytes


class RunStarted(NamedTuple):
    workflow: str
    version: int
    code: str
    base: tuple[tuple[str, bytes], ...]
    active: tuple[Activation, ...]
    seed: bytes
    input_hash: bytes
    attributes: tuple[tuple[str, str], ...] = ()
    parent: str | None = None
    owner: str = ""


class OpScheduled(NamedTuple):
    """`attempt` is 1 where this event is also the start record of a task or request, 0 where a task waits for a slot.

    `ref` names what stands for the arguments, where "state" is the state of this generation; for an interrupt it
    names the type of the answer.
    """

    op: str
    kind: OpKind
    name: str
    args: bytes | None
    hash: bytes
    due: int | None = None
    attempt: int = 0
    key: str | None = None
    ref: str | None = None
    policy: Policy | None = None


class OpCompleted(NamedTuple):
    op: str
    attempt: int
    value: bytes
    operator: str | None = None


class OpFailed(NamedTuple):
    op: str
    attempt: int
    error: Failure


class TimerFired(NamedTuple):
    op: str


class InterruptAnswered(NamedTuple):
    op: str
    value: bytes
    command_id: str | None = None


class SignalTaken(NamedTuple):
    op: str
    number: int


class SignalReceived(NamedTuple):
    name: str
    value: bytes
    command_id: str | None = None


class AttemptStarted(NamedTuple):
    op: str
    attempt: int


class AttemptFailed(NamedTuple):
    """`due` is when the next attempt begins, None where there is none; `maybe`: it may have happened all the same."""

    op: str
    attempt: int
    error: Failure
    due: int | None
    maybe: bool


class AttemptReturned(NamedTuple):
    """A graceful stop gave the attempt back: it does not count, but what it did may have happened."""

    op: str
    attempt: int
    reason: str


class AttemptNoted(NamedTuple):
    op: str
    attempt: int
    details: bytes


class OpParked(NamedTuple):
    op: str
    reason: Failure


class OpWithdrawn(NamedTuple):
    op: str


class EffectEmitted(NamedTuple):
    op: str
    effect: str
    payload: bytes
    key: str
    hash: bytes


class PatchMarked(NamedTuple):
    op: str
    name: str


class CancelRequested(NamedTuple):
    """`withdrawn` lists the ops that ended with the request, so that a replay withdraws the same ones."""

    force: bool
    withdrawn: tuple[str, ...] = ()
    command_id: str | None = None


class RunForked(NamedTuple):
    origin: str
    at_seq: int
    run_id: str
    seed: bytes
    outcomes: tuple[tuple[str, bytes], ...] = ()


class StateAdvanced(NamedTuple):
    changes: tuple[Change, ...]
    active: tuple[Activation, ...]
    arrived: tuple[str, ...] = ()


class RunBlocked(NamedTuple):
    error: Failure


class RunUnblocked(NamedTuple):
    """`version` is set where the run was started before any version of its workflow was loaded."""

    operator: str
    code: str = ""
    version: int = 0


class InputHeld(NamedTuple):
    """A delivery that waits until the run is unblocked. `delivery` is the type of the event it will become."""

    delivery: str
    op: str | None = None
    attempt: int = 0
    value: bytes | None = None
    error: Failure | None = None
    force: bool = False
    command_id: str | None = None


class HeldDropped(NamedTuple):
    reason: str


class UpdateReceived(NamedTuple):
    name: str
    value: bytes
    command_id: str


class UpdateAnswered(NamedTuple):
    command_id: str
    value: bytes | None
    error: Failure | None = None


class RunOwned(NamedTuple):
    owner: str


class RunMigrated(NamedTuple):
    from_version: int
    to_version: int
    changes: tuple[Change, ...] = ()


class RunRewound(NamedTuple):
    to_seq: int
    left: tuple[str, ...] = ()


class RunRepaired(NamedTuple):
    """A run that could not be folded goes on from here. `changes` are its whole state: see `restate`."""

    changes: tuple[Change, ...]
    operator: str
    reason: str


class RunExpired(NamedTuple):
    reason: str


class RunCompleted(NamedTuple):
    result: bytes
    cancel_requested: bool = False


class RunFailed(NamedTuple):
    error: Failure
    cancel_requested: bool = False


class RunCancelled(NamedTuple):
    forced: bool = False


class CommandRejected(NamedTuple):
    """A command that changed nothing: refused, or known already (`code` DUPLICATE). Never folded."""

    command: str
    code: str
    message: str
    command_id: str | None = None


class OutcomeLate(NamedTuple):
    """An outcome that came too late to count; kept for audit. Never folded."""

    op: str
    attempt: int
    value: bytes | None
    error: Failure | None = None


Body = (
    RunStarted
    | OpScheduled
    | OpCompleted
    | OpFailed
    | TimerFired
    | InterruptAnswered
    | SignalTaken
    | SignalReceived
    | AttemptStarted
    | AttemptFailed
    | AttemptReturned
    | AttemptNoted
    | OpParked
    | OpWithdrawn
    | EffectEmitted
    | PatchMarked
    | CancelRequested
    | RunForked
    | StateAdvanced
    | RunBlocked
    | RunUnblocked
    | InputHeld
    | HeldDropped
    | UpdateReceived
    | UpdateAnswered
    | RunOwned
    | RunMigrated
    | RunRewound
    | RunRepaired
    | RunExpired
    | RunCompleted
    | RunFailed
    | RunCancelled
    | CommandRejected
    | OutcomeLate
)
