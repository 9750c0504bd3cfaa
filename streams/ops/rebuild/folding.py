"""Folds the events of a partition as a restore does, and lets go of each run as soon as it has ended."""

from __future__ import annotations

from typing import NamedTuple

from streams.client.fold import opened_at
from streams.kernel.run import Phase, Run, is_terminal, stub_of
from streams.log.port import RECORD_BYTES_MAX, Record
from streams.ops.rebuild.report import PartitionReport, Trouble
from streams.ops.rebuild.stored import Kind, Stored, digest_of
from streams.runtime.outgoing import RECORD_OVERHEAD
from streams.runtime.partition import Hot, Partition
from streams.runtime.restore import fold_event
from streams.wire.records import Damaged, encode_checkpoint

__all__ = ["Bounds", "Folding"]

_NEVER = 2**62
_ENDED = Hot(Run("", "", phase=Phase.CANCELLED, seq=_NEVER))
"""Stands for every run that has ended and whose checkpoint is written: a million of them need one object."""
_EXPIRING = Hot(Run("", "", phase=Phase.CANCELLED, seq=_NEVER))
"""Stands for a run that ended so long ago that a later event lets it expire: nothing is written for it yet."""


class Bounds(NamedTuple):
    """Times of ends, as a sweep has them: what is as old keeps no result, and what is older still is forgotten."""

    strip: float
    forget: float


