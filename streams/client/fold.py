"""What a reader makes of one run: its checkpoint, and the events after it."""

from __future__ import annotations

from typing import NamedTuple

from streams.client.reading import StoredEvent
from streams.errors import WireError
from streams.kernel import bodies as ev
from streams.kernel.bodies import Failure
from streams.kernel.events import Event
from streams.kernel.evolve import UnknownEvent, evolve
from streams.kernel.run import OpPhase, Run, Status, is_terminal, status_of
from streams.log.port import Record
from streams.wire.records import Damaged, Lease, decode_checkpoint
from streams.wire.schemas import SchemaUnknown

__all__ = ["CheckpointAt", "Fold", "RunView", "opened_at"]


class CheckpointAt(NamedTuple):
    """Where the last checkpoint of a run lies; `timestamp` is the log's append time in milliseconds."""

    id: str
    seq: int
    offset: int
    timestamp: int


class RunView(NamedTuple):
    """A run as the log shows it.

    `run` is None where nothing of it can be read; `damage` says why a run cannot be folded. `owner` is the worker of
    the run's last epoch where the read events name it, while `lease` shows who owns the partition now.
    """

    run_id: str
    partition: int
    run: Run | None
    lease: Lease | None = None
    checkpoint: CheckpointAt | None = None
    damage: Failure | None = None
    owner: str = ""

    @property
    def status(self) -> Status:
        """The status that people see; a damaged run counts as blocked."""
        if self.run is None or (self.damage is not None and not is_terminal(self.run)):
            return Status.BLOCKED
        return status_of(self.run)

    @property
    def attention(self) -> bool:
        """Whether an operator has to do something: the run is blocked or one of its ops is parked."""
        if self.status is Status.BLOCKED:
            return True
        return self.run is not None and any(op.phase is OpPhase.PARKED for op in self.run.ops.values())


class Fold:
    """The fold of one run. Give it the events of its partition in order."""

    __slots__ = ("_marked", "_newer", "_owner", "_unread", "checkpoint", "damage", "gone", "run", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.run: Run | None = None
        self.checkpoint: CheckpointAt | None = None
        self.damage: Failure | None = None
        self.gone = False
        """Whether the run has expired and left nothing."""
        self._owner = (-1, "")
        self._marked = -1
        """Where the owner of the run found it damaged."""
        self._unread = False
        """Whether the damage is a record that cannot be read, and nothing was folded on the checkpoint before it."""
        self._newer = False
        """Whether a newer release wrote a record of the run: what follows cannot be judged, so it is not folded."""

    @classmethod
    def of(cls, run_id: str, record: Record | None) -> Fold:
        """Begin with a checkpoint record, or with nothing."""
        fold = cls(run_id)
        if record is None or record.value is None:
            return fold
        try:
            found = decode_checkpoint(record.value)
        except WireError as error:
            fold.skip(f"its checkpoint at offset {record.offset}", error)
            return fold
        if isinstance(found, Damaged):
            fold._marked = found.offset
            fold.damage = _damage(f"{found.reason} (offset {found.offset} of the events)")
        else:
            fold.run = found
            fold.checkpoint = CheckpointAt(f"{run_id}@{found.seq}", found.seq, record.offset, record.timestamp)
        return fold

    def add(self, stored: StoredEvent) -> None:
        """Fold one event. One that does not follow makes the run damaged, as it does for its owner."""
        event = stored.event
        if event.seq is None or self._newer:
            return
        if self._is_other_life(event):
            if self.run is not None and opened_at(event.identity) < opened_at(self.run.identity):
                return
            if not self._opens(event, stored.offset):
                return
        run = self.run
        if run is None or event.seq <= run.seq:
            if self._unread:  # it came before an event that the checkpoint has in it
                self.damage, self._unread = None, False
            return
        self._unread = False
        self._see_owner(event)
        if isinstance(event.body, ev.RunExpired):
            self.gone = True
        elif is_terminal(run) or (self._stuck_at(stored.offset) and not _mends(event)):
            return
        try:
            self.run = evolve(run, event)
            if _mends(event):
                self.damage = None
        except UnknownEvent as error:
            self._see_newer(f"{error} (offset {stored.offset} of the events)")
        except ValueError as error:
            self.damage = _damage(f"{error} (offset {stored.offset} of the events)")

    def skip(self, what: str, error: WireError) -> None:
        """Note that a record of the run cannot be read. One of a newer release is no damage."""
        message = f"{what} cannot be read: {error}"
        if isinstance(error, SchemaUnknown):
            self._see_newer(message)
        elif not self._newer:
            at, run = self.checkpoint, self.run
            self._unread = self.damage is None and at is not None and run is not None and at.seq == run.seq
            self.damage = _damage(message)

    def view(self, partition: int, lease: Lease | None) -> RunView | None:
        """What was found; None where there is no such run."""
        if self.gone or (self.run is None and self.damage is None):
            return None
        epoch, owner = self._owner
        if self.run is not None and lease is not None and lease.epoch == self.run.epoch:
            owner = lease.owner
        elif self.run is None or epoch != self.run.epoch:
            owner = ""
        return RunView(self.run_id, partition, self.run, lease, self.checkpoint, self.damage, owner)

    def _see_newer(self, message: str) -> None:
        if self._newer:
            return
        self._newer = True
        self.damage = Failure("state", SchemaUnknown.code, message)
        if self.gone:  # whatever was written after the end of the run is of another one
            self.run, self.gone = None, False

    def _is_other_life(self, event: Event) -> bool:
        return self.run is None or event.identity != self.run.identity

    def _opens(self, event: Event, offset: int) -> bool:
        """Whether `event` opens a run. Otherwise what came before it is missing, unless the run has expired."""
        self.gone = isinstance(event.body, ev.RunExpired)
        if event.seq == 1 or isinstance(event.body, ev.RunRepaired):
            self.run, self.checkpoint = Run(event.run_id, event.identity), None
            if offset > self._marked:
                self.damage = None
            return True
        if self.damage is None and self.run is None:
            self.damage = _damage(f"event {event.seq} at offset {offset} has no checkpoint and no event 1 before it")
        return False

    def _stuck_at(self, offset: int) -> bool:
        """Whether the run is damaged here. What comes before the place that its owner has marked can still be shown."""
        return self.damage is not None and offset >= self._marked

    def _see_owner(self, event: Event) -> None:
        if isinstance(event.body, (ev.RunStarted, ev.RunOwned)):
            self._owner = (event.epoch, event.body.owner)


def _damage(message: str) -> Failure:
    return Failure("state", "RUN_DAMAGED", message)


def _mends(event: Event) -> bool:
    """Whether an operator repaired the run or ended it: what a damaged one takes."""
    return isinstance(event.body, ev.RunRepaired) or (isinstance(event.body, ev.RunCancelled) and event.body.forced)


def opened_at(identity: str) -> int:
    """The offset of the command that opened a run: of two runs with one id, the later one has the higher."""
    offset = identity.rpartition("@")[2]
    return int(offset) if offset.isdigit() else -1
