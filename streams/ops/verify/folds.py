"""Folds the runs of a share anew, event by event, and compares the state with each checkpoint that it passes."""

from __future__ import annotations

from collections.abc import Mapping

from streams.kernel import bodies as ev
from streams.kernel.events import DELIVERIES, Event
from streams.kernel.evolve import UnknownEvent, evolve
from streams.kernel.run import Delivered, Run, is_terminal
from streams.log.port import Record
from streams.ops.verify.checkpoints import Checkpoints, State, Suspect
from streams.ops.verify.findings import Findings
from streams.ops.verify.index import NEVER
from streams.ops.verify.place import Place, text_of
from streams.ops.verify.report import DAMAGE
from streams.ops.verify.shares import Counts, Share, bucket_of
from streams.wire.partitioner import partition_of

__all__ = ["Folds"]

FOLDING, BROKEN, UNKNOWN, SEEDED = range(4)
_LIVE_BYTES, _EVENT_BYTES, _ENDED_BYTES = 1_500, 250, 180
_ENDS = frozenset({ev.RunCompleted, ev.RunFailed, ev.RunCancelled})
_APART = frozenset({ev.RunCancelled, ev.RunExpired, ev.RunRepaired})
_DEALT_WITH = DAMAGE | {"checkpoint.unreadable", "checkpoint.damaged"}
"""What an operator's end or repair of a run settles, and its expiry."""

_REBUILT = frozenset({"checkpoint.unreadable", "checkpoint.schema", "checkpoint.key"})
"""What is found of a checkpoint by itself, before it is compared."""


class Live:
    """A run that has not ended. `state` is FOLDING, or why its events are passed over."""

    __slots__ = ("below", "bytes", "delivery", "next", "queue", "run", "state", "wait")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state = FOLDING
        self.bytes = _LIVE_BYTES
        self.delivery = 0
        self.below = 0
        """The highest seq that lies below the tail, and so must be in a checkpoint."""
        self.next = NEVER
        self.wait = 0
        self.queue: list[tuple[Record, Event]] = []