class Folding:
    """One partition: give it its events in order; `batch` holds what is to be written, a value by key.

    The states of open runs are held, as a worker holds them; of the others a mark. What the marks cannot tell is left
    to a second reading of the runs in `again`: those that were expected to expire and have not, and those that cannot
    be folded from their first event on, for which a checkpoint that can be read may stand in.
    """

    def __init__(
        self, partition: Partition, stored: dict[bytes, Stored], bounds: Bounds, report: PartitionReport
    ) -> None:
        self.partition = partition
        self.stored = stored
        self.report = report
        self.batch: dict[bytes, bytes | None] = {}
        self.batch_bytes = 0
        self.epoch = 0
        self.applied = 0
        self.again: set[str] = set()
        self.healed: dict[bytes, int] = {}
        """Runs whose stored checkpoint was of no use, and from which command on they are of this life."""
        self._bounds = bounds
        self._damaged: dict[str, tuple[Hot, int]] = {}
        self._headless: set[str] = set()
        self._too_large: set[str] = set()
        self._covered: dict[str, int] = {}
        self._second = False

    def add(self, record: Record) -> None:
        """Fold an event. Raises `LogDamaged` for one of a newer release."""
        run_id = run_id_of(record)
        before = self.partition.runs.get(run_id)
        seen = fold_event(self.partition, record, self._damaged)
        self.epoch = max(self.epoch, seen.epoch)
        self.applied = max(self.applied, seen.applied)
        if seen.hot is not None:
            if is_terminal(seen.hot.run):
                self._end(seen.hot)
        elif seen.expired:
            self._expire(run_id, before)
        elif before is None and run_id in self._damaged:
            self._headless.add(run_id)

    def _end(self, hot: Hot) -> None:
        run = hot.run
        if run.at <= self._bounds.forget and not self._second:
            self.partition.runs[run.run_id] = _EXPIRING
        elif self._emit(hot):
            self.partition.runs[run.run_id] = _ENDED

    def _expire(self, run_id: str, before: Hot | None) -> None:
        key = run_id.encode()
        self.report.runs -= before is _ENDED
        self._headless.discard(run_id)
        if before is _ENDED or key in self.stored:
            self.stored.pop(key, None)
            self._put(key, None)
            self.report.deleted += 1

    # -- the second reading --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take in the end of the first reading: from here on, `again` names what has to be read once more."""
        for run_id, hot in list(self.partition.runs.items()):
            if hot is _EXPIRING or hot.damaged is not None:
                self.again.add(run_id)
                del self.partition.runs[run_id]
        self._second = True
        self._damaged.clear()
        self._headless.clear()

    def base(self, run: Run, size: int, tail: int) -> None:
        """Let the second reading go on from a checkpoint, which covers all events of the run below `tail`."""
        hot = self.partition.runs[run.run_id] = Hot(run)
        hot.checkpoint_bytes = size
        self._covered[run.run_id] = tail

    def add_again(self, record: Record) -> None:
        """Fold an event at the second reading, if it is of a run in `again`."""
        run_id = run_id_of(record)
        if run_id in self.again and record.offset >= self._covered.get(run_id, 0):
            self.add(record)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def emit_open(self, run_id: str) -> None:
        """Have the checkpoint of a run written, where it is not yet.

        One that is too large for a record stays in memory as a run without a checkpoint: it holds the tail back.
        """
        hot = self.partition.runs[run_id]
        if hot is _ENDED or run_id in self._too_large:
            return
        if hot.damaged is not None:
            self._emit_damage(hot)
        elif not self._emit(hot):
            return
        del self.partition.runs[run_id]

    def rest(self) -> None:
        """What stands among the checkpoints and has no event in the log."""
        for key, stored in self.stored.items():
            self.report.runs += 1
            if stored.kind is Kind.RUN:
                self.report.unchanged += 1
            else:
                reason = "its checkpoint cannot be read, and the log has no event of it any more"
                self.report.lost.append(Trouble(key.decode("utf-8", "backslashreplace"), reason))

    def _emit(self, hot: Hot) -> bool:
        """Have a checkpoint written unless the same stands there; False where no record can hold it."""
        run = hot.run
        key = run.run_id.encode()
        stored = self.stored.pop(key, None)
        self.report.runs += 1
        data = encode_checkpoint(stub_of(run) if is_terminal(run) and run.at <= self._bounds.strip else run)
        if stored is not None and self._stands(stored, run, data):
            self.report.unchanged += 1
            return True
        if len(data) > RECORD_BYTES_MAX - RECORD_OVERHEAD:
            text = f"run {run.run_id}: its checkpoint of {len(data)} bytes is over the limit of a record"
            self.report.notes.append(f"{text}; it is restored from its events")
            self._too_large.add(run.run_id)
            return False
        self._count(key, stored, run)
        self._put(key, data)
        return True

    def _stands(self, stored: Stored, run: Run, data: bytes) -> bool:
        if stored.digest == digest_of(data):
            return True
        if stored.kind is not Kind.RUN or stored.opened != opened_at(run.identity):
            return False
        if stored.seq > run.seq:
            text = f"run {run.run_id}: its checkpoint knows event {stored.seq}, and the log ends with {run.seq}"
            self.report.notes.append(f"{text}; the checkpoint is left as it is")
            return True
        # What a worker has kept longer, or for a shorter time, than the settings here say.
        return is_terminal(run) and stored.digest in (digest_of(encode_checkpoint(s)) for s in (run, stub_of(run)))

    def _count(self, key: bytes, stored: Stored | None, run: Run) -> None:
        if stored is None:
            self.report.missing += 1
        elif stored.kind is Kind.RUN:
            self.report.behind += 1
        else:
            self.report.unreadable += 1
            self.healed[key] = max(0, opened_at(run.identity))

    def _emit_damage(self, hot: Hot) -> None:
        """A run that no owner can fold either: its mark, as the owner would write it, so that people see it."""
        run, reason = hot.run, hot.damaged or ""
        key = run.run_id.encode()
        stored = self.stored.pop(key, None)
        self.report.runs += 1
        trouble = self.report.lost if run.run_id in self._headless else self.report.damaged
        trouble.append(Trouble(run.run_id, reason))
        if stored is not None and stored.kind is Kind.DAMAGED:
            self.report.unchanged += 1  # its owner knew of it
            return
        _, offset = self._damaged[run.run_id]
        self._put(key, encode_checkpoint(Damaged(run.run_id, offset, reason, run.identity, run.seq)))

    def _put(self, key: bytes, data: bytes | None) -> None:
        self.batch[key] = data
        self.batch_bytes += len(key) + len(data or b"")


def run_id_of(record: Record) -> str:
    """The run that a record is of, by its key."""
    return (record.key or b"").decode("utf-8", "backslashreplace")
