"""A run's state: frozen values that only `evolve` makes, and the life cycles they go through."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from streams.kernel.bodies import Activation, Failure, InputHeld, OpKind, Policy
from streams.kernel.changes import Base
from streams.kernel.vector import Vector

__all__ = [
    "LEGAL_NEXT",
    "REPAIRED",
    "REPAIR_CODES",
    "REPAIR_PENDING",
    "RUN_BYTES_MAX",
    "SEEN_MAX",
    "WORKED_ON",
    "Delivered",
    "InboxItem",
    "Issued",
    "OpPhase",
    "OpState",
    "Phase",
    "Run",
    "Status",
    "blank",
    "is_out",
    "is_result_gone",
    "is_stub",
    "is_terminal",
    "status_of",
    "stub_of",
]

SEEN_MAX = 1_000
"""How many ids of signals and updates a run remembers, to know a repeated one."""

RUN_BYTES_MAX = 700_000
"""Bound of a run's stored values in bytes, below the limit of a record, so that its checkpoint can be written."""

WORKED_ON = frozenset({"task", "request"})
"""Kinds of ops that somebody works on: they have attempts and a key, and once withdrawn they still have an outcome."""

REPAIR_PENDING = "REPAIR_PENDING"
"""Why a run is blocked whose damage was mended, until the commands that have waited for it are sent back."""

REPAIRED = "REPAIRED"
"""Why it is blocked from then on, until a `retry`."""

REPAIR_CODES = frozenset({REPAIR_PENDING, REPAIRED})


class Phase(StrEnum):
    """Where a run stands in its life.

    (none) ──▶ pending ──▶ active ──▶ completed | failed | cancelled
       │                     ▲
       └─────────────────────┘          a pending run can also be cancelled by force
    """

    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Status(StrEnum):
    """What people see of a run; derived from its state by `status_of`.

    pending ──start──▶ running ◀──────▶ waiting
       │                │  ▲  ╲         ╱  ▲
       │                ▼  │   ▼       ▼   │
       │              blocked ◀──▶ cancelling        retry unblocks a blocked run
       │                │   ╲         ╱
       ▼                ▼    ▼       ▼
    cancelled        completed | failed | cancelled  (terminal: nothing leaves them)
    """

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    BLOCKED = "blocked"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
_OPEN = frozenset({Status.RUNNING, Status.WAITING, Status.BLOCKED, Status.CANCELLING})

LEGAL_NEXT: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: _OPEN | _ENDS,
    Status.RUNNING: _OPEN | _ENDS,
    Status.WAITING: _OPEN | _ENDS,
    Status.BLOCKED: _OPEN | _ENDS,
    Status.CANCELLING: frozenset({Status.BLOCKED, Status.CANCELLING}) | _ENDS,
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}


class OpPhase(StrEnum):
    """Where an open op stands.

    timer, interrupt, receive:  waiting ──▶ (settled)
    task:  queued ──slot──▶ running ──▶ (settled)
                              │  ▲
                              │  └── backoff ◀─┐      due
                              ├───────────────┘      a failed or returned attempt
                              └──▶ parked ──retry──▶ running
    request:  waiting ──▶ (settled)                      for a reply: no worker runs it
                │  ▲
                │  └── backoff ◀─┐      due
                ├────────────────┘      a retryable reply, or no reply in time
                └──▶ parked ──retry──▶ waiting           a reply can also settle one in back-off or parked
    any:   ──▶ held, when the outcome arrives at a blocked run; settled when the run goes on. A task or request that is
           withdrawn while no attempt is out is held too, and settled at once where the run is not blocked
    """

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    BACKOFF = "backoff"
    PARKED = "parked"
    HELD = "held"


class OpState(NamedTuple):
    """An open op. `attempt` numbers the starts; `spent` counts those that used up the budget; `asked`: to stop."""

    id: str
    kind: OpKind
    name: str
    args: bytes | None
    hash: bytes
    phase: OpPhase
    since: int
    due: int | None = None
    attempt: int = 0
    spent: int = 0
    epoch: int = 0
    key: str | None = None
    ref: str | None = None
    policy: Policy | None = None
    maybe: bool = False
    asked: bool = False
    error: Failure | None = None
    noted: bytes | None = None


class Delivered(NamedTuple):
    """A journal entry: something reached the code. `kind` is the type of the event; `value` what it brought."""

    kind: str
    op: str | None
    value: bytes | None
    error: Failure | None
    seq: int
    at: int
    code: str


class Issued(NamedTuple):
    """A journal entry: what the code did in answer to the delivery before it."""

    op: str
    kind: str
    name: str
    hash: bytes


class InboxItem(NamedTuple):
    """A signal that no receive has taken yet."""

    number: int
    name: str
    value: bytes


class Run(NamedTuple):
    """The state of a run after event `seq`. User values are encoded bytes throughout."""

    run_id: str
    identity: str
    workflow: str = ""
    version: int = 0
    code: str = ""
    phase: Phase = Phase.PENDING
    seq: int = 0
    at: int = 0
    started_at: int = 0
    epoch: int = 0
    offset: int = -1
    seed: bytes = b""
    input_hash: bytes = b""
    generation: int = 1
    base: Base = ()
    active: tuple[Activation, ...] = ()
    arrived: tuple[str, ...] = ()
    journal: Vector[Delivered | Issued] = Vector()
    ops: Mapping[str, OpState] = {}
    inbox: tuple[InboxItem, ...] = ()
    signals: int = 0
    seen: tuple[str, ...] = ()
    held: tuple[InputHeld, ...] = ()
    cancel_requested: bool = False
    blocked: Failure | None = None
    result: bytes | None = None
    error: Failure | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    parent: str | None = None
    size: int = 0


_BEFORE_THE_END = (Phase.ACTIVE, Phase.PENDING)


def blank(run_id: str, offset: int) -> Run:
    """A run that no event has opened yet. `offset` is that of the command about to open it; it makes the identity."""
    return Run(run_id=run_id, identity=f"{run_id}@{offset}")


def is_out(op: OpState) -> bool:
    """Whether an attempt of the op is under way: a task of this worker, or a request that waits for its reply."""
    return op.phase is OpPhase.RUNNING or (op.kind == "request" and op.phase is OpPhase.WAITING)


def is_terminal(run: Run) -> bool:
    """Whether the run has ended."""
    return run.phase not in _BEFORE_THE_END


def status_of(run: Run) -> Status:
    """The status that people see. A parked op does not change it."""
    if run.phase is not Phase.ACTIVE:
        return Status(run.phase.value)
    if run.blocked is not None:
        return Status.BLOCKED
    if run.cancel_requested:
        return Status.CANCELLING
    busy = any(op.phase in (OpPhase.RUNNING, OpPhase.QUEUED) for op in run.ops.values())
    return Status.RUNNING if busy else Status.WAITING


def stub_of(run: Run) -> Run:
    """What is left of a run whose result is not kept any more: enough to know it again, and to refuse what is late.

    Status, input hash and recent command ids. No event says so: the stub stands where the run stood, at the same seq.
    """
    return run._replace(code="", result=None, error=None, attributes=(), parent=None, size=0)


def is_stub(run: Run) -> bool:
    """Whether a run that has ended holds no more than its stub would."""
    heavy = run.code or run.attributes or run.parent or run.result is not None or run.error is not None
    return is_terminal(run) and not heavy


def is_result_gone(run: Run) -> bool:
    """Whether the run had a result, or an error, that is not kept any more."""
    return (run.phase is Phase.COMPLETED and run.result is None) or (run.phase is Phase.FAILED and run.error is None)