class Folds:
    """The runs of one pass over a partition. Pure: what has to be read besides is left in `suspects`."""

    def __init__(self, place: Place, share: Share, *, trimmed: bool, tail: int) -> None:
        self.place = place
        self.share = share
        self.findings = Findings()
        self.checkpoints = Checkpoints(place, self.findings)
        self.runs, self.damaged, self.cut, self.unknown = Counts(), Counts(), Counts(), Counts()
        self.dealt_with: set[bytes] = set()
        """Runs that were damaged, and that an operator has ended or repaired."""
        self._trimmed = trimmed
        self._tail = tail
        self._live: dict[bytes, Live] = {}
        self._ended: dict[bytes, int] = {}
        """Twice the seq of the end; odd where a checkpoint of the run was met."""
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """An estimate of the memory that is held."""
        return self._bytes + self.checkpoints.index.bytes

    @property
    def held(self) -> int:
        """How many runs are held, at most."""
        return len(self._live) + len(self._ended) + len(self.checkpoints.index)

    def split(self, share: Share) -> None:
        """Go on with these runs only."""
        self.share = share
        for key in [key for key in self._live if not share.holds(key)]:
            self._bytes -= self._live.pop(key).bytes
        for key in [key for key in self._ended if not share.holds(key)]:
            self._forget_end(key)
        self.checkpoints.keep(share)
        self.findings.keep(share.holds)

    def state_of(self, key: bytes) -> Run | None:
        """The state of a run that has not ended, where it is known."""
        live = self._live.get(key)
        return live.run if live is not None and live.state == FOLDING else None

    # -- events --------------------------------------------------------------------------------------------------

    def unreadable(self, key: bytes, record: Record, kind: str, reason: str) -> None:
        """A record that is no event lies among those of a run."""
        live = self._live.get(key)
        run = None if live is None else live.run
        self.findings.add(key, self.place.event(kind, record, None, reason, run=run)._replace(run_id=text_of(key)))
        if live is None and key not in self._ended:
            live = self._add(key, Run(text_of(key), ""))
        if live is not None:
            live.state = BROKEN

    def see(self, key: bytes, bucket: int, record: Record, event: Event) -> None:
        """Fold one event that has a seq."""
        live = self._live.get(key)
        if live is None:
            live = self._open(key, bucket, record, event)
            if live is None:
                return
        if live.state:
            self._pass_over(key, bucket, live, record, event)
            return
        run, kind = live.run, type(event.body)
        if kind in _APART and self._take_apart(key, bucket, live, record, event):
            return
        if event.seq != run.seq + 1 or event.identity != run.identity:
            self._out_of_place(key, live, record, event)
            return
        cause = event.cause
        if (
            event.epoch != run.epoch
            or event.at < run.at
            or kind is ev.RunOwned
            or (cause is not None and cause != live.delivery)
        ):
            self._check(key, live, record, event)
        try:
            live.run = evolve(run, event)
        except ValueError as error:
            self._cannot_fold(key, live, record, event, error)
            return
        self._after(key, bucket, live, record, event)

    def _take_apart(self, key: bytes, bucket: int, live: Live, record: Record, event: Event) -> bool:
        """What is no common event: whether it is done with."""
        if isinstance(event.body, ev.RunRepaired):
            self._repair(key, bucket, live, record, event)
            return True
        if _ends_damage(event):
            self._end_by_force(key, bucket, event)
            return True
        run = live.run
        if isinstance(event.body, ev.RunCancelled) or event.seq != run.seq + 1 or event.identity != run.identity:
            return False
        matched = self.checkpoints.is_matched(key)
        self._bytes -= self._live.pop(key).bytes
        self._expire(key, bucket, record, event, matched=matched)
        return True

    def _cannot_fold(self, key: bytes, live: Live, record: Record, event: Event, error: ValueError) -> None:
        kind = "event.schema" if isinstance(error, UnknownEvent) else "event.fold"
        self.findings.add(key, self.place.event(kind, record, event, str(error), run=live.run))
        live.state = BROKEN

    def _check(self, key: bytes, live: Live, record: Record, event: Event) -> None:
        """What `evolve` does not ask: epoch, time and cause."""
        run, kind = live.run, type(event.body)
        if event.epoch != run.epoch:
            if run.seq and kind is not ev.RunOwned and kind is not ev.RunRepaired:
                text = "another epoch goes on with the run without run.owned"
                self._find("event.epoch", key, record, event, text, "epoch", run.epoch, event.epoch)
        elif kind is ev.RunOwned:
            text = "the run was taken over twice under one epoch"
            self._find("event.owner", key, record, event, text, "epoch", f"above {run.epoch}", event.epoch)
        if event.at < run.at:
            text = "the event is older than the one before it"
            self._find("event.time", key, record, event, text, "at", f"{run.at} or later", event.at)
        cause = event.cause
        if cause is not None and cause != live.delivery:
            if any(type(entry) is Delivered and entry.seq == cause for entry in run.journal):
                live.delivery = cause
            else:
                text = "its cause is no earlier delivery of the run"
                self._find("event.cause", key, record, event, text, "cause", live.delivery or "none", cause)

    def _after(self, key: bytes, bucket: int, live: Live, record: Record, event: Event) -> None:
        seq, kind = event.seq or 0, type(event.body)
        if kind in DELIVERIES:
            live.delivery = seq
        if record.offset < self._tail:
            live.below = seq
        grown = _EVENT_BYTES + len(record.value or b"")
        if kind is ev.StateAdvanced:  # the journal is dropped
            grown = _LIVE_BYTES + 2 * live.run.size - live.bytes
        live.bytes += grown
        self._bytes += grown
        if seq == live.next:
            self.checkpoints.compare(key, bucket, live.run)
            live.next = self.checkpoints.next_after(key, seq)
        if kind in _ENDS:
            self._end(key, live)

    def _open(self, key: bytes, bucket: int, record: Record, event: Event) -> Live | None:
        """The run whose first event in the log this is; None where it opens none."""
        seq, ended = event.seq or 0, self._ended.get(key)
        if ended is not None:
            if isinstance(event.body, ev.RunExpired) and seq == ended // 2 + 1:
                self._forget_end(key)
                self._expire(key, bucket, record, event, matched=bool(ended & 1))
            else:
                text = f"it comes after the end of the run at seq {ended // 2}"
                self._find("event.after-end", key, record, event, text, "seq", "no event", seq)
            return None
        if seq != 1 and self._trimmed and isinstance(event.body, ev.RunExpired):
            self.cut.by_bucket[bucket] += 1
            self._expire(key, bucket, record, event, matched=False)
            return None
        if key != event.run_id.encode("utf-8", "backslashreplace") or not self.place.is_home(key):
            home = partition_of(key, self.place.partitions)
            text = f"it lies under the key {text_of(key)!r}, whose place is partition {home} of {self.place.partitions}"
            self._find("event.key", key, record, event, text, "key", event.run_id, text_of(key))
        live = self._add(key, Run(event.run_id, event.identity))
        self.runs.by_bucket[bucket] += 1
        if seq == 1:
            live.next = self.checkpoints.next_after(key, 0)
        elif self._trimmed:
            self._begin_later(key, bucket, live, seq)
        return live

    def _add(self, key: bytes, run: Run) -> Live:
        live = self._live[key] = Live(run)
        self._bytes += live.bytes
        return live

    def _begin_later(self, key: bytes, bucket: int, live: Live, seq: int) -> None:
        """The first events of the run are gone: it begins with the first checkpoint that the events here go on from."""
        self.cut.by_bucket[bucket] += 1
        first = self.checkpoints.first_from(key, seq - 1)
        if first is None:
            live.state = UNKNOWN
            self.unknown.by_bucket[bucket] += 1
            return
        live.state, live.wait = SEEDED, first.seq
        self.checkpoints.suspects.append(Suspect(key, first, None))

    def _out_of_place(self, key: bytes, live: Live, record: Record, event: Event) -> None:
        run = live.run
        if key != event.run_id.encode("utf-8", "backslashreplace"):
            text = "it lies under the key of another run, which it leaves alone"
            self._find("event.key", key, record, event, text, "key", event.run_id, text_of(key))
            return
        if event.identity != run.identity and run.identity:
            text = "the run was opened by another command, and has not expired"
            self._find("event.identity", key, record, event, text, "identity", run.identity, event.identity)
        else:
            lost = run.seq and (event.seq or 0) > run.seq
            text = "events are missing before it" if lost or not run.seq else "the run has had this seq before"
            self._find("event.seq", key, record, event, text, "seq", run.seq + 1, event.seq)
        live.state = BROKEN

    def _pass_over(self, key: bytes, bucket: int, live: Live, record: Record, event: Event) -> None:
        """An event of a run whose state is not known here. An operator may have dealt with it since."""
        body, seq = event.body, event.seq or 0
        if live.state == SEEDED:
            if seq > live.wait:
                live.queue.append((record, event))
        elif isinstance(body, ev.RunExpired):
            self._bytes -= self._live.pop(key).bytes
            self._expire(key, bucket, record, event, matched=False)
        elif live.state == BROKEN and isinstance(body, ev.RunCancelled) and body.forced:
            self._end_by_force(key, bucket, event)
        elif live.state == BROKEN and isinstance(body, ev.RunRepaired):
            self._repair(key, bucket, live, record, event)

    def _repair(self, key: bytes, bucket: int, live: Live, record: Record, event: Event) -> None:
        """The event holds the corrected state; nothing between the damage and it counts."""
        before = live.run._replace(identity=event.identity, seq=(event.seq or 0) - 1)
        try:
            live.run = evolve(before, event)
        except ValueError as error:
            self._cannot_fold(key, live, record, event, error)
            return
        self._deal_with(key, bucket)
        live.state = FOLDING
        live.delivery = _last_delivery(live.run)
        self.checkpoints.pass_over(key, live.run.seq)
        live.next = self.checkpoints.next_after(key, live.run.seq - 1)
        self._after(key, bucket, live, record, event)

    def _end_by_force(self, key: bytes, bucket: int, event: Event) -> None:
        """An operator has ended a run that its owner could not fold."""
        seq = event.seq or 0
        self.findings.drop(key, _DEALT_WITH)
        self.damaged.by_bucket[bucket] += 1
        self.dealt_with.add(key)
        self.checkpoints.leave_out(key, seq)
        self._bytes -= self._live.pop(key).bytes
        self._set_end(key, seq, matched=True)

    def _deal_with(self, key: bytes, bucket: int) -> None:
        if self.findings.drop(key, _DEALT_WITH):
            self.damaged.by_bucket[bucket] += 1
            self.dealt_with.add(key)

    def rebuilt(self, key: bytes, bucket: int) -> None:
        """A rebuild has written the next checkpoint of the run: those before it are read by nobody any more."""
        self.findings.drop(key, _REBUILT)
        self.checkpoints.forget(key, bucket)

    # -- ends ----------------------------------------------------------------------------------------------------

    def _end(self, key: bytes, live: Live) -> None:
        self._bytes -= self._live.pop(key).bytes
        self.checkpoints.cover(key, live.run, live.below, self._tail)
        self._set_end(key, live.run.seq, matched=self.checkpoints.end(key))

    def _set_end(self, key: bytes, seq: int, *, matched: bool) -> None:
        self._ended[key] = 2 * seq + matched
        self._bytes += _ENDED_BYTES + len(key)

    def _forget_end(self, key: bytes) -> None:
        del self._ended[key]
        self._bytes -= _ENDED_BYTES + len(key)

    def _expire(self, key: bytes, bucket: int, record: Record, event: Event, *, matched: bool) -> None:
        self._deal_with(key, bucket)
        self.checkpoints.expire(key, record, event, matched=matched)

    def finish(self) -> None:
        """All events were seen."""
        for key, live in self._live.items():
            if live.state == FOLDING:
                self.checkpoints.cover(key, live.run, live.below, self._tail)
        for key in list(self.checkpoints.index):
            live_ = self._live.get(key)
            comparable = not self._trimmed and (live_ is None or live_.state == FOLDING)
            known = live_ is not None or key in self._ended
            self.checkpoints.leftover(key, None if live_ is None else live_.run, known=known, comparable=comparable)

    # -- what had to be read -------------------------------------------------------------------------------------

    def resolve(self, suspects: list[Suspect], states: Mapping[int, State]) -> None:
        """Go on with what was read of the suspects, by offset."""
        for suspect in suspects:
            state = states.get(suspect.entry.offset, "it is not there any more")
            if suspect.run is None:
                self._begin_from(suspect, state)
            elif self.checkpoints.judge(suspect, suspect.run, state):
                self._mark(suspect)

    def _begin_from(self, suspect: Suspect, state: State) -> None:
        key, live = suspect.key, self._live[suspect.key]
        bucket, queue = bucket_of(key), live.queue
        live.queue = []
        if live.state != SEEDED:
            return  # a record that cannot be read came between
        if isinstance(state, Run):
            live.run, live.state, live.delivery = state, FOLDING, _last_delivery(state)
            live.bytes += 2 * state.size
            self._bytes += 2 * state.size
            self._mark(suspect)
            live.next = self.checkpoints.next_after(key, state.seq)
            if is_terminal(state):
                self._end(key, live)
        else:
            live.state = UNKNOWN
            self.unknown.by_bucket[bucket] += 1
        for record, event in queue:
            self.see(key, bucket, record, event)

    def _mark(self, suspect: Suspect) -> None:
        key = suspect.key
        self.checkpoints.mark(key, offset=suspect.entry.offset)
        if key in self._ended and self.checkpoints.end(key):
            self._ended[key] |= 1

    # -- words ---------------------------------------------------------------------------------------------------

    def _find(
        self,
        kind: str,
        key: bytes,
        record: Record,
        event: Event,
        text: str,
        field: str,
        expected: object,
        found: object,
    ) -> None:
        live = self._live.get(key)
        run = None if live is None else live.run
        divergence = self.place.event(kind, record, event, text, field=field, expected=expected, found=found, run=run)
        self.findings.add(key, divergence)


def _last_delivery(run: Run) -> int:
    return max((entry.seq for entry in run.journal if isinstance(entry, Delivered)), default=0)


def _ends_damage(event: Event) -> bool:
    """Of an end by force, `cancel.requested` carries the command's offset; that of a damaged run has no such event."""
    return isinstance(event.body, ev.RunCancelled) and event.body.forced and event.offset is not None
