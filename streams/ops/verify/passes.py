"""One pass over a partition: hands each event to the checks that take it. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streams.errors import WireError
from streams.kernel.bodies import AttemptStarted, EffectEmitted, OpScheduled, RunOwned, RunStarted
from streams.kernel.events import Event, event_id
from streams.log.port import Record
from streams.ops.verify.commands import CommandJoin
from streams.ops.verify.effects import EffectJoin, attempt_id
from streams.ops.verify.folds import Folds
from streams.ops.verify.index import DAMAGED, DELETED, NOTHING, Entry, digest
from streams.ops.verify.owners import Owners
from streams.ops.verify.place import text_of
from streams.ops.verify.shares import Counts, Share, bucket_of
from streams.wire.headers import REBUILT
from streams.wire.outbox import message_of
from streams.wire.records import canonical_checkpoint, decode_event, decode_event_and_id
from streams.wire.schemas import SchemaUnknown

__all__ = ["Pass", "emitted_ids"]

_OWNING = frozenset({RunOwned, RunStarted})
_SENDING = frozenset({EffectEmitted, OpScheduled, AttemptStarted})


class Pass:
    """The runs of `folds.share`; the first pass looks at what belongs to the partition as a whole as well."""

    def __init__(
        self, folds: Folds, effects: Mapping[str, EffectJoin], owners: Owners | None, commands: CommandJoin | None
    ) -> None:
        self.folds = folds
        self.effects = effects
        self.commands = commands
        self.events = Counts()
        self.unpublished = Counts()
        self.untold: set[str] = set()
        """Attempts of runs that could not be folded: whether they are of requests is not known."""
        self._owners = owners

    def split(self) -> Share | None:
        """Leave half of the runs to another pass, whose share is returned; None where there is nothing to halve."""
        halves = self.folds.share.split() if self.folds.held > 1 else None
        if halves is None:
            return None
        mine, other = halves
        self.folds.split(mine)
        for join in self.effects.values():
            join.keep(mine)
        return other

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def index(self, records: Iterable[Record]) -> None:
        """Note the next checkpoints."""
        share, checkpoints = self.folds.share, self.folds.checkpoints
        mask, value = share.mask, share.value
        for record in records:
            key = record.key or b""
            if bucket_of(key) & mask != value:
                continue
            if any(name == REBUILT for name, _ in record.headers):
                self.folds.rebuilt(key, bucket_of(key))
            if record.value is None:
                checkpoints.index.add(key, Entry(DELETED, record.offset, NOTHING))
                continue
            try:
                id_, data = canonical_checkpoint(record.value)
            except WireError as error:
                kind = "checkpoint.schema" if isinstance(error, SchemaUnknown) else "checkpoint.unreadable"
                self._at(kind, key, record, f"it cannot be read: {error}")
                checkpoints.index.add(key, Entry(DAMAGED, record.offset, NOTHING))
                continue
            run_id, _, seq = id_.rpartition("@")
            if run_id.encode("utf-8", "backslashreplace") != key or not self.folds.place.is_home(key):
                self._at("checkpoint.key", key, record, f"it is the checkpoint {id_!r}, under the key {text_of(key)!r}")
            number = int(seq) if seq.isdecimal() else DAMAGED
            checkpoints.index.add(key, Entry(number, record.offset, digest(data)))

    def _at(self, kind: str, key: bytes, record: Record, text: str) -> None:
        place = self.folds.place
        self.folds.findings.add(key, place.checkpoint(kind, key, record.offset, None, text, None))

    # -- events --------------------------------------------------------------------------------------------------

    def feed(self, records: Iterable[Record]) -> None:
        """Check the next events. Those of other passes cost no more than a hash of their key."""
        folds, whole = self.folds, self._owners is not None
        mask, value, counts = folds.share.mask, folds.share.value, self.events.by_bucket
        see, bucket_of_, epoch = folds.see, bucket_of, -1
        for record in records:
            key = record.key or b""
            bucket = bucket_of_(key)
            mine = bucket & mask == value
            if not (mine or whole):
                continue
            try:
                id_, event = decode_event_and_id(record.value or b"")
            except WireError as error:
                if mine:
                    kind = "event.schema" if isinstance(error, SchemaUnknown) else "event.unreadable"
                    folds.unreadable(key, record, kind, f"it cannot be read: {error}")
                continue
            if whole and (event.offset is not None or event.epoch != epoch or type(event.body) in _OWNING):
                epoch = event.epoch
                self._of_the_partition(record, event)
            if not mine:
                continue
            counts[bucket] += 1
            if event.seq is not None:
                if id_ != f"{event.identity}/{event.seq}":
                    self._wrong_id(key, record, event, id_)
                see(key, bucket, record, event)
                if type(event.body) in _SENDING:
                    self._sent(key, record, event)
            elif id_ != event_id(event):
                self._wrong_id(key, record, event, id_)

    def _of_the_partition(self, record: Record, event: Event) -> None:
        assert self._owners is not None
        self._owners.see(record, event)
        if event.offset is not None and self.commands is not None:
            self.commands.outcome(record, event)

    def _wrong_id(self, key: bytes, record: Record, event: Event, id_: str) -> None:
        text = "its id is not made of its identity and seq, so a redo would not be known"
        found = self.folds.place.event(
            "event.id", record, event, text, field="event_id", expected=event_id(event), found=id_
        )
        self.folds.findings.add(key, found)

    def _sent(self, key: bytes, record: Record, event: Event) -> None:
        run = self.folds.state_of(key)
        message = message_of(event, run)
        if message is None:
            if run is None and isinstance(event.body, AttemptStarted):
                self.untold.add(attempt_id(f"{event.identity}/{event.body.op}", event.body.attempt))
            return
        join = self.effects.get(message.effect)
        if join is not None:
            join.emitted(key, record, event, message, run)
            return
        if not self.folds.place.publishes:
            self.unpublished.by_bucket[bucket_of(key)] += 1
            return
        text = f"the topic {self.folds.place.topics.effect(message.effect)} of its effect does not exist"
        self.folds.findings.add(key, self.folds.place.event("effect.lost", record, event, text, run=run))


def emitted_ids(records: Sequence[Record], keys: frozenset[bytes]) -> set[str]:
    """The effects that these runs have emitted, in these records."""
    found = set()
    for record in records:
        if record.key in keys:
            try:
                event = decode_event(record.value or b"")
            except WireError:
                continue  # told of already
            body = event.body
            if isinstance(body, EffectEmitted):
                found.add(f"{event.identity}/{body.op}")
            elif isinstance(body, (OpScheduled, AttemptStarted)):  # of a task, which no message is of
                found.add(attempt_id(f"{event.identity}/{body.op}", body.attempt))
    return found
