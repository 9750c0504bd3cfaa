"""The checkpoints of a share of runs: each is compared when the fold comes to its seq, and none may be left over."""

from __future__ import annotations

from typing import NamedTuple

from streams.kernel.events import Event
from streams.kernel.run import Run, is_stub, is_terminal, stub_of
from streams.log.port import Record
from streams.ops.verify.diff import difference
from streams.ops.verify.findings import Findings
from streams.ops.verify.index import DAMAGED, DELETED, MATCHED, NEVER, Entry, Index, digest
from streams.ops.verify.place import Place
from streams.ops.verify.report import Divergence
from streams.ops.verify.shares import Counts, Share, bucket_of
from streams.wire.records import Damaged, encode_checkpoint

__all__ = ["Checkpoints", "State", "Suspect"]

State = Run | Damaged | str
"""What stands in a checkpoint; a text says why it cannot be read."""


class Suspect(NamedTuple):
    """A checkpoint whose bytes are not those of the fold, or (without a run) one to begin from: it has to be read."""

    key: bytes
    entry: Entry
    run: Run | None


class Checkpoints:
    """What is known of them, and what was found."""

    def __init__(self, place: Place, findings: Findings) -> None:
        self.index = Index()
        self.suspects: list[Suspect] = []
        self.compared, self.unmatched = Counts(), Counts()
        self._place = place
        self._findings = findings
        self._doubts: dict[bytes, Divergence] = {}
        """What a checkpoint newer than the captured end may explain."""

    @property
    def doubtful(self) -> bool:
        """Whether `settle` has anything to decide on."""
        return bool(self._doubts)

    def keep(self, share: Share) -> None:
        """Forget the runs outside the share."""
        self.index.keep(share)
        self.suspects = [suspect for suspect in self.suspects if share.holds(suspect.key)]
        self._doubts = {key: doubt for key, doubt in self._doubts.items() if share.holds(key)}

    def first_from(self, key: bytes, seq: int) -> Entry | None:
        """The earliest state at `seq` or later, before the first null."""
        found: Entry | None = None
        for entry in self.index.of(key):
            if entry.seq == DELETED:
                break
            if entry.seq >= seq and (found is None or entry.seq < found.seq):
                found = entry
        return found

    def next_after(self, key: bytes, seq: int) -> int:
        """The seq of the next one to compare."""
        following = NEVER
        for entry in self.index.of(key):
            if entry.seq == DELETED:
                break
            if seq < entry.seq < following and entry.digest != MATCHED:
                following = entry.seq
        return following

    def compare(self, key: bytes, bucket: int, run: Run) -> None:
        """The fold with every one of this seq; the state of a run that has ended may have become a stub."""
        entries, right = self.index.of(key), [digest(encode_checkpoint(run))]
        for number, entry in enumerate(entries):
            if entry.seq == DELETED:
                break
            if entry.seq != run.seq or entry.digest == MATCHED:
                continue
            if entry.digest not in right and is_terminal(run) and len(right) == 1:
                right.append(digest(encode_checkpoint(stub_of(run))))
            if entry.digest in right:
                entries[number] = entry._replace(digest=MATCHED)
                self.compared.by_bucket[bucket] += 1
            else:
                self.suspects.append(Suspect(key, entry, run))
        self.index.put(key, entries)

    def judge(self, suspect: Suspect, run: Run, state: State) -> bool:
        """Decide on one that was read; whether it is of this run, and not of another of the same name."""
        if isinstance(state, Run) and state.identity != run.identity and state.run_id == run.run_id:
            return False
        key, (seq, offset, _) = suspect.key, suspect.entry
        self.compared.by_bucket[bucket_of(key)] += 1
        if not isinstance(state, Run):
            text = f"it cannot be read: {state}"
            found = self._place.checkpoint("checkpoint.unreadable", key, offset, seq, text, run)
            self._findings.add(key, found)
            return True
        meant = stub_of(run) if is_terminal(run) and is_stub(state) else run
        if differs := difference(meant, state):
            text = "the checkpoint is not what its events fold to"
            self._findings.add(
                key, self._place.checkpoint("checkpoint.differs", key, offset, seq, text, run, values=differs)
            )
        return True

    def mark(self, key: bytes, *, offset: int) -> None:
        """The one at this offset was compared."""
        entries = self.index.of(key)
        self.index.put(key, [e._replace(digest=MATCHED) if e.offset == offset else e for e in entries])

    def forget(self, key: bytes, bucket: int) -> None:
        """A rebuild has put another one in the place of those so far."""
        self.unmatched.by_bucket[bucket] += sum(entry.seq != DELETED for entry in self.index.of(key))
        self.index.put(key, [])

    def pass_over(self, key: bytes, seq: int) -> None:
        """An operator has repaired the run: what was written of it before `seq` is history."""
        entries = [entry for entry in self.index.of(key) if entry.seq != DAMAGED]
        self.index.put(key, [e._replace(digest=MATCHED) if 0 <= e.seq < seq else e for e in entries])

    def leave_out(self, key: bytes, seq: int) -> None:
        """An operator has ended a damaged run at `seq`: no fold leads to that state."""
        self.index.put(key, [entry for entry in self.index.of(key) if entry.seq not in (seq, DAMAGED)])

    def cover(self, key: bytes, run: Run, below: int, tail: int) -> None:
        """What lies below the tail of the lease must be in the last one, or a take-over would lose it."""
        last = self.index.last(key)
        if not below or (last is not None and (last.seq >= below or last.seq == DAMAGED)):
            return
        covered = "none" if last is None else "deleted" if last.seq == DELETED else str(last.seq)
        text = f"the events up to seq {below} lie below the tail {tail} of the lease, and in no checkpoint"
        values = ("seq", f"{below} or higher", covered)
        self._doubts[key] = self._place.checkpoint("checkpoint.missing", key, None, below, text, run, values=values)

    def end(self, key: bytes) -> bool:
        """Forget what was compared of a run that has ended; whether there was any."""
        entries = self.index.of(key)
        left = [entry for entry in entries if entry.digest != MATCHED]
        self.index.put(key, left)
        return len(left) < len(entries)

    def expire(self, key: bytes, record: Record, event: Event, *, matched: bool) -> None:
        """The run leaves nothing. A later one of its name begins behind the null."""
        self._doubts.pop(key, None)
        entries = self.index.of(key)
        seqs = [entry.seq for entry in entries]
        if DELETED in seqs:
            self.index.put(key, entries[seqs.index(DELETED) + 1 :])
        elif matched:
            self.index.put(key, [entry for entry in entries if entry.digest != MATCHED])
            text = "the run has expired, and its checkpoint was not deleted"
            self._doubts[key] = self._place.event("checkpoint.not-deleted", record, event, text)

    def is_matched(self, key: bytes) -> bool:
        """Whether one of the run was compared, and is still noted."""
        return any(entry.digest == MATCHED for entry in self.index.of(key))

    def leftover(self, key: bytes, run: Run | None, *, known: bool, comparable: bool) -> None:
        """All events were seen: none may be left, where all of its events were there to be folded."""
        entries = self.index.of(key)
        left = [entry for entry in entries if entry.seq >= 0 and entry.digest != MATCHED]
        if left and not comparable:
            self.unmatched.by_bucket[bucket_of(key)] += len(left)
        elif left:
            seq, offset, _ = left[0]
            text = f"no event of the log leads to the state of seq {seq} that it holds"
            self._findings.add(key, self._place.checkpoint("checkpoint.orphan", key, offset, seq, text, run))
        if entries and entries[-1].seq == DAMAGED and known and key not in self._findings:
            text = "the run is marked as damaged, and all its events can be folded"
            offset = entries[-1].offset
            found = self._place.checkpoint("checkpoint.damaged", key, offset, None, text, run)
            self._doubts.setdefault(key, found)

    def settle(self, newer: set[bytes]) -> None:
        """Decide on what was in doubt; `newer` are the keys that have checkpoints beyond the captured end."""
        for key, doubt in self._doubts.items():
            if key not in newer:
                self._findings.add(key, doubt)
        self._doubts.clear()
