"""The port every ledger implements: the record of operations done, keyed by business idempotency key.

A ledger stores; what a claim or an outcome leads to is decided in `rules`, the same for all of them. A ledger takes
the entries it is asked for under a lock, calls the rules with its own clock, and writes what they give, in one
transaction for the whole batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from streams.kernel.bodies import Failure

__all__ = [
    "Ask",
    "Body",
    "Claim",
    "Entry",
    "Key",
    "Ledger",
    "Outcome",
    "Query",
    "Resolution",
    "Settlement",
    "Status",
    "Verdict",
    "Word",
]


class Status(StrEnum):
    """Where an operation stands.

    claimed ──▶ done | failed | uncertain | parked
    failed, with a due time ──▶ claimed; without one it was given up
    uncertain ──▶ claimed, to look it up
    parked, uncertain, failed ──▶ done | failed | parked, by an operator
    """

    CLAIMED = "claimed"
    """Somebody is at it, until its lease ends."""
    DONE = "done"
    """It was carried out; `response` is what it gave."""
    UNCERTAIN = "uncertain"
    """It may have been carried out: look it up at `due`, never repeat it blindly."""
    PARKED = "parked"
    """A person has to find out."""
    FAILED = "failed"
    """It surely was not carried out: tried again at `due`, or given up where there is none."""


class Key(NamedTuple):
    """Whose operation it is: `operation` is the name of the effect, `key` the idempotency key."""

    app: str
    operation: str
    key: str


class Ask(NamedTuple):
    """A message of the outbox that asks for its operation. Of `attempt` 0 nobody waits for a reply.

    (`epoch`, `attempt`) is the fencing token within the scope of `effect_id`, which names one op of one run. `resent`
    names a manual re-send, which opens what was given up, once.
    """

    key: Key
    request_hash: bytes
    effect_id: str
    run_id: str
    op: str
    epoch: int
    attempt: int
    place: str
    resent: str = ""


class Entry(NamedTuple):
    """What the ledger knows of an operation. Times in microseconds since the epoch, by the ledger's clock.

    `deliveries` counts how often it was begun, `looks` how often it was looked up since; `claim` names the claim that
    may settle it, and is empty where there is none; `conflicts` counts messages of other content under the same key.
    `published`: the reply or dead letter that its outcome leads to is in the log, so a rewind need not repeat it.
    """

    key: Key
    request_hash: bytes
    status: Status
    effect_id: str
    run_id: str
    op: str
    epoch: int
    attempt: int
    place: str
    deliveries: int
    looks: int
    created_at: int
    updated_at: int
    due: int | None = None
    owner: str = ""
    claim: str = ""
    lease_until: int | None = None
    response: bytes | None = None
    error: Failure | None = None
    conflicts: int = 0
    conflict: str = ""
    resent: str = ""
    operator: str = ""
    published: bool = False


class Word(StrEnum):
    """What a claim is told."""

    CARRY_OUT = "carry out"
    """The claim is yours, and it surely was not carried out."""
    LOOK_UP = "look up"
    """The claim is yours, but it may have been carried out."""
    DONE = "done"
    GIVEN_UP = "given up"
    PARKED = "parked"
    WAIT = "wait"
    """Not now: ask again at `until`."""
    CONFLICT = "conflict"
    """The key stands for another request: never carried out."""
    STALE = "stale"
    """A newer attempt of the same op has asked: this one has nothing to do any more."""


class Verdict(NamedTuple):
    """The answer to an `Ask`, and the entry as it stands now. `until`: the ledger's time of a WAIT."""

    word: Word
    entry: Entry
    until: int = 0


class Claim(NamedTuple):
    """A claim that is held."""

    key: Key
    claim: str


class Settlement(NamedTuple):
    """What a claim came to. `due_in`: seconds until the next try or look; None gives up a FAILED one.

    `returned`: it was not begun, so the delivery or look does not count.
    """

    key: Key
    claim: str
    status: Status
    response: bytes | None = None
    error: Failure | None = None
    due_in: float | None = None
    returned: bool = False


class Outcome(NamedTuple):
    """What was told to the sender of an attempt."""

    key: Key
    effect_id: str
    epoch: int
    attempt: int
    status: Status


class Resolution(NamedTuple):
    """What an operator found out. FAILED with `again` is carried out once more when its message is sent again."""

    status: Status
    response: bytes | None = None
    error: Failure | None = None
    again: bool = False
    operator: str = ""


class Query(NamedTuple):
    """Which entries to list, in the order of their keys; `after` is the last key of the page before."""

    app: str | None = None
    operation: str | None = None
    statuses: tuple[Status, ...] = ()
    run_id: str | None = None
    after: Key | None = None
    limit: int = 100


Body = Callable[[Any, Sequence[Verdict]], Iterable[Settlement] | Awaitable[Iterable[Settlement]]]
"""Does work in a ledger's open transaction: its connection, and the verdicts in the order of the claims."""


class Ledger(Protocol):
    """A ledger. `url` names it without secrets.

    Every method raises `LedgerUnavailable` where the database is away, locked or going down: nothing is known of what
    a write did, and asking again is safe. `LedgerMismatch` is raised where its tables are not what this release knows.
    """

    url: str

    async def migrate(self) -> None:
        """Make or bring up to date its tables. From several processes at once, it happens once."""

    async def check(self) -> None:
        """Raises `LedgerMismatch` unless its tables are of the version that this release writes."""

    async def claim(self, asks: Sequence[Ask], owner: str, lease_seconds: float) -> list[Verdict]:
        """Claim what may be carried out or looked up now; durable before it returns. One key may be asked for twice."""

    async def extend(self, claims: Sequence[Claim], lease_seconds: float) -> list[bool]:
        """Prolong leases, also ones that are over but that nobody has taken; False where the claim is gone."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Write what claims came to; False, and nothing written, where the claim is gone."""

    async def note_published(self, outcomes: Sequence[Outcome]) -> None:
        """Note that the replies or dead letters of these are in the log; an entry that has changed since is left."""

    async def transact(self, asks: Sequence[Ask], owner: str, body: Body) -> list[Verdict]:
        """Claim, let `body` work in the same transaction, and settle what it returns; all of it or nothing.

        The claims of this call are seen by nobody else before it commits; others that want the same keys wait. What
        `body` raises is raised, with everything rolled back. Of claims that `body` leaves unsettled nothing is kept.
        Returned are the verdicts that `body` was given, with the entries as they were committed.
        A ledger in PostgreSQL awaits `body` and gives it an `AsyncConnection`; one in sqlite calls it in its own
        thread and gives it a `sqlite3.Connection`.
        """

    async def look(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        """Those of the keys that are known."""

    async def entries(self, query: Query) -> list[Entry]:
        """A page of entries."""

    async def resolve(self, key: Key, resolution: Resolution) -> Entry:
        """Write an operator's word. Raises `Refused` where nothing is to be resolved."""

    async def clean(self, app: str, operation: str, older_than_seconds: float, limit: int = 10_000) -> int:
        """Delete entries that are done or given up for so long, at most `limit`; return how many."""

    async def now_us(self) -> int:
        """The ledger's clock, by which leases and due times count."""

    async def close(self) -> None:
        """Free its resources."""
